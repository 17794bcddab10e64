package bytecode

import (
	"bytes"
	"path"
	"strings"

	"github.com/pybox/pybox/guest/image"
	"github.com/pybox/pybox/guest/tree"
)

// libraries are the folders on the interpreter's search path that an image can
// have; only what is below them can be imported.
var libraries = []string{
	"usr/lib/python" + image.Python + "/",
	"usr/lib/python3/dist-packages/",
	"usr/local/lib/python" + image.Python + "/dist-packages/",
}

// tripletOf, by architecture, stands in the names of files that are of one architecture
// only, such as _sysconfigdata__linux_x86_64-linux-gnu.py.
var tripletOf = map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}

// cacheDir and cacheTag name byte code: PEP 3147.
const cacheDir = "__pycache__"

var cacheTag = ".cpython-" + strings.ReplaceAll(image.Python, ".", "") + ".pyc"

// Target is where the byte code of a source is looked for: both are paths in an
// image.
func Target(source string) string {
	name := strings.TrimSuffix(path.Base(source), ".py")
	return path.Join(path.Dir(source), cacheDir, name+cacheTag)
}

// sources are the files without byte code that modules can be imported from, by
// their paths; a link to a file is a module of its own.
func sources(t *tree.Tree) map[string][]byte {
	out := map[string][]byte{}
	for _, n := range t.Nodes() {
		if path.Ext(n.Path) != ".py" || n.Kind == tree.Dir || !inLibrary(n.Path) || t.Lookup(Target(n.Path)) != nil {
			continue
		}
		if file, _, err := t.Resolve(n.Path); err == nil && file.Kind == tree.File {
			out[n.Path] = file.Data
		}
	}
	return out
}

func inLibrary(p string) bool {
	for _, l := range libraries {
		if rest, ok := strings.CutPrefix(p, l); ok {
			return !strings.Contains("/"+rest, "/"+cacheDir+"/")
		}
	}
	return false
}

// isNative tells whether a source is of one architecture only: by its name or, where it
// is no part of the standard library, by naming one, as numpy/__config__.py does.
func isNative(p string, source []byte) bool {
	for _, t := range tripletOf {
		if strings.Contains(p, t) || !image.IsStandard(p) && bytes.Contains(source, []byte(t)) {
			return true
		}
	}
	return false
}

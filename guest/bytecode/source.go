package bytecode

import (
	"bytes"
	"path"
	"strings"

	"github.com/pybox/pybox/guest/image"
	"github.com/pybox/pybox/guest/layout"
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
var tripletOf = layout.Triplets()

// loaderOf, by architecture, is the name of the dynamic loader, which every program maps.
var loaderOf = map[string]string{"amd64": "ld-linux-x86-64.so.2", "arm64": "ld-linux-aarch64.so.1"}

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
		if !isModule(n) || !hasPlace(t, n.Path) || t.Lookup(Target(n.Path)) != nil {
			continue
		}
		if file, _, err := t.Resolve(n.Path); err == nil && file.Kind == tree.File {
			out[n.Path] = file.Data
		}
	}
	return out
}

// placeless are the sources that an image cannot have byte code of.
func placeless(t *tree.Tree) []string {
	var out []string
	for _, n := range t.Nodes() {
		if isModule(n) && !hasPlace(t, n.Path) {
			out = append(out, n.Path)
		}
	}
	return out
}

func isModule(n *tree.Node) bool {
	return path.Ext(n.Path) == ".py" && n.Kind != tree.Dir && inLibrary(n.Path)
}

// Bounds of a source's path. What comes back of a build lies no deeper than 32 folders
// (package agent/box), and in the guest each path is longer by that of a folder, with
// no more than PATH_MAX in all.
const (
	maxDepth     = 30
	maxPathBytes = 3500
)

// hasPlace tells whether there can be byte code of a source: its name is longer, and
// lies in a folder of its own.
func hasPlace(t *tree.Tree, source string) bool {
	p := Target(source)
	n := t.Lookup(path.Dir(p))
	return (n == nil || n.Kind == tree.Dir) && len(path.Base(p)) <= tree.MaxNameBytes && len(p) <= maxPathBytes && strings.Count(p, "/") <= maxDepth
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

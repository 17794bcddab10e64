package wheel_test

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/pybox/pybox/guest/tree"
	"github.com/pybox/pybox/guest/wheel"
	"github.com/pybox/pybox/guest/wheel/wheeltest"
)

// read reads a wheel of those bytes under that name.
func read(t testing.TB, file string, b []byte) (*wheel.Wheel, error) {
	t.Helper()
	dir := t.TempDir()
	p := filepath.Join(dir, "file")
	if err := os.WriteFile(p, b, 0o600); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(b)
	w, err := wheel.Read(t.Context(), wheel.Source{Path: p, File: file, SHA256: hex.EncodeToString(sum[:])}, wheel.Options{TempDir: dir})
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("%v is left in the folder", left)
	}
	if err == nil {
		t.Cleanup(func() {
			if err := w.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	return w, err
}

func mustRead(t testing.TB, w wheeltest.Wheel) *wheel.Wheel {
	t.Helper()
	got, err := read(t, w.File(), w.Bytes(t))
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// base is a tree with a few files of an image.
func base(t testing.TB, files ...string) *tree.Tree {
	t.Helper()
	tr := tree.New(tree.DefaultLimits)
	for _, p := range append(files, "usr/lib/python3.13/json/__init__.py", "usr/lib/python3.13/abc.py",
		"usr/lib/python3/dist-packages/numpy/__init__.py", "usr/lib/python3/dist-packages/six.py", "usr/lib/python3.13/lib-dynload/_bz2.cpython-313-x86_64-linux-gnu.so") {
		if err := tr.WriteFile(p, []byte("of the image"), tree.Attr{Mode: 0o644}); err != nil {
			t.Fatal(err)
		}
	}
	return tr
}

func install(t testing.TB, tr *tree.Tree, ws ...wheeltest.Wheel) []*wheel.Installed {
	t.Helper()
	in := wheel.NewInstaller(tr)
	var out []*wheel.Installed
	for _, w := range ws {
		i, err := in.Install(mustRead(t, w))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, i)
	}
	return out
}

// added lists what is in the tree below usr/local, "*" after what may be run.
func added(tr *tree.Tree) []string {
	var out []string
	for _, n := range tr.Nodes() {
		p, ok := strings.CutPrefix(n.Path, "usr/local/")
		if !ok || n.Kind != tree.File {
			continue
		}
		if n.Mode == 0o755 {
			p += "*"
		} else if n.Mode != 0o644 {
			p += fmt.Sprintf(" %v", n.Mode)
		}
		if n.UID != 0 || n.GID != 0 {
			p += " owned"
		}
		out = append(out, strings.Replace(p, "lib/python3.13/dist-packages/", "S/", 1))
	}
	return out
}

func text(t testing.TB, tr *tree.Tree, p string) string {
	t.Helper()
	n := tr.Lookup(p)
	if n == nil {
		t.Fatalf("there is no /%s", p)
	}
	return string(n.Data)
}

const site = wheel.Site + "/"

// full has something of everything.
var full = wheeltest.Wheel{
	Name: "Demo_pkg", Version: "1.2", Python: ">=3.9", Requires: []string{"six>=1.16", `tomli; python_version < "3.11"`},
	Files: map[string]string{
		"demo/__init__.py": "X = 1\n", "demo/sub/mod.py": "Y = 2\n", "demo/data, with \"quotes\".txt": "q", "demo/empty.txt": "",
		"demo/tool": "#!/bin/sh\n", "demo/_native.abi3.so": "\x7fELF...", "single.py": "Z = 3\n", "demo/ünï.txt": "u",
		"demo/__pycache__/mod.cpython-313.pyc": "old", "demo/legacy.pyc": "kept",
		"Demo_pkg-1.2.data/scripts/run-demo":      "#!python\nprint(1)\n",
		"Demo_pkg-1.2.data/scripts/run-w":         "#!pythonw -E\nprint(1)\n",
		"Demo_pkg-1.2.data/scripts/sh-demo":       "#!/bin/sh\necho 1\n",
		"Demo_pkg-1.2.data/scripts/demo-cli":      "#!python\nthe wrapper of setuptools\n",
		"Demo_pkg-1.2.data/purelib/pure.py":       "P = 1\n",
		"Demo_pkg-1.2.data/platlib/plat.py":       "Q = 1\n",
		"Demo_pkg-1.2.data/data/share/demo/x.txt": "share",
		"Demo_pkg-1.2.data/headers/demo.h":        "int x;\n",
		"Demo_pkg-1.2.dist-info/licenses/LICENSE": "free",
		"Demo_pkg-1.2.dist-info/INSTALLER":        "somebody else",
		"Demo_pkg-1.2.dist-info/direct_url.json":  "{}",
	},
	Exec:        []string{"demo/tool", "Demo_pkg-1.2.data/scripts/sh-demo"},
	EntryPoints: "[console_scripts]\ndemo-cli = demo.sub.mod:main\n# a comment\nother=demo:Cls.run [extra]\n\n[gui_scripts]\ndemo-gui = demo:gui\n[demo.plugins]\nx = demo\n",
}

func TestInstall(t *testing.T) {
	tr := base(t)
	got := install(t, tr, full)[0]
	want := []string{"S/Demo_pkg-1.2.dist-info/INSTALLER", "S/Demo_pkg-1.2.dist-info/METADATA", "S/Demo_pkg-1.2.dist-info/RECORD",
		"S/Demo_pkg-1.2.dist-info/REQUESTED", "S/Demo_pkg-1.2.dist-info/WHEEL", "S/Demo_pkg-1.2.dist-info/entry_points.txt",
		"S/Demo_pkg-1.2.dist-info/licenses/LICENSE", "S/demo/__init__.py", "S/demo/_native.abi3.so", "S/demo/data, with \"quotes\".txt",
		"S/demo/empty.txt", "S/demo/legacy.pyc", "S/demo/sub/mod.py", "S/demo/tool*", "S/demo/ünï.txt", "S/plat.py", "S/pure.py", "S/single.py",
		"bin/demo-cli*", "bin/demo-gui*", "bin/other*", "bin/run-demo*", "bin/run-w*", "bin/sh-demo*",
		"include/python3.13/Demo_pkg/demo.h", "share/demo/x.txt"}
	slices.Sort(want)
	have := added(tr)
	slices.Sort(have)
	if !slices.Equal(have, want) {
		t.Errorf("installed %q\nwant %q", have, want)
	}
	if got.Files != len(want) || got.Bytes <= 0 || got.Hides != nil || got.Hidden != nil {
		t.Errorf("%+v", got)
	}
	for p, want := range map[string]string{
		"usr/local/bin/run-demo": "#!/usr/bin/python3\nprint(1)\n", "usr/local/bin/run-w": "#!/usr/bin/python3\nprint(1)\n",
		"usr/local/bin/sh-demo":                   "#!/bin/sh\necho 1\n",
		"usr/local/bin/demo-cli":                  "#!/usr/bin/python3\nimport sys\nfrom demo.sub.mod import main\nif __name__ == '__main__':\n    sys.argv[0] = sys.argv[0].removesuffix('.exe')\n    sys.exit(main())\n",
		"usr/local/bin/other":                     "#!/usr/bin/python3\nimport sys\nfrom demo import Cls\nif __name__ == '__main__':\n    sys.argv[0] = sys.argv[0].removesuffix('.exe')\n    sys.exit(Cls.run())\n",
		site + "Demo_pkg-1.2.dist-info/INSTALLER": "pybox\n", site + "Demo_pkg-1.2.dist-info/REQUESTED": "",
		site + "demo/legacy.pyc": "kept",
	} {
		if got := text(t, tr, p); got != want {
			t.Errorf("/%s is %q, want %q", p, got, want)
		}
	}
}

// TestInstalledRecord: the RECORD lists exactly what is there, with right digests.
func TestInstalledRecord(t *testing.T) {
	tr := base(t)
	install(t, tr, full)
	files := map[string]string{}
	for _, n := range tr.Nodes() {
		if rest, ok := strings.CutPrefix(n.Path, "usr/local/"); ok && n.Kind == tree.File {
			name, inSite := strings.CutPrefix(rest, "lib/python3.13/dist-packages/")
			if !inSite {
				name = "../../../" + rest
			}
			files[name] = string(n.Data)
		}
	}
	own := "Demo_pkg-1.2.dist-info/RECORD"
	want := strings.Split(wheeltest.Record(files, own), "\n")
	got := strings.Split(files[own], "\n")
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("%q\nwant %q", got, want)
	}
}

func TestMetadata(t *testing.T) {
	w := mustRead(t, full)
	m := w.Metadata
	if m.Name != "Demo_pkg" || m.Version != "1.2" || m.Summary != "A wheel for tests" || m.RequiresPython != ">=3.9" ||
		!slices.Equal(m.RequiresDist, full.Requires) {
		t.Errorf("%+v", m)
	}
	if got := w.Modules(); !slices.Equal(got, []string{"demo", "plat", "pure", "single"}) {
		t.Errorf("modules %q", got)
	}
	folded := "Metadata-Version: 2.4\r\nName: a\r\nSummary: one\r\n\ttwo\r\n  three\x1b[31m\r\nVersion: 1\r\nProvides-Extra: x\r\nProvides-Extra: y\r\nno field\r\nVersion: 2\r\n"
	m, err := wheel.ParseMetadata([]byte(folded))
	if err != nil || m.Summary != "one two three [31m" || m.Version != "1" || !slices.Equal(m.ProvidesExtra, []string{"x", "y"}) {
		t.Errorf("%+v, %v", m, err)
	}
	for _, bad := range []string{"", "Name: a\nVersion: 1\n", "Metadata-Version: 3.0\nName: a\nVersion: 1\n", "Metadata-Version: 2.1\nName: -\nVersion: 1\n",
		"Metadata-Version: 2.1\nName: a\nVersion: one\n", "Metadata-Version: 2.1\nName: a\nVersion: 1\nSummary: \xff\n", "Metadata-Version: x\nName: a\nVersion: 1\n"} {
		if m, err := wheel.ParseMetadata([]byte(bad)); !errors.Is(err, wheel.ErrMetadata) {
			t.Errorf("%q: %+v, %v", bad, m, err)
		}
	}
}

// TestModulesOfTheImage: which module a program gets is said where there are two.
func TestModulesOfTheImage(t *testing.T) {
	tr := base(t)
	got := install(t, tr, wheeltest.Wheel{Name: "other", Version: "1", Files: map[string]string{
		"json/__init__.py": "", "numpy/__init__.py": "", "six.py": "", "_bz2.py": "", "own.py": "", "abc/data.txt": "no module"}})[0]
	if !slices.Equal(got.Hides, []string{"numpy", "six"}) || !slices.Equal(got.Hidden, []string{"_bz2", "json"}) {
		t.Errorf("%+v", got)
	}
}

func TestConflicts(t *testing.T) {
	one := wheeltest.Wheel{Name: "one", Version: "1", Files: map[string]string{"shared/__init__.py": "same", "shared/x.py": "1", "d/f": "x"}}
	same := wheeltest.Wheel{Name: "same", Version: "1", Files: map[string]string{"shared/__init__.py": "same", "shared/y.py": "2"}}
	tr := base(t)
	install(t, tr, one, same)
	if text(t, tr, site+"shared/__init__.py") != "same" {
		t.Error("the shared file is gone")
	}
	in := wheel.NewInstaller(base(t, "usr/local/share/of-the-image"))
	if _, err := in.Install(mustRead(t, one)); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		files map[string]string
		want  error
		says  string
	}{
		"other bytes":       {map[string]string{"shared/x.py": "2"}, wheel.ErrConflict, "/usr/local/lib/python3.13/dist-packages/shared/x.py is in one-1-py3-none-any.whl too"},
		"the image's":       {map[string]string{"two-1.data/data/share/of-the-image": "2"}, wheel.ErrConflict, "of-the-image is in the image too"},
		"its folder":        {map[string]string{"shared": "2"}, wheel.ErrConflict, "shared is a folder already"},
		"below it":          {map[string]string{"d/f/g": "2", "d/f/h": "3"}, wheel.ErrConflict, "dist-packages/d/f is a folder in it and a file in one-1-py3-none-any.whl; "},
		"below the image's": {map[string]string{"two-1.data/data/share/of-the-image/x": "2"}, wheel.ErrConflict, "share/of-the-image is a folder in it and a file in the image"},
	} {
		_, err := in.Install(mustRead(t, wheeltest.Wheel{Name: "two", Version: "1", Files: c.files}))
		if !errors.Is(err, c.want) || !strings.Contains(fmt.Sprint(err), c.says) || !strings.Contains(fmt.Sprint(err), "two-1-py3-none-any.whl") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestByteCodeStaysOut: byte code that Python would take for that of a source stays out,
// whatever the part of the wheel is called that it comes in.
func TestByteCodeStaysOut(t *testing.T) {
	tr := base(t)
	install(t, tr, wheeltest.Wheel{Name: "evil", Version: "1", Files: map[string]string{
		"evil.py": "", "__pycache__/evil.cpython-313.pyc": "E", "other/__pycache__/x.cpython-313.opt-1.pyc": "E", "other/__pycache__/deep/x.txt": "E",
		"evil-1.data/data/lib/python3.13/dist-packages/__pycache__/beta.cpython-313.pyc": "E",
		"evil-1.data/data/lib/python3.13/dist-packages/pkg/__pycache__/y.cpython-313.so": "E",
		"evil-1.data/purelib/__pycache__/p.cpython-313.pyc":                              "E", "evil-1.data/platlib/q/__pycache__/q.cpython-313.pyc": "E",
		"evil-1.data/data/share/__pycache__/kept": "no module", "evil-1.data/scripts/__pycache__/kept": "no module"}})
	want := []string{"bin/__pycache__/kept*", "share/__pycache__/kept"}
	var got []string
	for _, p := range added(tr) {
		if strings.Contains(p, "__pycache__") {
			got = append(got, p)
		}
	}
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	if list := text(t, tr, site+"evil-1.dist-info/RECORD"); strings.Contains(list, ".pyc") {
		t.Errorf("RECORD:\n%s", list)
	}
}

// TestScripts: the first line of a script is replaced, however much comes at once.
func TestScripts(t *testing.T) {
	big := strings.Repeat("# text\n", 100_000)
	files := map[string]string{"py": "#!python\n" + big, "pyw": "#!pythonw -E " + strings.Repeat("x", 100_000) + "\nrest", "none": "#!python", "short": "#!py",
		"empty": "", "sh": "#!/bin/sh\n" + big, "pyt": "#!pyth\n#!python\n"}
	want := map[string]string{"py": "#!/usr/bin/python3\n" + big, "pyw": "#!/usr/bin/python3\nrest", "none": "#!/usr/bin/python3\n", "short": "#!py", "empty": "",
		"sh": files["sh"], "pyt": files["pyt"]}
	w := wheeltest.Wheel{Name: "s", Version: "1", Files: map[string]string{}}
	for name, content := range files {
		w.Files["s-1.data/scripts/"+name] = content
	}
	tr := base(t)
	install(t, tr, w)
	list := text(t, tr, site+"s-1.dist-info/RECORD")
	for name, content := range want {
		if got := text(t, tr, "usr/local/bin/"+name); got != content {
			t.Errorf("%s: %d bytes, want %d: %.100q", name, len(got), len(content), got)
		}
		sum := sha256.Sum256([]byte(content))
		if row := fmt.Sprintf("../../../bin/%s,sha256=%s,%d\n", name, base64.RawURLEncoding.EncodeToString(sum[:]), len(content)); !strings.Contains(list, row) {
			t.Errorf("no %q in\n%s", row, list)
		}
	}
}

// heap is how much is on the heap.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestScriptsStayOffTheHeap: a small wheel of large scripts is unpacked where all others
// are.
func TestScriptsStayOffTheHeap(t *testing.T) {
	w := wheeltest.Wheel{Name: "x", Version: "1", Files: map[string]string{}}
	body := "#!python\n" + strings.Repeat("#\n", 1<<20)
	for i := range 20 {
		w.Files[fmt.Sprintf("x-1.data/scripts/s%d", i)] = body
	}
	b := w.Bytes(t)
	before := heap()
	got, err := read(t, w.File(), b)
	if err != nil {
		t.Fatal(err)
	}
	if more := heap() - before; more > 4<<20 {
		t.Errorf("%d bytes of the heap for a wheel of %d", more, len(b))
	}
	runtime.KeepAlive(got)
}

// TestClosed: a wheel that was closed is not installed.
func TestClosed(t *testing.T) {
	w := mustRead(t, small())
	if err := errors.Join(w.Close(), w.Close()); err != nil {
		t.Fatal(err)
	}
	tr := base(t)
	if _, err := wheel.NewInstaller(tr).Install(w); !errors.Is(err, wheel.ErrClosed) || len(added(tr)) != 0 {
		t.Errorf("%v, %q", err, added(tr))
	}
	if w.Bytes() != 0 || len(w.Paths()) != 0 {
		t.Errorf("it has %q", w.Paths())
	}
}

package ociimage

import (
	"archive/tar"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/pybox/pybox/guest/internal/guesttest"
	"github.com/pybox/pybox/guest/layout"
	"github.com/pybox/pybox/guest/tree"
)

// fitted flattens members and makes them fit a box on amd64.
func fitted(t *testing.T, env []string, members ...tar.Header) (*tree.Tree, Interpreter, []string, error) {
	t.Helper()
	h := &heap{}
	f := newFlattener(h, tree.DefaultLimits)
	if err := f.apply(strings.NewReader(string(layer(t, members...)))); err != nil {
		t.Fatal(err)
	}
	tr, err := f.tree(t.Context(), h.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	ft := fitter{tree: tr, arch: "amd64"}
	in, err := ft.all(searchPath(&v1.ConfigFile{Config: v1.Config{Env: env}}))
	return tr, in, ft.notes, err
}

// python is an interpreter at a path.
func python(p string) tar.Header {
	h := m("f " + p + " " + program("amd64"))
	h.Mode = 0o755
	return h
}

func withMode(h tar.Header, mode int64) tar.Header {
	h.Mode = mode
	return h
}

func TestFindsPython(t *testing.T) {
	script := withMode(m("f root/.pyenv/shims/python3 #!/bin/sh"), 0o755)
	for name, c := range map[string]struct {
		env     []string
		members []tar.Header
		path    string
		version string
		link    string // of usr/bin/python3, "" for none made
		notes   []string
	}{
		"Debian's": {nil, []tar.Header{python("usr/bin/python3.13"), m("l usr/bin/python3 python3.13")}, "/usr/bin/python3.13", "3.13", "python3.13", nil},
		"without a merged /usr": {nil, []tar.Header{python("bin/python3.9"), m("l bin/python3 python3.9")}, "/bin/python3.9", "3.9", "/bin/python3.9",
			[]string{"/usr/bin/python3 is a link to /bin/python3 now"}},
		"the official images'": {[]string{"LANG=C.UTF-8", "PATH=/usr/local/bin:/usr/local/sbin:/usr/bin"},
			[]tar.Header{python("usr/local/bin/python3.14"), m("l usr/local/bin/python3 python3.14")}, "/usr/local/bin/python3.14", "3.14", "/usr/local/bin/python3.14",
			[]string{"/usr/bin/python3 is a link to /usr/local/bin/python3 now"}},
		"the official images' beside Debian's": {[]string{"PATH=/usr/local/bin:/usr/bin"},
			[]tar.Header{python("usr/local/bin/python3.14"), m("l usr/local/bin/python3 python3.14"), python("usr/bin/python3.13"), m("l usr/bin/python3 python3.13")},
			"/usr/local/bin/python3.14", "3.14", "/usr/local/bin/python3.14", []string{"boxes start /usr/local/bin/python3, as the image's PATH does: /usr/bin/python3 was a link to python3.13"}},
		"beside one that is a program": {[]string{"PATH=/usr/local/bin:/usr/bin"},
			[]tar.Header{python("usr/local/bin/python3.14"), m("l usr/local/bin/python3 python3.14"), python("usr/bin/python3")},
			"/usr/local/bin/python3.14", "3.14", "/usr/local/bin/python3.14", []string{"was something else"}},
		"Debian's first": {[]string{"PATH=relative::/usr/bin:/usr/local/bin"},
			[]tar.Header{python("usr/local/bin/python3.14"), m("l usr/local/bin/python3 python3.14"), python("usr/bin/python3.13"), m("l usr/bin/python3 python3.13")},
			"/usr/bin/python3.13", "3.13", "python3.13", nil},
		"in the user's own folder": {[]string{"PATH=/root/py/bin"},
			[]tar.Header{withMode(m("d root"), 0o700), withMode(python("root/py/bin/python3.12"), 0o700), m("l root/py/bin/python3 python3.12")},
			"/root/py/bin/python3.12", "3.12", "/root/py/bin/python3.12",
			[]string{"is a link to", "/root can be entered by everybody now", "/root/py/bin/python3.12 can be started by everybody now"}},
		"behind a script": {[]string{"PATH=/root/.pyenv/shims:/usr/bin"}, []tar.Header{script, python("usr/bin/python3.13"), m("l usr/bin/python3 python3.13")},
			"/usr/bin/python3.13", "3.13", "python3.13", []string{"passed over /root/.pyenv/shims/python3"}},
		"conda's, without PATH":   {nil, []tar.Header{python("opt/conda/bin/python3.12"), m("l opt/conda/bin/python3 python3.12")}, "/opt/conda/bin/python3.12", "3.12", "/opt/conda/bin/python3.12", []string{"is a link"}},
		"a version by its folder": {nil, []tar.Header{python("usr/bin/python3"), m("f usr/lib/python3.11/os.py x"), m("d usr/lib/python3")}, "/usr/bin/python3", "3.11", "", nil},
		"a version of two folders": {nil, []tar.Header{python("usr/bin/python3"), m("f usr/lib/python3.11/os.py x"), m("f usr/lib/python3.12/os.py x")}, "/usr/bin/python3", "", "",
			[]string{"cannot be told by its name"}},
		"PyPy":                        {nil, []tar.Header{python("opt/pypy/bin/pypy3.10"), m("l usr/bin/python3 /opt/pypy/bin/pypy3.10")}, "/opt/pypy/bin/pypy3.10", "3.10", "/opt/pypy/bin/pypy3.10", nil},
		"a free-threaded one":         {nil, []tar.Header{python("usr/bin/python3.14t"), m("l usr/bin/python3 python3.14t")}, "/usr/bin/python3.14t", "3.14", "python3.14t", nil},
		"through links that go round": {nil, []tar.Header{m("l usr/local/bin/python3 python3"), python("usr/bin/python3.13"), m("l usr/bin/python3 python3.13")}, "/usr/bin/python3.13", "3.13", "python3.13", nil},
		"usr/bin is a link":           {nil, []tar.Header{m("l usr/bin ../bin"), python("bin/python3.13"), m("l bin/python3 python3.13")}, "/bin/python3.13", "3.13", "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			tr, in, notes, err := fitted(t, c.env, c.members...)
			if err != nil {
				t.Fatal(err)
			}
			if in.Path != c.path || in.Version != c.version {
				t.Errorf("%+v", in)
			}
			n, _, err := tr.Resolve(interpreter)
			if err != nil || "/"+n.Path != c.path {
				t.Errorf("usr/bin/python3 leads to %v, %v", n, err)
			}
			if l := tr.Lookup(interpreter); c.link != "" && (l == nil || l.Target != c.link) {
				t.Errorf("%+v", l)
			}
			if len(notes) != len(c.notes) {
				t.Errorf("notes %q", notes)
			}
			for _, want := range c.notes {
				if !contains(notes, want) {
					t.Errorf("no note %q in %q", want, notes)
				}
			}
			for p := n.Path; p != "."; p = dirOf(p) {
				if mode(t, tr, p)&0o001 == 0 {
					t.Errorf("/%s is closed to a box", p)
				}
			}
		})
	}
}

func dirOf(p string) string {
	if i := strings.LastIndexByte(p, '/'); i > 0 {
		return p[:i]
	}
	return "."
}

func TestRefusedPythons(t *testing.T) {
	arm := withMode(m("f usr/bin/python3 "+program("arm64")), 0o755)
	musl := withMode(m("f usr/bin/python3 "+string(guesttest.ELF{Machine: elf.EM_X86_64, Interp: "/lib/ld-musl.so"}.Bytes())), 0o755)
	for name, c := range map[string]struct {
		members []tar.Header
		want    error
		says    string
	}{
		"none":                         {[]tar.Header{m("f usr/bin/python2 x")}, ErrPython, "python:3-slim"},
		"a folder":                     {[]tar.Header{m("d usr/bin/python3")}, ErrPython, "there is no python3"},
		"a link to nothing":            {[]tar.Header{m("l usr/bin/python3 python3.13")}, ErrPython, "there is no python3"},
		"nothing to start":             {[]tar.Header{withMode(python("usr/bin/python3"), 0o644)}, ErrPython, "there is no python3"},
		"a script":                     {[]tar.Header{withMode(m("f usr/bin/python3 #!/bin/sh"), 0o755)}, ErrPython, "/usr/bin/python3: malformed ELF"},
		"for another processor":        {[]tar.Header{arm}, ErrPlatform, "EM_AARCH64"},
		"without its loader":           {[]tar.Header{musl}, ErrPython, "/lib/ld-musl.so"},
		"too old":                      {[]tar.Header{python("usr/bin/python3.8"), m("l usr/bin/python3 python3.8")}, ErrPython, "is Python 3.8, and PyBox needs 3.9 or newer"},
		"too old by its folder":        {[]tar.Header{python("usr/bin/python3"), m("f usr/lib/python3.6/os.py x")}, ErrPython, "Python 3.6"},
		"in a box's own folder":        {[]tar.Header{python("tmp/python3.12"), m("l usr/bin/python3 /tmp/python3.12")}, ErrPython, "it lies in /tmp, where a box has its own folder"},
		"a link in a box's own folder": {[]tar.Header{python("opt/conda/bin/python3"), m("l usr/bin /tmp/bin"), m("d tmp/bin")}, ErrPython, "/usr/bin leads to /tmp"},
		"nowhere to put the link":      {[]tar.Header{python("opt/conda/bin/python3"), m("f usr x")}, ErrPython, "/usr/bin is no folder"},
		"nowhere to put the link ":     {[]tar.Header{python("opt/conda/bin/python3"), m("l usr/bin /nowhere")}, ErrPython, "/usr/bin is no folder"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, _, _, err := fitted(t, nil, c.members...); !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want %v with %q", err, c.want, c.says)
			}
		})
	}
}

// TestFolderInThePlaceOfPython: what is in the place of the link is not taken away
// with the interpreter in it.
func TestFolderInThePlaceOfPython(t *testing.T) {
	for name, c := range map[string]struct {
		env     string
		members []tar.Header
	}{
		"the interpreter in it": {"/usr/bin/python3/bin", []tar.Header{python("usr/bin/python3/bin/python3.13"), m("l usr/bin/python3/bin/python3 python3.13")}},
		"right in it":           {"/usr/bin/python3", []tar.Header{python("usr/bin/python3/python3")}},
		"behind a link":         {"/opt/bin", []tar.Header{python("usr/bin/python3/bin/python3.13"), m("l opt/bin/python3 /usr/bin/python3/bin/python3.13")}},
		"behind a linked bin":   {"/bin/python3", []tar.Header{python("bin/python3/python3"), m("l usr/bin /bin")}},
		"something else in it":  {"/opt/bin", []tar.Header{python("opt/bin/python3"), m("f usr/bin/python3/x 1")}},
		"nothing in it":         {"/opt/bin", []tar.Header{python("opt/bin/python3"), m("d usr/bin/python3")}},
	} {
		tr, _, _, err := fitted(t, []string{"PATH=" + c.env}, c.members...)
		if !errors.Is(err, ErrPython) || !strings.Contains(err.Error(), "/usr/bin/python3 is a folder") {
			t.Errorf("%s: %v", name, err)
		}
		if tr.Len() < 5 {
			t.Errorf("%s: %s", name, listing(tr))
		}
	}
	(&fitter{tree: tree.New(tree.DefaultLimits)}).enter("not/there")
}

func TestFolders(t *testing.T) {
	good := []tar.Header{withMode(m("d ./"), 0o700), python("usr/bin/python3.13"), m("l usr/bin/python3 python3.13")}
	tr, _, notes, err := fitted(t, nil, append(good, m("l tmp var/tmp"), m("f dev/console x"), m("f box/x 1"))...)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range layout.Dirs() {
		if n := tr.Lookup(d); n == nil || n.Kind != tree.Dir {
			t.Errorf("/%s: %+v", d, n)
		}
	}
	if mode(t, tr, ".") != 0o755 {
		t.Errorf("the root has mode %v", mode(t, tr, "."))
	}
	if !contains(notes, "/tmp was a link to var/tmp") || !contains(notes, "/box is not visible") || len(notes) != 2 {
		t.Errorf("%q", notes)
	}
	for _, bad := range []string{"l proc /x", "f sys x", "l dev x", "l box tmp", "f tmp x"} {
		if _, _, _, err := fitted(t, nil, append(good, m(bad))...); !errors.Is(err, layout.Err) || !strings.Contains(err.Error(), strings.Fields(bad)[1]) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

// TestVirtualEnvironment: its packages are found by the interpreter that it is of.
func TestVirtualEnvironment(t *testing.T) {
	members := []tar.Header{python("usr/local/bin/python3.12"), m("l usr/local/bin/python3 python3.12"), m("d usr/local/lib/python3.12/site-packages"),
		withMode(m("d srv"), 0o750),
		{Typeflag: tar.TypeSymlink, Name: "srv/my env/bin/python3", Linkname: "python"},
		{Typeflag: tar.TypeSymlink, Name: "srv/my env/bin/python", Linkname: "/usr/local/bin/python3"},
		{Typeflag: tar.TypeReg, Name: "srv/my env/pyvenv.cfg"},
		{Typeflag: tar.TypeDir, Name: "srv/my env/lib/python3.12/site-packages", Mode: 0o755}}
	tr, in, notes, err := fitted(t, []string{"PATH=/srv/my env/bin:/usr/local/bin"}, members...)
	if err != nil {
		t.Fatal(err)
	}
	if in.Path != "/usr/local/bin/python3.12" {
		t.Errorf("%+v", in)
	}
	n := tr.Lookup("usr/local/lib/python3.12/site-packages/pybox-venv.pth")
	if n == nil || string(n.Data) != "import site; site.addsitedir(\"/srv/my env/lib/python3.12/site-packages\")\n" {
		t.Errorf("%+v", n)
	}
	if !contains(notes, "virtual environment /srv/my env") || mode(t, tr, "srv") != 0o751|0o010 {
		t.Errorf("%q, %v", notes, mode(t, tr, "srv"))
	}
	// Without pyvenv.cfg it is no such thing.
	var plain []tar.Header
	for _, h := range members {
		if !strings.HasSuffix(h.Name, "pyvenv.cfg") {
			plain = append(plain, h)
		}
	}
	tr, _, _, err = fitted(t, []string{"PATH=/srv/my env/bin:/usr/local/bin"}, plain...)
	if err != nil || tr.Lookup("usr/local/lib/python3.12/site-packages/pybox-venv.pth") != nil {
		t.Errorf("%v", err)
	}
}

// TestCopiedInterpreter: one that "venv --copies" made is of no use by another name, so
// what it is a copy of is started, and finds the environment's packages.
func TestCopiedInterpreter(t *testing.T) {
	cfg := func(text string) tar.Header { return m("f venv/pyvenv.cfg " + text) }
	const pth = "usr/local/lib/python3.12/site-packages/pybox-venv.pth"
	base := []tar.Header{python("usr/local/bin/python3.12"), m("l usr/local/bin/python3 python3.12"), m("f usr/local/lib/python3.12/os.py x"), m("d usr/local/lib/python3.12/site-packages")}
	env := []tar.Header{m("d venv/lib/python3.12/site-packages"), python("venv/bin/python3")}
	home := "include-system-site-packages = false\nHome=  /usr/local/bin \nversion = 3.12.1\n"
	for name, c := range map[string]struct {
		members []tar.Header
		path    string
		pth     bool
		note    string
	}{
		"of the one in home": {slices.Concat(base, env, []tar.Header{cfg(home)}), "/usr/local/bin/python3.12", true, "/venv/bin/python3 is a copy in a virtual environment: boxes start /usr/local/bin/python3.12"},
		"by its own name": {slices.Concat(base, []tar.Header{m("d venv/lib/python3.12/site-packages"), python("venv/bin/python3.12"), m("l venv/bin/python3 python3.12"), cfg(home)}),
			"/usr/local/bin/python3.12", true, "boxes start /usr/local/bin/python3.12"},
		"of one that is not there": {slices.Concat([]tar.Header{m("d venv/lib/python3.12/site-packages"), python("venv/bin/python3.12"), m("l venv/bin/python3 python3.12"), cfg("home = /nowhere\n")}),
			"/venv/bin/python3.12", false, "packages of the virtual environment /venv are not found by themselves: its Python is a copy"},
		"of one that is nowhere": {slices.Concat(base, []tar.Header{m("d venv/lib/python3.12/site-packages"), python("venv/bin/python3.12"), m("l venv/bin/python3 python3.12"), cfg("version = 3\n")}),
			"/venv/bin/python3.12", false, "are not found by themselves"},
		"of another version": {slices.Concat(base, []tar.Header{m("d venv/lib/python3.11/site-packages"), python("venv/bin/python3.11"), m("l venv/bin/python3 python3.11"), cfg(home)}),
			"/venv/bin/python3.11", false, "are not found by themselves"},
		"of itself": {slices.Concat([]tar.Header{m("d venv/lib/python3.12/site-packages"), python("venv/bin/python3.12"), m("l venv/bin/python3 python3.12"), cfg("home = /venv/bin\n")}),
			"/venv/bin/python3.12", false, "are not found by themselves"},
		"of a script": {slices.Concat([]tar.Header{m("d venv/lib/python3.12/site-packages"), python("venv/bin/python3.12"), m("l venv/bin/python3 python3.12"), cfg("home = /opt\n"),
			withMode(m("f opt/python3.12 #!/bin/sh"), 0o755)}), "/venv/bin/python3.12", false, "are not found by themselves"},
		"with a library of its own": {slices.Concat([]tar.Header{m("d venv/lib/python3.12/site-packages"), m("f venv/lib/python3.12/os.py x"), python("venv/bin/python3.12"), m("l venv/bin/python3 python3.12"), cfg("home = /nowhere\n")}),
			"/venv/bin/python3.12", false, ""},
		"of no known version": {slices.Concat([]tar.Header{python("opt/bin/python3"), m("l venv/bin/python3 /opt/bin/python3"), cfg(home)}),
			"/opt/bin/python3", false, "are not found by themselves: they are kept by the version"},
		"with packages in /tmp": {slices.Concat(base, []tar.Header{m("d tmp/s"), m("l venv/lib/python3.12/site-packages /tmp/s"), m("l venv/bin/python3 /usr/local/bin/python3.12"), cfg(home)}),
			"/usr/local/bin/python3.12", false, "are not found by themselves: they lie in /tmp"},
		"with a folder for packages in /box": {slices.Concat([]tar.Header{python("opt/bin/python3.12"), m("d box/s"), m("l opt/lib/python3.12/site-packages /box/s"), m("l venv/bin/python3 /opt/bin/python3.12"),
			m("d venv/lib/python3.12/site-packages"), cfg(home)}), "/opt/bin/python3.12", false, "the interpreter's own lie in /box"},
		"with a name that is no UTF-8": {slices.Concat(base, []tar.Header{m("d venv/\xff"), m("l venv/lib/python3.12/site-packages /venv/\xff"), m("l venv/bin/python3 /usr/local/bin/python3.12"), cfg(home)}),
			"/usr/local/bin/python3.12", false, "are not found by themselves: the name of their folder is no UTF-8"},
		"that was imported before": {slices.Concat(base, env, []tar.Header{cfg(home), m("f " + pth + " old")}), "/usr/local/bin/python3.12", true, "are found through /" + pth},
	} {
		t.Run(name, func(t *testing.T) {
			tr, in, notes, err := fitted(t, []string{"PATH=/venv/bin"}, c.members...)
			if err != nil {
				t.Fatal(err)
			}
			if n, _, err := tr.Resolve(interpreter); err != nil || "/"+n.Path != c.path || in.Path != c.path {
				t.Errorf("%+v, %+v, %v", in, n, err)
			}
			if n := tr.Lookup(pth); (n != nil) != c.pth || n != nil && !strings.Contains(string(n.Data), `addsitedir("/venv/lib/python3.12/site-packages")`) {
				t.Errorf("%+v", n)
			}
			if strings.Count(listing(tr), "pybox-venv.pth") > 1 {
				t.Error(listing(tr))
			}
			if c.note != "" && !contains(notes, c.note) {
				t.Errorf("no note %q in %q", c.note, notes)
			}
			if said := contains(notes, "are found through"); said != c.pth {
				t.Errorf("%q", notes)
			}
		})
	}
	if got := homeOf([]byte("home = /x\n" + strings.Repeat("#", maxVenvConfig))); got != "" {
		t.Errorf("of a file that is too large: %q", got)
	}
	if got := homeOf([]byte("home = x\nhomes = /y\nhome\n")); got != "" {
		t.Errorf("got %q", got)
	}
}

// TestPathFileWorks: a real Python takes the line that venv writes, and what a hostile
// name makes of it is a text.
func TestPathFileWorks(t *testing.T) {
	py, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3 here")
	}
	dirs := []string{"/a b/ü", `/a"); print("owned`, "/a\u2028b", `/back\slash`, `/opt/a\x/b`, "/\u200b\ufffd", "/😀"}
	program := "import sys; sys.stdout.buffer.write('\\0'.join(["
	for _, dir := range dirs {
		q, ok := pythonString(dir)
		if !ok {
			t.Errorf("%q is no UTF-8", dir)
		}
		program += q + ","
	}
	out, err := exec.CommandContext(t.Context(), py, "-I", "-S", "-c", program+"]).encode())").Output()
	if err != nil || string(out) != strings.Join(dirs, "\x00") {
		t.Errorf("%q became %q, %v", dirs, out, err)
	}
	if _, ok := pythonString("/\xff"); ok {
		t.Error("what is no UTF-8 was taken")
	}
}

func TestIgnored(t *testing.T) {
	c := &v1.ConfigFile{Config: v1.Config{
		Env: []string{"PATH=/usr/bin", "SECRET=value", "\x1b[2J=x"}, Entrypoint: []string{"/start.sh", "a b"}, Cmd: []string{"python3"}, User: "app\n", WorkingDir: "/srv",
		Volumes: map[string]struct{}{"/data": {}}, ExposedPorts: map[string]struct{}{"80": {}, "81": {}}, Healthcheck: &v1.HealthConfig{}, StopSignal: strings.Repeat("S", 500),
	}}
	got := ignored(c)
	for _, want := range []string{"Env PATH SECRET ", `Entrypoint ["/start.sh" "a b"]`, `Cmd ["python3"]`, `User app\n`, "WorkingDir /srv", "Volumes (1)", "ExposedPorts (2)", "Healthcheck", "StopSignal SSS"} {
		if !contains(got, want) {
			t.Errorf("no %q in %q", want, got)
		}
	}
	for _, s := range got {
		if strings.Contains(s, "value") || strings.Contains(s, "\x1b") || len(s) > 2*maxTextBytes {
			t.Errorf("%q", s)
		}
	}
	if got := ignored(&v1.ConfigFile{}); got != nil {
		t.Errorf("of nothing: %q", got)
	}
}

// TestSearchPath: the image's folders first, each once, and not for ever.
func TestSearchPath(t *testing.T) {
	c := &v1.ConfigFile{Config: v1.Config{Env: []string{"PATH=/x:/usr/bin:../y::/x/../z:/x/"}}}
	if got := searchPath(c); !slices.Equal(got[:4], []string{"x", "usr/bin", "z", "usr/local/bin"}) {
		t.Errorf("%q", got)
	}
	c.Config.Env = []string{"PATH=" + strings.Join(many("/d", 500), ":")}
	if n := len(searchPath(c)); n != maxSearch {
		t.Errorf("%d folders", n)
	}
}

// TestRunnerIsWrittenFor: the oldest Python that is taken reads the program that a box
// begins with.
func TestRunnerIsWrittenFor(t *testing.T) {
	py, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3 here")
	}
	const check = "import ast, sys; ast.parse(open(sys.argv[1], encoding='utf-8').read(), feature_version=(3, int(sys.argv[2])))"
	run := func(file string, minor int) error {
		out, err := exec.CommandContext(t.Context(), py, "-I", "-S", "-c", check, file, strconv.Itoa(minor)).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
	if err := run("../../agent/runner/runner.py", MinMinor); err != nil {
		t.Error(err)
	}
	later := filepath.Join(t.TempDir(), "later.py")
	if err := os.WriteFile(later, []byte("match x:\n    case 1: pass\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := run(later, MinMinor); err == nil {
		t.Error("what Python 3.10 brought was taken: the test cannot fail")
	}
}

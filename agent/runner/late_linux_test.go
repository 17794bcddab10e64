package runner

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestLateNames: whatever the program is called, the interpreter that was started
// before runs it under that name.
func TestLateNames(t *testing.T) {
	const program = `import inspect, sys
def f(): pass
print(ascii([__file__.rpartition("/")[2], sys.argv, sys.orig_argv[1:], inspect.getsource(f), sys.path[0] == __file__.rpartition("/")[0]]))
`
	for name, args := range map[string][]string{
		"a.py":                            nil,
		"größe 😀.py":                      {"", "ä", "--x"},
		strings.Repeat("n", MaxNameBytes): {strings.Repeat("a", MaxArgsBytes-1)},
		strings.Repeat("😀", 63) + "abc":   {strings.Repeat("x", 200), strings.Repeat("y", 200)},
	} {
		for _, env := range [][]string{baseEnv, append([]string{"LC_ALL=C", "PYTHONUTF8=0", "PYTHONCOERCECLOCALE=0"}, baseEnv...)} {
			late := boxSpec{env: env, args: append([]string{name}, args...), late: true}.mustStart(t)
			late.start(name, program)
			cold := newBox(t, env, append([]string{name}, args...)...)
			cold.start(name, program)
			l, c := late.finish(), cold.finish()
			if l != c || l.status != 0 || !strings.Contains(l.out, "True]") {
				t.Errorf("%.20q: %v %.300s %s\nwant   %v %.300s %s", name, l.status, l.out, l.err, c.status, c.out, c.err)
			}
		}
	}
}

// TestLateKernel: the kernel shows the name and the arguments, as far as there is room.
func TestLateKernel(t *testing.T) {
	const program = "print(ascii(open('/proc/self/cmdline', 'rb').read().split(b'\\0', 1)[1]))\n"
	for name, c := range map[string]struct{ args, want string }{
		"fits":  {"arg", "b'" + "m.py\\x00arg" + strings.Repeat(`\x00`, MaxNameBytes+1-len("m.py arg")) + "'\n"},
		"fills": {strings.Repeat("a", 250), "b'" + "m.py\\x00" + strings.Repeat("a", 250) + `\x00` + "'\n"},
		"cut":   {strings.Repeat("a", 300), "b'" + "m.py\\x00" + strings.Repeat("a", 250) + `\x00` + "'\n"},
	} {
		b := boxSpec{env: baseEnv, args: []string{"m.py", c.args}, late: true}.mustStart(t)
		b.start("m.py", program)
		if r := b.finish(); r.out != c.want {
			t.Errorf("%s: %s\nwant %s", name, r.out, c.want)
		}
	}
}

// TestImportedAhead: modules are there before the program, and stay.
func TestImportedAhead(t *testing.T) {
	b := boxSpec{env: baseEnv, args: []string{"m.py"}, late: true, modules: []string{"json.decoder", "colorsys"}}.mustStart(t)
	b.start("m.py", "import sys\nprint('json' in sys.modules, 'json.decoder' in sys.modules, 'colorsys' in sys.modules, 'json' in dir())\n")
	if r := b.finish(); r.out != "True True True False\n" || r.status != 0 {
		t.Errorf("%+v", r)
	}
	_, err := boxSpec{env: baseEnv, args: []string{"m.py"}, late: true, modules: []string{"no_such_module"}}.start(t)
	if !errors.Is(err, ErrBroken) || errors.Is(err, ErrUnable) || !strings.Contains(err.Error(), "no_such_module") {
		t.Errorf("a module that is not there: %v", err)
	}
}

// TestImportPrints: what a module prints when it is imported never comes before what the
// program prints, and more than a pipe holds keeps nobody waiting.
func TestImportPrints(t *testing.T) {
	dir := t.TempDir()
	for name, source := range map[string]string{
		"prints_much":   "print('x' * (1 << 20))",
		"prints_errors": "import sys\nsys.stderr.write('x')",
		"prints_below":  "import os\nos.write(1, b'x')",
	} {
		if err := os.WriteFile(filepath.Join(dir, name+".py"), []byte(source), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	env := append([]string{"PYTHONPATH=" + dir}, baseEnv...)
	for _, name := range []string{"this", "prints_much", "prints_errors", "prints_below"} {
		_, err := boxSpec{env: env, args: []string{"m.py"}, late: true, modules: []string{"colorsys", name}}.start(t)
		if !errors.Is(err, ErrUnable) || !strings.Contains(err.Error(), name+" prints") {
			t.Errorf("%s: %v", name, err)
		}
	}
	b := boxSpec{env: env, args: []string{"m.py"}, late: true, modules: []string{"colorsys"}}.mustStart(t)
	b.start("m.py", "import os, sys\nprint('mine', sorted(os.listdir('/proc/self/fd')))\nsys.stderr.write('too')")
	if r := b.finish(); r.out != "mine ['0', '1', '2', '3']\n" || r.err != "too" {
		t.Errorf("%+v", r)
	}
}

// TestNoPlaceholder: an interpreter that does not have the name where it is looked for
// says so, and no program is started.
func TestNoPlaceholder(t *testing.T) {
	s := boxSpec{env: baseEnv, args: []string{"m.py"}, late: true}
	s.other = []string{"-c", "pass"} // sys.argv[0] is that, and no file is
	_, err := s.start(t)
	if !errors.Is(err, ErrUnable) || !errors.Is(err, ErrBroken) {
		t.Errorf("%v, want %v", err, ErrUnable)
	}
}

func TestNameOrder(t *testing.T) {
	cold := newBox(t, baseEnv, "m.py")
	if err := cold.conn.Name(cold.ctx(), "m.py", nil); !errors.Is(err, ErrOrder) {
		t.Errorf("a name for a program that has one: %v", err)
	}
	b := boxSpec{env: baseEnv, args: []string{"m.py"}, late: true}.mustStart(t)
	if err := b.conn.Go(b.ctx()); !errors.Is(err, ErrOrder) {
		t.Errorf("a program without a name: %v", err)
	}
	for _, c := range []struct {
		name string
		args []string
		want error
	}{
		{"../m.py", nil, ErrName}, {"a/m.py", nil, ErrOrder}, {"", nil, ErrName},
		{"m.py", []string{"a\x00b"}, fs.ErrInvalid}, {"m.py", []string{strings.Repeat("a", MaxArgsBytes)}, fs.ErrInvalid},
	} {
		if err := b.conn.Name(b.ctx(), c.name, c.args); !errors.Is(err, c.want) {
			t.Errorf("%q: %v, want %v", c.name, err, c.want)
		}
	}
	// None of these was sent, and none is in the way.
	b.start("m.py", "import sys; print(sys.argv)")
	if err := b.conn.Name(b.ctx(), "other.py", nil); !errors.Is(err, ErrOrder) {
		t.Errorf("a second name: %v", err)
	}
	if r := b.finish(); r.out != "['m.py']\n" {
		t.Errorf("%+v", r)
	}
}

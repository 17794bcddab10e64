package runner

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// compileAs writes byte code as an image has it, below a new folder: that of
// source, under the hash of hashed.
func compileAs(t testing.TB, source, hashed []byte) string {
	t.Helper()
	dir := t.TempDir()
	for name, data := range map[string][]byte{"source": source, "hashed": hashed} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(interpreter(t), "-c", `
import importlib.util as u, marshal, os
code = compile(open("source").read(), "/x/sitecustomize.py", "exec", dont_inherit=True)
name = u.cache_from_source("lib/sitecustomize.py")
os.makedirs(os.path.dirname(name))
with open(name, "wb") as f:
    f.write(u.MAGIC_NUMBER + b"\1\0\0\0" + u.source_hash(open("hashed", "rb").read()) + marshal.dumps(code))
`)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return dir
}

// readBytecode takes the byte code below dir as if a runner had sent it.
func readBytecode(t testing.TB, dir string) Bytecode {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "lib/__pycache__/*.pyc"))
	if err != nil || len(found) != 1 {
		t.Fatalf("%q, %v", found, err)
	}
	b, err := os.ReadFile(found[0])
	if err != nil {
		t.Fatal(err)
	}
	code := decodeBytecode(append([]byte(filepath.Base(found[0])+"\x00"), b...))
	if code == nil {
		t.Fatalf("%s is of no use", found[0])
	}
	return code
}

// TestAskBytecode gives a box what another has made of the runner.
func TestAskBytecode(t *testing.T) {
	first := boxSpec{env: baseEnv, args: []string{"main.py"}, ask: true}.mustStart(t)
	if len(first.learned) != 1 {
		t.Fatalf("%d files of byte code", len(first.learned))
	}
	first.start("main.py", "print('first')")
	if r := first.finish(); r.out != "first\n" || r.err != "" {
		t.Errorf("%+v", r)
	}
	for name, made := range readBytecode(t, compileAs(t, source, source)) {
		if got := first.learned[name]; !bytes.Equal(got[:16], made[:16]) {
			t.Errorf("%s begins with %x, want %x", name, got, made[:16])
		}
	}
	// Code of another protocol, put behind the header, shows that it is used.
	other := bytes.Replace(source, []byte(`b"R\x03"`), []byte(`b"R\x09"`), 1)
	for name, made := range readBytecode(t, compileAs(t, other, other)) {
		changed := Bytecode{name: append(bytes.Clone(first.learned[name][:16]), made[16:]...)}
		if _, err := (boxSpec{env: baseEnv, args: []string{"main.py"}, code: []Bytecode{changed}}).start(t); !errors.Is(err, ErrProtocol) {
			t.Errorf("a header that was learned does not go with the source: %v", err)
		}
	}
	for _, late := range []bool{false, true} {
		next := boxSpec{env: baseEnv, args: []string{"main.py"}, code: []Bytecode{first.learned}, late: late}.mustStart(t)
		next.start("main.py", "print('next')")
		if r := next.finish(); r.out != "next\n" || r.err != "" {
			t.Errorf("%+v", r)
		}
	}
}

func TestBytecode(t *testing.T) {
	box := func(code Bytecode) (*testBox, error) {
		return boxSpec{env: baseEnv, args: []string{"main.py"}, code: []Bytecode{code}}.start(t)
	}
	b, err := box(readBytecode(t, compileAs(t, source, source)))
	if err != nil {
		t.Fatal(err)
	}
	noFolder(t, b.work)
	b.start("main.py", "import sys; print('ran', sys.path[0] + '/main.py' == __file__, len(sys.path))")
	if r := b.finish(); !strings.HasPrefix(r.out, "ran True") || r.err != "" {
		t.Errorf("%+v", r)
	}

	// Another runner's code, which speaks another protocol, shows which one runs.
	other := bytes.Replace(source, []byte(`b"R\x03"`), []byte(`b"R\x09"`), 1)
	if _, err := box(readBytecode(t, compileAs(t, other, source))); !errors.Is(err, ErrProtocol) {
		t.Errorf("the byte code is not used: %v", err)
	}
	if _, err := box(readBytecode(t, compileAs(t, other, other))); err != nil {
		t.Errorf("byte code of another source is used: %v", err)
	}
	if _, err := box(Bytecode{"sitecustomize.cpython-399.pyc": []byte("of another version")}); err != nil {
		t.Error(err)
	}
}

// TestHostileBytecode has an init answer the question for byte code in ways that no runner
// does.
func TestHostileBytecode(t *testing.T) {
	longest := "sitecustomize." + strings.Repeat("x", 40) + ".opt-" + strings.Repeat("x", 8) + ".pyc"
	whole := "C" + "sitecustomize.cpython-313.pyc\x00" + string(pyc(1, 100))
	for name, c := range map[string]struct {
		messages []string
		want     error
		code     int
	}{
		"longest":         {[]string{"C" + longest + "\x00" + string(pyc(1, maxBytecodeBytes)), "R\x03"}, nil, 1},
		"longest, cut":    {[]string{"C" + longest + "\x00" + string(pyc(1, 80000)), "R\x03"}, nil, 0},
		"sound":           {[]string{whole, "R\x03"}, nil, 1},
		"none":            {[]string{"C", "R\x03"}, nil, 0},
		"too long":        {[]string{whole + strings.Repeat("x", maxBytecodeMessage), "R\x03"}, nil, 0},
		"none, and ready": {[]string{"R\x03"}, ErrProtocol, 0},
		"twice":           {[]string{whole, whole}, ErrProtocol, 0},
		"broken":          {[]string{"Bsorry"}, ErrBroken, 0},
		"nothing":         {[]string{""}, ErrGone, 0},
		"gone":            {nil, ErrGone, 0},
	} {
		t.Run(name, func(t *testing.T) {
			work := workFolder(t)
			l, err := Prepare(work, os.Getuid(), os.Getgid())
			if err != nil {
				t.Fatal(err)
			}
			l.AskBytecode()
			peer := dial(t, work)
			for _, m := range c.messages {
				say(t, peer, m)
			}
			if c.want != nil {
				_ = peer.CloseWrite()
			}
			r, w := pipe(t)
			conn, err := l.Accept(t.Context(), os.Getpid(), r, w, w)
			if !errors.Is(err, c.want) || c.want == nil && len(l.Bytecode()) != c.code {
				t.Errorf("%v, want %v; %d files, want %d", err, c.want, len(l.Bytecode()), c.code)
			}
			if conn != nil {
				_ = conn.Close()
			}
		})
	}
}

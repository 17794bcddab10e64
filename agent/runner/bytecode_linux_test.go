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

func readBytecode(t testing.TB, dir string) Bytecode {
	t.Helper()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	code, err := ReadBytecode(root.FS(), "lib")
	if err != nil || len(code) != 1 {
		t.Fatalf("%d files, %v", len(code), err)
	}
	return code
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

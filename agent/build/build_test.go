package build

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pybox/pybox/guest/layout"
)

// runTime bounds one run of the program in a test, many times what it takes.
const runTime = time.Minute

func python(t *testing.T) string {
	t.Helper()
	p, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("SKIPPED, THE COMPILING PROGRAM WAS NOT TESTED: there is no python3")
	}
	return p
}

// compiled is what a run of the program leaves behind.
type compiled struct {
	code   int
	output string
	files  map[string][]byte // by path relative to OUT and the folder of sources
}

// compile runs the program over dir with so many workers, into out.
func compile(t *testing.T, out string, workers int, dir string) compiled {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), runTime)
	defer cancel()
	name := filepath.Join(t.TempDir(), "build.py")
	if err := os.WriteFile(name, Program(), 0o600); err != nil {
		t.Fatal(err)
	}
	text, err := exec.CommandContext(ctx, python(t), "-I", name, out, strconv.Itoa(workers), dir).CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	c := compiled{output: string(text), files: map[string][]byte{}}
	if exit != nil {
		c.code = exit.ExitCode()
	}
	base := filepath.Join(out, dir)
	err = filepath.WalkDir(base, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(base, p)
		if err != nil {
			return err
		}
		c.files[rel], err = os.ReadFile(p)
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return c
}

// sources writes files below a new folder.
func sources(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// ask evaluates an expression in this python3.
func ask(t *testing.T, expression string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), runTime)
	defer cancel()
	b, err := exec.CommandContext(ctx, python(t), "-I", "-c", "import sys, importlib.util; print("+expression+")").Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

// many are modules whose byte code has what could differ from run to run: sets,
// strings, numbers, nested functions.
func many(n int) map[string]string {
	files := map[string]string{}
	for i := range n {
		files[fmt.Sprintf("m%03d.py", i)] = fmt.Sprintf(
			"def f(x, y=%d.5):\n    return x in {'a', 'b', 'c%d', 3.25} or (lambda: ('a', y, %d))\n", i, i, i*1000)
	}
	return files
}

func TestCompile(t *testing.T) {
	files := many(150)
	files["package/__init__.py"] = "from . import inner"
	files["package/inner.py"] = "X = 1"
	files["no python.txt"] = "x"
	files["dotted.name.py"] = "X = '\\d'" // an invalid escape, which warns
	files["bad.py"] = "print 'old'"
	files["nul.py"] = "X = 1\x00"
	files["coding.py"] = "# -*- coding: nonsense -*-\n"
	files["deep.py"] = "X = a" + strings.Repeat(".b", 200_000)
	bad := []string{"bad.py", "coding.py", "deep.py", "nul.py"}
	if ask(t, "sys.version_info >= (3, 12)") == "True" { // before, it cannot be told from memory that ran out
		files["parser.py"] = "X = " + strings.Repeat("-", 200_000) + "1"
		bad = append(bad, "parser.py")
	}
	tag := ask(t, "sys.implementation.cache_tag")
	files["__pycache__/here."+tag+".pyc"] = "there already"
	files["here.py"] = "X = 1"
	dir := sources(t, files)
	if err := os.Symlink("package/inner.py", filepath.Join(dir, "link.py")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("nothing", filepath.Join(dir, "dangling.py")); err != nil {
		t.Fatal(err)
	}
	one, three := compile(t, t.TempDir(), 1, dir), compile(t, t.TempDir(), 3, dir)
	if one.code != 0 || three.code != 0 {
		t.Fatalf("exit codes %d and %d:\n%s", one.code, three.code, one.output)
	}
	for _, name := range bad {
		if !strings.Contains(one.output, "not compiled: "+dir+"/"+name+": ") {
			t.Errorf("nothing about %q in\n%s", name, one.output)
		}
		pyc := "__pycache__/" + strings.TrimSuffix(name, ".py") + "." + tag + ".pyc"
		if b, ok := one.files[pyc]; !ok || len(b) != 0 {
			t.Errorf("%s: %d bytes, %v: no empty file says that it cannot be compiled", name, len(b), ok)
		}
		delete(one.files, pyc)
		delete(three.files, pyc)
	}
	if n := strings.Count(one.output, "not compiled: "); n != len(bad) || strings.Contains(one.output, "Warning") {
		t.Errorf("%d files were not compiled:\n%s", n, one.output)
	}
	if want := fmt.Sprintf("compiled 154 of %d files\n", 154+len(bad)); !strings.HasSuffix(one.output, want) {
		t.Errorf("no %q in\n%s", want, one.output)
	}
	var want []string
	for name := range many(150) {
		want = append(want, "__pycache__/"+strings.TrimSuffix(name, ".py")+"."+tag+".pyc")
	}
	want = append(want, "__pycache__/dotted.name."+tag+".pyc", "__pycache__/link."+tag+".pyc",
		"package/__pycache__/__init__."+tag+".pyc", "package/__pycache__/inner."+tag+".pyc")
	slices.Sort(want)
	if got := slices.Sorted(maps.Keys(one.files)); !slices.Equal(got, want) {
		t.Errorf("compiled: %q, want %q", got, want)
	}
	if !maps.EqualFunc(one.files, three.files, bytes.Equal) {
		t.Error("three workers make other byte code than one")
	}
}

// TestHeader: a hash-based, unchecked header (PEP 552).
func TestHeader(t *testing.T) {
	const text = "X = 'a module'\n"
	dir := sources(t, map[string]string{"m.py": text})
	c := compile(t, t.TempDir(), 1, dir)
	pyc := c.files["__pycache__/m."+ask(t, "sys.implementation.cache_tag")+".pyc"]
	if len(pyc) < 16 {
		t.Fatalf("%d bytes: %s", len(pyc), c.output)
	}
	if flags := binary.LittleEndian.Uint32(pyc[4:]); flags != 1 {
		t.Errorf("flags %#x, want 1", flags)
	}
	got := fmt.Sprintf("%x %x", pyc[:4], pyc[8:16])
	if want := ask(t, fmt.Sprintf("importlib.util.MAGIC_NUMBER.hex(), importlib.util.source_hash(%q.encode()).hex(), sep=' '", text)); got != want {
		t.Errorf("magic and hash %s, want %s", got, want)
	}
}

// TestFails: whatever is no fault of a source ends the program with 1.
func TestFails(t *testing.T) {
	dir := sources(t, many(3))
	out := t.TempDir()
	taken := filepath.Join(out, dir, "__pycache__", "m001."+ask(t, "sys.implementation.cache_tag")+".pyc")
	if err := os.MkdirAll(taken, 0o755); err != nil {
		t.Fatal(err)
	}
	if c := compile(t, out, 2, dir); c.code != 1 || !strings.Contains(c.output, "FileExistsError") || !strings.Contains(c.output, "a worker failed: ") {
		t.Errorf("exit code %d:\n%s", c.code, c.output)
	}
	if c := compile(t, t.TempDir(), 2, filepath.Join(dir, "nothing")); c.code != 1 || !strings.Contains(c.output, "FileNotFoundError") {
		t.Errorf("exit code %d:\n%s", c.code, c.output)
	}
}

// TestMemory: that memory ran out is no fault of a source.
func TestMemory(t *testing.T) {
	dir := sources(t, map[string]string{"a.py": "X = 1\n"})
	program := filepath.Join(t.TempDir(), "compile_all.py")
	if err := os.WriteFile(program, Program(), 0o600); err != nil {
		t.Fatal(err)
	}
	const wrapper = `
import sys
sys.path.insert(0, sys.argv[1])
import compile_all
def fail(file, **_):
    raise compile_all.py_compile.PyCompileError(%[1]s, %[1]s("%[2]s"), file)
compile_all.py_compile.compile = fail
sys.exit(compile_all.main(["", *sys.argv[2:]]))
`
	for _, c := range []struct {
		kind, text string
		code       int
	}{{"MemoryError", "", 1}, {"OSError", "", 1}, {"SystemError", "", 1}, {"MemoryError", "Parser stack overflowed - Python source too complex to parse", 0},
		{"IndentationError", "", 0}, {"UnicodeError", "", 0}, {"RecursionError", "", 0}} {
		ctx, cancel := context.WithTimeout(t.Context(), runTime)
		cmd := exec.CommandContext(ctx, python(t), "-I", "-c", fmt.Sprintf(wrapper, c.kind, c.text), filepath.Dir(program), t.TempDir(), "1", dir)
		text, _ := cmd.CombinedOutput()
		cancel()
		if got := cmd.ProcessState.ExitCode(); got != c.code {
			t.Errorf("%s %q: exit code %d:\n%s", c.kind, c.text, got, text)
		}
	}
}

// TestApart: what is compiled apart gets the names that it will have, and no code of it
// runs: not as modules of Python's start nor as what is recorded.
func TestApart(t *testing.T) {
	const site = "usr/local/lib/python3.13/dist-packages/"
	mark := filepath.Join(t.TempDir(), "ran")
	evil := "open(" + strconv.Quote(mark) + ", 'w')\n"
	root := sources(t, map[string]string{site + "good.py": "def f(): return __file__\n", site + "bad.py": "(", site + "numpy/__init__.py": evil,
		site + "sitecustomize.py": evil, site + "usercustomize.py": evil, site + "evil.pth": "import os;" + evil, site + "encodings/nonsense.py": evil,
		site + "codec.py": "# -*- coding: nonsense -*-\n", "usr/lib/python3.13/warnings.py": evil})
	name, out := filepath.Join(t.TempDir(), "build.py"), t.TempDir()
	if err := os.WriteFile(name, Program(), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), runTime)
	defer cancel()
	text, err := exec.CommandContext(ctx, python(t), name, "--apart", root, out, "2").CombinedOutput()
	if err != nil || !strings.Contains(string(text), "not compiled: /"+site+"bad.py: SyntaxError") || strings.Contains(string(text), "recorded") {
		t.Fatalf("%v\n%s", err, text)
	}
	if _, err := os.Stat(mark); err == nil {
		t.Error("code of what was compiled has run")
	}
	if _, err := os.Stat(filepath.Join(out, layout.Preread)); err == nil {
		t.Error("something was recorded")
	}
	tag := ask(t, "sys.implementation.cache_tag")
	pyc, err := os.ReadFile(filepath.Join(out, site, "__pycache__/good."+tag+".pyc"))
	if err != nil || !bytes.Contains(pyc, []byte("/"+site+"good.py")) || bytes.Contains(pyc, []byte(root)) {
		t.Errorf("%q, %v", pyc, err)
	}
	if st, err := os.Stat(filepath.Join(out, site, "__pycache__/bad."+tag+".pyc")); err != nil || st.Size() != 0 {
		t.Errorf("%v, %v", st, err)
	}
}

func TestVersion(t *testing.T) {
	if v := Version(); len(v) != 64 {
		t.Errorf("%q", v)
	}
	Program()[0] = 'x'
	if !bytes.HasPrefix(Program(), []byte(`"""Compile`)) {
		t.Error("the program was changed")
	}
}

// TestRecord: what imports touch is listed, byte code in the place of sources.
func TestRecord(t *testing.T) {
	dir := t.TempDir()
	name, out := filepath.Join(dir, "build.py"), filepath.Join(dir, "out")
	if err := os.WriteFile(name, Program(), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), runTime)
	defer cancel()
	text, err := exec.CommandContext(ctx, python(t), "-I", name, "--record", out).CombinedOutput()
	if err != nil || !strings.Contains(string(text), "recorded ") {
		t.Fatalf("%v\n%s", err, text)
	}
	list, err := os.ReadFile(filepath.Join(out, layout.Preread))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(string(list), "\n"), "\n")
	if !slices.IsSorted(lines) || len(slices.Compact(slices.Clone(lines))) != len(lines) {
		t.Errorf("out of order, or twice: %q", lines)
	}
	decoder := ask(t, "importlib.util.cache_from_source(importlib.util.find_spec('json.decoder').origin)")
	for _, want := range []string{decoder, ask(t, "__import__('os').path.realpath(sys.executable)")} {
		if !slices.Contains(lines, want[1:]) {
			t.Errorf("%s is not in the list of %d files", want, len(lines))
		}
	}
	for _, l := range lines {
		if strings.HasSuffix(l, ".py") || strings.HasPrefix("/"+l, dir) {
			t.Errorf("%s is no file of the image that is read", l)
		} else if _, err := os.Stat("/" + l); err != nil && !strings.HasSuffix(l, ".pyc") {
			t.Error(err)
		}
	}
}

package python_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pybox/pybox/guest/wheel"
	"github.com/pybox/pybox/host/version"
)

// installTime bounds one command. One of them compiles all of PyBox.
const installTime = 14 * time.Minute

// venv is a virtual environment that nothing was installed into.
type venv struct {
	t      *testing.T
	folder string
}

func newVenv(t *testing.T, python string) venv {
	t.Helper()
	folder, err := filepath.EvalSymlinks(t.TempDir()) // macOS has its temporary folders behind a link
	if err != nil {
		t.Fatal(err)
	}
	v := venv{t, filepath.Join(folder, "venv")}
	run(t, nil, python, "-m", "venv", v.folder) // scripts/deps test installs it where it is missing
	return v
}

// run runs a command and gives what it prints.
func run(t *testing.T, env []string, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), installTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1", "PYTHONPATH=", "PIP_CONFIG_FILE="+os.DevNull, "PIP_NO_INDEX=1",
		"PIP_DISABLE_PIP_VERSION_CHECK=1", "PIP_NO_CACHE_DIR=1", "PIP_NO_INPUT=1", "PYBOX_BINARY=", "PYBOX_VERSION=")
	cmd.Env = append(cmd.Env, env...)
	cmd.Dir = t.TempDir()
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return string(out)
}

func (v venv) bin(name string) string { return filepath.Join(v.folder, "bin", name) }

// expect looks at what was installed.
func (v venv) expect(client string) {
	v.t.Helper()
	if out := run(v.t, nil, v.bin("pybox"), "version"); !strings.HasPrefix(out, "pybox "+version.Number) {
		v.t.Errorf("the command says %q", out)
	}
	run(v.t, nil, v.bin("python"), "-m", "pip", "check")
	out := run(v.t, []string{"PYBOX_BIN="}, v.bin("python"), "-c", "import pybox, pybox._host as h; print(pybox.__file__, h.command(), pybox.run_container.__name__)")
	file, rest, _ := strings.Cut(strings.TrimSpace(out), " ")
	if !strings.HasPrefix(file, client+"/") || rest != v.bin("pybox")+" run_container" {
		v.t.Errorf("the client is %s, want one below %s; %s", file, client, rest)
	}
}

// files are those that are there now, but for what Python writes as it pleases.
func (v venv) files() (names []string) {
	v.t.Helper()
	err := filepath.WalkDir(v.folder, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() && !strings.Contains(path, "__pycache__") {
			names = append(names, path)
		}
		return err
	})
	if err != nil {
		v.t.Fatal(err)
	}
	return names
}

// TestE2EInstall: pip installs an sdist, of which it builds the command, and removes all of
// it again; and this tree, in each way that pip has for one. It is an end-to-end test since
// those run after 'make build', which has compiled nearly all that this one has compiled.
//
// One Python is enough for the sdist. The others install what was built, and the oldest and
// the newest, whose pip differ most, build of the tree: with PYBOX_TEST_ALL_PYTHONS alone.
func TestE2EInstall(t *testing.T) {
	if os.Getenv("PYBOX_E2E") == "" {
		t.Skip("PYBOX_E2E is not set: 'make e2e' runs this")
	}
	there := pythons(t)
	first := usual(t, there)
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	python := there[first]
	dist := t.TempDir()
	run(t, []string{"PYBOX_BINARY=none"}, python, filepath.Join(root, "python", "backend", "pybox_backend.py"), dist)
	sdist := only(t, filepath.Join(dist, "*.tar.gz"))

	v := newVenv(t, python)
	before := v.files()
	run(t, nil, v.bin("python"), "-m", "pip", "install", sdist)
	v.expect(v.folder)
	pybox := filepath.Join(t.TempDir(), "pybox")
	data, err := os.ReadFile(v.bin("pybox"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(pybox, data, 0o700); err != nil {
		t.Fatal(err)
	}
	run(t, nil, v.bin("python"), "-m", "pip", "uninstall", "--yes", "pybox-sandbox")
	if after := v.files(); !slices.Equal(before, after) {
		t.Errorf("there was\n%q\nand what is left is\n%q", before, after)
	}

	dist = t.TempDir()
	binary := []string{"PYBOX_BINARY=" + pybox}
	run(t, binary, python, filepath.Join(root, "python", "backend", "pybox_backend.py"), dist)
	built := only(t, filepath.Join(dist, "*.whl"))
	readWheel(t, built)
	for name, python := range there {
		if !all() && name != first {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := newVenv(t, python)
			if name != first && name != "3.9" && name != "3.13" {
				run(t, nil, v.bin("python"), "-m", "pip", "install", built)
				v.expect(v.folder)
				return
			}
			run(t, binary, v.bin("python"), "-m", "pip", "install", root)
			v.expect(v.folder)
			run(t, binary, v.bin("python"), "-m", "pip", "install", "--force-reinstall", "--no-build-isolation", "--editable", root)
			v.expect(filepath.Join(root, "python"))
		})
	}
}

// readWheel has our own reader of wheels, which is strict, read one.
func readWheel(t *testing.T, path string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(data)
	w, err := wheel.Read(t.Context(), wheel.Source{Path: path, File: filepath.Base(path), SHA256: hex.EncodeToString(sum[:])}, wheel.Options{TempDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	if w.Metadata.Name != "pybox-sandbox" || len(w.Tags) == 0 {
		t.Errorf("%+v, tags %v", w.Metadata, w.Tags)
	}
}

// only is the one file that a pattern names.
func only(t *testing.T, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(pattern)
	if err != nil || len(found) != 1 {
		t.Fatalf("%s: %v, %v", pattern, found, err)
	}
	return found[0]
}

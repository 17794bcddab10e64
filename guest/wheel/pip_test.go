package wheel_test

import (
	"context"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pybox/pybox/guest/tree"
	"github.com/pybox/pybox/guest/wheel"
)

// pipTime bounds one call of pip, many times what it takes.
const pipTime = 2 * time.Minute

// pip installs the one wheel of a folder and returns the files of it.
func pip(t *testing.T, links, requirement string) map[string]string {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("SKIPPED, NOTHING WAS COMPARED WITH PIP: there is no python3")
	}
	ctx, cancel := context.WithTimeout(t.Context(), pipTime)
	defer cancel()
	if err := exec.CommandContext(ctx, python, "-m", "pip", "--version").Run(); err != nil {
		t.Skip("SKIPPED, NOTHING WAS COMPARED WITH PIP: this python3 has no pip")
	}
	dir := filepath.Join(t.TempDir(), "target")
	cmd := exec.CommandContext(ctx, python, "-m", "pip", "--isolated", "--disable-pip-version-check", "install", "--no-index", "--no-deps",
		"--no-compile", "--no-cache-dir", "--find-links", links, "--target", dir, requirement)
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("pip: %v: %s", err, b)
	}
	files := map[string]string{}
	err = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, p)
		if err != nil {
			return err
		}
		b, err := os.ReadFile(p)
		files[mark(rel, info.Mode()&0o111 != 0)] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func mark(name string, exec bool) string {
	if exec {
		return name + "*"
	}
	return name
}

// TestAsPip installs a wheel with pip too and compares what is there, with its
// contents and what may be run.
func TestAsPip(t *testing.T) {
	w := full
	w.Files = maps.Clone(full.Files)
	for name := range w.Files {
		switch {
		case strings.HasSuffix(name, ".pyc"), strings.HasSuffix(name, "/direct_url.json"), strings.Contains(name, "/headers/"):
			delete(w.Files, name) // pip would take them, and this Python has its headers elsewhere
		case strings.Contains(name, "/scripts/"):
			w.Exec = append(w.Exec, name) // pip leaves it at that
		}
	}
	links := t.TempDir()
	p, _ := w.Write(t, links)
	compareWithPip(t, links, p, w.Name+"=="+w.Version)
}

// TestRealWheels: those that come with Python, which others have built.
func TestRealWheels(t *testing.T) {
	for name, w := range realWheels(t) {
		t.Run(name, func(t *testing.T) {
			compareWithPip(t, filepath.Dir(w), w, name)
		})
	}
}

// realWheels are the wheels with which this machine's Python installs its pip, and
// those of Debian's packages, by name.
func realWheels(t *testing.T) map[string]string {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("SKIPPED, NO REAL WHEEL WAS READ: there is no python3")
	}
	ctx, cancel := context.WithTimeout(t.Context(), pipTime)
	defer cancel()
	dirs := []string{"/usr/share/python-wheels"}
	if b, err := exec.CommandContext(ctx, python, "-c", "import ensurepip, os; print(os.path.dirname(ensurepip.__file__), end='/_bundled')").Output(); err == nil {
		dirs = append(dirs, string(b))
	}
	found := map[string]string{}
	for _, dir := range dirs {
		list, err := filepath.Glob(filepath.Join(dir, "*.whl"))
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range list {
			name, _, _ := strings.Cut(filepath.Base(p), "-")
			found[name] = p
		}
	}
	if len(found) == 0 {
		t.Skip("SKIPPED, NO REAL WHEEL WAS READ: this machine has none")
	}
	return found
}

func compareWithPip(t *testing.T, links, file, requirement string) {
	t.Helper()
	want := pip(t, links, requirement)
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	w, err := read(t, filepath.Base(file), b)
	if err != nil {
		t.Fatal(err)
	}
	tr := base(t)
	if _, err := wheel.NewInstaller(tr).Install(w); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, n := range tr.Nodes() {
		rest, ok := strings.CutPrefix(n.Path, wheel.Prefix+"/")
		if !ok || n.Kind != tree.File {
			continue
		}
		rest = strings.TrimPrefix(rest, "lib/python3.13/dist-packages/")
		got[mark(rest, n.Mode == 0o755)] = string(n.Data)
	}
	if g, w := slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)); !slices.Equal(g, w) {
		t.Errorf("installed %q\nby pip %q", g, w)
	}
	for name := range got {
		g, p := got[name], want[name]
		switch {
		case strings.HasSuffix(name, "/RECORD"):
			g, p = records(g), records(p)
		case strings.HasSuffix(name, "/INSTALLER"):
			g, p = strings.TrimSpace(g), strings.Replace(strings.TrimSpace(p), "pip", "pybox", 1)
		case strings.HasPrefix(name, "bin/"):
			g, p = program(g), program(p)
		}
		if g != p {
			t.Errorf("%s is %.2000q, by pip %.2000q", name, g, p)
		}
	}
}

// program is a script without the interpreter's name and what releases of pip write
// differently.
func program(s string) string {
	if first, rest, _ := strings.Cut(s, "\n"); strings.Contains(first, "python") {
		s = rest
	}
	var lines []string
	for line := range strings.Lines(s) {
		if !strings.HasPrefix(line, "# -*-") && line != "import re\n" && !strings.Contains(line, "sys.argv[0] = ") {
			lines = append(lines, line)
		}
	}
	return strings.TrimSpace(strings.Join(lines, ""))
}

// records are the lines of a RECORD that can be compared: not those of programs, which
// lie elsewhere and start otherwise, nor of INSTALLER; and pip lists a script that it
// leaves out.
func records(s string) string {
	var lines []string
	for line := range strings.Lines(strings.ReplaceAll(s, "\r", "")) {
		if !strings.Contains(line, "../") && !strings.Contains(line, ".data/scripts/") && !strings.Contains(line, "/INSTALLER,") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const vz = "github.com/Code-Hex/vz/v3"

func deadline(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// TestCalls has each wrong fixture's only mistake at its place, and no other; the
// right one is checked, and its test.
func TestCalls(t *testing.T) {
	fixtures := map[string]string{
		"right":     "",
		"argument":  `argument.go:9:39: cannot use "console=hvc0"`,
		"method":    `method.go:9:11: m.Reboot undefined`,
		"missing":   `missing.go:12:1: missing return`,
		"context":   `context.go:17:16: cannot use (*vz.VirtioSocketDevice)(nil)`,
		"intest":    `intest_test.go:8:11: cannot use "running"`,
		"cside":     `cside.go:1:1: imports "C"`,
		"cside/use": `use.go:8:31: has a type of the C side`,
	}
	var patterns []string
	for name := range fixtures {
		patterns = append(patterns, "./testdata/"+name)
	}
	r, err := check(deadline(t), request{dir: ".", patterns: patterns})
	if err != nil {
		t.Fatal(err)
	}
	found := make(map[string][]string)
	for _, p := range r.problems {
		dir, rest := filepath.Split(strings.TrimPrefix(p, "testdata/"))
		found[filepath.Clean(dir)] = append(found[filepath.Clean(dir)], rest)
	}
	for name, want := range fixtures {
		got := found[name]
		switch {
		case want == "" && len(got) > 0:
			t.Errorf("%s: %q", name, got)
		case want != "" && (len(got) != 1 || !strings.HasPrefix(got[0], want)):
			t.Errorf("%s: got %q, want one that begins with %q", name, got, want)
		}
	}
	// Two have tests, with which they are checked once more.
	if r.ours != len(fixtures)+2 {
		t.Errorf("%d packages", r.ours)
	}
	const right = "github.com/pybox/pybox/scripts/darwincheck/testdata/right"
	for _, importer := range []string{right, right + " [" + right + ".test]"} {
		if !slices.Contains(r.importers[vz], importer) {
			t.Errorf("%s is not among %q", importer, r.importers[vz])
		}
	}
	// vz and what it is made of; the standard library.
	if r.others < 50 {
		t.Errorf("%d other packages", r.others)
	}
	if err := r.reached(vz); err != nil {
		t.Error(err)
	}
}

func TestSourceThatIsNoGo(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"go.mod": "module example.test\n", "a.go": "package a\n\nfunc open() {\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r, err := check(deadline(t), request{dir: dir, patterns: []string{"."}})
	if err == nil && len(r.problems) == 0 {
		t.Error("no problem")
	}
}

func TestTagsAreHeeded(t *testing.T) {
	for tags, want := range map[string]int{"": 0, "wrong": 1} {
		r, err := check(deadline(t), request{dir: ".", tags: tags, patterns: []string{"./testdata/tagged"}})
		if err != nil {
			t.Fatal(err)
		}
		if len(r.problems) != want {
			t.Errorf("tags %q: %q", tags, r.problems)
		}
	}
}

func TestRunRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"a mistake":              {[]string{"-tags", "wrong", "./testdata/tagged"}, "1 errors for darwin/arm64"},
		"no package":             {[]string{"./testdata/elsewhere/..."}, "nothing was checked"},
		"no importer":            {[]string{"-import", vz, "./testdata/tagged"}, "none of the 1 packages"},
		"a package that is none": {[]string{"./testdata/nowhere"}, "go list: exit status 1"},
		"too little time":        {[]string{"-timeout", "1ns"}, context.DeadlineExceeded.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			err := run(deadline(t), c.args)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}

func TestCancelledWhileChecking(t *testing.T) {
	packages, err := list(deadline(t), request{dir: ".", patterns: []string{"./testdata/tagged"}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c := newChecker(".", packages)
	for range cap(c.work) {
		c.work <- struct{}{} // nobody has a slot to give
	}
	if err := c.check(ctx, packages[0]); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

//go:build linux && pyboxtest

package semantics_test

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pybox/pybox/agent/api"
	"github.com/pybox/pybox/agent/boxtest"
)

// A semantic is a program that must do in a box what `python3 NAME` does: the same
// bytes on both outputs, the same exit code or signal.
type semantic struct {
	// The program is the file in testdata/programs of that name, without ".py":
	// by default the name of the case up to a space. Without a file it is source.
	file, source string
	// name is what the program is called in the box, by default as its file.
	name      string
	args, env []string
	stdin     string
	files     map[string]string

	// What must come: otherwise a program that fails in the same way at both
	// places would do. status is an exit code, or a signal's number times -1; out
	// and err are among the output, and where err is empty so is standard error.
	status   int
	out, err string

	// known are the differences that docs/semantics.md lists, ahead those of a box that
	// was made ahead, which has the others too.
	known, ahead []difference
}

// A difference says that what is box in a box is plain outside of one; plain is
// empty where the box has something more.
type difference struct {
	stream     string // "stdout" or "stderr"
	plain, box string
}

// A result is what a program left.
type result struct {
	Status         int
	Stdout, Stderr []byte
}

// A job is a program for testdata/reference.py.
type job struct {
	Program string            `json:"program"`
	Args    []string          `json:"args"`
	Env     []string          `json:"env"`
	Files   map[string][]byte `json:"files"`
	Stdin   []byte            `json:"stdin"`
}

// referenceBatch is how many programs one box runs for comparison.
const referenceBatch = 12

// TestE2ESemantics runs each program once in a box that is made for it, once in one that
// was made ahead, and once as a plain child of another program, in the same image, under
// the same limits and the same path. Nothing is left out of the comparison, and nothing
// is normalised.
func TestE2ESemantics(t *testing.T) {
	all := semantics(t)
	names := slices.Sorted(maps.Keys(all))
	g := boxtest.Start(t, 1<<30)
	began := time.Now()
	plain := reference(t, g, all, names)
	t.Logf("%d programs outside of a box of their own: %v", len(names), time.Since(began).Round(time.Millisecond))
	began = time.Now()
	t.Run("box", func(t *testing.T) {
		for _, name := range names {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				all[name].compare(t, plain[name], all[name].inBox(t, g, api.BoxCold))
			})
		}
	})
	t.Logf("%d programs in boxes: %v", len(names), time.Since(began).Round(time.Millisecond))
	t.Run("randomness", func(t *testing.T) { testRandomness(t, g) })
	began = time.Now()
	t.Run("ready box", func(t *testing.T) { testAhead(t, g, all, plain) })
	t.Logf("%d programs in boxes that were made ahead: %v", len(names), time.Since(began).Round(time.Millisecond))
}

// readyBoxes are kept ready at a time, so that some are when many are wanted.
const readyBoxes = 3

// testAhead runs each program in a box that was made ahead, for runs of its environment.
func testAhead(t *testing.T, g *boxtest.Guest, all map[string]semantic, plain map[string]result) {
	groups := map[string][]string{}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		env := fmt.Sprintf("%q", all[name].env)
		groups[env] = append(groups[env], name)
	}
	for _, env := range slices.Sorted(maps.Keys(groups)) {
		names := groups[env]
		g.SetReady(t, uint32(min(len(names), readyBoxes)), all[names[0]].program())
		for _, name := range names {
			t.Run(name, func(t *testing.T) {
				g.AwaitReady(t, 1)
				s := all[name]
				s.known = append(slices.Clone(s.known), s.ahead...)
				s.compare(t, plain[name], s.inBox(t, g, api.BoxReady))
			})
		}
	}
	g.SetReady(t, 0, boxtest.Program{})
}

// testRandomness wants that two boxes share no secret of the interpreter.
func testRandomness(t *testing.T, g *boxtest.Guest) {
	p := boxtest.Program{Source: "import random, uuid\nprint(hash('a'), hash(b'b'), random.random(), random.SystemRandom().random(), uuid.uuid4())\n"}
	a, b := strings.Fields(string(g.Run(t, p).Stdout)), strings.Fields(string(g.Run(t, p).Stdout))
	if len(a) != 5 || len(b) != 5 {
		t.Fatalf("want five words: %q, %q", a, b)
	}
	for i := range a {
		if a[i] == b[i] {
			t.Errorf("word %d is %s in both boxes", i, a[i])
		}
	}
}

func (s semantic) program() boxtest.Program {
	return boxtest.Program{
		Source: s.source, Name: s.name, Args: s.args, Env: s.env, Files: s.files, Stdin: []byte(s.stdin),
		Timeout: boxtest.Bound - 20*time.Second,
	}
}

func (s semantic) inBox(t *testing.T, g *boxtest.Guest, kind string) result {
	t.Helper()
	o := g.Run(t, s.program())
	if got := o.Record.GetBoxKind(); got != kind {
		t.Errorf("it ran in a box of the kind %q, want %q", got, kind)
	}
	if !o.Record.GetExit().GetKnown() {
		t.Fatalf("no status: %v", o)
	}
	r := result{Status: o.Status().ExitStatus(), Stdout: o.Stdout, Stderr: o.Stderr}
	if o.Status().Signaled() {
		r.Status = -int(o.Status().Signal())
	}
	return r
}

// compare holds both results to each other and to what was wanted.
func (s semantic) compare(t *testing.T, plain, box result) {
	t.Helper()
	s.expected(t, plain)
	if plain.Status != box.Status {
		t.Errorf("status %d in the box, %d outside of one", box.Status, plain.Status)
	}
	plain.Stdout, plain.Stderr = slices.Clone(plain.Stdout), slices.Clone(plain.Stderr)
	for _, d := range s.known {
		to := &plain.Stdout
		if d.stream == "stderr" {
			to = &plain.Stderr
		}
		switch old := []byte(d.plain); {
		case len(old) == 0:
			*to = append(*to, d.box...)
		case bytes.Count(*to, old) != 1:
			t.Errorf("a known difference is none any more: %q is not once in %s outside of a box", d.plain, d.stream)
		default:
			*to = bytes.Replace(*to, old, []byte(d.box), 1)
		}
	}
	sameText(t, "stdout", plain.Stdout, box.Stdout)
	sameText(t, "stderr", plain.Stderr, box.Stderr)
}

// expected wants that the program did what it is for.
func (s semantic) expected(t *testing.T, plain result) {
	t.Helper()
	if plain.Status != s.status {
		t.Errorf("status %d outside of a box, want %d", plain.Status, s.status)
	}
	if !bytes.Contains(plain.Stdout, []byte(s.out)) {
		t.Errorf("no %q in stdout outside of a box: %q", s.out, plain.Stdout)
	}
	if !bytes.Contains(plain.Stderr, []byte(s.err)) || s.err == "" && len(plain.Stderr) > 0 {
		t.Errorf("want %q in stderr outside of a box: %s", s.err, plain.Stderr)
	}
}

// sameText shows the lines that differ.
func sameText(t *testing.T, stream string, plain, box []byte) {
	t.Helper()
	if bytes.Equal(plain, box) {
		return
	}
	p, b := strings.SplitAfter(string(plain), "\n"), strings.SplitAfter(string(box), "\n")
	shown := 0
	for i := range max(len(p), len(b)) {
		var x, y string
		if i < len(p) {
			x = p[i]
		}
		if i < len(b) {
			y = b[i]
		}
		if x != y && shown < 5 {
			shown++
			t.Errorf("%s, line %d\n  in the box: %.3000q\n  outside:    %.3000q", stream, i+1, y, x)
		}
	}
}

// reference runs the programs outside of boxes of their own.
func reference(t *testing.T, g *boxtest.Guest, all map[string]semantic, names []string) map[string]result {
	t.Helper()
	driver, err := os.ReadFile("testdata/reference.py")
	if err != nil {
		t.Fatal(err)
	}
	// Dealt out, since neighbours in the alphabet are mostly as slow as each other.
	boxes := (len(names) + referenceBatch - 1) / referenceBatch
	batches := make([][]string, boxes)
	for i, name := range names {
		batches[i%boxes] = append(batches[i%boxes], name)
	}
	var wg sync.WaitGroup
	results, errs := make([][]result, boxes), make([]error, boxes)
	for i, batch := range batches {
		wg.Go(func() {
			results[i], errs[i] = referenceOf(t, g, string(driver), all, batch)
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	got := map[string]result{}
	for i, batch := range batches {
		for k, name := range batch {
			got[name] = results[i][k]
		}
	}
	return got
}

func referenceOf(t *testing.T, g *boxtest.Guest, driver string, all map[string]semantic, names []string) ([]result, error) {
	var jobs []job
	for _, name := range names {
		jobs = append(jobs, all[name].job())
	}
	input, err := json.Marshal(jobs)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(t.Context(), 6*boxtest.Bound)
	defer cancel()
	o, err := g.Try(ctx, boxtest.Program{
		Source: driver, Name: "reference.py", Stdin: input, Timeout: 2 * boxtest.Bound, QueueWait: 3 * boxtest.Bound, Stdout: 8 << 20,
	})
	if err != nil {
		return nil, err
	}
	if o.Code() != 0 {
		return nil, fmt.Errorf("%q: %v", names, o)
	}
	var results []result
	d := json.NewDecoder(bytes.NewReader(o.Stdout))
	for range names {
		var r result
		if err := d.Decode(&r); err != nil {
			return nil, fmt.Errorf("%q: %w", names, err)
		}
		results = append(results, r)
	}
	return results, nil
}

func (s semantic) job() job {
	files := map[string][]byte{s.name: []byte(s.source)}
	for name, text := range s.files {
		files[name] = []byte(text)
	}
	return job{Program: s.name, Args: append([]string{}, s.args...), Env: append([]string{}, s.env...), Files: files, Stdin: []byte(s.stdin)}
}

// semantics gives every program with what is in its file. Each file must be of a
// case.
func semantics(t *testing.T) map[string]semantic {
	t.Helper()
	paths, err := filepath.Glob("testdata/programs/*.py")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no programs: %v", err)
	}
	sources := map[string]string{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		sources[strings.TrimSuffix(filepath.Base(path), ".py")] = string(text)
	}
	all, used := semanticCases(t), map[string]bool{}
	for name, s := range all {
		if s.file == "" {
			continue
		}
		text, ok := sources[s.file]
		if !ok {
			t.Fatalf("%s: no file %q", name, s.file)
		}
		if s.name == "" {
			s.name = s.file + ".py"
		}
		s.source, used[s.file] = text, true
		all[name] = s
	}
	for file := range sources {
		if !used[file] {
			t.Errorf("testdata/programs/%s.py is of no case", file)
		}
	}
	return all
}

// zipApp is a program of two modules in an archive, as zipapp makes them.
func zipApp(t *testing.T) string {
	t.Helper()
	var b bytes.Buffer
	b.WriteString("#!/usr/bin/env python3\n")
	z := zip.NewWriter(&b)
	z.SetOffset(int64(b.Len()))
	for _, f := range [][2]string{
		{"__main__.py", "import sys, part\nprint(sys.argv, sys.path[0], __file__, __spec__, __name__, part.__file__)\npart.f()\n"},
		{"part.py", "def f():\n    1 / 0\n"},
	} {
		w, err := z.Create(f[0])
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(f[1])); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

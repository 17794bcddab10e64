package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pybox/pybox/host/bench/report"
)

// write makes a report with one ratio and gives its file.
func write(t *testing.T, acceleration string, ratio float64, failed string) string {
	t.Helper()
	r := report.New(time.Unix(0, 0))
	r.Machine.Acceleration = acceleration
	bare := report.Figure{ID: "bare", Group: "Runs", Name: "bare", Unit: "ms"}.Of(slices.Repeat([]float64{100}, 20))
	samples := slices.Repeat([]float64{100 * ratio}, 20)
	r.Add(bare, report.Figure{ID: "exit", Group: "Runs", Name: "a run", Unit: "ms"}.Of(samples).Against(bare).Plotted("a run", samples))
	if failed != "" {
		r.Fail("Starts", errors.New(failed))
	}
	b, err := r.Encode()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "report.json")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestCheck(t *testing.T) {
	for name, c := range map[string]struct {
		now  string
		fail bool
		says string
	}{
		"as good":              {write(t, "tcg", 1.1, ""), false, "None is clearly worse."},
		"worse":                {write(t, "tcg", 1.3, ""), true, "exit (a run, ratio): 1.3 of 1 before, +30 %"},
		"another acceleration": {write(t, "kvm", 1.3, ""), false, "There is nothing to compare with: "},
		"not whole":            {write(t, "tcg", 1, "no VM"), true, "Not measured whole: Starts: no VM"},
	} {
		var said strings.Builder
		err := run(t.Context(), []string{"check", "--json", c.now, "--baseline", write(t, "tcg", 1, "")}, &said)
		if failed := errors.Is(err, errFailed); failed != c.fail || !failed && err != nil || !strings.Contains(said.String(), c.says) {
			t.Errorf("%s: %v, it says:\n%s", name, err, said.String())
		}
	}
	if err := run(t.Context(), []string{"check", "--json", "nowhere"}, &strings.Builder{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no report: %v", err)
	}
}

// TestCheckNothing: that no figure is in both reports is no success, unless the machine is
// another.
func TestCheckNothing(t *testing.T) {
	now := write(t, "tcg", 1, "")
	b, err := os.ReadFile(now)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(now, []byte(strings.ReplaceAll(string(b), `"exit"`, `"renamed"`)), 0o600); err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	err = run(t.Context(), []string{"check", "--json", now, "--baseline", write(t, "tcg", 1, "")}, &said)
	if !errors.Is(err, errNothing) || !strings.Contains(said.String(), "Not measured this time: exit\n0 figures compared") {
		t.Errorf("%v, it says:\n%s", err, said.String())
	}
}

func TestPage(t *testing.T) {
	from, dir := write(t, "tcg", 1.1, ""), t.TempDir()
	if err := run(t.Context(), []string{"page", "--json", from, "--dir", dir}, &strings.Builder{}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{report.PageName: "| a run | 110 ms |", report.PlotName: "</svg>", report.JSONName: `"id": "exit"`} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || !strings.Contains(string(b), want) {
			t.Errorf("%s (%v) lacks %q:\n%s", name, err, want, b)
		}
	}
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{nil, {"mesure"}} {
		if err := run(t.Context(), args, &strings.Builder{}); err == nil || !strings.HasPrefix(err.Error(), "usage:") {
			t.Errorf("%q: %v", args, err)
		}
	}
}

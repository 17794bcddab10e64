//go:build linux

package main

import (
	"errors"
	"strings"
	"testing"
)

// TestCheckNames: a name appears once and fits a line of the report.
func TestCheckNames(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range checks() {
		if seen[c.name] || c.name == "" || strings.ContainsAny(c.name, "\n\r") || c.run == nil {
			t.Errorf("check %q is nameless, double or empty", c.name)
		}
		seen[c.name] = true
	}
	if len(seen) < 100 {
		t.Errorf("%d checks, want at least 100", len(seen))
	}
}

func TestOnlyThese(t *testing.T) {
	if err := onlyThese("x", []string{"vda", "vdb1", "null"}, "null", "vd*"); err != nil {
		t.Error(err)
	}
	err := onlyThese("x", []string{"null", "mem", "nullify"}, "null")
	if err == nil || !strings.Contains(err.Error(), "mem nullify") {
		t.Errorf("got %v", err)
	}
}

func TestWantErr(t *testing.T) {
	a, b := errors.New("a"), errors.New("b")
	if err := wantErr(a, a); err != nil {
		t.Error(err)
	}
	for _, err := range []error{nil, b} {
		if wantErr(err, a) == nil {
			t.Errorf("%v passes for %v", err, a)
		}
	}
	if err := wantErr(b, a, b); err != nil {
		t.Error(err)
	}
	for _, err := range []error{nil, errors.New("c")} {
		if wantErr(err, a, b) == nil {
			t.Errorf("%v passes for %v or %v", err, a, b)
		}
	}
}

func TestGuarded(t *testing.T) {
	if err := guarded(func() error { panic("boom") }); err == nil || !strings.Contains(err.Error(), "boom") {
		t.Errorf("got %v", err)
	}
}

func TestChildrenExist(t *testing.T) {
	if code := runChild("no such", nil); code == 0 {
		t.Error("an unknown child succeeds")
	}
}

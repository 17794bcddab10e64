//go:build linux

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pybox/pybox/guest/bundle"
	"github.com/pybox/pybox/vm/vmtest"
)

// TestE2ESetup goes the way of a person who was given a pybox and a bundle in one
// file: set up, run a program, and remove all of it.
func TestE2ESetup(t *testing.T) {
	p := newPerson(t, "")
	if err := os.RemoveAll(filepath.Join(p.home, "bundles")); err != nil {
		t.Fatal(err)
	}
	p.env = append(p.env, "PYBOX_CACHE="+filepath.Join(t.TempDir(), "cache"))
	tar := filepath.Join(t.TempDir(), "bundle.tar")
	if err := bundle.WriteArchive(t.Context(), vmtest.Bundle(t), tar); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "p.py")
	if err := os.WriteFile(program, []byte("print(6*7)"), 0o600); err != nil {
		t.Fatal(err)
	}
	p.fails(125, []string{"pybox setup"}, "exec", program)
	if out := p.must("setup", "--from", tar); !strings.Contains(out, "Nothing has been done yet") {
		t.Errorf("the plan: %s", out)
	}
	p.must("setup", "--yes", "--from", tar)
	if out := p.must("exec", "--quiet", "--timeout", "20", program); out != "42\n" {
		t.Errorf("the program printed %q", out)
	}
	p.fails(1, []string{"pybox vm stop"}, "setup", "--yes", "--remove")
	p.must("vm", "stop")
	p.must("setup", "--yes", "--remove", "--receipts")
	left, err := os.ReadDir(p.home)
	if err != nil || len(left) != 1 || left[0].Name() != "config.toml" {
		t.Errorf("left: %v, %v", left, err)
	}
}

package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// fake makes a directory that looks like a cgroup.
func fake(t *testing.T, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, n := range append([]string{""}, names...) {
		if err := os.MkdirAll(filepath.Join(dir, n), 0o755); err != nil {
			t.Fatal(err)
		}
		for _, f := range []string{"cgroup.kill", "cpu.max", "cgroup.subtree_control"} {
			if err := os.WriteFile(filepath.Join(dir, n, f), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir
}

func read(t *testing.T, path ...string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func open(t *testing.T, dir string) *Dir {
	t.Helper()
	d, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

func TestKillWritesKillThenLiftsTheLimit(t *testing.T) {
	dir := fake(t, "a")
	sub, err := open(t, dir).Sub("a")
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	if err := sub.Kill(); err != nil {
		t.Fatal(err)
	}
	if k, c := read(t, dir, "a/cgroup.kill"), read(t, dir, "a/cpu.max"); k != "1" || c != "max" {
		t.Errorf("cgroup.kill %q, cpu.max %q", k, c)
	}
	if k := read(t, dir, "cgroup.kill"); k != "" {
		t.Errorf("the parent was killed too: %q", k)
	}
}

func TestKillTreeLiftsTheLimitsOfChildren(t *testing.T) {
	dir := fake(t, "a", "b")
	if err := open(t, dir).KillTree(); err != nil {
		t.Fatal(err)
	}
	if k := read(t, dir, "cgroup.kill"); k != "1" {
		t.Errorf("cgroup.kill %q", k)
	}
	for _, n := range []string{"a", "b"} {
		if c := read(t, dir, n, "cpu.max"); c != "max" {
			t.Errorf("cpu.max of %s: %q", n, c)
		}
	}
}

func TestPopulated(t *testing.T) {
	dir := fake(t)
	d := open(t, dir)
	if _, err := d.Populated(); !errors.Is(err, ErrGone) {
		t.Errorf("without cgroup.events: %v, want ErrGone", err)
	}
	for text, want := range map[string]string{
		"populated 0\nfrozen 0\n": "false <nil>",
		"frozen 0\npopulated 1\n": "true <nil>",
		"frozen 0\n":              "no line",
		"populated 01\n":          "no line",
		"unpopulated 0\n":         "no line",
		"":                        "no line",
	} {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.events"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		populated, err := d.Populated()
		if got := fmt.Sprint(populated, err); !strings.Contains(got, want) || (err != nil) != (want == "no line") {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

// Somebody who does not die is an error, and in time.
func TestKillWaitGivesUp(t *testing.T) {
	dir := fake(t)
	if err := os.WriteFile(filepath.Join(dir, "cgroup.events"), []byte("populated 1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := open(t, dir).KillWait(10 * time.Millisecond); err == nil || !strings.Contains(err.Error(), "are left") {
		t.Errorf("with a process that stays: %v", err)
	}
	if k := read(t, dir, "cgroup.kill"); k != "1" {
		t.Errorf("cgroup.kill %q", k)
	}
}

// A handle stays with the cgroup it was opened on.
func TestKillOfAReplacedCgroup(t *testing.T) {
	dir := fake(t, "a")
	sub, err := open(t, dir).Sub("a")
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	if err := os.RemoveAll(filepath.Join(dir, "a")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "a"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "a/cgroup.kill"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := sub.Kill(); !errors.Is(err, ErrGone) {
		t.Errorf("kill of a removed cgroup: %v, want ErrGone", err)
	}
	if k := read(t, dir, "a/cgroup.kill"); k != "" {
		t.Errorf("the namesake was killed: %q", k)
	}
}

func TestCheckPath(t *testing.T) {
	for _, ok := range []string{"a", "box-1", "a/b/c", "5319e024.scope", strings.Repeat("a", MaxPath)} {
		if err := CheckPath(ok); err != nil {
			t.Errorf("%q: %v", ok, err)
		}
	}
	for _, bad := range []string{"", "/", "/a", "a/", "a//b", ".", "..", "a/../b", ".hidden", "a b", "a\x00", "a\n",
		"ä", "a/b/c/d", strings.Repeat("a", MaxPath+1)} {
		if err := CheckPath(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
		if _, err := open(t, t.TempDir()).Sub(bad); err == nil {
			t.Errorf("%q is opened", bad)
		}
	}
}

// A link in the tree leads nowhere outside.
func TestSubDoesNotFollowLinksOut(t *testing.T) {
	dir := fake(t)
	if err := os.Symlink(t.TempDir(), filepath.Join(dir, "out")); err != nil {
		t.Fatal(err)
	}
	if d, err := open(t, dir).Sub("out"); err == nil {
		_ = d.Close()
		t.Error("a link out of the tree was opened")
	}
}

func TestEnable(t *testing.T) {
	dir := fake(t)
	if err := open(t, dir).Enable("cpu", "memory"); err != nil {
		t.Fatal(err)
	}
	if got := read(t, dir, "cgroup.subtree_control"); got != "+cpu +memory" {
		t.Errorf("wrote %q", got)
	}
}

func FuzzCheckPath(f *testing.F) {
	for _, s := range []string{"a", "a/b", "../x", "/", "a/./b", "a\x00b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if CheckPath(s) == nil && !filepath.IsLocal(s) {
			t.Errorf("%q is taken and leaves the tree", s)
		}
	})
}

package main

import (
	"io"
	"path/filepath"
	"slices"
	"testing"

	"github.com/pybox/pybox/guest/debian"
	"github.com/pybox/pybox/guest/tree"
)

// TestLock: the lock file has what the recipes ask for, and the very crun that PyBox
// has, or the comparison would be of two.
func TestLock(t *testing.T) {
	read := func(file string) *debian.Lock {
		t.Helper()
		l, err := debian.ReadLock(file)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	own, guest := read("../peers.lock.json"), read("../../../guest/debian.lock.json")
	for _, arch := range []string{"amd64", "arm64"} {
		set, err := own.Set(setPeers, arch)
		if err != nil {
			t.Fatal(err)
		}
		root, err := guest.Set(debian.SetRoot, arch)
		if err != nil {
			t.Fatal(err)
		}
		for _, seed := range recipes()[0].Seeds {
			if !slices.ContainsFunc(set.Packages, func(e debian.Entry) bool { return e.Name == seed }) {
				t.Errorf("%s: no %s", arch, seed)
			}
		}
		for _, e := range root.Packages {
			at := slices.IndexFunc(set.Packages, func(p debian.Entry) bool { return p.Name == e.Name && e.Name == "crun" })
			if at >= 0 && set.Packages[at].SHA256 != e.SHA256 {
				t.Errorf("%s: crun %s, and PyBox has %s: run make relock", arch, set.Packages[at].Version, e.Version)
			}
		}
	}
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{
		{}, {"--relock", "--out", "x"}, {"--out", "x", "more"}, {"--unknown"},
		{"--lock", filepath.Join(t.TempDir(), "none"), "--out", "x"}, {"--lock", "../peers.lock.json", "--arch", "s390x", "--out", "x"},
	} {
		if err := run(t.Context(), args, io.Discard); err == nil {
			t.Errorf("%q passes", args)
		}
	}
}

// TestDisk: a disk without the engines is none.
func TestDisk(t *testing.T) {
	if _, err := disk(t.Context(), "amd64", nil); err == nil {
		t.Error("a disk of no packages is made")
	}
}

func TestTrim(t *testing.T) {
	all := tree.New(tree.DefaultLimits)
	for _, p := range []string{"usr/bin/runc", "usr/bin/other", "usr/share/doc/runc/copyright", "usr/share/doc/runc/changelog", "usr/lib/x/y"} {
		if err := addFile(all, p); err != nil {
			t.Fatal(err)
		}
	}
	trim(all, []string{"usr/bin/runc"})
	var left []string
	for _, n := range all.Nodes() {
		if n.Kind != tree.Dir {
			left = append(left, n.Path)
		}
	}
	if want := []string{"usr/bin/runc", "usr/share/doc/runc/copyright"}; !slices.Equal(left, want) || all.Lookup("usr/lib") != nil {
		t.Errorf("left are %q, and %v", left, all.Lookup("usr/lib"))
	}
}

// addFile adds a file with the folders above it.
func addFile(t *tree.Tree, p string) error {
	var dirs []string
	for dir := filepath.Dir(p); dir != "."; dir = filepath.Dir(dir) {
		dirs = append(dirs, dir)
	}
	for _, dir := range slices.Backward(dirs) {
		if t.Lookup(dir) == nil {
			if err := t.Mkdir(dir, tree.Attr{Mode: 0o755}); err != nil {
				return err
			}
		}
	}
	return t.WriteFile(p, nil, tree.Attr{Mode: 0o644})
}

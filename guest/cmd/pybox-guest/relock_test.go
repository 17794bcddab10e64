package main

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/pybox/pybox/guest/debian"
	"github.com/pybox/pybox/guest/internal/guesttest"
)

// snapshotTime is the one that the test archive has, and that docs/vm-image.md names.
const snapshotTime = "20261101T000000Z"

// newArchive serves what the repository's lock file names, and strace; in its
// snapshot strace is older.
func newArchive(t *testing.T) (*guesttest.Archive, *debian.Lock) {
	t.Helper()
	lock, err := debian.ReadLock(filepath.Join("..", "..", "debian.lock.json"))
	if err != nil {
		t.Fatal(err)
	}
	at, err := debian.ParseSnapshot(snapshotTime)
	if err != nil {
		t.Fatal(err)
	}
	own := func(version string) (list []guesttest.Listed) {
		for _, arch := range []string{"amd64", "arm64"} {
			list = append(list,
				guesttest.NewListed(t, guesttest.Package{Name: "strace", Version: version, Arch: arch}, "libc6, libunwind8"),
				guesttest.NewListed(t, guesttest.Package{Name: "libunwind8", Version: "1.8", Arch: arch}, "libc6"))
		}
		return list
	}
	listed := guesttest.ListedIn(t, lock)
	return guesttest.NewArchive(t, append(own("6.13"), listed...), append(own("6.12"), listed...), at), lock
}

// relockEnv is a folder with a copy of the repository's lock file.
type relockEnv struct {
	env
	archive  *guesttest.Archive
	original *debian.Lock
}

func newRelockEnv(t *testing.T) relockEnv {
	t.Helper()
	e := relockEnv{env: env{t: t, lock: filepath.Join(t.TempDir(), "my.lock.json")}}
	e.archive, e.original = newArchive(t)
	t.Setenv("PYBOX_CACHE", t.TempDir())
	t.Setenv("PYBOX_DEBIAN_MIRROR", e.archive.Mirror)
	t.Setenv("PYBOX_DEBIAN_SNAPSHOT", e.archive.Snapshots)
	t.Setenv("PYBOX_DEBIAN_KEYRING", e.archive.Keyring)
	if err := e.original.WriteFile(e.lock); err != nil {
		t.Fatal(err)
	}
	return e
}

func (e relockEnv) relock(want int, args ...string) (stdout, stderr string) {
	e.t.Helper()
	return e.run(want, append([]string{"relock", "--lock", e.lock}, args...)...)
}

func (e relockEnv) read() *debian.Lock {
	e.t.Helper()
	l, err := debian.ReadLock(e.lock)
	if err != nil {
		e.t.Fatal(err)
	}
	return l
}

// versionsOf are the versions of a package in a set, by architecture.
func versionsOf(l *debian.Lock, set, pkg string) string {
	var out []string
	for _, s := range l.Sets {
		for _, p := range s.Packages {
			if s.Name == set && p.Name == pkg {
				out = append(out, s.Arch+" "+p.Version)
			}
		}
	}
	return strings.Join(out, ", ")
}

// TestRelockAdd: a package comes, stays, and goes.
func TestRelockAdd(t *testing.T) {
	e := newRelockEnv(t)
	out, errs := e.relock(0, "--add", "root=strace")
	if !strings.Contains(out, "root amd64: strace (not there) -> 6.13") || !strings.Contains(out, "root arm64: libunwind8 (not there)") {
		t.Errorf("it says\n%s", out)
	}
	if !strings.Contains(errs, e.archive.Keyring) || !strings.Contains(errs, "$PYBOX_DEBIAN_KEYRING") {
		t.Errorf("that other keys are trusted is not told: %s", errs)
	}
	l := e.read()
	if got := debian.Changes(e.original, l); len(got) != 4 {
		t.Errorf("beside strace and libunwind8: %v", got)
	}
	if !reflect.DeepEqual(l.Additions, []debian.Addition{{Set: "root", Packages: []string{"strace"}}}) || versionsOf(l, "root", "strace") != "amd64 6.13, arm64 6.13" {
		t.Errorf("additions %+v, %s", l.Additions, versionsOf(l, "root", "strace"))
	}
	// The lists' dates may move from one second to the next; packages may not.
	if out, _ := e.relock(0); strings.Contains(out, "->") || versionsOf(e.read(), "root", "strace") == "" {
		t.Errorf("a later relock loses it: %s", out)
	}
	e.relock(0, "--drop", "root=strace")
	if l := e.read(); len(l.Additions) != 0 || len(debian.Changes(e.original, l)) != 0 {
		t.Errorf("after --drop: %+v, %v", l.Additions, debian.Changes(e.original, l))
	}
}

// TestRelockSnapshot: the lists are those of the snapshot archive, never a mirror's,
// though files may come from anywhere.
func TestRelockSnapshot(t *testing.T) {
	e := newRelockEnv(t)
	e.relock(0, "--add", "root=strace", "--snapshot", snapshotTime)
	l := e.read()
	if l.Snapshot != snapshotTime || versionsOf(l, "root", "strace") != "amd64 6.12, arm64 6.12" {
		t.Errorf("snapshot %s, strace %s", l.Snapshot, versionsOf(l, "root", "strace"))
	}
	e.relock(0)
	if l := e.read(); l.Snapshot == snapshotTime || versionsOf(l, "root", "strace") != "amd64 6.13, arm64 6.13" {
		t.Errorf("back to the present: snapshot %s, strace %s", l.Snapshot, versionsOf(l, "root", "strace"))
	}
	before := e.read().SHA256()
	if _, errs := e.relock(1, "--snapshot", "20261102T000000Z"); !strings.Contains(errs, "404") || !strings.Contains(errs, "PYBOX_DEBIAN_SNAPSHOT names a copy") || strings.Contains(errs, "--mirror") {
		t.Errorf("a time that the archive has not: %s", errs)
	}
	t.Setenv("PYBOX_DEBIAN_SNAPSHOT", strings.TrimSuffix(e.archive.Mirror, "/debian"))
	if _, errs := e.relock(1, "--snapshot", snapshotTime); !strings.Contains(errs, "$PYBOX_DEBIAN_SNAPSHOT") {
		t.Errorf("a mirror in the place of an archive of snapshots: %s", errs)
	}
	if e.read().SHA256() != before {
		t.Error("a failure changed the lock file")
	}
}

// TestRelockRefuses: what is wrong is said before anything is downloaded.
func TestRelockRefuses(t *testing.T) {
	e := newRelockEnv(t)
	future := time.Now().Add(time.Hour).UTC().Format("20060102T150405Z")
	nothing := filepath.Join(t.TempDir(), "nothing")
	e.write(nothing, []byte("no keys"))
	for _, c := range []struct {
		code int
		says string
		args []string
	}{
		{2, "want SET=PACKAGE", []string{"--add", "strace"}},
		{2, "no name of a Debian package", []string{"--add", "root=../strace"}},
		{2, "there are: root, stdlib", []string{"--add", "kernel-source=strace"}},
		{2, "there are: root, stdlib", []string{"--add", "none=strace"}},
		{2, "was not added", []string{"--drop", "root=strace"}},
		{2, "both", []string{"--add", "root=strace", "--drop", "root=strace"}},
		{2, "want a time such as", []string{"--snapshot", "2026-11-01"}},
		{2, "want a time such as", []string{"--snapshot", "../../x"}},
		{2, "in the future", []string{"--snapshot", future}},
		{2, "http or https", []string{"--mirror", "ftp://h/debian"}},
		{1, "no such file", []string{"--keyring", filepath.Join(t.TempDir(), "none")}},
		{1, "unusable keyring", []string{"--keyring", nothing}},
		{1, `the archive has no package "no-such-package"`, []string{"--add", "root=no-such-package"}},
	} {
		_, errs := e.relock(c.code, c.args...)
		if c.says == "both" && strings.Contains(errs, "was not added") {
			continue // whichever is found first
		}
		if !strings.Contains(errs, c.says) {
			t.Errorf("%q: want %q in %s", c.args, c.says, errs)
		}
	}
	// Debian's own keys do not vouch for this archive.
	t.Setenv("PYBOX_DEBIAN_KEYRING", "")
	if _, errs := e.relock(1); !strings.Contains(errs, "not trustworthy") {
		t.Errorf("lists signed by a stranger: %s", errs)
	}
	if b, err := e.original.Encode(); err != nil {
		t.Fatal(err)
	} else if now, err := os.ReadFile(e.lock); err != nil || !bytes.Equal(now, b) {
		t.Errorf("a refusal changed the lock file: %v", err)
	}
}

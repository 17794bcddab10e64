package debian

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/armor"
)

// addedLock is goodLock with a package of somebody's own and what that needs.
func addedLock() *Lock {
	l := goodLock()
	l.Additions = []Addition{{Set: "root", Packages: []string{"strace"}}}
	l.Sets[0].Packages[1].Added = true
	l.Sets[0].Packages = append(l.Sets[0].Packages, Entry{"strace", "6.13", ArchiveMain, "pool/main/s/strace_6.13_amd64.deb", 10, strings.Repeat("d", 64), true})
	return l
}

func TestAdditionsInLock(t *testing.T) {
	l := addedLock()
	b, err := l.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := ParseLock(b); err != nil || !reflect.DeepEqual(got, l) {
		t.Errorf("%+v, %v", got, err)
	}
	if plain, err := goodLock().Encode(); err != nil || bytes.Contains(plain, []byte("add")) {
		t.Errorf("a lock without additions tells of some: %s, %v", plain, err)
	}
	for name, change := range map[string]func(*Lock){
		"no such set":    func(l *Lock) { l.Additions[0].Set = "rot" },
		"no packages":    func(l *Lock) { l.Additions[0].Packages = nil },
		"bad name":       func(l *Lock) { l.Additions[0].Packages[0] = "../strace" },
		"twice":          func(l *Lock) { l.Additions[0].Packages = []string{"strace", "strace"} },
		"order":          func(l *Lock) { l.Additions[0].Packages = []string{"strace", "b1"} },
		"set twice":      func(l *Lock) { l.Additions = append(l.Additions, l.Additions[0]) },
		"not locked":     func(l *Lock) { l.Additions[0].Packages = []string{"gdb", "strace"} },
		"not marked":     func(l *Lock) { l.Sets[0].Packages[2].Added = false },
		"marked unasked": func(l *Lock) { l.Additions = nil },
		"many":           func(l *Lock) { l.Additions = make([]Addition, maxSets+1) },
	} {
		l := addedLock()
		change(l)
		if _, err := l.Encode(); !errors.Is(err, ErrLock) {
			t.Errorf("%s: %v, want ErrLock", name, err)
		}
	}
}

func TestParseAddition(t *testing.T) {
	got, err := ParseAddition("root=strace,gdb,strace")
	if err != nil || !reflect.DeepEqual(got, Addition{Set: "root", Packages: []string{"gdb", "strace"}}) {
		t.Errorf("%+v, %v", got, err)
	}
	for _, s := range []string{"", "strace", "root=", "=strace", "root=strace,", "root=Strace", "root=x", "root=-x", "root=../x", "root=a b", "ro ot=ab",
		"root=" + strings.Repeat("a", maxWordBytes+1), "root=strace=1.0", "root=\x1b[2J"} {
		if got, err := ParseAddition(s); err == nil {
			t.Errorf("%q: %+v", s, got)
		} else if strings.Contains(err.Error(), "\x1b") {
			t.Errorf("%q: the error has control characters", s)
		}
	}
}

func FuzzParseAddition(f *testing.F) {
	f.Add("root=strace,libc++1")
	f.Add("a=b=c,")
	f.Fuzz(func(t *testing.T, s string) {
		a, err := ParseAddition(s)
		if err != nil {
			return
		}
		again, err := ParseAddition(a.Set + "=" + strings.Join(a.Packages, ","))
		if err != nil || !reflect.DeepEqual(a, again) {
			t.Fatalf("%q: %+v, then %+v, %v", s, a, again, err)
		}
	})
}

func TestChangeAdditions(t *testing.T) {
	list := func(s ...string) (out []Addition) {
		for _, a := range s {
			p, err := ParseAddition(a)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, p)
		}
		return out
	}
	for _, c := range []struct{ have, add, drop, want []Addition }{
		{nil, nil, nil, nil},
		{nil, list("root=strace"), nil, list("root=strace")},
		{list("root=strace"), list("root=gdb", "root=strace", "data=aa"), nil, list("data=aa", "root=gdb,strace")},
		{list("root=gdb,strace"), nil, list("root=gdb"), list("root=strace")},
		{list("root=gdb"), nil, list("root=gdb"), nil},
	} {
		if got, err := ChangeAdditions(c.have, c.add, c.drop); err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%v + %v - %v: %v, %v", c.have, c.add, c.drop, got, err)
		}
	}
	for name, c := range map[string]struct{ have, add, drop []Addition }{
		"not there":      {list("root=gdb"), nil, list("root=strace")},
		"in another set": {list("root=gdb"), nil, list("data=gdb")},
		"both":           {list("root=gdb"), list("root=gdb"), list("root=gdb")},
	} {
		if got, err := ChangeAdditions(c.have, c.add, c.drop); err == nil {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestRelockWithAdditions: what comes with an addition is marked, stays through the
// next relock, and goes with it.
func TestRelockWithAdditions(t *testing.T) {
	key := newKey(t)
	r := Relocker{Keys: openpgp.EntityList{key}, Now: func() time.Time { return testNow },
		Recipes:   []Recipe{{Set: "root", Seeds: []string{"crun"}}, {Set: "src", Arch: ArchAll, Seeds: []string{"crun"}, Alone: true}},
		Additions: []Addition{{Set: "root", Packages: []string{"libc6", "strace"}}}}
	r.Source = newArchive(t, key, testNow.Add(-time.Hour), map[string]string{
		"trixie": pkg("crun", "1", "Depends: libc6, libcap2") + pkg("libc6", "2", "") + pkg("libcap2", "1", "") +
			pkg("strace", "6", "Depends: libc6, libunwind8") + pkg("libunwind8", "1", "Depends: libcap2"),
	})
	l, err := r.Relock(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, arch := range architectures {
		set, err := l.Set("root", arch)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, p := range set.Packages {
			mark := ""
			if p.Added {
				mark = "+"
			}
			got = append(got, mark+p.Name)
		}
		if s := strings.Join(got, " "); s != "crun +libc6 libcap2 +libunwind8 +strace" {
			t.Errorf("%s: %s", arch, s)
		}
	}
	if set, err := l.Set("src", ArchAll); err != nil || len(set.Packages) != 1 || set.Packages[0].Added {
		t.Errorf("another set: %+v, %v", set, err)
	}
	r.Additions = l.Additions
	again, err := r.Relock(t.Context(), l)
	if err != nil || len(Changes(l, again)) != 0 || !reflect.DeepEqual(again.Additions, l.Additions) {
		t.Errorf("again: %v, %v", Changes(l, again), err)
	}
	r.Additions = nil
	without, err := r.Relock(t.Context(), l)
	if err != nil || len(Changes(l, without)) != 2*3 {
		t.Errorf("without: %v, %v", Changes(l, without), err)
	}
	for _, a := range []Addition{{"src", []string{"strace"}}, {"none", []string{"strace"}}, {"root", []string{"no-such-package"}}} {
		r.Additions = []Addition{a}
		if _, err := r.Relock(t.Context(), nil); err == nil || !strings.Contains(err.Error(), a.Set) {
			t.Errorf("%+v: %v", a, err)
		}
	}
}

// TestRelockAt: the lists of a time are judged as at that time, and others refused.
func TestRelockAt(t *testing.T) {
	key := newKey(t)
	date := testNow.Add(-2 * time.Hour)
	r := Relocker{Keys: openpgp.EntityList{key}, Now: func() time.Time { return testNow.AddDate(1, 0, 0) }, At: testNow,
		Recipes: []Recipe{{Set: "root", Seeds: []string{"crun"}}}}
	r.Source = newArchive(t, key, date, map[string]string{"trixie": pkg("crun", "1", "")})
	newer := goodLock()
	newer.Releases[0].Date = testNow.AddDate(0, 6, 0)
	l, err := r.Relock(t.Context(), newer)
	if err != nil {
		t.Fatalf("the past, which was asked for: %v", err)
	}
	if l.Snapshot != testNow.Format(snapshotLayout) {
		t.Errorf("snapshot %s", l.Snapshot)
	}
	r.Source = newArchive(t, key, testNow.Add(time.Minute), map[string]string{"trixie": pkg("crun", "1", "")})
	if _, err := r.Relock(t.Context(), nil); !errors.Is(err, ErrSignature) || !strings.Contains(err.Error(), "snapshot") {
		t.Errorf("lists of after the snapshot: %v", err)
	}
}

func TestReadKeyring(t *testing.T) {
	key := newKey(t)
	var plain, armored bytes.Buffer
	if err := key.Serialize(&plain); err != nil {
		t.Fatal(err)
	}
	w, err := armor.Encode(&armored, openpgp.PublicKeyType, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(plain.Bytes()); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "keys")
	read := func(b []byte) (openpgp.EntityList, error) {
		if err := os.WriteFile(file, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return ReadKeyring(file)
	}
	for name, b := range map[string][]byte{"binary": plain.Bytes(), "armored": append([]byte("\n"), armored.Bytes()...)} {
		ring, err := read(b)
		if err != nil || len(ring) != 1 {
			t.Fatalf("%s: %d keys, %v", name, len(ring), err)
		}
		if _, err := VerifyRelease(sign(t, key, releaseText), ring, testNow); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, b := range map[string][]byte{"empty": nil, "text": []byte("hello"), "cut": plain.Bytes()[:20],
		"cut armor": armored.Bytes()[:80], "too long": make([]byte, maxKeyringBytes+1)} {
		if ring, err := read(b); !errors.Is(err, ErrKeyring) || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: %v, %v", name, ring, err)
		}
	}
	if _, err := ReadKeyring(os.DevNull); !errors.Is(err, ErrKeyring) || !strings.Contains(err.Error(), "no regular file") {
		t.Errorf("a device, as a FIFO: %v", err)
	}
	if _, err := ReadKeyring(file + "none"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("absent: %v", err)
	}
}

func FuzzParseKeyring(f *testing.F) {
	var b bytes.Buffer
	if err := newKey(f).Serialize(&b); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Add(b.Bytes()[:b.Len()/2])
	f.Add([]byte("-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nAAAA\n-----END PGP PUBLIC KEY BLOCK-----\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if ring, err := parseKeyring(b); err == nil && len(ring) == 0 {
			t.Fatal("a keyring without a key")
		}
	})
}

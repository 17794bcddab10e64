package debian

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/clearsign"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
	"github.com/ulikunitz/xz"
)

var testNow = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

func TestReadParagraphs(t *testing.T) {
	in := "A: 1\nB:\n x\n\ty\n# comment\nC:z  \r\n\n\n\nA: 2\n"
	var got []Paragraph
	if err := ReadParagraphs(strings.NewReader(in), func(p Paragraph) error {
		got = append(got, p)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || got[0]["A"] != "1" || got[0]["B"] != "\nx\ny" || got[0]["C"] != "z" || got[1]["A"] != "2" {
		t.Fatalf("got %q", got)
	}
}

func TestReadParagraphsRefuses(t *testing.T) {
	var many strings.Builder
	for i := range maxFields + 1 {
		fmt.Fprintf(&many, "F%d: x\n", i)
	}
	for name, in := range map[string]string{
		"continuation first": " x\n",
		"no colon":           "A: 1\nnothing\n",
		"duplicate":          "A: 1\nA: 2\n",
		"long line":          "A: " + strings.Repeat("x", maxLineBytes) + "\n",
		"long paragraph":     "A: x\n" + strings.Repeat(" "+strings.Repeat("y", 1<<19)+"\n", maxParagraphBytes>>19+1),
		"many fields":        many.String(),
	} {
		if err := ReadParagraphs(strings.NewReader(in), func(Paragraph) error { return nil }); !errors.Is(err, ErrFormat) {
			t.Errorf("%s: %v, want ErrFormat", name, err)
		}
	}
}

func FuzzReadParagraphs(f *testing.F) {
	f.Add([]byte("Package: a\nVersion: 1\nDepends: b (>= 2), c | d\n\nPackage: e\n"))
	f.Add([]byte(" x\n:\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		err := ReadParagraphs(bytes.NewReader(b), func(p Paragraph) error {
			if len(p) == 0 || len(p) > maxFields {
				t.Fatalf("%d fields", len(p))
			}
			return nil
		})
		if err != nil && !errors.Is(err, ErrFormat) {
			t.Fatal(err)
		}
	})
}

func TestArchiveKeys(t *testing.T) {
	ring, err := ArchiveKeys()
	if err != nil {
		t.Fatal(err)
	}
	if len(ring) != len(archiveKeys) {
		t.Fatalf("%d keys", len(ring))
	}
	// A key file that does not match its fingerprint must not load: swap two.
	a, b := "keys/trixie-automatic.asc", "keys/trixie-stable.asc"
	archiveKeys[a], archiveKeys[b] = archiveKeys[b], archiveKeys[a]
	defer func() { archiveKeys[a], archiveKeys[b] = archiveKeys[b], archiveKeys[a] }()
	if _, err := ArchiveKeys(); err == nil {
		t.Fatal("a wrong fingerprint was accepted")
	}
}

func newKey(t testing.TB) *openpgp.Entity {
	t.Helper()
	e, err := openpgp.NewEntity("test", "", "test@example.org", &packet.Config{
		Algorithm: packet.PubKeyAlgoEdDSA, Time: func() time.Time { return testNow.AddDate(-1, 0, 0) }})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func sign(t testing.TB, key *openpgp.Entity, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := clearsign.Encode(&b, key.PrivateKey, &packet.Config{Time: func() time.Time { return testNow.Add(-time.Hour) }})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

const releaseText = `Origin: Debian
Codename: trixie
Date: Fri, 01 May 2026 10:00:00 UTC
Valid-Until: Fri, 08 May 2026 10:00:00 UTC
SHA256:
 e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855 0 main/x
`

func TestVerifyRelease(t *testing.T) {
	key, other := newKey(t), newKey(t)
	good := sign(t, key, releaseText)
	keys := openpgp.EntityList{key}
	rel, err := VerifyRelease(good, keys, testNow)
	if err != nil {
		t.Fatal(err)
	}
	if rel.Codename != "trixie" || len(rel.Files) != 1 || !rel.Date.Equal(time.Date(2026, 5, 1, 10, 0, 0, 0, time.UTC)) {
		t.Fatalf("got %+v", rel)
	}
	for name, c := range map[string]struct {
		in   []byte
		keys openpgp.EntityList
		now  time.Time
		want error
	}{
		"another key": {good, openpgp.EntityList{other}, testNow, ErrSignature},
		"no keys":     {good, nil, testNow, ErrSignature},
		"changed":     {bytes.Replace(good, []byte("trixie"), []byte("bookwo"), 1), keys, testNow, ErrSignature},
		"expired":     {good, keys, testNow.AddDate(0, 1, 0), ErrSignature},
		"unsigned":    {[]byte(releaseText), keys, testNow, ErrFormat},
		"text before": {append([]byte("Codename: evil\n\n"), good...), keys, testNow, ErrFormat},
		"text after":  {append(slices.Clone(good), "Codename: evil\n"...), keys, testNow, ErrFormat},
		"too long":    {make([]byte, MaxReleaseBytes+1), keys, testNow, ErrFormat},
	} {
		if _, err := VerifyRelease(c.in, c.keys, c.now); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

func FuzzParseRelease(f *testing.F) {
	f.Add([]byte(releaseText))
	f.Add([]byte("Date: x\nSHA256:\n a b c\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		rel, err := parseRelease(b)
		if err != nil {
			if !errors.Is(err, ErrFormat) {
				t.Fatal(err)
			}
			return
		}
		for p, r := range rel.Files {
			if filepath.IsAbs(p) || r.Bytes < 0 || !isSHA256(r.SHA256) {
				t.Fatalf("%q %+v", p, r)
			}
		}
	})
}

// FuzzVerifyRelease: what a mirror sends, before and behind the signature check.
func FuzzVerifyRelease(f *testing.F) {
	key := newKey(f)
	keys := openpgp.EntityList{key}
	good := sign(f, key, releaseText)
	f.Add(good)
	f.Add(good[:len(good)/2])
	f.Add(bytes.Replace(good, []byte("Hash:"), []byte("Hash: MD5,"), 1))
	f.Add([]byte("-----BEGIN PGP SIGNED MESSAGE-----\n\nx\n-----BEGIN PGP SIGNATURE-----\n\n-----END PGP SIGNATURE-----\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		rel, err := VerifyRelease(b, keys, testNow)
		switch {
		case err == nil:
			// Only this text was ever signed.
			if rel.Codename != "trixie" || len(rel.Files) != 1 {
				t.Fatalf("a forged release: %+v", rel)
			}
		case !errors.Is(err, ErrFormat) && !errors.Is(err, ErrSignature):
			t.Fatal(err)
		}
	})
}

// FuzzIndex: a list of a mirror and the closure over it.
func FuzzIndex(f *testing.F) {
	for _, extra := range []string{"", "Depends: b (>= 1:2~), c | d (<< 3), e:any [amd64] <!x>", "Pre-Depends: a\nProvides: v (= 1), w",
		"Depends: ${x}", "Depends: v, , w", "Depends: b (", "Depends: b [", "Depends: |"} {
		f.Add([]byte(pkg("a", "1:1-1", extra) + pkg("b", "1:2~rc-1", "Depends: a") + pkg("c", "0", "Provides: v")))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		x := NewIndex()
		if err := x.Add(ArchiveMain, bytes.NewReader(b)); err != nil {
			if !errors.Is(err, ErrFormat) {
				t.Fatal(err)
			}
			return
		}
		for name := range x.packages {
			got, err := x.Closure([]string{name}, []string{"c"})
			if err != nil {
				continue
			}
			for i, p := range got {
				if err := p.entry().validate(); err != nil || i > 0 && got[i-1].Name >= p.Name {
					t.Fatalf("%+v: %v", p, err)
				}
			}
		}
	})
}

// TestClosureIsBounded: without the bound this takes minutes.
func TestClosureIsBounded(t *testing.T) {
	x := testIndex(t, pkg("a", "1", "Depends: "+strings.Repeat("x", maxLineBytes-100)))
	if _, err := x.Closure([]string{"a"}, nil); !errors.Is(err, ErrFormat) {
		t.Errorf("%v, want ErrFormat", err)
	}
}

// FuzzClosure gets past the list's format to the relations in it. No input may
// take long: relock runs on whatever a mirror sends until the digest is known.
func FuzzClosure(f *testing.F) {
	for _, c := range [][2]string{{"b (>= 1:2~), c | d (<< 3)", "v (= 1), w"}, {"e:any [amd64] <!x>", ""}, {"v, , w", "v"},
		{"${x}", ","}, {"b (", "("}, {"b [", "b ["}, {"|", "|"}, {"b (>= ", ""}, {"b <", ""}} {
		f.Add(c[0], c[1])
	}
	f.Fuzz(func(t *testing.T, depends, provides string) {
		clean := func(s string) string { return strings.NewReplacer("\n", " ", "\r", " ").Replace(s) }
		x := NewIndex()
		list := pkg("a", "1", "Depends: "+clean(depends)) + pkg("b", "1:2-1", "Provides: "+clean(provides))
		if err := x.Add(ArchiveMain, strings.NewReader(list)); err != nil {
			if !errors.Is(err, ErrFormat) {
				t.Fatal(err)
			}
			return
		}
		_, _ = x.Closure([]string{"a"}, nil)
	})
}

// pkg is a paragraph of a package list.
func pkg(name, version, extra string) string {
	sum := sha256.Sum256([]byte(name + version))
	return fmt.Sprintf("Package: %s\nVersion: %s\nFilename: pool/main/%s_%s.deb\nSize: 10\nSHA256: %s\n%s\n\n",
		name, version, name, strings.ReplaceAll(version, ":", "."), hex.EncodeToString(sum[:]), extra)
}

func testIndex(t *testing.T, paragraphs ...string) *Index {
	t.Helper()
	x := NewIndex()
	if err := x.Add(ArchiveMain, strings.NewReader(strings.Join(paragraphs, ""))); err != nil {
		t.Fatal(err)
	}
	return x
}

func names(ps []*Package) string {
	var out []string
	for _, p := range ps {
		out = append(out, p.Name)
	}
	return strings.Join(out, " ")
}

func TestBehind(t *testing.T) {
	x := testIndex(t,
		pkg("meta", "6.12.2", "Depends: image-2 (= 6.12.2), tool | other"), pkg("image-2", "6.12.2", "Depends: initramfs"),
		pkg("image-1", "6.12.1", ""), pkg("tool", "1", ""), pkg("leaf", "1", ""), pkg("broken", "1", "Depends: image-1 (= 6.12.2)"))
	if got, err := x.Behind([]string{"meta"}); err != nil || names(got) != "image-2 tool" {
		t.Errorf("got %q, %v", names(got), err)
	}
	for _, seed := range []string{"leaf", "broken", "absent"} {
		if got, err := x.Behind([]string{seed}); err == nil {
			t.Errorf("%s: got %s", seed, names(got))
		}
	}
}

func TestIndexNewestWins(t *testing.T) {
	x := testIndex(t, pkg("a", "1.10-1", ""), pkg("a", "1.9-1", ""), pkg("b", "1.0", ""), pkg("c", "1:0.1", ""))
	if err := x.Add(ArchiveSecurity, strings.NewReader(pkg("a", "1.10-1+deb13u1", "")+pkg("b", "1.0~rc1", "")+pkg("c", "9", ""))); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"a": "1.10-1+deb13u1 debian-security", "b": "1.0 debian", "c": "1:0.1 debian"} {
		if p := x.Lookup(name); p.Version+" "+p.Archive != want {
			t.Errorf("%s: %s %s, want %s", name, p.Version, p.Archive, want)
		}
	}
}

func TestIndexRefuses(t *testing.T) {
	ok := pkg("a", "1", "")
	for name, in := range map[string]string{
		"traversal": strings.Replace(ok, "pool/main", "pool/../../etc", 1),
		"absolute":  strings.Replace(ok, "pool/", "/pool/", 1),
		"elsewhere": strings.Replace(ok, "pool/", "evil/", 1),
		"query":     strings.Replace(ok, ".deb", "?x.deb", 1),
		"size":      strings.Replace(ok, "Size: 10", "Size: -1", 1),
		"digest":    strings.Replace(ok, "SHA256: ", "SHA256: zz", 1),
		"version":   strings.Replace(ok, "Version: 1", "Version: x", 1),
	} {
		if in == ok {
			t.Fatalf("%s: the case changes nothing", name)
		}
		if err := NewIndex().Add(ArchiveMain, strings.NewReader(in)); !errors.Is(err, ErrFormat) {
			t.Errorf("%s: %v, want ErrFormat", name, err)
		}
	}
}

func TestClosure(t *testing.T) {
	x := testIndex(t,
		pkg("app", "1", "Depends: lib (>= 2), virtual | other, third:any, skipped\nPre-Depends: pre"),
		pkg("lib", "2.1", "Depends: app"), pkg("pre", "1", ""), pkg("third", "1", "Depends: nope | lib"),
		pkg("impl-b", "1", "Provides: virtual"), pkg("impl-a", "1", "Provides: virtual (= 3), more"),
		pkg("skipped", "1", "Depends: missing"), pkg("unused", "1", ""),
		pkg("new", "1", "Depends: lib (>> 2.1)"), pkg("old", "1", "Depends: lib (<< 2.1) | pre (= 1)"))
	got, err := x.Closure([]string{"app"}, []string{"skipped"})
	if err != nil {
		t.Fatal(err)
	}
	if names(got) != "app impl-a lib pre third" {
		t.Fatalf("got %s", names(got))
	}
	if got, err := x.Closure([]string{"old"}, nil); err != nil || names(got) != "old pre" {
		t.Fatalf("alternatives with versions: %v, %v", names(got), err)
	}
	for _, seed := range []string{"skipped", "new", "absent"} {
		if got, err := x.Closure([]string{seed}, nil); err == nil {
			t.Errorf("%s: unmet dependency passed: %v", seed, names(got))
		}
	}
}

// archive is a Source made of files in memory, signed by key.
type archive struct {
	t     *testing.T
	dir   string
	files map[string][]byte
}

func (a *archive) Fresh(_ context.Context, arch, p string, _ int64) ([]byte, error) {
	if b, ok := a.files[arch+"/"+p]; ok {
		return b, nil
	}
	return nil, os.ErrNotExist
}

func (a *archive) Pinned(_ context.Context, arch, p string, _ int64, sum string) (string, error) {
	name := filepath.Join(a.dir, sum)
	return name, os.WriteFile(name, a.files[arch+"/"+p], 0o600)
}

func newArchive(t *testing.T, key *openpgp.Entity, date time.Time, lists map[string]string) *archive {
	a := &archive{t: t, dir: t.TempDir(), files: map[string][]byte{}}
	for _, s := range suites {
		text := fmt.Sprintf("Codename: %s\nDate: %s\nSHA256:\n", s.name, date.Format(time.RFC1123))
		for _, arch := range architectures {
			b := xzBytes(t, lists[s.name])
			name := "main/binary-" + arch + "/Packages.xz"
			text += fmt.Sprintf(" %s %d %s\n", digestOf(b), len(b), name)
			a.files[s.archive+"/dists/"+s.name+"/main/binary-"+arch+"/by-hash/SHA256/"+digestOf(b)] = b
		}
		a.files[s.archive+"/dists/"+s.name+"/InRelease"] = sign(t, key, text)
	}
	return a
}

func xzBytes(t *testing.T, s string) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := xz.NewWriter(&b)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte(s)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestRelock(t *testing.T) {
	key := newKey(t)
	date := testNow.Add(-2 * time.Hour)
	r := Relocker{Keys: openpgp.EntityList{key}, Now: func() time.Time { return testNow },
		Recipes: []Recipe{{Set: "s", Seeds: []string{"a"}}, {Set: "src", Arch: ArchAll, Seeds: []string{"k"}, Alone: true},
			{Set: "img", Seeds: []string{"m-$arch"}, Behind: true}}}
	metas := pkg("m-amd64", "1", "Depends: b (= 1+deb13u1)") + pkg("m-arm64", "1", "Depends: k")
	r.Source = newArchive(t, key, date, map[string]string{
		"trixie":          pkg("a", "1", "Depends: b") + pkg("b", "1", "Depends: more") + pkg("k", "1", "Depends: nothing") + metas,
		"trixie-security": pkg("b", "1+deb13u1", ""),
	})
	first, err := r.Relock(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	set, err := first.Set("s", "arm64")
	if err != nil || len(set.Packages) != 2 || set.Packages[1].Version != "1+deb13u1" || set.Packages[1].Archive != ArchiveSecurity {
		t.Fatalf("%+v, %v", set, err)
	}
	if set, err := first.Set("src", "amd64"); err != nil || set.Arch != ArchAll || len(set.Packages) != 1 {
		t.Fatalf("%+v, %v", set, err)
	}
	for arch, want := range map[string]string{"amd64": "b", "arm64": "k"} {
		if set, err := first.Set("img", arch); err != nil || len(set.Packages) != 1 || set.Packages[0].Name != want {
			t.Fatalf("behind the meta package for %s: %+v, %v, want %s", arch, set, err, want)
		}
	}
	again, err := r.Relock(t.Context(), first)
	if err != nil || len(Changes(first, again)) != 0 {
		t.Fatalf("%v, %v", Changes(first, again), err)
	}

	r.Source = newArchive(t, key, date.Add(time.Hour), map[string]string{
		"trixie": pkg("a", "2", "") + pkg("k", "1", "") + metas, "trixie-security": pkg("b", "1+deb13u1", "")})
	newer, err := r.Relock(t.Context(), first)
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(Changes(first, newer)[:2]); got != "[s amd64: a 1 -> 2 s amd64: b 1+deb13u1 -> (removed)]" {
		t.Fatal(got)
	}
	r.Source = newArchive(t, key, date, map[string]string{"trixie": pkg("a", "1", "")}) // refused before it is read
	if _, err := r.Relock(t.Context(), newer); !errors.Is(err, ErrSignature) {
		t.Fatalf("older lists: %v, want ErrSignature", err)
	}
	r.Source = newArchive(t, newKey(t), testNow, nil)
	if _, err := r.Relock(t.Context(), newer); !errors.Is(err, ErrSignature) {
		t.Fatalf("another key: %v, want ErrSignature", err)
	}
}

func goodLock() *Lock {
	return &Lock{Schema: LockSchema, Snapshot: "20260501T120000Z",
		Releases: []LockedRelease{{ArchiveMain, "trixie", testNow, strings.Repeat("a", 64)}},
		Sets: []Set{{Name: "root", Arch: "amd64", Packages: []Entry{
			{"a", "1", ArchiveMain, "pool/main/a/a_1_amd64.deb", 10, strings.Repeat("b", 64), false},
			{"b", "1", ArchiveMain, "pool/main/b/b_1_amd64.deb", 10, strings.Repeat("c", 64), false}}}}}
}

func TestLockRoundTrip(t *testing.T) {
	file := filepath.Join(t.TempDir(), "lock.json")
	l := goodLock()
	if err := l.WriteFile(file); err != nil {
		t.Fatal(err)
	}
	got, err := ReadLock(file)
	if err != nil {
		t.Fatal(err)
	}
	if got.SHA256() != l.SHA256() || len(Changes(l, got)) != 0 {
		t.Fatal("a lock changed on its way through a file")
	}
}

func TestLockRefuses(t *testing.T) {
	for name, change := range map[string]func(*Lock){
		"schema":      func(l *Lock) { l.Schema = "pybox.debian-lock/v2" },
		"snapshot":    func(l *Lock) { l.Snapshot = "../../x" },
		"traversal":   func(l *Lock) { l.Sets[0].Packages[0].Path = "pool/../../etc/passwd.deb" },
		"absolute":    func(l *Lock) { l.Sets[0].Packages[0].Path = "/pool/a.deb" },
		"unclean":     func(l *Lock) { l.Sets[0].Packages[0].Path = "pool//a.deb" },
		"address":     func(l *Lock) { l.Sets[0].Packages[0].Path = "pool/http://x/a.deb" },
		"no package":  func(l *Lock) { l.Sets[0].Packages[0].Path = "pool/a.tar" },
		"digest":      func(l *Lock) { l.Sets[0].Packages[0].SHA256 = strings.Repeat("B", 64) },
		"short":       func(l *Lock) { l.Sets[0].Packages[0].SHA256 = "bb" },
		"bytes":       func(l *Lock) { l.Sets[0].Packages[0].Bytes = 0 },
		"huge":        func(l *Lock) { l.Sets[0].Packages[0].Bytes = maxPackageBytes + 1 },
		"archive":     func(l *Lock) { l.Sets[0].Packages[0].Archive = "debian-evil" },
		"duplicate":   func(l *Lock) { l.Sets[0].Packages[1] = l.Sets[0].Packages[0] },
		"order":       func(l *Lock) { slices.Reverse(l.Sets[0].Packages) },
		"empty set":   func(l *Lock) { l.Sets[0].Packages = nil },
		"two sets":    func(l *Lock) { l.Sets = append(l.Sets, l.Sets[0]) },
		"set arch":    func(l *Lock) { l.Sets[0].Arch = "riscv64" },
		"name":        func(l *Lock) { l.Sets[0].Packages[0].Name = "a b" },
		"many sets":   func(l *Lock) { l.Sets = make([]Set, maxSets+1) },
		"many pkgs":   func(l *Lock) { l.Sets[0].Packages = make([]Entry, maxSetPackages+1) },
		"no date":     func(l *Lock) { l.Releases[0].Date = time.Time{} },
		"release sum": func(l *Lock) { l.Releases[0].SHA256 = "" },
	} {
		l := goodLock()
		change(l)
		if _, err := l.Encode(); !errors.Is(err, ErrLock) {
			t.Errorf("%s: %v, want ErrLock", name, err)
		}
	}
	good, err := goodLock().Encode()
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{
		"unknown key": bytes.Replace(good, []byte(`"snapshot"`), []byte(`"evil": 1, "snapshot"`), 1),
		"trailing":    append(slices.Clone(good), '1'),
		"cut":         good[:len(good)/2],
		"too long":    append(slices.Clone(good), bytes.Repeat([]byte(" "), maxLockBytes)...),
	} {
		if _, err := ParseLock(b); !errors.Is(err, ErrLock) {
			t.Errorf("%s: %v, want ErrLock", name, err)
		}
	}
}

func FuzzParseLock(f *testing.F) {
	good, err := goodLock().Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(`{"schema":"pybox.debian-lock/v1"}`))
	more := addedLock()
	if good, err = more.Encode(); err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(bytes.Replace(good, []byte(`"strace"`), []byte(`"../strace"`), 1))
	f.Add(bytes.Replace(good, []byte(`"added": true`), []byte(`"added": 1`), 1))
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := ParseLock(b)
		if err != nil {
			if !errors.Is(err, ErrLock) {
				t.Fatal(err)
			}
			return
		}
		out, err := l.Encode()
		if err != nil {
			t.Fatalf("a valid lock does not encode: %v", err)
		}
		if again, err := ParseLock(out); err != nil || len(Changes(l, again)) != 0 {
			t.Fatalf("it changed: %v", err)
		}
	})
}

// TestRealLock keeps the repository's lock file and the recipes together.
func TestRealLock(t *testing.T) {
	l, err := ReadLock("../debian.lock.json")
	if err != nil {
		t.Fatal(err)
	}
	sets := 0
	for _, r := range Recipes() {
		for _, arch := range r.architectures() {
			s, err := l.Set(r.Set, arch)
			if err != nil {
				t.Fatal(err)
			}
			sets++
			if r.Behind {
				// What stands behind a meta package is not in the recipe. Of
				// the cloud kernel only one package may be locked.
				if len(s.Packages) != len(r.Seeds) {
					t.Errorf("set %s %s has %d packages, want %d", r.Set, arch, len(s.Packages), len(r.Seeds))
				}
				continue
			}
			for _, seed := range r.Seeds {
				if !slices.ContainsFunc(s.Packages, func(e Entry) bool { return e.Name == seed }) {
					t.Errorf("set %s %s lacks %s", r.Set, arch, seed)
				}
			}
		}
	}
	if sets != len(l.Sets) {
		t.Errorf("the lock has %d sets, the recipes make %d", len(l.Sets), sets)
	}
}

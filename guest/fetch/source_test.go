package fetch

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestAptMirrors(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string) {
		name = filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("sources.list", `# deb http://commented.example/debian bookworm main
deb http://one.example/debian/ bookworm main contrib
deb-src http://source.example/debian bookworm main
deb [arch=amd64 signed-by=/usr/share/keyrings/x.gpg] https://two.example/a/debian-security bookworm-security main # note
deb[trusted=yes] http://three.example/debian x main
deb cdrom:[Debian]/ bookworm main
deb http://other.example/ubuntu noble main
deb
`)
	write("sources.list.d/b.sources", `Types: deb deb-src
URIs: http://four.example/debian http://one.example/debian
Suites: trixie
Components: main

Types: deb-src
URIs: http://src.example/debian
Suites: trixie

Types: deb
Enabled: no
URIs: http://off.example/debian
Suites: trixie
`)
	write("sources.list.d/c.list.save", "deb http://saved.example/debian x main\n")
	write("sources.list.d/d.sources", " broken")
	want := []string{"http://one.example/debian", "https://two.example/a/debian-security", "http://three.example/debian", "http://four.example/debian"}
	if got := AptMirrors(root); !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if got := AptMirrors(filepath.Join(root, "nothing")); got != nil {
		t.Errorf("no apt: %q", got)
	}
}

func TestAptSourcesPreferWhatIsListed(t *testing.T) {
	sources := AptSources([]string{"http://a.example/debian", "http://b.example/x/debian-security"})
	urls := func(archive string) (out []string) {
		for _, s := range sources {
			if u := s.url(archive, "pool/p.deb"); u != "" {
				out = append(out, u)
			}
		}
		return out
	}
	if got, want := urls("debian"), []string{"http://a.example/debian/pool/p.deb", "http://b.example/x/debian/pool/p.deb"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := urls("debian-security"), []string{"http://b.example/x/debian-security/pool/p.deb", "http://a.example/debian-security/pool/p.deb"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestMirror(t *testing.T) {
	for _, base := range []string{"http://h/x/debian", "http://h/x/debian/", "http://h/x/debian-security", "http://h/x"} {
		s, err := Mirror("m", base)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.url("debian-security", "pool/a+b~1.deb"); got != "http://h/x/debian-security/pool/a+b~1.deb" {
			t.Errorf("%s: %s", base, got)
		}
	}
	for _, bad := range []string{"", "ftp://h/debian", "/srv/debian", "http:///debian", "http://h/\x00", "http://h/debian?x=y", "http://h/debian#x"} {
		if _, err := Mirror("m", bad); err == nil {
			t.Errorf("%q passed", bad)
		}
	}
}

func TestDefaultSources(t *testing.T) {
	at := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct{ flag, env, first string }{
		{"http://flag/debian", "http://env/debian", "http://flag/debian/pool/x.deb"},
		{"", "http://env/debian", "http://env/debian/pool/x.deb"},
	} {
		t.Setenv("PYBOX_DEBIAN_MIRROR", c.env)
		list, err := DefaultSources(c.flag, at)
		if err != nil {
			t.Fatal(err)
		}
		if got := list[0].url("debian", "pool/x.deb"); got != c.first {
			t.Errorf("first %s, want %s", got, c.first)
		}
		if got := list[len(list)-1].url("debian", "pool/x.deb"); !strings.HasPrefix(got, snapshotBase) {
			t.Errorf("last %s, want the snapshot archive", got)
		}
	}
	t.Setenv("PYBOX_DEBIAN_MIRROR", "/srv/debian")
	if _, err := DefaultSources("", at); err == nil {
		t.Error("a folder passed for a mirror")
	}
}

func TestSnapshot(t *testing.T) {
	at := time.Date(2026, 5, 1, 14, 0, 0, 0, time.FixedZone("", 7200))
	for own, base := range map[string]string{
		"":                     "https://snapshot.debian.org/archive",
		"http://127.0.0.1:1/a": "http://127.0.0.1:1/a",
		"https://h/archive/":   "https://h/archive",
	} {
		t.Setenv("PYBOX_DEBIAN_SNAPSHOT", own)
		s, err := Snapshot(at)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.url("debian-security", "pool/x.deb"); got != base+"/debian-security/20260501T120000Z/pool/x.deb" {
			t.Errorf("%q: %s", own, got)
		}
	}
	for _, bad := range []string{"/srv/snapshots", "ftp://h/archive", "http://", "https://h/archive?at=", "http://h/\x7f"} {
		t.Setenv("PYBOX_DEBIAN_SNAPSHOT", bad)
		if _, err := Snapshot(at); err == nil || !strings.Contains(err.Error(), "PYBOX_DEBIAN_SNAPSHOT") {
			t.Errorf("%q: %v", bad, err)
		}
		if _, err := DefaultSources("", at); err == nil {
			t.Errorf("%q passed for a snapshot archive", bad)
		}
	}
}

func FuzzAptSources(f *testing.F) {
	f.Add([]byte("deb [a=b] http://h/debian s main\n"))
	f.Add([]byte("Types: deb\nURIs: http://h/debian\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, uris := range [][]string{parseOneLineSources(b), parseDeb822Sources(b)} {
			for _, u := range uris {
				base, ok := archiveBase(u)
				if !ok {
					continue
				}
				for _, s := range AptSources([]string{base}) {
					for _, a := range []string{"debian", "debian-security"} {
						if got := s.url(a, "pool/x.deb"); got != "" && !strings.HasPrefix(got, "http") {
							t.Fatalf("%q from %q", got, u)
						}
					}
				}
			}
		}
	})
}

func TestAt(t *testing.T) {
	s, err := At("a registry", "blobs", "https://h.example:5000/v2/x/")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := s.url("blobs", "blobs/sha256:00"), "https://h.example:5000/v2/x/blobs/sha256:00"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := s.url("debian", "x"); got != "" {
		t.Errorf("another archive: %q", got)
	}
	for _, bad := range []string{"", "h", "ftp://h", "https://h/?q", "https://h/#f"} {
		if _, err := At("x", "a", bad); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
	if _, err := At("x", "a", "ftp://name:secret@h"); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("got %v", err)
	}
}

func TestOneHasItsOwnAddress(t *testing.T) {
	s := One("a shelf", "https://user:secret@example.org/a%20b.whl?token=secret")
	if got := s.url("any", "other/path"); got != "https://user:secret@example.org/a%20b.whl?token=secret" {
		t.Error(got)
	}
	if got := s.Addresses(); len(got) != 1 || strings.Contains(got[0], "secret") || !strings.Contains(got[0], "a%20b.whl") {
		t.Error(got)
	}
}

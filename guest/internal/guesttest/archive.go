package guesttest

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/armor"
	"github.com/ProtonMail/go-crypto/openpgp/clearsign"
	"github.com/ProtonMail/go-crypto/openpgp/packet"

	"github.com/pybox/pybox/guest/debian"
)

// codename is the release that a lock is made from.
const codename = "trixie"

var architectures = []string{"amd64", "arm64"}

// Listed is a package of an Archive.
type Listed struct {
	debian.Entry
	// Arch is whose list has it: "amd64", "arm64", or debian.ArchAll for both.
	Arch    string
	Depends string
	// Body is the package file, nil where the archive lists it without having it.
	Body []byte
}

// NewListed is a package of the archive's main part, made from p.
func NewListed(t testing.TB, p Package, depends string) Listed {
	t.Helper()
	b := Deb(t, p)
	sum := sha256.Sum256(b)
	return Listed{Arch: p.Arch, Depends: depends, Body: b, Entry: debian.Entry{
		Name: p.Name, Version: p.Version, Archive: debian.ArchiveMain, Bytes: int64(len(b)), SHA256: hex.EncodeToString(sum[:]),
		Path: fmt.Sprintf("pool/main/%s_%s_%s.deb", p.Name, p.Version, p.Arch)}}
}

// ListedIn are the packages of a lock with dependencies that bring the recipes' sets
// about again. They have no bodies.
func ListedIn(t testing.TB, lock *debian.Lock) []Listed {
	t.Helper()
	depends := map[string][]string{} // by name and architecture
	var metas []Listed
	for _, r := range debian.Recipes() {
		for _, s := range lock.Sets {
			if s.Name != r.Set || r.Alone {
				continue
			}
			var all []string
			for _, p := range s.Packages {
				all = append(all, p.Name)
			}
			for _, seed := range r.Seeds {
				seed = strings.ReplaceAll(seed, "$arch", s.Arch)
				id := seed + " " + s.Arch
				if old, shared := depends[id]; shared {
					// A seed of two sets brings what both have.
					depends[id] = slices.DeleteFunc(old, func(p string) bool { return !slices.Contains(all, p) })
				} else {
					depends[id] = slices.Clone(all)
				}
				if r.Behind {
					meta := s.Packages[0]
					meta.Name, meta.Path = seed, "pool/main/"+seed+".deb"
					metas = append(metas, Listed{Entry: meta, Arch: s.Arch})
				}
			}
		}
	}
	seen := map[string]bool{}
	list := metas
	for _, s := range lock.Sets {
		for _, p := range s.Packages {
			if id := p.Name + " " + s.Arch; !seen[id] {
				seen[id] = true
				list = append(list, Listed{Entry: p, Arch: s.Arch})
			}
		}
	}
	for i, p := range list {
		list[i].Depends = strings.Join(depends[p.Name+" "+p.Arch], ", ")
	}
	return list
}

// Archive is a Debian archive, and an archive of one snapshot of it, that signs its
// lists with a key of its own.
type Archive struct {
	// Mirror is the base of the archive, Snapshots that of the snapshot archive.
	Mirror, Snapshots string
	// Keyring is a file with the public key.
	Keyring string

	key   *openpgp.Entity
	files map[string][]byte // by path of the request
}

// NewArchive serves packages as they are now, and those of then as a snapshot of the
// time at, which is its only one. The lists are of a minute before.
func NewArchive(t testing.TB, now, then []Listed, at time.Time) *Archive {
	t.Helper()
	a := &Archive{files: map[string][]byte{}}
	var err error
	if a.key, err = openpgp.NewEntity("archive", "", "archive@example.org", &packet.Config{
		Algorithm: packet.PubKeyAlgoEdDSA, Time: func() time.Time { return at.AddDate(0, 0, -1) }}); err != nil {
		t.Fatal(err)
	}
	a.writeKeyring(t)
	a.add(t, func(archive string) string { return "/" + archive }, now, time.Now())
	stamp := at.UTC().Format("20060102T150405Z")
	a.add(t, func(archive string) string { return "/archive/" + archive + "/" + stamp }, then, at)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, ok := a.files[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/octet-stream")
		_, _ = w.Write(b)
	}))
	t.Cleanup(srv.Close)
	a.Mirror, a.Snapshots = srv.URL+"/debian", srv.URL+"/archive"
	return a
}

func (a *Archive) writeKeyring(t testing.TB) {
	t.Helper()
	var b bytes.Buffer
	w, err := armor.Encode(&b, openpgp.PublicKeyType, nil)
	if err == nil {
		err = a.key.Serialize(w)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	a.Keyring = filepath.Join(t.TempDir(), "archive.asc")
	if err := os.WriteFile(a.Keyring, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
}

// add makes the files of the archive's suites below the bases.
func (a *Archive) add(t testing.TB, base func(archive string) string, list []Listed, at time.Time) {
	t.Helper()
	for _, s := range []struct{ archive, suite string }{
		{debian.ArchiveMain, codename}, {debian.ArchiveMain, codename + "-updates"}, {debian.ArchiveSecurity, codename + "-security"},
	} {
		dists := base(s.archive) + "/dists/" + s.suite
		text := fmt.Sprintf("Codename: %s\nDate: %s\nSHA256:\n", s.suite, at.Add(-time.Minute).UTC().Format(time.RFC1123))
		for _, arch := range architectures {
			b := Compress(t, []byte(paragraphs(list, s.archive, s.suite, arch)), ".xz")
			sum := sha256.Sum256(b)
			text += fmt.Sprintf(" %x %d main/binary-%s/Packages.xz\n", sum, len(b), arch)
			a.files[fmt.Sprintf("%s/main/binary-%s/by-hash/SHA256/%x", dists, arch, sum)] = b
		}
		a.files[dists+"/InRelease"] = a.sign(t, text, at.Add(-time.Minute))
	}
	for _, p := range list {
		if p.Body != nil {
			a.files[base(p.Archive)+"/"+p.Path] = p.Body
		}
	}
}

// paragraphs are the package list of a suite for an architecture.
func paragraphs(list []Listed, archive, suite, arch string) string {
	var b strings.Builder
	for _, p := range list {
		// One suite of each archive has everything, and the other nothing.
		if p.Archive != archive || strings.HasSuffix(suite, "-updates") || !slices.Contains([]string{arch, debian.ArchAll}, p.Arch) {
			continue
		}
		fmt.Fprintf(&b, "Package: %s\nVersion: %s\nFilename: %s\nSize: %d\nSHA256: %s\n", p.Name, p.Version, p.Path, p.Bytes, p.SHA256)
		if p.Depends != "" {
			fmt.Fprintf(&b, "Depends: %s\n", p.Depends)
		}
		b.WriteString("\n")
	}
	return b.String()
}

func (a *Archive) sign(t testing.TB, text string, at time.Time) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := clearsign.Encode(&b, a.key.PrivateKey, &packet.Config{Time: func() time.Time { return at }})
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

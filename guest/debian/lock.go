package debian

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/google/renameio/v2"
)

// LockSchema names the lock file's format. A reader refuses any other.
const LockSchema = "pybox.debian-lock/v1"

// Bounds of a lock file. The largest set in sight has 80 packages.
const (
	maxLockBytes    = 4 << 20
	maxReleases     = 16
	maxSets         = 64
	maxSetPackages  = 2000
	maxPackageBytes = 4 << 30
	maxWordBytes    = 200
)

// ErrLock marks a lock file that is malformed or breaks a rule of its format.
var ErrLock = errors.New("invalid lock file")

func lockErr(format string, a ...any) error {
	return fmt.Errorf("%w: %s", ErrLock, fmt.Sprintf(format, a...))
}

// Lock is the content of a lock file: named sets of packages, each pinned by
// size and SHA-256, and where they came from.
type Lock struct {
	Schema string `json:"schema"`
	// Snapshot is a time at which the snapshot archive holds every package,
	// as "20060102T150405Z".
	Snapshot string `json:"snapshot"`
	// Releases are the signed lists that the sets were chosen from.
	Releases []LockedRelease `json:"releases"`
	// Additions are what a person has in the sets beside PyBox's own packages,
	// sorted by set. A new lock keeps them.
	Additions []Addition `json:"additions,omitempty"`
	Sets      []Set      `json:"sets"`

	digest string // of the bytes that it was read from or written as
}

// LockedRelease identifies one InRelease file.
type LockedRelease struct {
	Archive string    `json:"archive"`
	Suite   string    `json:"suite"`
	Date    time.Time `json:"date"`
	SHA256  string    `json:"sha256"`
}

// Set is a named list of packages for one architecture, sorted by name.
type Set struct {
	Name     string  `json:"name"`
	Arch     string  `json:"arch"` // "amd64", "arm64", or ArchAll
	Packages []Entry `json:"packages"`
}

// Entry is one pinned package file.
type Entry struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	Archive string `json:"archive"`
	// Path is relative to the archive's base and starts with "pool/".
	Path   string `json:"path"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"` // lower-case hex
	// Added marks what is in the set because of Lock.Additions.
	Added bool `json:"added,omitempty"`
}

// snapshotLayout is the form of times in addresses of the snapshot archive.
const snapshotLayout = "20060102T150405Z"

// ReadLock reads and validates a lock file. An error about its content matches
// ErrLock.
func ReadLock(file string) (*Lock, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("read lock file: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxLockBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read lock file: %w", err)
	}
	l, err := ParseLock(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return l, nil
}

// ParseLock parses and validates the bytes of a lock file.
func ParseLock(b []byte) (*Lock, error) {
	if len(b) > maxLockBytes {
		return nil, lockErr("longer than %d bytes", maxLockBytes)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	var l Lock
	if err := d.Decode(&l); err != nil {
		return nil, lockErr("%v", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, lockErr("there is something after its end")
	}
	if err := l.validate(); err != nil {
		return nil, err
	}
	l.digest = digestOf(b)
	return &l, nil
}

func digestOf(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

// SHA256 is the hex digest of the bytes that the lock was parsed from or last
// encoded to.
func (l *Lock) SHA256() string { return l.digest }

// Encode returns the lock file's bytes: the same for equal locks.
func (l *Lock) Encode() ([]byte, error) {
	if err := l.validate(); err != nil {
		return nil, err
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(l); err != nil {
		return nil, fmt.Errorf("encode lock file: %w", err)
	}
	l.digest = digestOf(b.Bytes())
	return b.Bytes(), nil
}

// WriteFile writes the lock to file, all of it or nothing.
func (l *Lock) WriteFile(file string) error {
	b, err := l.Encode()
	if err != nil {
		return err
	}
	if err := renameio.WriteFile(file, b, 0o644); err != nil {
		return fmt.Errorf("write lock file: %w", err)
	}
	return nil
}

// Set returns the set of that name for arch, or the one for every architecture.
// The error lists what there is.
func (l *Lock) Set(name, arch string) (*Set, error) {
	var have []string
	for i := range l.Sets {
		s := &l.Sets[i]
		if s.Name == name && (s.Arch == arch || s.Arch == ArchAll) {
			return s, nil
		}
		have = append(have, s.Name+" "+s.Arch)
	}
	return nil, fmt.Errorf("the lock file has no set %q for %q; it has: %s", name, arch, strings.Join(have, ", "))
}

// ParseSnapshot reads a time in the form that the snapshot archive's addresses have:
// "20060102T150405Z".
func ParseSnapshot(s string) (time.Time, error) {
	t, err := time.Parse(snapshotLayout, s)
	if err != nil || t.Format(snapshotLayout) != s {
		return time.Time{}, fmt.Errorf("%.40q: want a time such as 20261101T000000Z", s)
	}
	return t, nil
}

// SnapshotTime is the time of Snapshot.
func (l *Lock) SnapshotTime() (time.Time, error) { return time.Parse(snapshotLayout, l.Snapshot) }

func (l *Lock) validate() error {
	switch {
	case l.Schema != LockSchema:
		return lockErr("its schema is %.40q and this PyBox reads %q", l.Schema, LockSchema)
	case len(l.Releases) > maxReleases:
		return lockErr("%d releases", len(l.Releases))
	case len(l.Sets) > maxSets || len(l.Additions) > maxSets:
		return lockErr("%d sets, additions to %d", len(l.Sets), len(l.Additions))
	}
	if _, err := ParseSnapshot(l.Snapshot); err != nil {
		return lockErr("snapshot time %v", err)
	}
	for _, r := range l.Releases {
		if !isArchive(r.Archive) || !isWord(r.Suite) || !isSHA256(r.SHA256) || r.Date.IsZero() {
			return lockErr("release %.40q %.40q is incomplete", r.Archive, r.Suite)
		}
	}
	seen := map[string]bool{}
	for _, s := range l.Sets {
		key := s.Name + " " + s.Arch
		if seen[key] {
			return lockErr("set %s stands twice", key)
		}
		seen[key] = true
		if err := s.validate(); err != nil {
			return err
		}
	}
	return l.validateAdditions()
}

func (s *Set) validate() error {
	switch {
	case !isWord(s.Name) || s.Arch != ArchAll && !slices.Contains(architectures, s.Arch):
		return lockErr("set %.40q for %.40q", s.Name, s.Arch)
	case len(s.Packages) == 0 || len(s.Packages) > maxSetPackages:
		return lockErr("set %s has %d packages", s.Name, len(s.Packages))
	}
	for i, p := range s.Packages {
		if err := p.validate(); err != nil {
			return lockErr("set %s: %v", s.Name, err)
		}
		if i > 0 && s.Packages[i-1].Name >= p.Name {
			return lockErr("set %s: %q is out of order or stands twice", s.Name, p.Name)
		}
	}
	return nil
}

// validate checks everything that a file name or an address is made from.
func (e Entry) validate() error {
	switch {
	case !isWord(e.Name):
		return fmt.Errorf("package name %.40q", e.Name)
	case !isWord(e.Version):
		return fmt.Errorf("package %s: version %.40q", e.Name, e.Version)
	case !isArchive(e.Archive):
		return fmt.Errorf("package %s: archive %.40q", e.Name, e.Archive)
	case !isPoolPath(e.Path):
		return fmt.Errorf("package %s: path %.200q is not a package below pool/", e.Name, e.Path)
	case e.Bytes <= 0 || e.Bytes > maxPackageBytes:
		return fmt.Errorf("package %s: %d bytes", e.Name, e.Bytes)
	case !isSHA256(e.SHA256):
		return fmt.Errorf("package %s: SHA-256 %.70q", e.Name, e.SHA256)
	}
	return nil
}

func isArchive(s string) bool { return s == ArchiveMain || s == ArchiveSecurity }

// isWord holds for package names, versions and suites: the characters that
// Debian Policy 5.6.1 and 5.6.12 allow, in any order.
func isWord(s string) bool {
	if s == "" || len(s) > maxWordBytes {
		return false
	}
	for i := range len(s) {
		if !isWordByte(s[i]) && s[i] != ':' {
			return false
		}
	}
	return true
}

func isWordByte(b byte) bool {
	return b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || strings.IndexByte("+-.~_", b) >= 0
}

func isPoolPath(s string) bool {
	if len(s) > 4*maxWordBytes || !strings.HasPrefix(s, "pool/") || path.Clean(s) != s || path.Ext(s) != ".deb" {
		return false
	}
	for i := range len(s) {
		if !isWordByte(s[i]) && s[i] != '/' {
			return false
		}
	}
	return true
}

// SameReleases tells whether two locks were made from the same lists, by date and
// digest.
func SameReleases(a, b *Lock) bool {
	return slices.EqualFunc(a.Releases, b.Releases, func(x, y LockedRelease) bool {
		return x.Archive == y.Archive && x.Suite == y.Suite && x.SHA256 == y.SHA256 && x.Date.Equal(y.Date)
	})
}

// Change is the difference of one package between two locks.
type Change struct {
	Set, Arch, Package string
	Old, New           string // versions; empty: added or removed
}

// String implements fmt.Stringer.
func (c Change) String() string {
	old, cur := c.Old, c.New
	if old == "" {
		old = "(not there)"
	}
	if cur == "" {
		cur = "(removed)"
	}
	if old == cur {
		cur += " (another file, or added now or no more)"
	}
	return fmt.Sprintf("%s %s: %s %s -> %s", c.Set, c.Arch, c.Package, old, cur)
}

// Changes lists what differs in the sets of two locks, in the order of their
// names. A package whose version is the same but whose file is not counts as
// changed. old may be nil.
func Changes(old, cur *Lock) []Change {
	type key struct{ set, arch, pkg string }
	entries := func(l *Lock) map[key]Entry {
		m := map[key]Entry{}
		if l != nil {
			for _, s := range l.Sets {
				for _, p := range s.Packages {
					m[key{s.Name, s.Arch, p.Name}] = p
				}
			}
		}
		return m
	}
	was, is := entries(old), entries(cur)
	var out []Change
	for k, n := range is {
		if o := was[k]; o != n {
			out = append(out, Change{k.set, k.arch, k.pkg, o.Version, n.Version})
		}
	}
	for k, o := range was {
		if _, ok := is[k]; !ok {
			out = append(out, Change{k.set, k.arch, k.pkg, o.Version, ""})
		}
	}
	slices.SortFunc(out, func(a, b Change) int { return strings.Compare(a.String(), b.String()) })
	return out
}

package debian

import (
	"context"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/xi2/xz"
)

// maxDictBytes bounds the decoder's memory; xz -9 makes dictionaries of 64 MiB.
const maxDictBytes = 64 << 20

// snapshotDelay is how long after the newest list's date the snapshot archive
// is certain to hold what is in it: it imports the archive four times a day.
// Superseded files stay in the archive for longer than that.
const snapshotDelay = 12 * time.Hour

// Source is where Relock gets files from; fetch.Fetcher implements it.
type Source interface {
	// Fresh downloads the current version of a small file whose digest nobody
	// knows yet, of at most max bytes.
	Fresh(ctx context.Context, archive, path string, max int64) ([]byte, error)
	// Pinned returns the name of a local file with exactly these bytes.
	Pinned(ctx context.Context, archive, path string, bytes int64, sha256 string) (string, error)
}

// Relocker makes lock files.
type Relocker struct {
	Source Source
	// Keys are the keys to trust, as from ArchiveKeys.
	Keys openpgp.EntityList
	// Now is the clock for signatures and expiry.
	Now func() time.Time
	// Recipes are the sets to lock.
	Recipes []Recipe
	// Additions are put in the sets beside what the recipes ask for, and into the
	// lock. See CheckAdditions and ChangeAdditions.
	Additions []Addition
	// At is the time of the snapshot that Source is; zero: it is the archive as it
	// is now. Signatures and expiry are then judged as at that time.
	At time.Time
}

// Relock resolves all recipes against the archive and returns the new lock. old,
// when not nil, guards against a mirror that replays older lists: a release with
// an earlier date than the locked one is refused, unless At asks for the past. It
// downloads some 20 MB of lists. It writes nothing.
func (r *Relocker) Relock(ctx context.Context, old *Lock) (*Lock, error) {
	if err := CheckAdditions(r.Recipes, r.Additions); err != nil {
		return nil, err
	}
	lock := &Lock{Schema: LockSchema, Additions: r.Additions}
	releases := make([]*Release, len(suites))
	for i, s := range suites {
		rel, locked, err := r.release(ctx, s, old)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
		releases[i] = rel
		lock.Releases = append(lock.Releases, locked)
	}
	lock.Snapshot = r.snapshot(lock.Releases).UTC().Format(snapshotLayout)
	for _, arch := range architectures {
		x := NewIndex()
		for i, s := range suites {
			if err := r.addIndex(ctx, x, s, releases[i], arch); err != nil {
				return nil, fmt.Errorf("%s for %s: %w", s.name, arch, err)
			}
		}
		if err := r.resolve(lock, x, arch); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(lock.Sets, func(a, b Set) int {
		return strings.Compare(a.Name+" "+a.Arch, b.Name+" "+b.Arch)
	})
	_, err := lock.Encode()
	return lock, err
}

// snapshot is a time at which the snapshot archive has what the releases list.
func (r *Relocker) snapshot(releases []LockedRelease) time.Time {
	if !r.At.IsZero() {
		return r.At
	}
	newest := slices.MaxFunc(releases, func(a, b LockedRelease) int { return a.Date.Compare(b.Date) })
	return newest.Date.Add(snapshotDelay)
}

// now is the time that signatures and expiry are judged by.
func (r *Relocker) now() time.Time {
	if !r.At.IsZero() {
		return r.At
	}
	return r.Now()
}

func (r *Relocker) release(ctx context.Context, s suite, old *Lock) (*Release, LockedRelease, error) {
	locked := LockedRelease{Archive: s.archive, Suite: s.name}
	b, err := r.Source.Fresh(ctx, s.archive, "dists/"+s.name+"/InRelease", MaxReleaseBytes)
	if err != nil {
		return nil, locked, err
	}
	rel, err := VerifyRelease(b, r.Keys, r.now())
	if err != nil {
		return nil, locked, err
	}
	if rel.Codename != s.name {
		return nil, locked, fmt.Errorf("%w: the release file is that of %.40q", ErrSignature, rel.Codename)
	}
	if !r.At.IsZero() && rel.Date.After(r.At) {
		return nil, locked, fmt.Errorf("%w: the list is of %s and the snapshot was to be of %s; ask an archive of snapshots",
			ErrSignature, rel.Date.Format(time.RFC3339), r.At.UTC().Format(time.RFC3339))
	}
	if d := lockedDate(old, s); r.At.IsZero() && rel.Date.Before(d) {
		return nil, locked, fmt.Errorf("%w: the mirror's list is of %s, older than the locked one of %s; use a mirror that is up to date",
			ErrSignature, rel.Date.Format(time.RFC3339), d.Format(time.RFC3339))
	}
	locked.Date, locked.SHA256 = rel.Date, digestOf(b)
	return rel, locked, nil
}

func lockedDate(l *Lock, s suite) time.Time {
	if l != nil {
		for _, r := range l.Releases {
			if r.Archive == s.archive && r.Suite == s.name {
				return r.Date
			}
		}
	}
	return time.Time{}
}

func (r *Relocker) addIndex(ctx context.Context, x *Index, s suite, rel *Release, arch string) error {
	name := "main/binary-" + arch + "/Packages.xz"
	f, ok := rel.Files[name]
	if !ok {
		return formatErr("the release file does not list %s", name)
	}
	// The by-hash name stays valid while the mirror changes lists under us.
	file, err := r.Source.Pinned(ctx, s.archive,
		path.Join("dists", s.name, path.Dir(name), "by-hash/SHA256", f.SHA256), f.Bytes, f.SHA256)
	if err != nil {
		return err
	}
	in, err := os.Open(file)
	if err != nil {
		return err
	}
	defer in.Close()
	text, err := xz.NewReader(in, maxDictBytes)
	if err != nil {
		return formatErr("%s: %v", name, err)
	}
	if err := x.Add(s.archive, ctxReader{ctx, text}); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

func (r *Relocker) resolve(lock *Lock, x *Index, arch string) error {
	for _, recipe := range r.Recipes {
		want := arch
		if recipe.Arch == ArchAll {
			want = ArchAll
		}
		if _, err := lock.Set(recipe.Set, want); err == nil || !slices.Contains(recipe.architectures(), want) {
			continue // locked with the first architecture, or not for this one
		}
		packages, err := recipe.resolveWith(x, arch, added(r.Additions, recipe.Set))
		if err != nil {
			return fmt.Errorf("set %s for %s: %w", recipe.Set, want, err)
		}
		lock.Sets = append(lock.Sets, Set{Name: recipe.Set, Arch: want, Packages: packages})
	}
	return nil
}

// ctxReader ends a long read when ctx does.
type ctxReader struct {
	ctx context.Context
	r   io.Reader
}

func (c ctxReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}

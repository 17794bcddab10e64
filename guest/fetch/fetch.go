package fetch

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"
	"golang.org/x/sync/errgroup"

	"github.com/pybox/pybox/guest/nospace"
)

// Defaults of a Fetcher.
const (
	DefaultTries      = 4
	DefaultBackoff    = 500 * time.Millisecond
	DefaultStallAfter = 30 * time.Second
	maxBackoff        = 10 * time.Second
	minWindowBytes    = 64 << 10 // in StallAfter
	parallel          = 4
	lockPoll          = 50 * time.Millisecond
)

// Item is a file to fetch, pinned by size and digest.
type Item struct {
	Archive string // "debian" or "debian-security"
	Path    string // below the archive's base
	Bytes   int64  // exact size, more than 0
	SHA256  string // lower-case hex
}

// Progress tells how a download goes. Done is 0 to Total; Source is the label
// of the source in use, or "cache".
type Progress struct {
	File        string
	Source      string
	Done, Total int64
}

// Fetcher downloads into one cache. Its fields must not change while it is in
// use; its methods are safe for concurrent use.
type Fetcher struct {
	// Dir is the cache, as from CacheDir. It is made when needed.
	Dir string
	// Sources are tried in order.
	Sources []Source
	// Client makes the requests; nil: NewClient's.
	Client *http.Client
	// Progress is told about each file, from several goroutines; may be nil.
	Progress func(Progress)
	// Log gets failed attempts; nil discards them.
	Log *slog.Logger
	// Gone says what to do about a file that a source has not, and Advice what to
	// do when none delivers; "": what helps with Debian's packages.
	Gone, Advice string
	// Tries is the number of requests to one source before the next is tried
	// (transient faults only), Backoff the first pause between them, doubled
	// each time. A transfer that brings less than 64 KiB in StallAfter counts as
	// stalled, and so does an answer that does not begin in that time. 0: defaults.
	Tries      int
	Backoff    time.Duration
	StallAfter time.Duration

	// create opens a partial file for writing; tests make it fail.
	create func(name string, resume bool) (partial, error)
}

// CacheDir is where downloads are kept: $PYBOX_CACHE, or else the folder
// "pybox" in the user's cache folder: $XDG_CACHE_HOME or ~/.cache on Linux,
// ~/Library/Caches on macOS.
func CacheDir() (string, error) {
	if d := os.Getenv("PYBOX_CACHE"); d != "" {
		if !filepath.IsAbs(d) {
			return "", fmt.Errorf("PYBOX_CACHE is %q: want an absolute path", d)
		}
		return filepath.Clean(d), nil
	}
	d, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no cache folder (%w): set PYBOX_CACHE to an absolute path", err)
	}
	return filepath.Join(d, "pybox"), nil
}

// Get returns the name of a file in the cache with exactly the bytes of item,
// downloading it when it is not there. The digest is computed on every call: a
// damaged cache entry is dropped and fetched again. Errors match ErrNoSpace,
// ErrUnavailable, or ctx's error. What had arrived of an interrupted download
// is kept and continued next time.
func (f *Fetcher) Get(ctx context.Context, item Item) (string, error) {
	if err := item.validate(); err != nil {
		return "", err
	}
	final, part := f.Places(item)
	if f.cached(ctx, final, item) == nil {
		return final, nil
	}
	for _, d := range []string{filepath.Dir(final), filepath.Dir(part)} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return "", diskError(err, f.Dir, item.Bytes)
		}
	}
	unlock, err := lock(ctx, part+".lock")
	if err != nil {
		if nospace.Is(err) {
			err = diskError(err, f.Dir, item.Bytes)
		}
		return "", err
	}
	defer unlock()
	switch err := f.cached(ctx, final, item); {
	case err == nil: // another process was faster
		return final, nil
	case errors.Is(err, ErrContent):
		// Only under the lock: another process may just be replacing it.
		f.log().Warn("dropping a damaged file from the download cache", "file", final, "error", err)
		_ = os.Remove(final)
	case !errors.Is(err, fs.ErrNotExist):
		f.log().Warn("cannot read a file of the download cache, fetching it again", "file", final, "error", err)
	}
	if err := f.download(ctx, part, item); err != nil {
		return "", err
	}
	if err := publish(part, final); err != nil {
		return "", diskError(err, f.Dir, item.Bytes)
	}
	return final, nil
}

// Places are where a valid item is once it is whole, and where it grows until
// then; beside that is a lock of the same name with ".lock" added, which stays.
func (f *Fetcher) Places(i Item) (final, partial string) {
	return filepath.Join(f.Dir, "sha256", i.SHA256[:2], i.SHA256), filepath.Join(f.Dir, "partial", i.SHA256)
}

// Have tells how many of an item's bytes are here: all of them, and cached, when it
// is in the cache, whose copy it reads and verifies; or those, not verified, of a
// download that was cut off. It changes nothing. The error matches ctx's, or says
// what is wrong with the item.
func (f *Fetcher) Have(ctx context.Context, i Item) (bytes int64, cached bool, err error) {
	if err := i.validate(); err != nil {
		return 0, false, err
	}
	final, part := f.Places(i)
	if verify(ctx, final, i) == nil {
		return i.Bytes, true, nil
	}
	if st, err := os.Lstat(part); err == nil && st.Mode().IsRegular() && st.Size() <= i.Bytes {
		bytes = st.Size()
	}
	return bytes, false, ctx.Err()
}

// GetAll fetches items, several at once, and returns their file names in the
// same order. The first error ends it.
func (f *Fetcher) GetAll(ctx context.Context, items []Item) ([]string, error) {
	files := make([]string, len(items))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(parallel)
	for i, it := range items {
		g.Go(func() (err error) {
			files[i], err = f.Get(ctx, it)
			return err
		})
	}
	return files, g.Wait()
}

// Pinned is Get with plain arguments, for callers that do not import Item.
func (f *Fetcher) Pinned(ctx context.Context, archive, path string, bytes int64, sha256 string) (string, error) {
	return f.Get(ctx, Item{Archive: archive, Path: path, Bytes: bytes, SHA256: sha256})
}

func (i Item) validate() error {
	if b, err := hex.DecodeString(i.SHA256); err != nil || len(b) != sha256.Size {
		return fmt.Errorf("fetch %.200q: SHA-256 %.80q", i.Path, i.SHA256)
	}
	if i.Bytes <= 0 || !fs.ValidPath(i.Path) {
		return fmt.Errorf("fetch %.200q: bad path or size %d", i.Path, i.Bytes)
	}
	return nil
}

// name is how people see the item.
func (i Item) name() string { return path.Base(i.Path) }

// fromCache is the label of what was there already.
const fromCache = "cache"

// cached returns nil when file has the bytes of item; see verify. It only looks.
func (f *Fetcher) cached(ctx context.Context, file string, item Item) error {
	err := verify(ctx, file, item)
	if err == nil {
		f.report(item, fromCache, item.Bytes)
	}
	return err
}

// verify reads all of file and compares it with item.
func verify(ctx context.Context, file string, item Item) error {
	in, err := os.Open(file)
	if err != nil {
		return err
	}
	defer in.Close()
	if st, err := in.Stat(); err != nil {
		return err
	} else if st.Size() != item.Bytes {
		return fmt.Errorf("%w: %d bytes instead of %d", ErrContent, st.Size(), item.Bytes)
	}
	h := sha256.New()
	if _, err := io.Copy(h, readerFunc(func(p []byte) (int, error) {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		return in.Read(p)
	})); err != nil {
		return err
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != item.SHA256 {
		return fmt.Errorf("%w: its SHA-256 is %s instead of %s", ErrDigest, got, item.SHA256)
	}
	return nil
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// lock takes the lock of one download among all processes.
func lock(ctx context.Context, file string) (unlock func(), err error) {
	l := flock.New(file)
	if _, err := l.TryLockContext(ctx, lockPoll); err != nil {
		return nil, fmt.Errorf("wait for another download of the same file (%s): %w", file, err)
	}
	// The lock file stays: removing it would let two processes hold locks on
	// two files of the same name.
	return func() { _ = l.Close() }, nil
}

// publish gives a verified file its name, durably.
func publish(part, final string) error {
	if err := os.Rename(part, final); err != nil {
		return err
	}
	d, err := os.Open(filepath.Dir(final))
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

func (f *Fetcher) report(item Item, source string, done int64) {
	if f.Progress != nil {
		f.Progress(Progress{File: item.name(), Source: source, Done: done, Total: item.Bytes})
	}
}

func (f *Fetcher) log() *slog.Logger {
	if f.Log != nil {
		return f.Log
	}
	return slog.New(slog.DiscardHandler)
}

func or[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}

package pyindex

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/pybox/pybox/guest/fetch"
	"github.com/pybox/pybox/guest/nospace"
)

// archive is what package fetch calls where wheels are from.
const archive = "wheel"

// Advice where a download fails.
const (
	goneAdvice  = "the index may have taken it away; lock again"
	fetchAdvice = "check the network and HTTPS_PROXY, or give a folder that has the wheel with --find-links"
)

// Fetch brings the wheels into the cache and returns their paths there, in the same
// order. A path is returned when the file's SHA-256 was found right; where a
// download was cut off it goes on. Errors are those of package fetch. progress may
// be nil; it is called from several goroutines.
func (c *Client) Fetch(ctx context.Context, list []Chosen, progress func(fetch.Progress)) ([]string, error) {
	if err := c.checkRoom(list); err != nil {
		return nil, err
	}
	paths := make([]string, len(list))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(parallel)
	for i, ch := range list {
		g.Go(func() (err error) {
			paths[i], err = c.fetchOne(ctx, ch, progress)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return paths, nil
}

func (c *Client) fetchOne(ctx context.Context, ch Chosen, progress func(fetch.Progress)) (string, error) {
	if ch.Bytes > MaxWheelBytes || filepath.Base(ch.File) != ch.File {
		return "", fmt.Errorf("fetch %.255q: %d bytes", ch.File, ch.Bytes)
	}
	f := &fetch.Fetcher{
		Dir: c.o.Cache, Progress: progress, Log: c.o.Log,
		Tries: c.o.tries, Backoff: c.o.backoff, StallAfter: c.o.timeout,
		Gone: goneAdvice, Advice: fetchAdvice,
	}
	switch {
	case ch.path != "":
		dir, file := filepath.Split(ch.path)
		f.Client = &http.Client{Transport: http.NewFileTransportFS(onlyRegular(dir))}
		f.Sources = []fetch.Source{fetch.One("the folder "+dir, (&url.URL{Scheme: "file", Path: "/" + file}).String())}
	case c.o.Offline:
		// Only the cache is left.
	default:
		address, err := c.fetchAddress(ch)
		if err != nil {
			return "", err
		}
		f.Client = c.withCredentials(ch.place)
		f.Sources = []fetch.Source{fetch.One("the index", address)}
	}
	file, err := f.Get(ctx, item(ch))
	if ch.doubt != "" && errors.Is(err, fetch.ErrDigest) {
		return "", fmt.Errorf("%s is %w that the lock has: %s", ch.File, fetch.ErrDigest, ch.doubt)
	}
	return file, err
}

func item(ch Chosen) fetch.Item {
	return fetch.Item{Archive: archive, Path: ch.File, Bytes: ch.Bytes, SHA256: ch.SHA256}
}

// checkRoom makes sure, before anything is asked for, that there is room for what is
// not in the cache. Where that cannot be told it is found out on the way.
func (c *Client) checkRoom(list []Chosen) error {
	f := fetch.Fetcher{Dir: c.o.Cache}
	var need int64
	for _, ch := range list {
		if len(ch.SHA256) != 64 {
			continue // Get says so
		}
		final, part := f.Places(item(ch))
		if st, err := os.Lstat(final); err == nil && st.Size() == ch.Bytes {
			continue
		}
		need += ch.Bytes
		if st, err := os.Lstat(part); err == nil {
			need -= min(st.Size(), ch.Bytes)
		}
	}
	free := c.o.free
	if free == nil {
		free = freeBytes
	}
	if room, err := free(c.o.Cache); err != nil || need <= 0 || uint64(need) <= room {
		return nil
	}
	return nospace.Explain(syscall.ENOSPC, "what is to be downloaded", c.o.Cache, need, "set PYBOX_CACHE to a folder on another disk")
}

// freeBytes is the room on the disk of a folder, which need not be there yet.
func freeBytes(dir string) (uint64, error) {
	for {
		var st unix.Statfs_t
		err := unix.Statfs(dir, &st)
		parent := filepath.Dir(dir)
		if errors.Is(err, fs.ErrNotExist) && parent != dir {
			dir = parent
			continue
		}
		return st.Bavail * uint64(st.Bsize), err
	}
}

// fetchAddress is where a wheel is.
func (c *Client) fetchAddress(ch Chosen) (string, error) {
	if ch.address != "" {
		return ch.address, nil
	}
	u, err := url.Parse(ch.URL)
	if err != nil || !c.mayLock(u) {
		return "", fmt.Errorf("fetch %s: it is at no https address", ch.File)
	}
	return ch.URL, nil
}

// withCredentials is the client that sends a place's name and password to its host.
func (c *Client) withCredentials(p *place) *http.Client {
	if p == nil || p.user == nil {
		return c.http
	}
	own := *c.http
	own.Transport = credentials{c.http.Transport, p}
	return &own
}

type credentials struct {
	next  http.RoundTripper // nil: the default
	place *place
}

func (t credentials) RoundTrip(req *http.Request) (*http.Response, error) {
	next := t.next
	if next == nil {
		next = http.DefaultTransport
	}
	if t.place.sendsTo(req.URL) {
		req = req.Clone(req.Context())
		password, _ := t.place.user.Password()
		req.SetBasicAuth(t.place.user.Username(), password)
	}
	return next.RoundTrip(req)
}

// onlyRegular is a folder in which nothing else can be opened.
type onlyRegular string

func (dir onlyRegular) Open(name string) (fs.File, error) {
	if !fs.ValidPath(name) {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrInvalid}
	}
	f, _, err := openRegular(filepath.Join(string(dir), name))
	if err != nil {
		return nil, err
	}
	return f, nil
}

package fetch

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

var content = bytes.Repeat([]byte("pybox "), 50_000)

func itemOf(b []byte) Item {
	s := sha256.Sum256(b)
	return Item{Archive: "debian", Path: "pool/main/x/x_1_all.deb", Bytes: int64(len(b)), SHA256: hex.EncodeToString(s[:])}
}

func serve(t *testing.T, h http.HandlerFunc) Source {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	src, err := Mirror("test mirror", s.URL+"/debian")
	if err != nil {
		t.Fatal(err)
	}
	return src
}

func whole(w http.ResponseWriter, r *http.Request) {
	http.ServeContent(w, r, "x.deb", time.Time{}, bytes.NewReader(content))
}

func newFetcher(t *testing.T, sources ...Source) *Fetcher {
	return &Fetcher{Dir: t.TempDir(), Sources: sources, Tries: 2, Backoff: time.Millisecond, StallAfter: 5 * time.Second}
}

func mustGet(t *testing.T, f *Fetcher, item Item) {
	t.Helper()
	name, err := f.Get(t.Context(), item)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(name); err != nil || !bytes.Equal(b, content) {
		t.Fatalf("%d bytes, %v", len(b), err)
	}
}

func TestGet(t *testing.T) {
	var requests atomic.Int32
	f := newFetcher(t, serve(t, func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		if r.URL.Path != "/debian/pool/main/x/x_1_all.deb" {
			t.Errorf("asked for %s", r.URL.Path)
		}
		whole(w, r)
	}))
	var last Progress
	f.Progress = func(p Progress) { last = p }
	mustGet(t, f, itemOf(content))
	if last.Done != last.Total || last.Source != "test mirror" || last.File != "x_1_all.deb" {
		t.Errorf("progress ended with %+v", last)
	}
	mustGet(t, f, itemOf(content))
	if last.Source != "cache" || requests.Load() != 1 {
		t.Errorf("the second time came from %s after %d requests", last.Source, requests.Load())
	}
}

// TestBadSources: each way to fail is said clearly, and the next source is
// tried and delivers.
func TestBadSources(t *testing.T) {
	flipped := slices.Clone(content)
	flipped[1000] ^= 1
	for name, c := range map[string]struct {
		h    http.HandlerFunc
		want error
		says string
	}{
		"404": {http.NotFound, ErrStatus, "404 Not Found: it does not have this file"},
		"500": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }, ErrStatus, "500 Internal Server Error: the server has trouble; try again later (tried 2 times)"},
		"407": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(407) }, ErrStatus, "HTTPS_PROXY"},
		"html": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			io.WriteString(w, "<html>log in</html>")
		}, ErrContent, "web page"},
		"html of the right length": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			w.Header().Set("Content-Length", strconv.Itoa(len(content)))
			w.Write(content)
		}, ErrContent, "captive portals"},
		"half": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", strconv.Itoa(len(content)))
			w.Write(content[:len(content)/2])
			panic(http.ErrAbortHandler)
		}, ErrCut, "the transfer was cut after"},
		"half of unknown length": {func(w http.ResponseWriter, _ *http.Request) {
			w.Write(content[:len(content)/2])
			w.(http.Flusher).Flush()
		}, ErrCut, "the transfer was cut after"},
		"short": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/x-deb")
			w.Write(content[:100])
		}, ErrContent, "100 bytes instead of 300000"},
		"too long": {func(w http.ResponseWriter, _ *http.Request) {
			w.(http.Flusher).Flush() // no Content-Length
			for range 100 {
				if _, err := w.Write(content); err != nil {
					return
				}
			}
		}, ErrContent, "more than 300000 bytes"},
		"announces too much": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "9000000000000")
		}, ErrContent, "9000000000000 bytes"},
		"wrong bytes": {func(w http.ResponseWriter, r *http.Request) {
			http.ServeContent(w, r, "x.deb", time.Time{}, bytes.NewReader(flipped))
		}, ErrContent, "nothing of it was used"},
		"redirect loop": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, r.URL.Path, http.StatusFound)
		}, ErrRedirect, "more than 5 times"},
		"stall": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", strconv.Itoa(len(content)))
			w.Write(content[:10])
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}, ErrStalled, "the transfer stalled"},
		"drips": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", strconv.Itoa(len(content)))
			tick := time.NewTicker(5 * time.Millisecond)
			defer tick.Stop()
			for i := range content {
				if _, err := w.Write(content[i : i+1]); err != nil {
					return
				}
				w.(http.Flusher).Flush()
				select {
				case <-tick.C:
				case <-r.Context().Done():
					return
				}
			}
		}, ErrStalled, "the transfer stalled"},
		"never answers": {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, ErrStalled, "no byte in"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bad := serve(t, c.h)
			f := newFetcher(t, bad)
			if c.want == ErrStalled {
				f.StallAfter = 100 * time.Millisecond
			}
			_, err := f.Get(t.Context(), itemOf(content))
			if !errors.Is(err, c.want) || !errors.Is(err, ErrUnavailable) {
				t.Fatalf("%v, want %v", err, c.want)
			}
			for _, s := range []string{c.says, "x_1_all.deb", "test mirror, http://", "PYBOX_DEBIAN_MIRROR"} {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("the error does not say %q:\n%v", s, err)
				}
			}
			if got, _ := filepath.Glob(filepath.Join(f.Dir, "sha256", "*", "*")); len(got) != 0 {
				t.Errorf("it is in the cache all the same: %q", got)
			}
			f.Sources = append(f.Sources, serve(t, whole))
			if c.want == ErrStalled {
				// The good server gets the time that a busy machine needs.
				f.StallAfter, f.Tries = 5*time.Second, 1
			}
			mustGet(t, f, itemOf(content))
		})
	}
}

func TestUnreachable(t *testing.T) {
	s := httptest.NewServer(nil)
	s.Close()
	src, err := Mirror("gone", "http://user:secret@"+strings.TrimPrefix(s.URL, "http://")+"/debian")
	if err != nil {
		t.Fatal(err)
	}
	_, err = newFetcher(t, src).Get(t.Context(), itemOf(content))
	if !errors.Is(err, ErrConnect) || strings.Contains(err.Error(), "secret") {
		t.Fatalf("%v", err)
	}
	if _, err = newFetcher(t).Get(t.Context(), itemOf(content)); !errors.Is(err, ErrUnavailable) {
		t.Fatalf("no sources: %v", err)
	}
}

// TestResume: what arrived before a cut is not asked for again, and the
// server's validator is used.
func TestResume(t *testing.T) {
	var ranges []string
	var mu sync.Mutex
	f := newFetcher(t, serve(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		first := len(ranges) == 0
		ranges = append(ranges, r.Header.Get("Range")+" "+r.Header.Get("If-Range"))
		mu.Unlock()
		w.Header().Set("ETag", `"v1"`)
		if first {
			w.Header().Set("Content-Length", strconv.Itoa(len(content)))
			w.Write(content[:1000])
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}
		whole(w, r)
	}))
	mustGet(t, f, itemOf(content))
	if len(ranges) != 2 || ranges[1] != `bytes=1000- "v1"` {
		t.Fatalf("requests: %q", ranges)
	}
}

func leavePartial(t *testing.T, f *Fetcher, b []byte) {
	t.Helper()
	dir := filepath.Join(f.Dir, "partial")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, itemOf(content).SHA256), b, 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestResumeAfterRestart(t *testing.T) {
	ignoresRange := func(w http.ResponseWriter, r *http.Request) {
		r.Header.Del("Range")
		whole(w, r)
	}
	wrongRange := func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Range") != "" {
			w.Header().Set("Content-Range", "bytes 5-10/11")
			w.WriteHeader(http.StatusPartialContent)
			return
		}
		whole(w, r)
	}
	refuses := func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Range") != "" {
			w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
			return
		}
		whole(w, r)
	}
	rotten := slices.Clone(content[:5000])
	rotten[17] ^= 1
	for name, c := range map[string]struct {
		part []byte
		h    http.HandlerFunc
	}{
		"good part":       {content[:5000], whole},
		"complete":        {content, func(w http.ResponseWriter, _ *http.Request) { t.Error("asked for what was there"); w.WriteHeader(500) }},
		"rotten part":     {rotten, whole},
		"rotten complete": {append(slices.Clone(content[:len(content)-1]), 'x'), whole},
		"too long":        {append(slices.Clone(content), 'x'), whole},
		"empty":           {nil, whole},
		"no ranges":       {content[:5000], ignoresRange},
		"another range":   {content[:5000], wrongRange},
		"416":             {content[:5000], refuses},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFetcher(t, serve(t, c.h))
			leavePartial(t, f, c.part)
			mustGet(t, f, itemOf(content))
		})
	}
}

func TestDamagedCacheEntry(t *testing.T) {
	f := newFetcher(t, serve(t, whole))
	mustGet(t, f, itemOf(content))
	name := filepath.Join(f.Dir, "sha256", itemOf(content).SHA256[:2], itemOf(content).SHA256)
	b := slices.Clone(content)
	b[7] ^= 0x80
	if err := os.WriteFile(name, b, 0o644); err != nil {
		t.Fatal(err)
	}
	mustGet(t, f, itemOf(content))
}

// TestCacheIsOnlyChangedUnderItsLock: what looks damaged may be another process's
// business, and what cannot be read is not damaged.
func TestCacheIsOnlyChangedUnderItsLock(t *testing.T) {
	f := newFetcher(t, serve(t, http.NotFound))
	item := itemOf(content)
	name := filepath.Join(f.Dir, "sha256", item.SHA256[:2], item.SHA256)
	for _, d := range []string{filepath.Dir(name), filepath.Join(f.Dir, "partial")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(name, []byte("half"), 0o644); err != nil {
		t.Fatal(err)
	}
	unlock, err := lock(t.Context(), filepath.Join(f.Dir, "partial", item.SHA256+".lock"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := f.Get(ctx, item); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("%v, want a wait for the lock", err)
	}
	if _, err := os.Lstat(name); err != nil {
		t.Error("it was removed without the lock")
	}
	unlock()
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Base(name), name); err != nil { // reading it gives ELOOP
		t.Fatal(err)
	}
	if _, err := f.Get(t.Context(), item); !errors.Is(err, ErrUnavailable) {
		t.Fatal(err)
	}
	if _, err := os.Lstat(name); err != nil {
		t.Error("what could not be read was removed")
	}
	f.Sources = []Source{serve(t, whole)}
	mustGet(t, f, item)
}

// TestConcurrent: fetchers with caches in common, as of several processes,
// download once.
func TestConcurrent(t *testing.T) {
	var requests atomic.Int32
	src := serve(t, func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		whole(w, r)
	})
	dir := t.TempDir()
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			f := newFetcher(t, src)
			f.Dir = dir
			if _, err := f.Get(t.Context(), itemOf(content)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if requests.Load() != 1 {
		t.Errorf("%d requests", requests.Load())
	}
}

func TestGetAll(t *testing.T) {
	f := newFetcher(t, serve(t, func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "body of "+r.URL.Path)
	}))
	var items []Item
	for i := range 20 {
		p := fmt.Sprintf("pool/main/%d.deb", i)
		it := itemOf([]byte("body of /debian/" + p))
		it.Path = p
		items = append(items, it)
	}
	files, err := f.GetAll(t.Context(), items)
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range files {
		if b, err := os.ReadFile(name); err != nil || string(b) != "body of /debian/"+items[i].Path {
			t.Errorf("%d: %q, %v", i, b, err)
		}
	}
	items[3].SHA256 = strings.Repeat("0", 64)
	if _, err := f.GetAll(t.Context(), items); !errors.Is(err, ErrContent) {
		t.Errorf("%v, want ErrContent", err)
	}
}

// fullDisk takes some bytes and then has no room.
type fullDisk struct {
	partial
	left int
}

func (d *fullDisk) Write(p []byte) (int, error) {
	if d.left -= len(p); d.left < 0 {
		return 0, &os.PathError{Op: "write", Path: "part", Err: syscall.ENOSPC}
	}
	return d.partial.Write(p)
}

func TestNoSpace(t *testing.T) {
	var second atomic.Bool
	f := newFetcher(t, serve(t, whole), serve(t, func(w http.ResponseWriter, r *http.Request) { second.Store(true) }))
	f.create = func(name string, resume bool) (partial, error) {
		p, err := createPartial(name, resume)
		return &fullDisk{p, 100_000}, err
	}
	_, err := f.Get(t.Context(), itemOf(content))
	if !errors.Is(err, ErrNoSpace) || !strings.Contains(err.Error(), f.Dir) || !strings.Contains(err.Error(), "PYBOX_CACHE") {
		t.Fatalf("%v, want ErrNoSpace with the folder and advice", err)
	}
	if second.Load() {
		t.Error("another source was asked although the disk is full")
	}
	f.create = nil
	mustGet(t, f, itemOf(content))
}

func TestCancel(t *testing.T) {
	arrived := make(chan struct{})
	f := newFetcher(t, serve(t, func(w http.ResponseWriter, r *http.Request) {
		close(arrived)
		<-r.Context().Done()
	}))
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-arrived
		cancel()
	}()
	if _, err := f.Get(ctx, itemOf(content)); !errors.Is(err, context.Canceled) {
		t.Fatalf("%v, want context.Canceled", err)
	}
}

func TestRefusedItems(t *testing.T) {
	for name, change := range map[string]func(*Item){
		"traversal": func(i *Item) { i.Path = "../x" },
		"absolute":  func(i *Item) { i.Path = "/x" },
		"digest":    func(i *Item) { i.SHA256 = "../../../../etc/passwd" },
		"bytes":     func(i *Item) { i.Bytes = 0 },
	} {
		i := itemOf(content)
		change(&i)
		if _, err := newFetcher(t, serve(t, whole)).Get(t.Context(), i); err == nil || errors.Is(err, ErrUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestFresh(t *testing.T) {
	bad := serve(t, http.NotFound)
	good := serve(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "fresh") })
	f := newFetcher(t, bad, good)
	b, err := f.Fresh(t.Context(), "debian", "dists/trixie/InRelease", 100)
	if err != nil || string(b) != "fresh" {
		t.Fatalf("%q, %v", b, err)
	}
	if _, err := f.Fresh(t.Context(), "debian", "x", 4); !errors.Is(err, ErrContent) || !errors.Is(err, ErrStatus) {
		t.Fatalf("too long: %v", err)
	}
}

// TestFreshAdvice: who fetches has the last word, as in Get, and no package is missing
// where none was asked for.
func TestFreshAdvice(t *testing.T) {
	f := newFetcher(t, serve(t, http.NotFound))
	f.Advice, f.Gone = "ask the librarian", "it is lent out"
	_, fresh := f.Fresh(t.Context(), "debian", "x", 100)
	_, get := f.Get(t.Context(), itemOf(content))
	for _, err := range []error{fresh, get} {
		if !errors.Is(err, ErrGone) || !errors.Is(err, ErrStatus) || !strings.Contains(err.Error(), "it is lent out") || !strings.HasSuffix(err.Error(), "\nask the librarian") ||
			strings.Contains(err.Error(), "Debian") {
			t.Errorf("got %v", err)
		}
	}
	f.Sources = []Source{serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) })}
	if _, err := f.Fresh(t.Context(), "debian", "x", 100); errors.Is(err, ErrGone) || !errors.Is(err, ErrStatus) {
		t.Errorf("got %v", err)
	}
}

// TestRetry: only what may pass is tried again.
func TestRetry(t *testing.T) {
	f := newFetcher(t)
	f.Tries, f.Backoff = 3, time.Millisecond
	fault := errors.New("a fault")
	for name, c := range map[string]struct {
		err   error
		calls int
	}{"none": {nil, 1}, "lasting": {fault, 1}, "passing": {Transient(fault), 3}} {
		calls := 0
		err := f.Retry(t.Context(), func() error { calls++; return c.err })
		if calls != c.calls || (err == nil) != (c.err == nil) || c.err != nil && !errors.Is(err, fault) {
			t.Errorf("%s: %v after %d calls", name, err, calls)
		}
	}
}

// refusing is a transport that judges by itself.
type refusing struct{ err error }

func (r refusing) RoundTrip(*http.Request) (*http.Response, error) { return nil, r.err }

// TestTransportJudges: what the client's own transport refuses is no fault of the
// network, and not tried again.
func TestTransportJudges(t *testing.T) {
	for _, want := range []error{ErrInsecure, ErrStatus, ErrRedirect} {
		f := newFetcher(t, serve(t, whole))
		f.Client = &http.Client{Transport: refusing{fmt.Errorf("%w: because", want)}}
		_, err := f.Fresh(t.Context(), "debian", "x", 100)
		if !errors.Is(err, want) || errors.Is(err, ErrConnect) || strings.Contains(err.Error(), "tried") {
			t.Errorf("got %v", err)
		}
	}
}

func TestProxy(t *testing.T) {
	var asked atomic.Value
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Store(r.URL.String())
		whole(w, r)
	}))
	defer proxy.Close()
	// The environment is read once per process, so the function that reads it
	// is compared rather than the variable set.
	c := NewClient()
	tr := c.Transport.(*http.Transport)
	if tr.Proxy == nil {
		t.Fatal("no proxies from the environment")
	}
	tr.Proxy = func(r *http.Request) (*url.URL, error) { return r.URL.Parse(proxy.URL) }
	src, err := Mirror("m", "http://mirror.invalid/debian")
	if err != nil {
		t.Fatal(err)
	}
	f := newFetcher(t, src)
	f.Client = c
	mustGet(t, f, itemOf(content))
	if asked.Load() != "http://mirror.invalid/debian/pool/main/x/x_1_all.deb" {
		t.Errorf("the proxy was asked for %v", asked.Load())
	}
}

func TestCacheDir(t *testing.T) {
	t.Setenv("PYBOX_CACHE", "/somewhere/else/")
	if d, err := CacheDir(); err != nil || d != "/somewhere/else" {
		t.Errorf("%q, %v", d, err)
	}
	t.Setenv("PYBOX_CACHE", "relative")
	if d, err := CacheDir(); err == nil {
		t.Errorf("a relative folder passed: %q", d)
	}
	t.Setenv("PYBOX_CACHE", "")
	if d, err := CacheDir(); err != nil || filepath.Base(d) != "pybox" {
		t.Errorf("%q, %v", d, err)
	}
}

// TestBrokenProxy: who set a proxy is told that it is the proxy.
func TestBrokenProxy(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	proxy := &url.URL{Scheme: "http", Host: l.Addr().String()}
	l.Close() // nobody listens any more
	client := NewClient()
	client.Transport.(*http.Transport).Proxy = http.ProxyURL(proxy)
	for _, scheme := range []string{"http", "https"} {
		s, err := Mirror("a mirror", scheme+"://mirror.invalid/debian")
		if err != nil {
			t.Fatal(err)
		}
		f := &Fetcher{Dir: t.TempDir(), Sources: []Source{s}, Client: client, Tries: 1}
		_, err = f.Get(t.Context(), Item{Archive: "debian", Path: "pool/x.deb", Bytes: 1, SHA256: strings.Repeat("a", 64)})
		if !errors.Is(err, ErrConnect) || !strings.Contains(err.Error(), "the proxy of HTTPS_PROXY or HTTP_PROXY does not work") {
			t.Errorf("%s: %v", scheme, err)
		}
	}
}

func TestHave(t *testing.T) {
	body := []byte("0123456789")
	sum := sha256.Sum256(body)
	item := Item{Archive: "debian", Path: "pool/x.deb", Bytes: 10, SHA256: hex.EncodeToString(sum[:])}
	f := &Fetcher{Dir: t.TempDir()}
	final, part := f.Places(item)
	have := func(want int64, whole bool) {
		t.Helper()
		if got, cached, err := f.Have(t.Context(), item); got != want || cached != whole || err != nil {
			t.Errorf("%d bytes, cached %v, %v; want %d, %v", got, cached, err, want, whole)
		}
	}
	write := func(name string, b []byte) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have(0, false)
	write(part, body[:4])
	have(4, false)
	write(part, body) // not looked at yet
	have(10, false)
	write(part, body[:4])
	write(final, []byte("0123456780")) // damaged
	have(4, false)
	write(final, body)
	have(10, true)
	if _, _, err := f.Have(t.Context(), Item{SHA256: "x"}); err == nil {
		t.Error("a bad item passed")
	}
}

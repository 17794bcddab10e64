package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	maxRedirects   = 5
	connectTimeout = 15 * time.Second
	userAgent      = "pybox-guest"
)

var errTooManyRedirects = fmt.Errorf("%w more than %d times", ErrRedirect, maxRedirects)

// NewClient returns an HTTP client with the environment's proxies, bounds on
// every phase but the body, and no transparent decompression (what is pinned is
// the bytes on the wire).
func NewClient() *http.Client {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.DialContext = (&net.Dialer{Timeout: connectTimeout}).DialContext
	t.TLSHandshakeTimeout = connectTimeout
	t.DisableCompression = true
	t.MaxResponseHeaderBytes = 64 << 10
	return &http.Client{Transport: t, CheckRedirect: func(req *http.Request, via []*http.Request) error {
		if len(via) >= maxRedirects {
			return errTooManyRedirects
		}
		// It has the address before, and with that its query.
		req.Header.Del("Referer")
		return nil
	}}
}

// partial is a file under download.
type partial interface {
	io.WriteCloser
	Sync() error
}

func createPartial(name string, resume bool) (partial, error) {
	flags := os.O_WRONLY | os.O_CREATE | os.O_TRUNC
	if resume {
		flags = os.O_WRONLY | os.O_APPEND
	}
	return os.OpenFile(name, flags, 0o644)
}

// download fills the file part with the verified bytes of item.
func (f *Fetcher) download(ctx context.Context, part string, item Item) error {
	fail := &SourcesError{File: item.name(), Bytes: item.Bytes, Advice: f.Advice}
	for _, s := range f.Sources {
		addr := s.url(item.Archive, item.Path)
		if addr == "" {
			continue
		}
		err := f.fromSource(ctx, s.Label, addr, part, item)
		if err == nil || ctx.Err() != nil || errors.Is(err, ErrNoSpace) {
			return err
		}
		var disk *os.PathError
		if errors.As(err, &disk) {
			return err
		}
		f.log().Warn("download failed", "file", item.name(), "source", s.Label, "url", redact(addr), "error", err)
		fail.Attempts = append(fail.Attempts, Attempt{Source: s.Label, URL: redact(addr), Err: err})
	}
	return fail
}

// fromSource tries one address until it delivers, fails for good, or its tries
// are used up.
func (f *Fetcher) fromSource(ctx context.Context, label, addr, part string, item Item) error {
	t := transfer{f: f, label: label, addr: addr, part: part, item: item}
	return f.Retry(ctx, func() error { return t.run(ctx) })
}

// Retry calls fn until it succeeds or its error is none that Transient made, at most
// Tries times, with the pauses of a download. The error is fn's last or ctx's.
func (f *Fetcher) Retry(ctx context.Context, fn func() error) error {
	pause := or(f.Backoff, DefaultBackoff)
	for try := 1; ; try++ {
		err := fn()
		var soft *transientError
		if err == nil || !errors.As(err, &soft) || ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
		if try >= or(f.Tries, DefaultTries) {
			return fmt.Errorf("%w (tried %d times)", err, try)
		}
		wait := time.NewTimer(min(max(pause, soft.after), maxBackoff))
		pause *= 2
		select {
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
			return ctx.Err()
		}
	}
}

// transientError marks a fault that may pass.
type transientError struct {
	error
	after time.Duration // what the server asked to wait
}

func (e *transientError) Unwrap() error { return e.error }

// Transient marks a fault that may pass, for Retry.
func Transient(err error) error { return transient(err) }

func transient(err error) error { return &transientError{error: err} }

// transfer is the download of one item from one address.
type transfer struct {
	f           *Fetcher
	label, addr string
	part        string
	item        Item
	etag        string // strong validator of what is in part, this process only
	fresh       bool   // part was mistrusted once and started over
}

// run makes one request, appends to the partial file, and verifies the whole
// when it is complete.
func (t *transfer) run(ctx context.Context) error {
	have := t.resumable()
	if have < t.item.Bytes {
		if err := t.request(ctx, have); err != nil {
			return err
		}
	}
	err := verify(ctx, t.part, t.item)
	if !errors.Is(err, ErrContent) {
		return err
	}
	_ = os.Remove(t.part)
	// A wrong digest after a resume may come from the part that was there
	// before (another source's bytes, a crash): begin again, once.
	if have > 0 && !t.fresh {
		t.fresh = true
		return t.run(ctx)
	}
	return fmt.Errorf("%w; the mirror's copy is damaged or was tampered with, nothing of it was used", err)
}

// resumable is the number of bytes to continue from.
func (t *transfer) resumable() int64 {
	st, err := os.Stat(t.part)
	if err != nil || !st.Mode().IsRegular() {
		return 0
	}
	if st.Size() > t.item.Bytes {
		_ = os.Remove(t.part)
		return 0
	}
	return st.Size()
}

func (t *transfer) request(ctx context.Context, have int64) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, t.addr, nil)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrConnect, err)
	}
	req.Header.Set("User-Agent", userAgent)
	req.Header.Set("Accept-Encoding", "identity")
	if have > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", have))
		if t.etag != "" {
			req.Header.Set("If-Range", t.etag)
		}
	}
	watch := newWatchdog(or(t.f.StallAfter, DefaultStallAfter), cancel)
	defer watch.stop()
	resp, err := or(t.f.Client, defaultClient).Do(req)
	if err != nil {
		return requestError(ctx, err)
	}
	defer resp.Body.Close()
	watch.restart()
	resume, err := t.accept(resp, have)
	if err != nil {
		return err
	}
	if !resume {
		have = 0
	}
	return t.copy(ctx, resp.Body, have, watch)
}

// defaultClient is shared so that connections are reused.
var defaultClient = NewClient()

// accept judges an answer by its header and tells whether its body continues
// what is there.
func (t *transfer) accept(resp *http.Response, have int64) (resume bool, err error) {
	if err := statusError(resp, t.f.Gone); err != nil {
		if resp.StatusCode == http.StatusRequestedRangeNotSatisfiable && have > 0 {
			_ = os.Remove(t.part)
			return false, transient(err)
		}
		return false, err
	}
	want := t.item.Bytes
	if resp.StatusCode == http.StatusPartialContent {
		expect := fmt.Sprintf("bytes %d-%d/%d", have, want-1, want)
		if got := resp.Header.Get("Content-Range"); have == 0 || got != expect {
			_ = os.Remove(t.part)
			return false, transient(fmt.Errorf("%w: it continued with range %.60q instead of %q", ErrContent, got, expect))
		}
		want, resume = want-have, true
	}
	if resp.ContentLength >= 0 && resp.ContentLength != want {
		return false, fmt.Errorf("%w: it answered with %d bytes%s instead of %d", ErrContent, resp.ContentLength, pageHint(resp), want)
	}
	if hint := pageHint(resp); hint != "" {
		return false, fmt.Errorf("%w: it answered%s instead of a package, as captive portals and proxies do", ErrContent, hint)
	}
	t.etag = strongETag(resp)
	return resume, nil
}

// pageHint names a body that is a page for people.
func pageHint(resp *http.Response) string {
	if ct := resp.Header.Get("Content-Type"); strings.HasPrefix(ct, "text/html") {
		return " of a web page (text/html)"
	}
	return ""
}

// strongETag is a validator that promises equal bytes (RFC 9110, 8.8.3).
func strongETag(resp *http.Response) string {
	if e := resp.Header.Get("ETag"); strings.HasPrefix(e, `"`) && len(e) <= 256 {
		return e
	}
	return ""
}

// goneFromMirror is what helps where a Debian mirror has not a file.
const goneFromMirror = "mirrors drop superseded versions, an updated lock file (relock) or the snapshot archive helps"

func statusError(resp *http.Response, gone string) error {
	code := resp.StatusCode
	text := strconv.Itoa(code) + " " + http.StatusText(code)
	switch {
	case code == http.StatusOK || code == http.StatusPartialContent:
		return nil
	case code == http.StatusNotFound || code == http.StatusGone:
		return missing{fmt.Errorf("%w %s: it does not have this file; %s", ErrStatus, text, or(gone, goneFromMirror))}
	case code == http.StatusProxyAuthRequired:
		return fmt.Errorf("%w %s: the proxy asks for a name and password; put them in HTTPS_PROXY", ErrStatus, text)
	case code == http.StatusTooManyRequests || code == http.StatusRequestTimeout || code >= 500:
		return &transientError{fmt.Errorf("%w %s: the server has trouble; try again later", ErrStatus, text), retryAfter(resp)}
	}
	return fmt.Errorf("%w %s", ErrStatus, text)
}

func retryAfter(resp *http.Response) time.Duration {
	s, err := strconv.Atoi(resp.Header.Get("Retry-After"))
	if err != nil || s < 0 || s > 3600 {
		return 0
	}
	return time.Duration(s) * time.Second
}

// copy appends the body to the partial file, at most one byte more than there
// should be.
func (t *transfer) copy(ctx context.Context, body io.Reader, have int64, watch *watchdog) (err error) {
	create := t.f.create
	if create == nil {
		create = createPartial
	}
	out, err := create(t.part, have > 0)
	if err != nil {
		return diskError(err, t.f.Dir, t.item.Bytes-have)
	}
	defer func() {
		if e := errors.Join(out.Sync(), out.Close()); e != nil && err == nil {
			err = diskError(e, t.f.Dir, t.item.Bytes-have)
		}
	}()
	buf := make([]byte, 128<<10)
	for {
		n, rerr := body.Read(buf)
		if have+int64(n) > t.item.Bytes {
			return fmt.Errorf("%w: it sent more than %d bytes", ErrContent, t.item.Bytes)
		}
		if n > 0 {
			watch.arrived(n)
			if _, err := out.Write(buf[:n]); err != nil {
				return diskError(err, t.f.Dir, t.item.Bytes-have)
			}
			have += int64(n)
			t.f.report(t.item, t.label, have)
		}
		switch {
		case rerr == io.EOF && have == t.item.Bytes:
			return nil
		case rerr == io.EOF || errors.Is(rerr, io.ErrUnexpectedEOF):
			return transient(fmt.Errorf("%w after %d of %d bytes", ErrCut, have, t.item.Bytes))
		case rerr != nil:
			return requestError(ctx, fmt.Errorf("after %d of %d bytes: %w", have, t.item.Bytes, rerr))
		}
	}
}

// requestError sorts what the HTTP client reports. ctx is the request's own.
func requestError(ctx context.Context, err error) error {
	var ue *url.Error
	if errors.As(err, &ue) {
		err = ue.Err // the address stands in the message already
	}
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, ErrStalled):
		return transient(cause)
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, ErrRedirect), errors.Is(err, ErrInsecure), errors.Is(err, ErrStatus):
		return err // what the client judged by itself
	case strings.Contains(err.Error(), "Location header"):
		return errBadAddress // the client's own words show it whole
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return transient(fmt.Errorf("%w: %w", ErrCut, err))
	}
	// The transport's word for all that fails between here and the proxy.
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "proxyconnect" {
		return transient(fmt.Errorf("%w: the proxy of HTTPS_PROXY or HTTP_PROXY does not work: %w", ErrConnect, op.Err))
	}
	var dns *net.DNSError
	if errors.As(err, &dns) && dns.IsNotFound {
		return fmt.Errorf("%w: no address for host %s", ErrConnect, dns.Name)
	}
	return transient(fmt.Errorf("%w: %w", ErrConnect, err))
}

// watchdog cancels a request that brings too little: a wait for the next byte
// alone would let a mirror that sends one now and then hold a download for ever.
// Time is cut into windows of a fixed length, the last of which may be short of
// bytes only because the transfer ends in it.
type watchdog struct {
	window time.Duration
	cancel context.CancelCauseFunc
	mu     sync.Mutex
	bytes  int64 // in this window
	timer  *time.Timer
	over   bool
}

func newWatchdog(window time.Duration, cancel context.CancelCauseFunc) *watchdog {
	w := &watchdog{window: window, cancel: cancel}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer = time.AfterFunc(window, w.judge)
	return w
}

// judge ends a window.
func (w *watchdog) judge() {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.over:
	case w.bytes == 0:
		w.cancel(fmt.Errorf("%w: no byte in %v", ErrStalled, w.window))
	case w.bytes < minWindowBytes:
		w.cancel(fmt.Errorf("%w: only %d bytes in %v", ErrStalled, w.bytes, w.window))
	default:
		w.bytes = 0
		w.timer.Reset(w.window)
	}
}

// arrived counts bytes.
func (w *watchdog) arrived(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.bytes += int64(n)
}

// restart begins a window.
func (w *watchdog) restart() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.bytes = 0
	w.timer.Reset(w.window)
}

func (w *watchdog) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
	w.timer.Stop()
}

// redact takes what may be a secret out of an address that is shown: a password, and
// a query, in which signed addresses have theirs.
func redact(addr string) string {
	u, err := url.Parse(addr)
	if err != nil {
		return "(an address that is no URL)"
	}
	u.RawQuery = ""
	return u.Redacted()
}

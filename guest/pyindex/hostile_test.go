package pyindex

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pybox/pybox/guest/fetch"
)

func mustURL(t *testing.T, s string) *url.URL {
	t.Helper()
	u, err := url.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// Whatever a server does, nothing of it gets a name in the cache.
func TestServersThatLie(t *testing.T) {
	f := wheel("a-1.0-py3-none-any.whl")
	good := f.bytes()
	whole := func(b []byte) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/octet-stream")
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(b))
		}
	}
	for name, c := range map[string]struct {
		handler http.HandlerFunc
		lie     int64 // added to the size that the page gives
		want    error
	}{
		"right":        {whole(good), 0, nil},
		"other bytes":  {whole(bytes.ToUpper(good)), 0, fetch.ErrContent},
		"longer":       {whole(append(bytes.Clone(good), 'x')), 0, fetch.ErrContent},
		"shorter":      {whole(good[1:]), 0, fetch.ErrContent},
		"longer page":  {whole(good), 1, fetch.ErrContent},
		"smaller page": {whole(good), -1, fetch.ErrContent},
		"truncated": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", strconv.Itoa(len(good)))
			_, _ = w.Write(good[:100])
		}, 0, fetch.ErrCut},
		"endless": {func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				if _, err := w.Write(good); err != nil {
					return
				}
			}
		}, 0, fetch.ErrContent},
		"silent": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", strconv.Itoa(len(good)))
			_, _ = w.Write(good[:100])
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}, 0, fetch.ErrStalled},
		"a web page": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			_, _ = w.Write(good)
		}, 0, fetch.ErrContent},
		"gone": {func(w http.ResponseWriter, r *http.Request) { http.NotFound(w, r) }, 0, fetch.ErrStatus},
		"loop": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, r.URL.Path, http.StatusFound)
		}, 0, fetch.ErrRedirect},
		"away by file": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "file:///etc/passwd", http.StatusFound)
		}, 0, fetch.ErrRedirect},
		"away by http": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://e.example/"+f.name, http.StatusFound)
		}, 0, fetch.ErrRedirect},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			own := f
			own.handler, own.sizeLie = c.handler, c.lie
			ix := newIndex(t, own)
			o := client(t, Options{IndexURL: ix.simple(), tries: 1})
			chosen, err := o.Choose(bounded(t), lockOf(t, pin("a==1.0", f)), guest)
			if err != nil {
				t.Fatal(err)
			}
			if name == "silent" {
				o.o.timeout = time.Second // of what is silent, and of nothing before
			}
			paths, err := o.Fetch(bounded(t), chosen, nil)
			if c.want == nil {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if !errors.Is(err, c.want) || paths != nil {
				t.Fatalf("%v, %v", paths, err)
			}
			if err != nil && (strings.Contains(err.Error(), "relock") || strings.Contains(err.Error(), "Debian")) {
				t.Errorf("advice about Debian's packages: %v", err)
			}
			named, _ := filepath.Glob(filepath.Join(o.o.Cache, "sha256", "*", "*"))
			if len(named) != 0 {
				t.Errorf("the cache has %v", named)
			}
		})
	}
}

// The digest of the page is nothing: the lock's counts.
func TestThePageCannotChangeTheDigest(t *testing.T) {
	f := wheel("a-1.0-py3-none-any.whl")
	evil := file{name: f.name, content: []byte("evil"), sha256: f.digest()}
	ix := newIndex(t, evil)
	c := client(t, Options{IndexURL: ix.simple(), tries: 1})
	chosen, err := c.Choose(bounded(t), lockOf(t, pin("a==1.0", f)), guest)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Fetch(bounded(t), chosen, nil); !errors.Is(err, fetch.ErrContent) {
		t.Error(err)
	}
	honest := newIndex(t, file{name: f.name, content: []byte("evil")})
	_, err = client(t, Options{IndexURL: honest.simple()}).Choose(bounded(t), lockOf(t, pin("a==1.0", f)), guest)
	if !errors.Is(err, ErrChoice) || !strings.Contains(err.Error(), "the file may have been exchanged") {
		t.Error(err)
	}
}

func TestPagesThatAreNone(t *testing.T) {
	f := wheel("a-1.0-py3-none-any.whl")
	answer := func(code int, kind, body string) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Content-Type", kind)
			w.WriteHeader(code)
			_, _ = io.WriteString(w, body)
			return true
		}
	}
	for name, c := range map[string]struct {
		intercept func(http.ResponseWriter, *http.Request) bool
		want      string
		tries     int
	}{
		"type":          {answer(200, "application/pdf", "%PDF"), "the address of an index often ends in /simple", 1},
		"broken JSON":   {answer(200, typeJSON, `{"files":`), "not a page of a package index", 1},
		"empty page":    {answer(200, typeLegacy, ""), "/simple/ lists no file of it", 1},
		"no permission": {answer(401, typeLegacy, ""), "a name and password may be missing in --index-url", 1},
		"teapot":        {answer(418, typeLegacy, ""), "418", 1},
		"down":          {answer(502, typeLegacy, ""), "502 Bad Gateway: the server has trouble; try again later", 2},
		"too large": {func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Content-Type", typeLegacy)
			chunk := bytes.Repeat([]byte(" "), 1<<20)
			for range maxPageBytes>>20 + 8 {
				if _, err := w.Write(chunk); err != nil {
					break
				}
			}
			return true
		}, "larger than 64 MiB", 1},
		"cut": {func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Content-Type", typeLegacy)
			w.Header().Set("Content-Length", "1000")
			_, _ = io.WriteString(w, "<a href=x>")
			return true
		}, "could not be asked: the transfer was cut", 2},
		"slow": {func(_ http.ResponseWriter, r *http.Request) bool {
			<-r.Context().Done()
			return true
		}, "it did not answer in time", 1},
		"loop": {func(w http.ResponseWriter, r *http.Request) bool {
			http.Redirect(w, r, r.URL.Path, http.StatusFound)
			return true
		}, "redirects more than 5 times", 6},
		"away": {func(w http.ResponseWriter, r *http.Request) bool {
			http.Redirect(w, r, "http://e.example/simple/a/?secret", http.StatusFound)
			return true
		}, "redirects from http://127.0.0.1", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ix := newIndex(t, f)
			ix.intercept = c.intercept
			o := client(t, Options{IndexURL: ix.simple(), timeout: time.Minute})
			if name == "slow" {
				o.o.timeout = time.Second
			}
			_, err := o.Choose(bounded(t), lockOf(t, pin("a==1.0", f)), guest)
			if !errors.Is(err, ErrChoice) || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "secret") {
				t.Errorf("%v\nwant %q", err, c.want)
			}
			if n := ix.asked("GET "); n != c.tries && name != "slow" {
				t.Errorf("asked %d times, want %d", n, c.tries)
			}
		})
	}
}

// An index that fails once is asked again; one that redirects to the page's right
// spelling is followed, and links count from there.
func TestPagesThatComeInTheEnd(t *testing.T) {
	f := wheel("a-1.0-py3-none-any.whl")
	ix := newIndex(t, f)
	failed := false
	ix.intercept = func(w http.ResponseWriter, r *http.Request) bool {
		switch {
		case !failed:
			failed = true
			w.WriteHeader(http.StatusTooManyRequests)
		case strings.HasPrefix(r.URL.Path, "/old/"):
			http.Redirect(w, r, "/simple/a/", http.StatusMovedPermanently)
		default:
			return false
		}
		return true
	}
	c := client(t, Options{IndexURL: ix.URL + "/old/place/of/it"})
	chosen, err := c.Choose(bounded(t), lockOf(t, pin("a==1.0", f)), guest)
	if err != nil || chosen[0].URL != ix.URL+"/files/"+f.name {
		t.Fatal(chosen, err)
	}
	if _, err := c.Fetch(bounded(t), chosen, nil); err != nil {
		t.Error(err)
	}
}

// A download goes on where it was cut.
func TestDownloadGoesOn(t *testing.T) {
	f := wheel("a-1.0-py3-none-any.whl")
	var ranges []string
	f.handler = func(w http.ResponseWriter, r *http.Request) {
		ranges = append(ranges, r.Header.Get("Range"))
		b := f.bytes()
		if len(ranges) == 1 {
			w.Header().Set("Content-Length", strconv.Itoa(len(b)))
			_, _ = w.Write(b[:1000])
			return
		}
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(b))
	}
	ix := newIndex(t, f)
	c := client(t, Options{IndexURL: ix.simple()})
	chosen, err := c.Choose(bounded(t), lockOf(t, pin("a==1.0", f)), guest)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Fetch(bounded(t), chosen, nil); err != nil {
		t.Fatal(err)
	}
	if len(ranges) != 2 || ranges[1] != "bytes=1000-" {
		t.Errorf("%q", ranges)
	}
}

func TestSizes(t *testing.T) {
	f := wheel("a-1.0-py3-none-any.whl")
	n := int64(len(f.bytes()))
	for name, c := range map[string]struct {
		handler http.HandlerFunc
		want    string // of the error; "": the right size
	}{
		"no HEAD": {func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodHead {
				w.WriteHeader(http.StatusMethodNotAllowed)
				return
			}
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(f.bytes()))
		}, ""},
		"no ranges": {func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodHead {
				w.WriteHeader(http.StatusForbidden)
				return
			}
			w.Header().Set("Content-Length", strconv.FormatInt(n, 10))
			_, _ = w.Write(f.bytes())
		}, ""},
		"never said": {func(w http.ResponseWriter, _ *http.Request) {
			w.(http.Flusher).Flush()
			_, _ = w.Write(f.bytes())
		}, "does not say how large the file is"},
		"too large": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", strconv.FormatInt(MaxWheelBytes+1, 10))
		}, "more than the 1073741824 that a wheel may have"},
	} {
		own := f
		own.handler, own.noSize = c.handler, true
		ix := newIndex(t, own)
		chosen, err := client(t, Options{IndexURL: ix.simple(), tries: 1}).Choose(bounded(t), lockOf(t, pin("a==1.0", f)), guest)
		switch {
		case c.want == "" && (err != nil || chosen[0].Bytes != n):
			t.Errorf("%s: %+v, %v", name, chosen, err)
		case c.want != "" && (!errors.Is(err, ErrChoice) || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Names and passwords go to the index's own host, and are shown to nobody.
func TestCredentials(t *testing.T) {
	near, far := wheel("a-1.0-py3-none-any.whl"), wheel("b-1.0-py3-none-any.whl")
	moved := wheel("c-1.0-py3-none-any.whl")
	other := newIndex(t, far, moved)
	far.url = other.URL + "/files/" + far.name
	moved.handler = func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, other.URL+"/files/"+moved.name, http.StatusFound)
	}
	ix := newIndex(t, near, far, moved)
	ix.intercept = func(w http.ResponseWriter, r *http.Request) bool {
		if user, password, ok := r.BasicAuth(); !ok || user != "me" || password != "sec ret" {
			w.WriteHeader(http.StatusUnauthorized)
			return true
		}
		return false
	}
	var log bytes.Buffer
	address := strings.Replace(ix.simple(), "http://", "http://me:sec%20ret@", 1)
	c := client(t, Options{IndexURL: address, Log: slog.New(slog.NewTextHandler(&log, nil))})
	lock := lockOf(t, pin("a==1.0", near), pin("b==1.0", far), pin("c==1.0", moved))
	chosen, err := c.Choose(bounded(t), lock, guest)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var shown strings.Builder
	tell := func(p fetch.Progress) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprint(&shown, p)
	}
	if _, err := c.Fetch(bounded(t), chosen, tell); err != nil {
		t.Fatal(err)
	}
	if n := other.asked("GET /files/"); n != 2 {
		t.Errorf("%d files of the other host", n)
	}
	for _, h := range other.headers {
		if a := h.Get("Authorization"); a != "" {
			t.Errorf("another host was told %q", a)
		}
	}
	ix.intercept = func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(http.StatusTeapot); return true }
	fresh := client(t, Options{IndexURL: address, Log: c.o.Log})
	_, errChoose := fresh.Choose(bounded(t), lock, guest)
	_, errFetch := fresh.Fetch(bounded(t), chosen[:1], nil)
	if errChoose == nil || errFetch == nil {
		t.Fatal("the errors did not come")
	}
	everything := fmt.Sprint(chosen[0].URL, chosen[1].URL, errChoose, errFetch, log.String(), shown.String())
	for _, secret := range []string{"sec ret", "sec%20ret", "sec+ret", "me:"} {
		if strings.Contains(everything, secret) {
			t.Errorf("%q is shown in %s", secret, everything)
		}
	}
	if log.Len() == 0 {
		t.Error("nothing was logged")
	}
}

// From https nothing leads to http, not even to this machine.
func TestNoWayDownFromHTTPS(t *testing.T) {
	f := wheel("a-1.0-py3-none-any.whl")
	plain := newIndex(t, f)
	inner := &index{files: []file{f}}
	secure := httptest.NewTLSServer(inner)
	t.Cleanup(secure.Close)
	o := Options{IndexURL: secure.URL + "/simple", HTTP: secure.Client(), tries: 1}
	lock := lockOf(t, pin("a==1.0", f))

	c := client(t, o)
	chosen, err := c.Choose(bounded(t), lock, guest)
	if err != nil || !strings.HasPrefix(chosen[0].URL, "https://") {
		t.Fatal(chosen, err)
	}
	if _, err := c.Fetch(bounded(t), chosen, nil); err != nil {
		t.Fatal(err)
	}
	// The page redirects.
	inner.intercept = func(w http.ResponseWriter, r *http.Request) bool {
		http.Redirect(w, r, plain.URL+r.URL.Path, http.StatusFound)
		return true
	}
	if _, err := client(t, o).Choose(bounded(t), lock, guest); !errors.Is(err, fetch.ErrRedirect) || !errors.Is(err, ErrChoice) {
		t.Error(err)
	}
	// The file redirects.
	if _, err := client(t, o).Fetch(bounded(t), chosen, nil); !errors.Is(err, fetch.ErrRedirect) {
		t.Error(err)
	}
	// The page links.
	inner.intercept, inner.files[0].url = nil, plain.URL+"/files/"+f.name
	if _, err := client(t, o).Choose(bounded(t), lock, guest); !errors.Is(err, ErrChoice) || !strings.Contains(err.Error(), "which is not followed") {
		t.Error(err)
	}
	if n := plain.asked(""); n != 0 {
		t.Errorf("%d requests by http", n)
	}
}

func TestFetchTakesNoPlaceAtItsWord(t *testing.T) {
	f := wheel("a-1.0-py3-none-any.whl")
	c := client(t, Options{tries: 1})
	for _, ch := range []Chosen{
		{File: "../a", Bytes: 1, SHA256: f.digest(), URL: "https://e.example/a"},
		{File: f.name, Bytes: MaxWheelBytes + 1, SHA256: f.digest(), URL: "https://e.example/a"},
		{File: f.name, Bytes: 1, SHA256: f.digest(), URL: "http://e.example/a"},
		{File: f.name, Bytes: 1, SHA256: f.digest(), URL: "file:///etc/passwd"},
		{File: f.name, Bytes: 1, SHA256: f.digest()},
		{File: f.name, Bytes: 1, SHA256: "12", URL: "https://e.example/a"},
		{File: f.name, Bytes: 0, SHA256: f.digest(), URL: "https://e.example/a"},
	} {
		if paths, err := c.Fetch(bounded(t), []Chosen{ch}, nil); err == nil {
			t.Errorf("%+v: %v", ch, paths)
		}
	}
	// What pylock could not have made is not taken either.
	if _, err := os.Stat(filepath.Join(c.o.Cache, "sha256")); err == nil {
		if named, _ := filepath.Glob(filepath.Join(c.o.Cache, "sha256", "*", "*")); len(named) != 0 {
			t.Error(named)
		}
	}
}

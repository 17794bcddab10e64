package ociimage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	fakeregistry "github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/pybox/pybox/guest/fetch"
	"github.com/pybox/pybox/guest/layout"
	"github.com/pybox/pybox/guest/tree"
)

// server is a registry whose answers a test can change.
type server struct {
	*httptest.Server
	mu   sync.Mutex
	meet func(w http.ResponseWriter, r *http.Request) bool // answers itself: true
	seen []string
}

func newServer(t testing.TB) *server {
	t.Helper()
	s := &server{}
	h := fakeregistry.New(fakeregistry.Logger(log.New(io.Discard, "", 0)))
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.seen = append(s.seen, r.Method+" "+r.URL.Path)
		meet := s.meet
		s.mu.Unlock()
		if meet == nil || !meet(w, r) {
			h.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *server) host() string { return strings.TrimPrefix(s.URL, "http://") }

// on makes the server answer otherwise to paths that contain part.
func (s *server) on(part string, answer func(w http.ResponseWriter, r *http.Request)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.meet = func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, part) {
			return false
		}
		answer(w, r)
		return true
	}
}

func (s *server) asked(part string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.seen {
		if strings.Contains(r, part) {
			n++
		}
	}
	return n
}

// push stores an image or index and returns the source that names it.
func (s *server) push(t testing.TB, what remote.Taggable) Source {
	t.Helper()
	repo, err := name.NewRepository(s.host() + "/some/image")
	if err != nil {
		t.Fatal(err)
	}
	var digest string
	switch x := what.(type) {
	case v1.Image:
		digest = digestOf(t, x)
		err = remote.Write(repo.Digest(digest), x)
	case v1.ImageIndex:
		digest = digestOf(t, x)
		err = remote.WriteIndex(repo.Digest(digest), x)
	}
	if err != nil {
		t.Fatal(err)
	}
	src, err := ParseSource(repo.Name() + ":latest@" + digest)
	if err != nil {
		t.Fatal(err)
	}
	return src
}

// both is an index of images for two processors.
func both(t testing.TB, how packed) v1.ImageIndex {
	t.Helper()
	x := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, arch := range []string{"arm64", "amd64"} {
		img := image(t, arch, how, nil, pythonLayer(t, arch),
			lines(t, "f opt/app/a.py one", "f opt/app/old 1", "h opt/app/same opt/app/a.py"),
			lines(t, "w opt/app/.wh.old", "f opt/app/arch "+arch, "h opt/app/again opt/app/same"))
		x = mutate.AppendManifests(x, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}}})
	}
	return x
}

func TestImportFromRegistry(t *testing.T) {
	for _, how := range []packed{gz, {".zst", types.OCILayerZStd}, {"", types.OCIUncompressedLayer}, {".gz", types.DockerLayer}} {
		t.Run(string(how.media), func(t *testing.T) {
			s := newServer(t)
			x := both(t, how)
			src := s.push(t, x)
			for _, arch := range []string{"amd64", "arm64"} {
				o := options(t, src)
				o.Arch = arch
				var shown atomic.Int64
				o.Progress = func(p fetch.Progress) {
					if strings.HasPrefix(p.File, "layer ") && strings.HasSuffix(p.File, " of 3") {
						shown.Add(p.Done)
					}
				}
				r, err := imp(t, o)
				if err != nil {
					t.Fatal(err)
				}
				for _, d := range layout.Dirs() {
					if n := r.Tree.Lookup(d); n == nil || n.Kind != tree.Dir {
						t.Errorf("no /%s", d)
					}
					r.Tree.Remove(d)
				}
				r.Tree.Remove("usr")
				if got, want := listing(r.Tree), "opt/ opt/app/ opt/app/a.py=one opt/app/again=one opt/app/arch="+arch+" opt/app/same=one"; got != want {
					t.Errorf("got  %s\nwant %s", got, want)
				}
				p := r.Provenance
				if p.Kind != Registry || p.Reference != src.String() || p.IndexDigest != src.Digest || p.Platform != "linux/"+arch ||
					!isDigest(p.ManifestDigest) || p.ManifestDigest == src.Digest || !isDigest(p.ConfigDigest) || len(p.Layers) != 3 || p.Layers[2].Bytes == 0 {
					t.Errorf("%+v", p)
				}
				if r.Python != (Interpreter{Path: "/usr/bin/python3.13", Version: "3.13"}) || len(r.Notes) != 0 {
					t.Errorf("%+v %q", r.Python, r.Notes)
				}
				if shown.Load() == 0 {
					t.Error("no progress was told")
				}
			}
		})
	}
}

// TestLayersAreKept: what is in the cache is not downloaded again, and what was
// damaged there is.
func TestLayersAreKept(t *testing.T) {
	s := newServer(t)
	img := image(t, "amd64", gz, nil, pythonLayer(t, "amd64"), lines(t, "f a 1"))
	o := options(t, s.push(t, img))
	ls, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	top := digestOf(t, ls[1])
	times := func(want int) {
		t.Helper()
		if _, err := imp(t, o); err != nil {
			t.Fatal(err)
		}
		if n := s.asked("GET /v2/some/image/blobs/" + top); n != want {
			t.Fatalf("asked %d times, want %d", n, want)
		}
	}
	times(1)
	times(1)
	hex := strings.TrimPrefix(top, digestPrefix)
	if err := os.WriteFile(filepath.Join(o.CacheDir, "sha256", hex[:2], hex), []byte("damaged"), 0o644); err != nil {
		t.Fatal(err)
	}
	times(2)
}

// TestLyingRegistry: nothing comes of a registry that sends other bytes, too few, too
// many, none, or a web page, wherever it does so; and it ends by itself.
func TestLyingRegistry(t *testing.T) {
	endless := func(w http.ResponseWriter, r *http.Request) {
		b := make([]byte, 64<<10)
		for r.Context().Err() == nil {
			if _, err := w.Write(b); err != nil {
				return
			}
		}
	}
	body := func(change func([]byte) []byte) func(*server) func(http.ResponseWriter, *http.Request) {
		return func(s *server) func(http.ResponseWriter, *http.Request) {
			return func(w http.ResponseWriter, r *http.Request) { s.altered(w, r, change) }
		}
	}
	status := func(code int) func(*server) func(http.ResponseWriter, *http.Request) {
		return func(*server) func(http.ResponseWriter, *http.Request) {
			return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
		}
	}
	for name, lie := range map[string]func(*server) func(http.ResponseWriter, *http.Request){
		"other bytes": body(func(b []byte) []byte { b[len(b)/2] ^= 1; return b }),
		"fewer":       body(func(b []byte) []byte { return b[:len(b)-1] }),
		"more":        body(func(b []byte) []byte { return append(b, ' ') }),
		"none":        body(func([]byte) []byte { return nil }),
		"endless":     func(*server) func(http.ResponseWriter, *http.Request) { return endless },
		"cut": func(s *server) func(http.ResponseWriter, *http.Request) {
			return func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Length", "1000000")
				_, _ = w.Write([]byte("{"))
				panic(http.ErrAbortHandler)
			}
		},
		"a page": func(*server) func(http.ResponseWriter, *http.Request) {
			return func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "text/html")
				_, _ = w.Write([]byte("<html>log in"))
			}
		},
		"not there": status(http.StatusNotFound), "forbidden": status(http.StatusForbidden), "trouble": status(http.StatusBadGateway),
		"a loop": func(s *server) func(http.ResponseWriter, *http.Request) {
			return func(w http.ResponseWriter, r *http.Request) {
				http.Redirect(w, r, r.URL.Path, http.StatusTemporaryRedirect)
			}
		},
		"off to plain http": func(s *server) func(http.ResponseWriter, *http.Request) {
			return func(w http.ResponseWriter, r *http.Request) {
				http.Redirect(w, r, "http://192.0.2.1/secret", http.StatusTemporaryRedirect)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t)
			x := both(t, gz)
			src := s.push(t, x)
			r, err := imp(t, options(t, src))
			if err != nil {
				t.Fatalf("before it lies: %v", err)
			}
			p := r.Provenance
			for _, at := range []string{"/manifests/" + p.IndexDigest, "/manifests/" + p.ManifestDigest, "/blobs/" + p.ConfigDigest,
				"/blobs/" + p.Layers[0].Digest, "/blobs/" + p.Layers[2].Digest} {
				s.on(at, lie(s))
				_, err := imp(t, options(t, src))
				if !errors.Is(err, ErrDigest) && !errors.Is(err, fetch.ErrUnavailable) && !errors.Is(err, ErrTooBig) {
					t.Errorf("%.20s: %v", at, err)
				}
			}
		})
	}
}

// altered answers as the registry does, but for the body.
func (s *server) altered(w http.ResponseWriter, r *http.Request, change func([]byte) []byte) {
	s.mu.Lock()
	meet := s.meet
	s.meet = nil
	s.mu.Unlock()
	rec := httptest.NewRecorder()
	s.Config.Handler.ServeHTTP(rec, r)
	s.mu.Lock()
	s.meet = meet
	s.mu.Unlock()
	b := change(rec.Body.Bytes())
	for k, v := range rec.Header() {
		w.Header()[k] = v
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	w.WriteHeader(rec.Code)
	_, _ = w.Write(b)
}

// TestSlowRegistry: one that sends next to nothing is given up, at every step.
func TestSlowRegistry(t *testing.T) {
	s := newServer(t)
	img := image(t, "amd64", gz, nil, pythonLayer(t, "amd64"))
	src := s.push(t, img)
	o := options(t, src)
	o.fetcher = func(f *fetch.Fetcher) { f.Tries, f.StallAfter = 1, 100*time.Millisecond }
	ls, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{"/manifests/", "/blobs/" + digestOf(t, ls[0])} {
		s.on(at, func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				if _, err := w.Write([]byte(" ")); err != nil {
					return
				}
				w.(http.Flusher).Flush()
				select {
				case <-r.Context().Done():
				case <-time.After(10 * time.Millisecond):
				}
			}
		})
		o.CacheDir = t.TempDir()
		if _, err := imp(t, o); !errors.Is(err, fetch.ErrStalled) && !errors.Is(err, fetch.ErrContent) {
			t.Errorf("%s: %v", at, err)
		}
	}
	// The first contact has no watchdog but a bound and a deadline.
	s.on("/v2/", func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := Import(ctx, o); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a registry that never answers: %v", err)
	}
}

// TestEndlessHandshake: the answer to the first request is bounded.
func TestEndlessHandshake(t *testing.T) {
	s := newServer(t)
	src := s.push(t, image(t, "amd64", gz, nil, pythonLayer(t, "amd64")))
	s.on("/v2/", func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusTeapot)
		for r.Context().Err() == nil {
			if _, err := w.Write(make([]byte, 64<<10)); err != nil {
				return
			}
		}
	})
	if _, err := imp(t, options(t, src)); !errors.Is(err, fetch.ErrUnavailable) {
		t.Error(err)
	}
}

// TestTokens: a registry that wants a token gets it from where it says, anonymously
// or for a name and a password, and the password goes nowhere else.
func TestTokens(t *testing.T) {
	s := newServer(t)
	src := s.push(t, image(t, "amd64", gz, nil, pythonLayer(t, "amd64")))
	var leaked atomic.Bool
	s.mu.Lock()
	s.meet = func(w http.ResponseWriter, r *http.Request) bool {
		user, password, ok := r.BasicAuth()
		if r.URL.Path == "/token" {
			if user == "someone" && password == "secret" && r.URL.Query().Get("scope") == "repository:some/image:pull" {
				fmt.Fprint(w, `{"token":"good"}`)
			} else {
				w.WriteHeader(http.StatusUnauthorized)
				fmt.Fprint(w, "\x1b[2J who are you?")
			}
			return true
		}
		if ok {
			leaked.Store(true)
		}
		if r.Header.Get("Authorization") == "Bearer good" {
			return false
		}
		w.Header().Set("WWW-Authenticate", `Bearer realm="`+s.URL+`/token",service="x"`)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	}
	s.mu.Unlock()
	o := options(t, src)
	_, err := imp(t, o)
	if !errors.Is(err, fetch.ErrUnavailable) || !strings.Contains(err.Error(), "PYBOX_REGISTRY_USER") || strings.Contains(err.Error(), "\x1b") {
		t.Errorf("anonymously: %v", err)
	}
	o.Username, o.Password = "someone", "secret"
	if _, err := imp(t, o); err != nil {
		t.Error(err)
	}
	if leaked.Load() {
		t.Error("the password went to the registry as well as to its token service")
	}
	o.Password = "wrong"
	if _, err := imp(t, o); !errors.Is(err, fetch.ErrUnavailable) || strings.Contains(err.Error(), "wrong") {
		t.Errorf("a wrong password: %v", err)
	}
}

// TestTroubleThatPasses: the first contact is tried as often as everything else.
func TestTroubleThatPasses(t *testing.T) {
	for name, code := range map[string]int{"trouble": http.StatusServiceUnavailable, "too many": http.StatusTooManyRequests, "cut": 0} {
		for _, path := range []string{"/v2/", "/token"} {
			t.Run(name+path, func(t *testing.T) {
				s := newServer(t)
				src := s.push(t, image(t, "amd64", gz, nil, pythonLayer(t, "amd64")))
				var failed atomic.Bool
				s.mu.Lock()
				s.meet = func(w http.ResponseWriter, r *http.Request) bool {
					switch {
					case r.URL.Path == path && failed.CompareAndSwap(false, true):
						if code == 0 {
							panic(http.ErrAbortHandler)
						}
						w.WriteHeader(code)
					case r.URL.Path == "/token":
						fmt.Fprint(w, `{"token":"good"}`)
					case r.Header.Get("Authorization") != "Bearer good":
						w.Header().Set("WWW-Authenticate", `Bearer realm="`+s.URL+`/token",service="x"`)
						w.WriteHeader(http.StatusUnauthorized)
					default:
						return false
					}
					return true
				}
				s.mu.Unlock()
				if _, err := imp(t, options(t, src)); err != nil || !failed.Load() {
					t.Errorf("%v", err)
				}
			})
		}
	}
}

// TestRegistryErrors: each says what it is and what to do, and no word of mirrors.
func TestRegistryErrors(t *testing.T) {
	status := func(code int) func(*server, http.ResponseWriter) {
		return func(_ *server, w http.ResponseWriter) { w.WriteHeader(code) }
	}
	for name, c := range map[string]struct {
		at     string
		answer func(*server, http.ResponseWriter)
		want   []error
		says   string
		tries  int
	}{
		"no manifest":       {"/manifests/", status(http.StatusNotFound), []error{ErrNotFound, fetch.ErrStatus}, registryGone, 1},
		"no configuration":  {"/blobs/", status(http.StatusNotFound), []error{ErrNotFound, fetch.ErrStatus}, registryGone, 1},
		"not for everybody": {"/manifests/", status(http.StatusUnauthorized), []error{fetch.ErrStatus}, "401 Unauthorized", 1},
		"trouble":           {"/manifests/", status(http.StatusBadGateway), []error{fetch.ErrStatus}, "(tried 2 times)", 2},
		"no registry":       {"/v2/", status(http.StatusNotFound), []error{fetch.ErrStatus}, "404", 1},
		"trouble at first":  {"/v2/", status(http.StatusServiceUnavailable), []error{fetch.ErrStatus}, "the registry has trouble", 2},
		"no token": {"/", func(s *server, w http.ResponseWriter) {
			w.Header().Set("WWW-Authenticate", `Bearer realm="`+s.URL+`/token",service="x"`)
			w.WriteHeader(http.StatusUnauthorized)
		}, []error{fetch.ErrStatus}, "the name and the password, or none, are not taken", 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t)
			src := s.push(t, image(t, "amd64", gz, nil, pythonLayer(t, "amd64")))
			var tries atomic.Int32
			s.on(c.at, func(w http.ResponseWriter, r *http.Request) {
				if c.at == "/v2/" && r.URL.Path != "/v2/" {
					t.Errorf("asked for %s", r.URL.Path)
				}
				if r.URL.Path != "/token" {
					tries.Add(1)
				}
				c.answer(s, w)
			})
			_, err := imp(t, options(t, src))
			for _, want := range append(c.want, fetch.ErrUnavailable) {
				if !errors.Is(err, want) {
					t.Errorf("got %v, want %v", err, want)
				}
			}
			if err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), registryAdvice) ||
				strings.Contains(err.Error(), "irror") || errors.Is(err, fetch.ErrConnect) {
				t.Errorf("it says %v", err)
			}
			if got := int(tries.Load()); got != c.tries {
				t.Errorf("asked %d times, want %d", got, c.tries)
			}
		})
	}
}

// TestUnreachable: what cannot be talked to is said to be so, and one that would be
// without TLS is told apart from one that redirects.
func TestUnreachable(t *testing.T) {
	for host, c := range map[string]struct {
		err      error
		says     string
		insecure bool
	}{
		"192.168.1.2:5000": {errors.New("http: server gave HTTP response to HTTPS client"), "could not be reached by https, and a registry that is not on this machine is asked by nothing else", true},
		"r.example":        {errors.New("connection refused"), "could not be reached: ", false},
		"gone.example":     {&net.DNSError{Err: "no such host", Name: "gone.example", IsNotFound: true}, "could not be reached: ", false},
	} {
		src, err := ParseSource(host + "/a@" + someDigest)
		if err != nil {
			t.Fatal(err)
		}
		o := options(t, src)
		o.Transport = roundTripper(func(r *http.Request) (*http.Response, error) { return nil, c.err })
		_, err = imp(t, o)
		if !errors.Is(err, fetch.ErrConnect) || errors.Is(err, fetch.ErrInsecure) != c.insecure || errors.Is(err, fetch.ErrRedirect) ||
			!strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "irror") {
			t.Errorf("%s: %v", host, err)
		}
	}
}

// TestPlainHTTP: only a registry on this machine is asked without TLS.
func TestPlainHTTP(t *testing.T) {
	var asked []string
	base := roundTripper(func(r *http.Request) (*http.Response, error) {
		asked = append(asked, r.URL.String())
		return nil, errors.New("no network in this test")
	})
	for host, plain := range map[string]bool{"localhost:5000": true, "127.0.0.1:5000": true, "r.example": false, "192.168.1.2:5000": false, "10.0.0.1": false} {
		asked = nil
		src, err := ParseSource(host + "/a@" + someDigest)
		if err != nil {
			t.Fatal(err)
		}
		o := options(t, src)
		o.Transport = base
		if _, err := imp(t, o); !errors.Is(err, fetch.ErrUnavailable) {
			t.Errorf("%s: %v", host, err)
		}
		if got := contains(asked, "http://"); got != plain || !contains(asked, "https://") {
			t.Errorf("%s: asked %q", host, asked)
		}
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestIsLoopback(t *testing.T) {
	for host, want := range map[string]bool{
		"localhost": true, "localhost:5000": true, "a.localhost": true, "127.0.0.1": true, "127.8.9.1:80": true, "[::1]:5000": true, "::1": true,
		"localhost.example": false, "xlocalhost": false, "192.168.0.1": false, "1.2.3.4:80": false, "": false, "127.0.0.1.example": false,
	} {
		if got := isLoopback(host); got != want {
			t.Errorf("%s: %v", host, got)
		}
	}
}

package pyindex

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pybox/pybox/guest/pep508"
	"github.com/pybox/pybox/guest/pylock"
	"github.com/pybox/pybox/guest/pytag"
)

// guest is what wheels are chosen for in these tests.
var guest = pytag.Target{Arch: "x86_64", Python: "3.13", GlibcMajor: 2, GlibcMinor: 41}

// file is one that an index has. Where no content is given it is made of the name.
type file struct {
	name     string
	content  []byte
	python   string // requires-python
	yanked   *string
	sha256   string // "": the right one
	noHash   bool
	noSize   bool
	sizeLie  int64
	url      string // "": relative to the page
	handler  http.HandlerFunc
	projects string // "": of the name
}

func (f file) bytes() []byte {
	if f.content != nil {
		return f.content
	}
	return []byte(strings.Repeat("content of "+f.name+"\n", 500))
}

func (f file) digest() string {
	if f.sha256 != "" {
		return f.sha256
	}
	sum := sha256.Sum256(f.bytes())
	return hex.EncodeToString(sum[:])
}

func (f file) project() string {
	if f.projects != "" {
		return f.projects
	}
	name, _, _ := strings.Cut(f.name, "-")
	return pep508.NormalizeName(name)
}

// index is a package index: /simple/NAME/ and /files/FILE.
type index struct {
	*httptest.Server
	files []file
	html  bool
	// intercept answers a request in the place of the index, if it returns true.
	intercept func(http.ResponseWriter, *http.Request) bool

	mu       sync.Mutex
	requests []string // METHOD PATH
	headers  []http.Header
	now, max int
}

func newIndex(t *testing.T, files ...file) *index {
	t.Helper()
	ix := &index{files: files}
	ix.Server = httptest.NewServer(ix)
	t.Cleanup(ix.Close)
	return ix
}

func (ix *index) simple() string { return ix.URL + "/simple" }

func (ix *index) asked(prefix string) int {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	n := 0
	for _, r := range ix.requests {
		if strings.HasPrefix(r, prefix) {
			n++
		}
	}
	return n
}

func (ix *index) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ix.mu.Lock()
	ix.requests = append(ix.requests, r.Method+" "+r.URL.Path)
	ix.headers = append(ix.headers, r.Header)
	ix.now++
	ix.max = max(ix.max, ix.now)
	ix.mu.Unlock()
	defer func() {
		ix.mu.Lock()
		ix.now--
		ix.mu.Unlock()
	}()
	if ix.intercept != nil && ix.intercept(w, r) {
		return
	}
	if name, ok := strings.CutPrefix(r.URL.Path, "/files/"); ok {
		ix.serveFile(w, r, name)
		return
	}
	name, ok := strings.CutPrefix(r.URL.Path, "/simple/")
	if !ok || !strings.HasSuffix(name, "/") {
		http.NotFound(w, r)
		return
	}
	ix.servePage(w, r, strings.TrimSuffix(name, "/"))
}

func (ix *index) serveFile(w http.ResponseWriter, r *http.Request, name string) {
	for _, f := range ix.files {
		if f.name != name {
			continue
		}
		if f.handler != nil {
			f.handler(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/octet-stream")
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(f.bytes()))
		return
	}
	http.NotFound(w, r)
}

func (ix *index) servePage(w http.ResponseWriter, r *http.Request, project string) {
	var files []file
	for _, f := range ix.files {
		if f.project() == project {
			files = append(files, f)
		}
	}
	if len(files) == 0 {
		http.NotFound(w, r)
		return
	}
	if ix.html {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		fmt.Fprint(w, htmlPage(files))
		return
	}
	if !strings.Contains(r.Header.Get("Accept"), typeJSON) {
		http.Error(w, "not acceptable", http.StatusNotAcceptable)
		return
	}
	w.Header().Set("Content-Type", typeJSON)
	_ = json.NewEncoder(w).Encode(jsonPage(files))
}

func (f file) href() string {
	if f.url != "" {
		return f.url
	}
	return "../../files/" + f.name
}

func htmlPage(files []file) string {
	var b strings.Builder
	b.WriteString("<!DOCTYPE html><html><head><meta name=\"pypi:repository-version\" content=\"1.1\"><title>Links</title></head><body>\n")
	for _, f := range files {
		href := f.href()
		if !f.noHash {
			href += "#sha256=" + f.digest()
		}
		fmt.Fprintf(&b, "<a href=\"%s\"", html.EscapeString(href))
		if f.python != "" {
			fmt.Fprintf(&b, " data-requires-python=\"%s\"", html.EscapeString(f.python))
		}
		if f.yanked != nil {
			fmt.Fprintf(&b, " data-yanked=\"%s\"", html.EscapeString(*f.yanked))
		}
		fmt.Fprintf(&b, ">%s</a><br/>\n", html.EscapeString(f.name))
	}
	return b.String() + "</body></html>"
}

func jsonPage(files []file) map[string]any {
	var list []map[string]any
	for _, f := range files {
		m := map[string]any{"filename": f.name, "url": f.href(), "hashes": map[string]string{"md5": "0"}, "core-metadata": false}
		if !f.noHash {
			m["hashes"] = map[string]string{"sha256": f.digest()}
		}
		if !f.noSize {
			m["size"] = int64(len(f.bytes())) + f.sizeLie
		}
		if f.python != "" {
			m["requires-python"] = f.python
		}
		m["yanked"] = false
		if f.yanked != nil {
			m["yanked"] = true
			if *f.yanked != "" {
				m["yanked"] = *f.yanked
			}
		}
		list = append(list, m)
	}
	return map[string]any{"meta": map[string]string{"api-version": "1.1"}, "name": "x", "files": list}
}

// lockOf makes a requirements lock of "NAME==VERSION" and the files whose hashes it
// has.
func lockOf(t *testing.T, lines ...string) *pylock.Lock {
	t.Helper()
	l, err := pylock.Parse("requirements.txt", []byte(strings.Join(lines, "\n")), pep508.Guest("3.13.5", "x86_64"))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// pin is a line of a lock with the hashes of files.
func pin(requirement string, files ...file) string {
	for _, f := range files {
		requirement += " --hash=sha256:" + f.digest()
	}
	return requirement
}

// client makes one that is quick to give up.
func client(t *testing.T, o Options) *Client {
	t.Helper()
	if o.Cache == "" {
		o.Cache = t.TempDir()
	}
	if o.tries == 0 {
		o.tries = 2
	}
	o.backoff = time.Millisecond
	if o.timeout == 0 {
		o.timeout = 20 * time.Second
	}
	c, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// bounded is a context for tests that ought to end by themselves.
func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func wheel(name string) file { return file{name: name} }

// fileNames are the last parts of addresses.
func fileNames(list []Chosen) string {
	var out []string
	for _, c := range list {
		out = append(out, path.Base(c.File))
	}
	return strings.Join(out, " ")
}

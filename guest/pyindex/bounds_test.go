package pyindex

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pybox/pybox/guest/fetch"
	"github.com/pybox/pybox/guest/nospace"
	"github.com/pybox/pybox/guest/pylock"
)

// allocated is how many bytes fn takes from the heap, whether it gives them back or not.
func allocated(fn func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	fn()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// answers has an index answer with one page for all projects.
func answers(t *testing.T, kind, body string) *index {
	t.Helper()
	ix := newIndex(t)
	ix.intercept = func(w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("Content-Type", kind)
		_, _ = io.WriteString(w, body)
		return true
	}
	return ix
}

// A page is refused before it takes much more than it is large.
func TestPagesThatCostMuch(t *testing.T) {
	var hashes strings.Builder
	for i := range 200_000 {
		fmt.Fprintf(&hashes, `,"%x":""`, i)
	}
	for name, c := range map[string]struct {
		kind, body string
		want       string // of the error, if there is one
		links      int
	}{
		"many files": {typeJSON, `{"files":[{}` + strings.Repeat(`,{}`, 400_000) + `]}`, "more than 200000 files", 0},
		"files twice": {typeJSON, `{"files":[{}` + strings.Repeat(`,{}`, maxPageFiles/2) + `],"files":[{}` +
			strings.Repeat(`,{}`, maxPageFiles/2) + `]}`, "more than 200000 files", 0},
		"many hashes":      {typeJSON, `{"files":[{"filename":"x","url":"y","hashes":{"x":""` + hashes.String() + `}}]}`, "", 1},
		"much besides":     {typeJSON, `{"x":[{}` + strings.Repeat(`,{}`, 400_000) + `]}`, "", 0},
		"long base":        {typeLegacy, `<base href="/` + strings.Repeat("a", 1_000_000) + `/">` + strings.Repeat("<a href=x>", 1000), "an address of 1000002 bytes", 0},
		"base of 4 KiB":    {typeLegacy, `<base href="/` + strings.Repeat("a", maxAddressBytes-2) + `/">` + strings.Repeat("<a href=x>", 1000), "", 1000},
		"long link":        {typeLegacy, `<a href="` + strings.Repeat("a", maxAddressBytes+1) + `">`, "an address of 4097 bytes", 0},
		"long URL":         {typeJSON, `{"files":[{"filename":"x","url":"` + strings.Repeat("a", maxAddressBytes+1) + `"}]}`, "an address of 4097 bytes", 0},
		"long file name":   {typeJSON, `{"files":[{"filename":"` + strings.Repeat("a", maxFileBytes+1) + `","url":"x"},{"filename":"` + strings.Repeat("a", maxFileBytes) + `","url":"x"}]}`, "", 1},
		"long link's name": {typeLegacy, `<a href="` + strings.Repeat("a", maxFileBytes+1) + `"><a href=` + strings.Repeat("a", maxFileBytes) + `>`, "", 1},
		"more behind":      {typeJSON, `{"files":[]} {}`, "more behind its end", 0},
		"not closed":       {typeJSON, `{"files":[]`, "unexpected EOF", 0},
		"no object":        {typeJSON, `["files"]`, "where { should be", 0},
		"no list":          {typeJSON, `{"files":{}}`, "where [ should be", 0},
		"version behind":   {typeJSON, `{"files":[],"meta":{"api-version":"2.0"}}`, "it speaks version", 0},
	} {
		var links []link
		var err error
		n := allocated(func() { links, err = parsePage(c.kind, []byte(c.body), mustURL(t, "https://e.example/simple/a/")) })
		if len(links) != c.links || (err == nil) != (c.want == "") || err != nil && (!errors.Is(err, errPage) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %d links, %v, want %d and %q", name, len(links), err, c.links, c.want)
		}
		if limit := uint64(20*len(c.body) + 32<<20); n > limit {
			t.Errorf("%s: %d bytes for a page of %d", name, n, len(c.body))
		}
	}
}

// Names that stand for many tags, and thousands of wheels that do not fit, are kept
// only as far as they are spoken of.
func TestManyCandidates(t *testing.T) {
	var tags []string
	for i := range 8 {
		tags = append(tags, fmt.Sprintf("x%d", i))
	}
	tag := strings.Join(tags, ".")
	f := wheel("a-1.0-py3-none-any.whl")
	s := &session{Client: client(t, Options{}), tags: guest.Chooser(), target: guest, lock: lockOf(t, pin("a==1.0", f)), standing: map[*place]*standing{}}
	at, err := parsePlace("https://e.example/simple")
	if err != nil {
		t.Fatal(err)
	}
	var links []link
	for i := range 5_000 {
		links = append(links, link{file: fmt.Sprintf("a-1.0-%d-%s-%s-any.whl", i, tag, tag), ref: "x", base: at.base, from: at.base})
	}
	found, seen := &pool{tags: s.tags}, &sighting{}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	if err := s.ofPage(bounded(t), s.lock.Packages[0], at, links, found, seen); err != nil {
		t.Fatal(err)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if held := int64(after.HeapAlloc) - int64(before.HeapAlloc); held > 4<<20 {
		t.Errorf("%d bytes are held of %d wheels", held, len(links))
	}
	if found.all.count != len(links) || len(found.all.list) != maxKept {
		t.Errorf("%d, %d kept", found.all.count, len(found.all.list))
	}
	if text := s.explain(s.lock.Packages[0], found, seen); !strings.Contains(text, "and 4996 more") {
		t.Error(text)
	}
	ctx, cancel := context.WithCancel(bounded(t))
	cancel()
	if err := s.ofPage(ctx, s.lock.Packages[0], at, links, found, seen); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	runtime.KeepAlive(links)
}

// The pool takes what comparing all with all would.
func TestPoolTakesTheBest(t *testing.T) {
	names := []string{"a-1.0-py3-none-any.whl", "a-1.0-cp313-abi3-linux_x86_64.whl", "a-1.0-2-cp313-cp313-linux_x86_64.whl",
		"a-1.0-3-cp313-cp313-linux_x86_64.whl", "a-1.0+x-py3-none-any.whl", "a-1.0-cp313-cp313-win_amd64.whl"}
	for _, c := range []struct {
		order []int
		want  string
	}{
		{[]int{0, 1, 2, 3, 5}, names[3]}, {[]int{5, 3, 2, 1, 0}, names[3]}, {[]int{3, 4}, names[4]}, {[]int{4, 3}, names[4]}, {[]int{1, 0}, names[1]}, {[]int{0, 1}, names[1]},
	} {
		var has []file
		for _, i := range c.order {
			has = append(has, wheel(names[i]))
		}
		ix := newIndex(t, has...)
		chosen, err := client(t, Options{IndexURL: ix.simple()}).Choose(bounded(t), lockOf(t, pin("a==1.0", has...)), guest)
		if err != nil || chosen[0].File != c.want {
			t.Errorf("%v: %v, %v", c.order, chosen, err)
		}
	}
}

// A name made of dashes is looked at once.
func TestNamesOfSources(t *testing.T) {
	for _, c := range []struct{ file, project, want string }{
		{"a-1.0.tar.gz", "a", "1.0"}, {"A_b.C-1.0.zip", "a-b-c", "1.0"}, {"a-b-1.0.tgz", "a-b", "1.0"}, {"a--b-1.0.tgz", "a-b", "1.0"},
		{"a-b-1.0.tgz", "a", "b-1.0"}, {"ab-1.0.tgz", "a", ""}, {"a-1.0.exe", "a", ""}, {"a.tar.gz", "a", ""}, {"", "a", ""}, {"a_b", "a-b", ""}, {"b-1.0.zip", "a", ""},
	} {
		rest, ok := afterName(c.file, c.project)
		if got := sdistVersion(rest); ok && got != c.want || !ok && c.want != "" {
			t.Errorf("%s of %s: %q, %v", c.file, c.project, got, ok)
		}
	}
	long := strings.Repeat("-", 1<<20) + ".zip"
	begin := time.Now()
	for range 2 {
		for _, file := range []string{long, "a" + long, "a-" + long} {
			if rest, ok := afterName(file, "a-b"); ok {
				t.Errorf("%.40q", rest)
			}
		}
	}
	if d := time.Since(begin); d > 5*time.Second {
		t.Errorf("%v", d)
	}
	ix := answers(t, typeLegacy, "<a href="+strings.Repeat("-", 4000)+".zip>")
	f := wheel("a-1.0-py3-none-any.whl")
	if _, err := client(t, Options{IndexURL: ix.simple()}).Choose(bounded(t), lockOf(t, pin("a==1.0", f)), guest); !errors.Is(err, ErrChoice) || len(err.Error()) > 1000 {
		t.Error(err)
	}
}

// What is said is bounded, whatever is wrong and with how much.
func TestManyProblems(t *testing.T) {
	f := wheel("a-1.0-py3-none-any.whl")
	ix := newIndex(t)
	var lines []string
	for i := range maxProblems + 30 {
		lines = append(lines, pin(fmt.Sprintf("p%d==1.0", i), f))
	}
	_, err := client(t, Options{IndexURL: ix.simple()}).Choose(bounded(t), lockOf(t, lines...), guest)
	var ce *ChoiceError
	if !errors.As(err, &ce) || len(ce.Problems) != maxProblems || ce.More != 30 || !strings.HasSuffix(err.Error(), "and 30 more") {
		t.Errorf("%.300v", err)
	}
	e := &ChoiceError{}
	e.add(strings.Repeat("é", 100_000), errLate)
	if n := len(e.Problems[0]); n > maxProblemBytes+10 || !errors.Is(e, errLate) {
		t.Errorf("a line of %d bytes", n)
	}
	// Files that cannot be used, of which a page can have many.
	var many []file
	for i := range 300 {
		many = append(many, file{name: fmt.Sprintf("a-1.0-%d-py3-none-any.whl", i), url: "http://e.example/x"})
	}
	_, err = client(t, Options{IndexURL: newIndex(t, many...).simple()}).Choose(bounded(t), lockOf(t, pin("a==1.0", f)), guest)
	if !errors.Is(err, ErrChoice) || !strings.Contains(err.Error(), "and 297 more") || len(err.Error()) > 2500 {
		t.Errorf("%.3000v", err)
	}
}

// One project's page that is not to be had is that project's trouble.
func TestAPagesFaultIsItsOwn(t *testing.T) {
	a, b := wheel("a-1.0-py3-none-any.whl"), wheel("b-1.0-py3-none-any.whl")
	gone := newIndex(t)
	gone.Close()
	for name, bad := range map[string]func(http.ResponseWriter, *http.Request){
		"403":  func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) },
		"401":  func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) },
		"418":  func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) },
		"500":  func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
		"type": func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Type", "application/pdf") },
		"loop": func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, r.URL.Path, http.StatusFound) },
		"away": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://e.example/", http.StatusFound)
		},
		"dead": func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, gone.URL, http.StatusFound) },
		"nobody": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "https://nobody.invalid/", http.StatusFound)
		},
		"cut": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "<a>")
		},
		"slow": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ix := newIndex(t, a, b)
			ix.intercept = func(w http.ResponseWriter, r *http.Request) bool {
				if !strings.HasPrefix(r.URL.Path, "/simple/bad/") {
					return false
				}
				bad(w, r)
				return true
			}
			c := client(t, Options{IndexURL: ix.simple(), tries: 1})
			lock := lockOf(t, pin("bad==1.0", a), pin("a==1.0", a), pin("b==1.0", b))
			s := &session{Client: c, lock: lock, target: guest, tags: guest.Chooser(), places: []*place{c.index}, standing: map[*place]*standing{}}
			if name == "slow" {
				c.o.timeout = 200 * time.Millisecond
			}
			if ch, err := s.choose(bounded(t), lock.Packages[0]); err == nil {
				t.Fatal(ch)
			}
			c.o.timeout = time.Minute
			for _, p := range lock.Packages[1:] {
				if _, err := s.choose(bounded(t), p); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// A host that cannot be reached is not tried for each project, and one that fails for
// all is given up.
func TestAHostsFaultIsItsOwn(t *testing.T) {
	f := wheel("a-1.0-py3-none-any.whl")
	var lines []string
	for i := range 40 {
		lines = append(lines, pin(fmt.Sprintf("p%d==1.0", i), f))
	}
	var dials atomic.Int32
	dead := &http.Client{Transport: roundTripper(func(*http.Request) (*http.Response, error) {
		dials.Add(1)
		return nil, errors.New("no route")
	})}
	_, err := client(t, Options{IndexURL: "https://e.example/simple", HTTP: dead, tries: 1}).Choose(bounded(t), lockOf(t, lines...), guest)
	var ce *ChoiceError
	if !errors.As(err, &ce) || len(ce.Problems) != 1 || !errors.Is(err, fetch.ErrConnect) || dials.Load() > parallel {
		t.Errorf("%d times, %v", dials.Load(), err)
	}
	for code, limit := range map[int]int{http.StatusUnauthorized: parallel + maxTroubles - 1, http.StatusProxyAuthRequired: parallel} {
		ix := newIndex(t)
		ix.intercept = func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(code); return true }
		_, err = client(t, Options{IndexURL: ix.simple()}).Choose(bounded(t), lockOf(t, lines...), guest)
		if n := ix.asked(""); !errors.As(err, &ce) || len(ce.Problems) != 1 || n > limit {
			t.Errorf("%d: %d times, %v", code, n, err)
		}
	}
}

// A server that asks to be left alone for a time is.
func TestRetryAfter(t *testing.T) {
	f := wheel("a-1.0-py3-none-any.whl")
	ix := newIndex(t, f)
	var first time.Time
	var waited time.Duration
	ix.intercept = func(w http.ResponseWriter, _ *http.Request) bool {
		if first.IsZero() {
			first = time.Now()
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
			return true
		}
		if waited == 0 {
			waited = time.Since(first)
		}
		return false
	}
	if _, err := client(t, Options{IndexURL: ix.simple()}).Choose(bounded(t), lockOf(t, pin("a==1.0", f)), guest); err != nil || waited < 900*time.Millisecond {
		t.Errorf("waited %v, %v", waited, err)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// Where the digest was only assumed to be the file's, nobody is blamed for another.
func TestAssumedDigest(t *testing.T) {
	mac, linux := file{name: "a-1.0-cp313-cp313-macosx_14_0_arm64.whl", noHash: true}, file{name: "a-1.0-cp313-cp313-manylinux_2_17_x86_64.whl", noHash: true}
	sdist := file{name: "a-1.0.tar.gz", noHash: true}
	ix := newIndex(t, mac, linux, sdist)
	ix.html = true
	c := client(t, Options{IndexURL: ix.simple(), tries: 1})
	chosen, err := c.Choose(bounded(t), lockOf(t, pin("a==1.0", mac)), guest)
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Fetch(bounded(t), chosen, nil)
	if !errors.Is(err, fetch.ErrContent) || strings.Contains(err.Error(), "tampered") || !strings.Contains(err.Error(),
		linux.name+" is not the file of the digest that the lock has: the index gives no hashes, and the lock's may be of another file ("+sdist.name+", "+mac.name+"): lock again for Linux") {
		t.Error(err)
	}
	// Where the index gives it, it is known.
	sure := newIndex(t, file{name: linux.name, content: []byte("evil"), sha256: linux.digest()})
	c = client(t, Options{IndexURL: sure.simple(), tries: 1})
	if chosen, err = c.Choose(bounded(t), lockOf(t, pin("a==1.0", linux)), guest); err != nil {
		t.Fatal(err)
	}
	if _, err = c.Fetch(bounded(t), chosen, nil); !errors.Is(err, fetch.ErrContent) || strings.Contains(err.Error(), "gives no hashes") {
		t.Error(err)
	}
}

// A lock of somebody's asks nothing of this machine.
func TestALockDoesNotAskThisMachine(t *testing.T) {
	f := wheel("a-1.0-py3-none-any.whl")
	ix := newIndex(t, f)
	for _, host := range []string{"127.0.0.1", "localhost", "LOCALHOST", "localhost.", "x.localhost", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "[::]", "127.1", "2130706433", "127.0.0.1."} {
		for _, scheme := range []string{"http", "https"} {
			u := mustURL(t, scheme+"://"+host+":1/x")
			if !isHere(u) || client(t, Options{}).mayLock(u) || client(t, Options{IndexURL: "https://e.example/"}).mayLock(u) || mayLink(mustURL(t, "https://e.example/"), u) {
				t.Errorf("%s may be asked", u)
			}
		}
	}
	for _, host := range []string{"e.example", "10.0.0.1", "[2001:db8::1]", "localhost.example", "1.example"} {
		if u := mustURL(t, "https://"+host+"/x"); isHere(u) {
			t.Errorf("%s is not this machine", u)
		}
	}
	if !client(t, Options{IndexURL: ix.simple()}).mayLock(mustURL(t, ix.URL)) {
		t.Error("the host that was named may not be asked")
	}
	if client(t, Options{IndexURL: "https://127.0.0.1/"}).mayLock(mustURL(t, ix.URL)) {
		t.Error("https was named, and http may be asked")
	}
	for _, lock := range []*pylock.Lock{
		pylockOf(t, t.TempDir(), entry("url = '"+ix.URL+"/files/"+f.name+"'", "", f)),
		lockOf(t, "--index-url https://localhost/simple", pin("a==1.0", f)),
		lockOf(t, "--extra-index-url https://127.0.0.1/simple", pin("a==1.0", f)),
	} {
		if _, err := client(t, Options{}).Choose(bounded(t), lock, guest); err == nil || !strings.Contains(err.Error(), "no address of this machine") {
			t.Error(err)
		}
	}
	if n := ix.asked(""); n != 0 {
		t.Errorf("%d requests", n)
	}
}

// Addresses stay as they are written.
func TestIndexAddresses(t *testing.T) {
	for in, want := range map[string]string{
		"https://e.example/api/grp%2Fproj/simple": "https://e.example/api/grp%2Fproj/simple/x/",
		"https://e.example/simple//":              "https://e.example/simple/x/",
		"https://e.example":                       "https://e.example/x/",
		"https://e.example/a%2F":                  "https://e.example/a%2F/x/",
	} {
		p, err := parsePlace(in)
		if err != nil || p.project("x") != want {
			t.Errorf("%s: %v, %v", in, p.project("x"), err)
		}
	}
	if _, err := parsePlace("https://e.example/" + strings.Repeat("a", maxAddressBytes)); err == nil {
		t.Error("a long one")
	}
	p, err := parsePlace("https://u:p@Own.Example/simple")
	if err != nil {
		t.Fatal(err)
	}
	for address, want := range map[string]bool{
		"https://own.example/x": true, "https://OWN.example:443/x": true, "http://own.example/x": false, "https://own.example:444/x": false, "https://own.example.org/x": false,
	} {
		if p.sendsTo(mustURL(t, address)) != want {
			t.Errorf("%s: %v", address, !want)
		}
	}
}

// What an address has behind its '?' is told to no other server, and shown to nobody.
func TestSecretsOfRedirects(t *testing.T) {
	f := wheel("a-1.0-py3-none-any.whl")
	other := newIndex(t, f)
	from := f
	from.url = "/files/" + f.name + "?token=SECRET"
	from.handler = func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, other.URL+"/files/"+f.name, http.StatusFound)
	}
	c := client(t, Options{IndexURL: newIndex(t, from).simple()})
	chosen, err := c.Choose(bounded(t), lockOf(t, pin("a==1.0", f)), guest)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Fetch(bounded(t), chosen, nil); err != nil {
		t.Fatal(err)
	}
	if len(other.headers) == 0 || other.headers[0].Get("Referer") != "" {
		t.Errorf("%v", other.headers)
	}
	for name, location := range map[string]string{
		"to no address":              "https://h:bad/?token=SECRET" + strings.Repeat("x", 30_000),
		"to an address of more than": "https://e.example/?token=SECRET" + strings.Repeat("x", maxAddressBytes),
	} {
		ix := newIndex(t, f)
		ix.intercept = func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Location", location)
			w.WriteHeader(http.StatusFound)
			return true
		}
		_, err = client(t, Options{IndexURL: ix.simple()}).Choose(bounded(t), lockOf(t, pin("a==1.0", f)), guest)
		if want := strings.Replace(name, "to no", "to what is no", 1); !errors.Is(err, ErrChoice) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "SECRET") || len(err.Error()) > 1000 {
			t.Errorf("%s: %.300v", name, err)
		}
	}
}

// The wheels of a lock have an end, and the disk is looked at before anything comes.
func TestRoom(t *testing.T) {
	var files []file
	var lines []string
	for i := range 9 {
		f := file{name: fmt.Sprintf("p%d-1.0-py3-none-any.whl", i), sizeLie: MaxWheelBytes}
		f.sizeLie -= int64(len(f.bytes()))
		files, lines = append(files, f), append(lines, pin(fmt.Sprintf("p%d==1.0", i), f))
	}
	ix := newIndex(t, files...)
	c := client(t, Options{IndexURL: ix.simple()})
	if _, err := c.Choose(bounded(t), lockOf(t, lines...), guest); !errors.Is(err, ErrChoice) || !strings.Contains(err.Error(), "its wheels have 9663676416 bytes together, more than the 8589934592") {
		t.Error(err)
	}
	chosen, err := c.Choose(bounded(t), lockOf(t, lines[:8]...), guest)
	if err != nil {
		t.Fatal(err)
	}
	c.o.free = func(string) (uint64, error) { return 8<<30 - 1, nil }
	if _, err := c.Fetch(bounded(t), chosen, nil); !errors.Is(err, nospace.Err) || !strings.Contains(err.Error(), "8192 MiB") || ix.asked("GET /files/") != 0 {
		t.Error(err)
	}
	// What is there needs none.
	f := wheel("a-1.0-py3-none-any.whl")
	c = client(t, Options{IndexURL: newIndex(t, f).simple()})
	if chosen, err = c.Choose(bounded(t), lockOf(t, pin("a==1.0", f)), guest); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Fetch(bounded(t), chosen, nil); err != nil {
		t.Fatal(err)
	}
	c.o.free = func(string) (uint64, error) { return 0, nil }
	if _, err := c.Fetch(bounded(t), chosen, nil); err != nil {
		t.Error(err)
	}
	if n, err := freeBytes(t.TempDir() + "/not/there/yet"); err != nil || n == 0 {
		t.Error(n, err)
	}
}

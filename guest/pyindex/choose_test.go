package pyindex

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/pybox/pybox/guest/fetch"
	"github.com/pybox/pybox/guest/pep508"
	"github.com/pybox/pybox/guest/pylock"
)

func ptr(s string) *string { return &s }

// numpy is what an index has of a package with compiled code.
var numpy = []file{
	wheel("numpy-2.3.2-cp313-cp313-macosx_14_0_arm64.whl"),
	wheel("numpy-2.3.2-cp313-cp313-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl"),
	wheel("numpy-2.3.2-cp313-cp313-manylinux2014_x86_64.whl"),
	wheel("numpy-2.3.2-cp313-cp313-musllinux_1_2_x86_64.whl"),
	wheel("numpy-2.3.2-cp313-cp313-win_amd64.whl"),
	wheel("numpy-2.3.2.tar.gz"),
	wheel("numpy-2.3.3-cp313-cp313-manylinux_2_28_x86_64.whl"),
}

func TestChooseAndFetch(t *testing.T) {
	six := file{name: "six-1.17.0-py2.py3-none-any.whl", python: ">=2.7, !=3.0.*"}
	for _, asHTML := range []bool{false, true} {
		ix := newIndex(t, append([]file{six}, numpy...)...)
		ix.html = asHTML
		c := client(t, Options{IndexURL: ix.simple()})
		lock := lockOf(t, pin("numpy==2.3.2", numpy...), pin("six[extra]==1.17.0", six))
		chosen, err := c.Choose(bounded(t), lock, guest)
		if err != nil {
			t.Fatal(err)
		}
		if got := fileNames(chosen); got != numpy[1].name+" "+six.name {
			t.Errorf("HTML %v: %s", asHTML, got)
		}
		if ch := chosen[1]; ch.Project != "six" || ch.Version != "1.17.0" || len(ch.Extras) != 1 || ch.Bytes != int64(len(six.bytes())) ||
			ch.URL != ix.URL+"/files/"+six.name || ch.SHA256 != six.digest() || ch.Yanked != "" {
			t.Errorf("HTML %v: %+v", asHTML, ch)
		}
		if n := ix.asked("GET /files/"); n != 0 {
			t.Errorf("HTML %v: %d files were asked for before they were wanted", asHTML, n)
		}
		var done atomic.Int64
		paths, err := c.Fetch(bounded(t), chosen, func(p fetch.Progress) {
			if p.Done == p.Total {
				done.Add(p.Total)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		if done.Load() != chosen[0].Bytes+chosen[1].Bytes {
			t.Errorf("HTML %v: %d bytes were reported", asHTML, done.Load())
		}
		for i, f := range []file{numpy[1], six} {
			if got, err := os.ReadFile(paths[i]); err != nil || !bytes.Equal(got, f.bytes()) || !strings.HasPrefix(paths[i], c.o.Cache) {
				t.Errorf("HTML %v: %s: %d bytes, %v", asHTML, paths[i], len(got), err)
			}
		}
		// What is there is not asked for again, but looked at.
		before := ix.asked("GET /files/")
		if before != 2 {
			t.Errorf("%d files were asked for", before)
		}
		if err := os.WriteFile(paths[1], bytes.ToUpper(six.bytes()), 0o644); err != nil {
			t.Fatal(err)
		}
		if again, err := c.Fetch(bounded(t), chosen, nil); err != nil || again[0] != paths[0] {
			t.Error(again, err)
		}
		if got, err := os.ReadFile(paths[1]); ix.asked("GET /files/") != before+1 || err != nil || !bytes.Equal(got, six.bytes()) {
			t.Errorf("HTML %v: a damaged file of the cache was taken, or others asked for: %d, %v", asHTML, ix.asked("GET /files/"), err)
		}
	}
}

// Newer versions are not taken whatever the index has, other spellings are.
func TestChooseByVersion(t *testing.T) {
	local := file{name: "torch-2.8.0+cpu-cp313-cp313-linux_x86_64.whl"}
	plain := file{name: "torch-2.8.0-cp313-cp313-manylinux_2_28_x86_64.whl"}
	ix := newIndex(t, local, plain, wheel("torch-2.9.0-cp313-cp313-manylinux_2_28_x86_64.whl"))
	c := client(t, Options{IndexURL: ix.simple()})
	for lock, want := range map[string]string{
		pin("torch==2.8", local, plain):       local.name, // the newer of what "==" admits
		pin("torch==2.8.0", plain):            plain.name,
		pin("torch==2.8.0", local):            local.name,
		pin("torch==2.8.0+cpu", local, plain): local.name,
	} {
		chosen, err := c.Choose(bounded(t), lockOf(t, lock), guest)
		if err != nil || chosen[0].File != want {
			t.Errorf("%.20s: %+v, %v", lock, chosen, err)
		}
	}
}

func TestYankedIsTakenOnlyForWantOfAnother(t *testing.T) {
	good := wheel("a-1.0-py3-none-any.whl")
	for reason, want := range map[string]string{"": "no reason is given", "broken\n\x1b[31mbuild": `broken \x1b[31mbuild`} {
		bad := file{name: "a-1.0-cp313-none-any.whl", yanked: &reason}
		for _, asHTML := range []bool{false, true} {
			ix := newIndex(t, bad, good)
			ix.html = asHTML
			c := client(t, Options{IndexURL: ix.simple()})
			both, err := c.Choose(bounded(t), lockOf(t, pin("a==1.0", bad, good)), guest)
			if err != nil || both[0].File != good.name || both[0].Yanked != "" {
				t.Errorf("%+v, %v", both, err)
			}
			alone, err := c.Choose(bounded(t), lockOf(t, pin("a==1.0", bad)), guest)
			if err != nil || alone[0].File != bad.name || alone[0].Yanked != want {
				t.Errorf("HTML %v: %+v, %v", asHTML, alone, err)
			}
		}
	}
}

func TestRefusalsSayWhatIsMissing(t *testing.T) {
	sdist := wheel("plain-1.0.tar.gz")
	newer := file{name: "new-1.0-py3-none-any.whl", python: ">=3.14"}
	old := file{name: "old-1.0-cp312-cp312-manylinux_2_17_x86_64.whl"}
	bare := []file{{name: "bare-1.0-py3-none-any.whl", noHash: true}}
	mac, linux := numpy[0], numpy[1]
	ix := newIndex(t, append([]file{sdist, newer, old, bare[0]}, numpy...)...)
	c := client(t, Options{IndexURL: ix.simple()})
	for lock, want := range map[string][]string{
		pin("numpy==2.3.2", mac, numpy[4]): {"numpy 2.3.2 (line 1): the lock has " + mac.name + " (for macOS), " + numpy[4].name + " (for Windows)",
			"none is for the image, which needs cp313-cp313-manylinux_2_17_x86_64 or the like",
			linux.name, "whose hash is not in the lock", "--python-platform x86_64-manylinux_2_40 --python-version 3.13"},
		pin("numpy==2.3.2", numpy[5]):               {"the hash of its source distribution (numpy-2.3.2.tar.gz) only", "would run its code", "lock again for Linux"},
		pin("numpy==2.3.2", sdist):                  {"none of the lock's 1 hashes is of " + linux.name},
		pin("numpy==2.3.1", linux):                  {"there is no such version; there are 2.3.3, 2.3.2"},
		pin("plain==1.0", sdist):                    {"plain 1.0 (line 1): there is only its source (plain-1.0.tar.gz), and building that would run its code on this computer"},
		pin("new==1.0", newer):                      {newer.name + " is for Python >=3.14, and the image has 3.13.5"},
		pin("old==1.0", old):                        {old.name + " (for another Python (cp312-cp312; the image has CPython 3.13))", "take a version that has such a wheel"},
		pin("unknown==1.0", sdist):                  {ix.simple() + "/ has no package of that name"},
		pin("bare==1.0", bare[0], sdist):            {"the index gives no SHA-256 for " + bare[0].name},
		"\n\n" + pin("numpy==2.3.2", mac, numpy[3]): {"(line 3)", numpy[3].name + " (for musl, and the image has glibc)"},
	} {
		_, err := c.Choose(bounded(t), lockOf(t, lock), guest)
		var ce *ChoiceError
		if !errors.Is(err, ErrChoice) || !errors.As(err, &ce) || len(ce.Problems) != 1 {
			t.Errorf("%.30s: %v", lock, err)
			continue
		}
		for _, w := range want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%.30s: %v\nwant %q", lock, err, w)
			}
		}
	}
}

// What an index says cannot move a cursor.
func TestProblemsArePrintable(t *testing.T) {
	f := wheel("a-1.0-py3-none-any.whl")
	for _, has := range []file{
		{name: "a-1.0-\x1b[31m.tar.gz", url: "x"},
		{name: f.name, python: "===\x1b[31m"},
	} {
		ix := newIndex(t, has)
		_, err := client(t, Options{IndexURL: ix.simple()}).Choose(bounded(t), lockOf(t, pin("a==1.0", f)), guest)
		if !errors.Is(err, ErrChoice) || strings.Contains(err.Error(), "\x1b") {
			t.Errorf("%q", err)
		}
	}
}

func TestOneHashIsEnoughForAnIndexWithoutAny(t *testing.T) {
	f := file{name: "bare-1.0-py3-none-any.whl", noHash: true}
	ix := newIndex(t, f)
	ix.html = true
	c := client(t, Options{IndexURL: ix.simple()})
	chosen, err := c.Choose(bounded(t), lockOf(t, pin("bare==1.0", f)), guest)
	if err != nil || chosen[0].SHA256 != f.digest() {
		t.Fatal(chosen, err)
	}
	if _, err := c.Fetch(bounded(t), chosen, nil); err != nil {
		t.Error(err)
	}
}

func TestAllProblemsAtOnceAndAPlacesOnce(t *testing.T) {
	good := wheel("a-1.0-py3-none-any.whl")
	ix := newIndex(t, good, wheel("b-1.0.tar.gz"))
	c := client(t, Options{IndexURL: ix.simple()})
	_, err := c.Choose(bounded(t), lockOf(t, pin("a==1.0", good), pin("b==1.0", good), pin("c==1.0", good)), guest)
	var ce *ChoiceError
	if !errors.As(err, &ce) || len(ce.Problems) != 2 || !strings.HasPrefix(err.Error(), "requirements.txt: ") {
		t.Fatal(err)
	}
	ix.intercept = func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	}
	var lines []string
	for i := range 12 {
		lines = append(lines, pin(fmt.Sprintf("p%d==1.0", i), good))
	}
	_, err = c.Choose(bounded(t), lockOf(t, lines...), guest)
	if !errors.As(err, &ce) || len(ce.Problems) != 1 || !strings.Contains(err.Error(), "503 Service Unavailable: the server has trouble; try again later (tried 2 times) (for ") || !strings.Contains(err.Error(), "and 7 more)") {
		t.Fatal(err)
	}
	// Not each of them tried each time: those under way at once at most.
	if n := ix.asked("GET /simple/p"); n > (parallel+maxTroubles-1)*2 {
		t.Errorf("%d requests to an index that is down", n)
	}
	if ix.max > parallel {
		t.Errorf("%d requests at once", ix.max)
	}
}

func TestWhereItLooks(t *testing.T) {
	here, there := wheel("a-1.0-py3-none-any.whl"), wheel("b-1.0-py3-none-any.whl")
	first, second := newIndex(t, here), newIndex(t, there)
	lock := lockOf(t, pin("a==1.0", here), pin("b==1.0", there))
	lock.ExtraIndex = []string{second.simple()}
	c := client(t, Options{IndexURL: first.simple()})
	if chosen, err := c.Choose(bounded(t), lock, guest); err != nil || chosen[1].URL != second.URL+"/files/"+there.name {
		t.Error(chosen, err)
	}
	lock.ExtraIndex, lock.IndexURL = nil, second.simple()
	_, err := c.Choose(bounded(t), lock, guest)
	if !errors.Is(err, ErrChoice) || !strings.Contains(err.Error(), "b 1.0 (line 2)") || strings.Contains(err.Error(), "a 1.0") {
		t.Errorf("the lock's index went before the person's: %v", err)
	}
	own := client(t, Options{})
	theirs := &pylock.Lock{IndexURL: "https://e.example/simple", ExtraIndex: []string{"https://f.example/simple"}}
	if places, err := own.places(theirs); err != nil || len(places) != 2 || places[0].String() != "https://e.example/simple/" || places[1].String() != "https://f.example/simple/" {
		t.Error(places, err)
	}
	if places, err := own.places(&pylock.Lock{}); err != nil || len(places) != 1 || places[0].String() != DefaultIndex {
		t.Error(places, err)
	}
	// --no-index of a lock leaves the person's index alone.
	theirs.NoIndex = true
	if places, err := own.places(theirs); err != nil || len(places) != 0 {
		t.Error(places, err)
	}
	if places, err := c.places(theirs); err != nil || len(places) != 1 || places[0] != c.index {
		t.Error(places, err)
	}
	if places, err := client(t, Options{Offline: true}).places(lock); err != nil || len(places) != 0 {
		t.Error(places, err)
	}
}

func TestFolders(t *testing.T) {
	f, g := wheel("a-1.0-py3-none-any.whl"), wheel("b-1.0-py3-none-any.whl")
	dir := t.TempDir()
	write := func(name string, content []byte) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(f.name, f.bytes())
	write("README", nil)
	write(g.name, []byte("something else"))
	ix := newIndex(t, f, g)
	lock := lockOf(t, pin("a==1.0", f), pin("b==1.0", g))
	c := client(t, Options{IndexURL: ix.simple(), FindLinks: []string{t.TempDir(), dir}})
	chosen, err := c.Choose(bounded(t), lock, guest)
	if err != nil {
		t.Fatal(err)
	}
	if chosen[0].URL != "" || chosen[0].Bytes != int64(len(f.bytes())) || chosen[1].URL == "" {
		t.Errorf("%+v", chosen)
	}
	paths, err := c.Fetch(bounded(t), chosen, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(paths[0]); err != nil || !bytes.Equal(got, f.bytes()) || strings.HasPrefix(paths[0], dir) {
		t.Error(paths, err)
	}
	if ix.asked("GET /simple/a") != 0 || ix.asked("GET /files/a") != 0 {
		t.Error("the index was asked for what the folder has")
	}

	offline := client(t, Options{Offline: true, FindLinks: []string{dir}, IndexURL: ix.simple()})
	before := len(ix.requests)
	_, err = offline.Choose(bounded(t), lock, guest)
	if !errors.Is(err, ErrChoice) || !strings.Contains(err.Error(), "b 1.0 (line 2)") || strings.Contains(err.Error(), "a 1.0") {
		t.Error(err)
	}
	one := lockOf(t, pin("a==1.0", f))
	chosen, err = offline.Choose(bounded(t), one, guest)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := offline.Fetch(bounded(t), chosen, nil); err != nil || len(ix.requests) != before {
		t.Error(err, ix.requests[before:])
	}
	// Exchanged between the choice and the use: never taken.
	write(f.name, bytes.ToUpper(f.bytes()))
	fresh := client(t, Options{Offline: true, FindLinks: []string{dir}})
	if _, err := fresh.Fetch(bounded(t), chosen, nil); !errors.Is(err, fetch.ErrContent) {
		t.Error(err)
	}
}

func TestNoFolder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "x")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{file, filepath.Join(t.TempDir(), "none"), "https://e.example/wheels", ""} {
		if _, err := New(Options{Cache: t.TempDir(), FindLinks: []string{dir}}); err == nil || !strings.Contains(err.Error(), "--find-links") {
			t.Errorf("%q: %v", dir, err)
		}
	}
	if _, err := New(Options{Cache: t.TempDir(), FindLinks: make([]string, maxFolders+1)}); err == nil {
		t.Error("many folders")
	}
	if _, err := New(Options{}); err == nil {
		t.Error("no cache")
	}
	for _, u := range []string{"ftp://e.example/", "e.example/simple", "https://", "https://e.example/simple?x=secret", "https://e.example/simple?", "file:///srv", "https://e.example/%zz"} {
		if _, err := New(Options{Cache: t.TempDir(), IndexURL: u}); err == nil || !strings.Contains(err.Error(), "--index-url") || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", u, err)
		}
	}
}

// pylockOf makes a pylock.toml of one package whose wheels are given as TOML.
func pylockOf(t *testing.T, dir string, wheels ...string) *pylock.Lock {
	t.Helper()
	data := "lock-version = '1.0'\n[[packages]]\nname = 'a'\nversion = '1.0'\nwheels = [" + strings.Join(wheels, ", ") + "]\n"
	l, err := pylock.Parse(filepath.Join(dir, "pylock.toml"), []byte(data), pep508.Guest("3.13.5", "x86_64"))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func entry(place, more string, f file) string {
	return fmt.Sprintf("{ %s, %shashes = { sha256 = '%s' } }", place, more, f.digest())
}

func TestPylock(t *testing.T) {
	pure, mac, own := wheel("a-1.0-py3-none-any.whl"), wheel("a-1.0-cp313-cp313-macosx_11_0_arm64.whl"), wheel("a-1.0-cp313-cp313-linux_x86_64.whl")
	ix := newIndex(t, pure, mac)
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "dist"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "dist", "kept-under-another-name"), own.bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	web := entry("url = '"+ix.URL+"/files/"+pure.name+"?token=1'", "", pure)
	foreign := entry("url = '"+ix.URL+"/files/"+mac.name+"'", "size = 3, ", mac)
	local := entry("path = 'dist/kept-under-another-name', name = '"+own.name+"'", "", own)

	c := client(t, Options{IndexURL: ix.simple()})
	chosen, err := c.Choose(bounded(t), pylockOf(t, dir, foreign, web), guest)
	if err != nil || chosen[0].File != pure.name || chosen[0].Bytes != int64(len(pure.bytes())) || strings.Contains(chosen[0].URL, "token") {
		t.Fatalf("%+v, %v", chosen, err)
	}
	if ix.asked("GET /simple") != 0 {
		t.Error("the index was asked for what the lock names")
	}
	if _, err := c.Fetch(bounded(t), chosen, nil); err != nil {
		t.Error(err)
	}
	// What is in the cache needs no network.
	offline := client(t, Options{Offline: true, Cache: c.o.Cache, IndexURL: ix.simple()})
	chosen, err = offline.Choose(bounded(t), pylockOf(t, dir, foreign, web), guest)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := offline.Fetch(bounded(t), chosen, nil); err != nil {
		t.Error(err)
	}
	empty := client(t, Options{Offline: true, IndexURL: ix.simple()})
	if _, err := empty.Choose(bounded(t), pylockOf(t, dir, web), guest); !errors.Is(err, ErrChoice) || !strings.Contains(err.Error(), "the network is not to be used") {
		t.Error(err)
	}
	// A path counts from the lock file, and its file is taken before the pure one.
	chosen, err = empty.Choose(bounded(t), pylockOf(t, dir, web, local), guest)
	if err != nil || chosen[0].File != own.name || chosen[0].URL != "" {
		t.Fatalf("%+v, %v", chosen, err)
	}
	paths, err := empty.Fetch(bounded(t), chosen, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(paths[0]); err != nil || !bytes.Equal(got, own.bytes()) {
		t.Error(err)
	}

	for lock, want := range map[*pylock.Lock]string{
		pylockOf(t, dir, foreign):                                                                                            "the lock has " + mac.name + " (for macOS); none is for the image",
		pylockOf(t, dir, entry("path = 'none/"+own.name+"'", "", own)):                                                       "no such file",
		pylockOf(t, dir, entry("path = 'dist', name = '"+own.name+"'", "", own)):                                             "no regular file",
		pylockOf(t, dir, entry("path = 'dist/kept-under-another-name', name = '"+own.name+"'", "size = 5, ", own)):           "and the lock says 5",
		pylockOf(t, dir, entry("url = 'http://e.example/"+own.name+"'", "", own)):                                            "https is wanted",
		pylockOf(t, dir, entry("url = '"+ix.URL+"/files/gone/"+pure.name+"'", "", pure)):                                     "it does not have this file; the index may have taken it away; lock again",
		pylockOf(t, dir, entry("url = '"+ix.URL+"/files/"+pure.name+"'", fmt.Sprintf("size = %d, ", MaxWheelBytes+1), pure)): "more than the",
	} {
		if _, err := client(t, Options{IndexURL: ix.simple()}).Choose(bounded(t), lock, guest); !errors.Is(err, ErrChoice) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v\nwant %q", err, want)
		}
	}
}

func TestChooseEndsWithItsContext(t *testing.T) {
	f := wheel("a-1.0-py3-none-any.whl")
	ix := newIndex(t, f)
	ctx, cancel := context.WithCancel(bounded(t))
	ix.intercept = func(_ http.ResponseWriter, r *http.Request) bool {
		cancel()
		<-r.Context().Done()
		return true
	}
	_, err := client(t, Options{IndexURL: ix.simple()}).Choose(ctx, lockOf(t, pin("a==1.0", f)), guest)
	if !errors.Is(err, context.Canceled) || errors.Is(err, ErrChoice) {
		t.Error(err)
	}
}

func TestPages(t *testing.T) {
	base := "https://e.example/simple/a/"
	for name, c := range map[string]struct {
		kind, body string
		want       string // links, or the error
	}{
		"relative":                  {typeHTML, `<a href="../../x/a-1-py3-none-any.whl#sha256=` + strings.Repeat("A", 64) + `">`, "https://e.example/x/a-1-py3-none-any.whl " + strings.Repeat("a", 64)},
		"host-relative, upper case": {"TEXT/HTML; charset=UTF-8", `<A HREF='/x/a%2B1.whl'>`, "https://e.example/x/a%2B1.whl "},
		"other host":                {typeLegacy, `<a href=//f.example/a.whl>`, "https://f.example/a.whl "},
		"downgrade":                 {typeLegacy, `<a href=http://e.example/a.whl><a href=http://localhost/a.whl>`, "barred|barred"},
		"downgrade by base":         {typeLegacy, `<base href=http://e.example/><a href=a.whl>`, "barred"},
		"base":                      {typeLegacy, `<base href="https://f.example/d/"><base href="https://g.example"><a href=a.whl>`, "https://f.example/d/a.whl "},
		"schemes":                   {typeLegacy, `<a href="javascript:x"><a href="file:///etc/passwd"><a href="data:,x"><a href="mailto:x@y">`, ""},
		"no href, bad href":         {typeLegacy, `<a><a href><a href="http://[::1"><a name=x>`, ""},
		"credentials are dropped":   {typeLegacy, `<a href="https://u:secret@f.example/a.whl">`, "https://f.example/a.whl "},
		"other digests":             {typeLegacy, `<a href="a.whl#md5=0123"><a href="b.whl#egg=x&sha256=` + strings.Repeat("0", 64) + `">`, "https://e.example/simple/a/a.whl |https://e.example/simple/a/b.whl " + strings.Repeat("0", 64)},
		"comments and scripts":      {typeLegacy, `<!-- <a href=a.whl> --><script>"<a href=b.whl>"</script>`, ""},
		"HTML of version 2":         {typeLegacy, `<meta name="pypi:repository-version" content="2.0"><a href=a.whl>`, "error: it speaks version"},
		"charset":                   {"text/html; charset=utf-16", ``, "error: its charset"},
		"JSON":                      {typeJSON, `{"meta":{"api-version":"1.3"},"files":[{"filename":"a.whl","url":"/f/a.whl","hashes":{"sha256":"` + strings.Repeat("0", 64) + `"}},{"filename":"b","url":"http://e.example/b","hashes":{}}]}`, "https://e.example/f/a.whl " + strings.Repeat("0", 64) + "|barred"},
		"JSON of version 2":         {typeJSON, `{"meta":{"api-version":"2.0"}}`, "error: it speaks version"},
		"no JSON":                   {typeJSON, `<html>`, "error: "},
		"JSON of another shape":     {typeJSON, `{"files":"x"}`, "error: "},
		"deep JSON":                 {typeJSON, `{"files":` + strings.Repeat("[", 100000), "error: "},
		"plain JSON":                {"application/json", `{}`, "error: its type"},
		"no type":                   {"", ``, "error: its type"},
		"a tag without end":         {typeLegacy, `<a href="` + strings.Repeat("x", maxTokenBytes+1), "error: "},
	} {
		t.Run(name, func(t *testing.T) {
			links, err := parsePage(c.kind, []byte(c.body), mustURL(t, base))
			if want, isError := strings.CutPrefix(c.want, "error: "); isError {
				if !errors.Is(err, errPage) || !strings.Contains(err.Error(), want) {
					t.Fatal(links, err)
				}
				return
			}
			var got []string
			for _, l := range links {
				switch u := l.url(); {
				case u == nil:
				case !mayLink(l.from, u):
					got = append(got, "barred")
				default:
					got = append(got, u.String()+" "+l.sha256)
				}
			}
			if err != nil || strings.Join(got, "|") != c.want {
				t.Errorf("%q, %v", strings.Join(got, "|"), err)
			}
		})
	}
}

func TestManyLinks(t *testing.T) {
	for kind, body := range map[string]string{
		typeLegacy: strings.Repeat("<a href=a>", maxPageFiles+1),
		typeJSON:   `{"files":[{}` + strings.Repeat(",{}", maxPageFiles) + `]}`,
	} {
		if _, err := parsePage(kind, []byte(body), mustURL(t, "https://e.example/")); !errors.Is(err, errPage) {
			t.Errorf("%s: %v", kind, err)
		}
	}
}

func FuzzJSON(f *testing.F) {
	b, err := json.Marshal(jsonPage(append([]file{{name: "a-1.0-py3-none-any.whl", yanked: ptr("x"), python: ">=3"}}, numpy...)))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, body []byte) { checkPage(t, typeJSON, body) })
}

func FuzzHTML(f *testing.F) {
	f.Add([]byte(htmlPage(append([]file{{name: "a-1.0-py3-none-any.whl", yanked: ptr("x"), python: ">=3"}}, numpy...))))
	f.Add([]byte(`<base href="//f.example"><a href=x.whl#sha256=0 data-yanked>`))
	f.Fuzz(func(t *testing.T, body []byte) { checkPage(t, typeLegacy, body) })
}

// checkPage holds what was read of a page to what a page may name.
func checkPage(t *testing.T, kind string, body []byte) {
	links, err := parsePage(kind, body, mustURL(t, "https://e.example/simple/a/"))
	if err != nil {
		if !errors.Is(err, errPage) {
			t.Fatal(err)
		}
		return
	}
	for _, l := range links {
		if u := l.url(); u != nil && (u.Scheme != "https" && mayLink(l.from, u) || u.Host == "" || u.User != nil || u.Fragment != "") {
			t.Fatalf("%v", u)
		}
		if l.sha256 != "" && len(l.sha256) != 64 || l.bytes < 0 || len(l.file) > maxFileBytes || len(l.ref) > maxAddressBytes {
			t.Fatalf("%+v", l)
		}
		if r := l.reasonText(); len(r) > 2000 || strings.ContainsAny(r, "\n\x1b\x00") {
			t.Fatalf("%q", r)
		}
	}
}

package setup

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pybox/pybox/host/home"
)

func (w *world) removal() *Removal {
	w.t.Helper()
	r, err := PlanRemoval(w.t.Context(), RemovalOptions{Home: w.o.Home, Cache: w.o.Cache, Command: "pybox setup --yes --remove"})
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

func (w *world) write(name, content string) {
	w.t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// used leaves what a PyBox that was used has in its folders.
func (w *world) used() {
	for _, n := range []string{"daemon.log", "daemon.log.1", "console.log", "daemon.err", "daemon.json", ".daemon.json123", "last-end.json",
		"acceleration.json", "lock", "pybox.sock", "files/body-1", "images/lock", "bundles/.current123", "bundles/tmp-1/kernel"} {
		w.write(filepath.Join(w.o.Home, n), "x")
	}
	for _, n := range []string{"setup/0123456789abcdef/bundle/kernel", "setup/0123456789abcdef/bundle/.root.erofs1", "bytecode/" + strings.Repeat("a", 64),
		"partial/" + strings.Repeat("b", 64), "partial/" + strings.Repeat("b", 64) + ".lock"} {
		w.write(filepath.Join(w.o.Cache, n), "x")
	}
	w.claim("bytecode/"+strings.Repeat("a", 64), download(strings.Repeat("b", 64)))
}

// claim has the setup remember files of the cache as its own.
func (w *world) claim(names ...string) {
	w.t.Helper()
	h, err := home.Open(w.o.Home)
	if err != nil {
		w.t.Fatal(err)
	}
	rec := readRecord(h)
	rec.Schema = recordSchema
	rec.Cache = append(rec.Cache, names...)
	if err := h.WriteJSON(h.Path(recordName), rec); err != nil {
		w.t.Fatal(err)
	}
}

// TestRemoveLeavesOthersCache: the cache is everybody's. What was there before setup,
// or came by another way, stays and is named; what setup added goes.
func TestRemoveLeavesOthersCache(t *testing.T) {
	w := newWorld(t)
	name := func(c string) string { return strings.Repeat(c, 64) }
	others := []string{download(name("1")), "partial/" + name("2"), "bytecode/" + name("3"), "acceleration.json"}
	for _, n := range others {
		w.write(filepath.Join(w.o.Cache, n), "others'")
	}
	w.setUp()
	h, err := home.Open(w.o.Home)
	if err != nil {
		t.Fatal(err)
	}
	claimed := readRecord(h).Cache
	if len(claimed) == 0 {
		t.Fatal("setup remembers no download")
	}
	for _, n := range claimed {
		w.write(filepath.Join(w.o.Cache, n), "setup's")
	}
	later := download(name("4"))
	w.write(filepath.Join(w.o.Cache, later), "others'")
	r := w.removal()
	if left := w.remove(); len(left) == 0 {
		t.Error("nothing is said to stay")
	}
	for _, n := range append(others, later) {
		path := filepath.Join(w.o.Cache, n)
		if _, err := os.Stat(path); err != nil {
			t.Errorf("it is gone: %v", err)
		}
		if !slices.ContainsFunc(r.Kept, func(p Path) bool {
			return (p.Path == path || strings.HasPrefix(path, p.Path+"/")) && strings.HasPrefix(p.For, "another setup's")
		}) {
			t.Errorf("%s is not named among what stays, or not as another's: %v", path, r.Kept)
		}
	}
	if len(r.Kept) != len(others) { // one row for each folder, and one for the file
		t.Errorf("%d rows of what stays: %v", len(r.Kept), r.Kept)
	}
	for _, n := range claimed {
		if _, err := os.Stat(filepath.Join(w.o.Cache, n)); err == nil {
			t.Errorf("%s is there, and setup made it", n)
		}
	}
}

func (w *world) remove() (left []Path) {
	w.t.Helper()
	left, err := w.removal().Execute(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	return left
}

// TestRemoveEverything: what setup and PyBox made leaves no trace.
func TestRemoveEverything(t *testing.T) {
	w := newWorld(t)
	before := tree(t, w.dir)
	w.setUp()
	w.used()
	r := w.removal()
	if len(r.Kept) > 0 || len(r.Problems) > 0 {
		t.Fatalf("kept %v, problems %v", r.Kept, r.Problems)
	}
	if left := w.remove(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	got := tree(t, w.dir)
	for _, above := range []string{"user", "user/.cache"} { // they are no folders of PyBox's
		delete(got, filepath.Join(w.dir, above))
	}
	if !maps.Equal(got, before) {
		t.Errorf("left: %v", slices.Sorted(maps.Keys(got)))
	}
	if r := w.removal(); !r.Nothing() {
		t.Errorf("to do again: %+v", r)
	}
	w.setUp() // and it can be set up again
}

// TestRemoveKeepsImages: images of a person's own are theirs, and named in one row.
func TestRemoveKeepsImages(t *testing.T) {
	w := newWorld(t)
	w.setUp()
	w.used()
	dir := filepath.Join(w.o.Home, "images")
	files := []string{filepath.Join(dir, "mine.json"), filepath.Join(dir, strings.Repeat("a", 64)+".erofs")}
	for _, n := range files {
		w.write(n, "mine")
	}
	if r := w.removal(); len(r.Kept) != 1 || r.Kept[0].Path != dir || !strings.Contains(r.Kept[0].For, "pybox image remove") {
		t.Errorf("kept: %+v", r.Kept)
	}
	w.remove()
	for _, n := range files {
		if _, err := os.Stat(n); err != nil {
			t.Errorf("it is gone: %v", err)
		}
	}
}

// TestRemoveOnlyOurs: whatever else lies there stays, is named, and keeps its folder.
func TestRemoveOnlyOurs(t *testing.T) {
	w := newWorld(t)
	dir := w.setUp().Dir
	w.used()
	mine := []string{
		filepath.Join(w.o.Home, "config.toml"),
		filepath.Join(w.o.Home, "notes.txt"),
		filepath.Join(w.o.Home, "daemon.log.2"),
		filepath.Join(w.o.Home, "work", "deep", "file"),
		filepath.Join(w.o.Home, "receipts", "0123.json"),
		filepath.Join(w.o.Home, "bundles", "mine"),
		filepath.Join(dir, "mine"),
		filepath.Join(w.o.Cache, "kernel", "x"),
		filepath.Join(w.o.Cache, "sha256", "mine"),
	}
	for _, n := range mine {
		w.write(n, "mine")
	}
	outside := filepath.Join(t.TempDir(), "outside")
	w.write(filepath.Join(outside, "current"), "mine")
	links := []string{filepath.Join(w.o.Home, "console.log.1"), filepath.Join(w.o.Cache, "bytecode", strings.Repeat("c", 64)), filepath.Join(w.o.Home, "linked")}
	for _, n := range links {
		if err := os.Symlink(outside, n); err != nil {
			t.Fatal(err)
		}
	}
	before := tree(t, w.dir)
	r := w.removal()
	if !maps.Equal(before, tree(t, w.dir)) {
		t.Fatal("the plan changed something")
	}
	planned := map[string]bool{}
	for _, f := range append(slices.Clone(r.Files), r.Folders...) {
		planned[f.Path] = true
	}
	left, err := r.Execute(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	after := tree(t, w.dir)
	for name := range before {
		if _, there := after[name]; !there && !planned[name] {
			t.Errorf("%s was removed, and that is not planned", name)
		}
	}
	for _, n := range mine {
		if b, err := os.ReadFile(n); err != nil || string(b) != "mine" {
			t.Errorf("%s: %q, %v", n, b, err)
		}
	}
	for _, n := range append(slices.Clone(links), mine...) {
		if _, err := os.Lstat(n); err != nil {
			t.Error(err)
		}
		if !slices.ContainsFunc(r.Kept, func(f Path) bool { return n == f.Path || strings.HasPrefix(n, f.Path+"/") }) {
			t.Errorf("%s is not named among what stays: %v", n, r.Kept)
		}
	}
	for _, f := range r.Files {
		if _, there := after[f.Path]; there {
			t.Errorf("%s is still there", f.Path)
		}
	}
	for _, want := range []string{w.o.Home, filepath.Join(w.o.Home, "bundles"), w.o.Cache} {
		if !slices.ContainsFunc(left, func(f Path) bool { return f.Path == want }) {
			t.Errorf("%s is not said to stay: %v", want, left)
		}
	}
	if _, err := os.Stat(filepath.Join(outside, "current")); err != nil {
		t.Error(err)
	}
}

// TestRemoveBehindLinks: folders that are links to others are removed from.
func TestRemoveBehindLinks(t *testing.T) {
	w := newWorld(t)
	for _, dir := range []*string{&w.o.Home, &w.o.Cache} {
		real := *dir + "-elsewhere"
		if err := errors.Join(os.MkdirAll(real, 0o700), os.Symlink(real, *dir)); err != nil {
			t.Fatal(err)
		}
	}
	w.setUp()
	if r := w.removal(); len(r.Files) == 0 {
		t.Fatalf("nothing to remove: %+v", r)
	}
	w.remove()
	for name := range tree(t, w.dir) {
		if st, err := os.Stat(name); err == nil && st.Mode().IsRegular() {
			t.Errorf("%s is still there", name)
		}
	}
}

// TestRemoveReceipts: only when asked to.
func TestRemoveReceipts(t *testing.T) {
	w := newWorld(t)
	w.setUp()
	for _, n := range []string{".lock", "0123.json", ".0123.json77"} {
		w.write(filepath.Join(w.o.Home, "receipts", n), "x")
	}
	w.remove()
	if _, err := os.Stat(filepath.Join(w.o.Home, "receipts", "0123.json")); err != nil {
		t.Fatal(err)
	}
	r, err := PlanRemoval(t.Context(), RemovalOptions{Home: w.o.Home, Cache: w.o.Cache, Receipts: true})
	if err != nil {
		t.Fatal(err)
	}
	if left, err := r.Execute(t.Context()); err != nil || len(left) > 0 {
		t.Errorf("%v, %v", left, err)
	}
	if !missing(w.o.Home) {
		t.Error("the state folder is still there")
	}
}

// TestRemoveLeavesAGivenFolder: one that was there before PyBox is not PyBox's, empty
// or not.
func TestRemoveLeavesAGivenFolder(t *testing.T) {
	w := newWorld(t)
	w.o.Home, w.o.Cache = filepath.Join(w.dir, "state"), filepath.Join(w.dir, "downloads")
	for _, d := range []string{w.o.Home, w.o.Cache} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	w.setUp()
	w.remove()
	if got := slices.Sorted(maps.Keys(tree(t, w.dir))); !slices.Equal(got, []string{w.o.Cache, w.o.Home}) {
		t.Errorf("left: %v", got)
	}
	for _, d := range []string{w.o.Home, w.o.Cache} {
		if err := os.Remove(d); err != nil {
			t.Fatal(err)
		}
	}
	w.setUp()
	w.remove()
	if got := tree(t, w.dir); len(got) > 0 {
		t.Errorf("made by setup, and left: %v", got)
	}
}

func TestRemoveWhileVMRuns(t *testing.T) {
	w := newWorld(t)
	w.setUp()
	quiet := w.removal()
	h, err := home.Open(w.o.Home)
	if err != nil {
		t.Fatal(err)
	}
	l, err := h.Lock()
	if err != nil {
		t.Fatal(err)
	}
	before := tree(t, w.dir)
	r := w.removal()
	if len(r.Problems) != 1 || !strings.Contains(r.Problems[0].Fix, "pybox vm stop") {
		t.Errorf("problems: %v", r.Problems)
	}
	for _, r := range []*Removal{r, quiet} { // also one that was planned before it ran
		if _, err := r.Execute(t.Context()); !errors.Is(err, ErrRunning) {
			t.Errorf("removed: %v", err)
		}
	}
	if !maps.Equal(before, tree(t, w.dir)) {
		t.Error("something was removed")
	}
	if err := l.Unlock(); err != nil {
		t.Fatal(err)
	}
	w.remove()
}

// TestRemoveIsRepeatable: cut off, and done again.
func TestRemoveIsRepeatable(t *testing.T) {
	w := newWorld(t)
	w.setUp()
	ctx, cancel := context.WithCancel(t.Context())
	r := w.removal()
	cancel()
	if _, err := r.Execute(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if err := os.Remove(r.Files[0].Path); err != nil {
		t.Fatal(err)
	}
	if left, err := r.Execute(t.Context()); err != nil || len(left) > 0 {
		t.Errorf("%v, %v", left, err)
	}
}

func TestRemovalForPeople(t *testing.T) {
	w := newWorld(t)
	var out bytes.Buffer
	if w.removal().Text(&out, 80); !strings.Contains(out.String(), "nothing to remove") {
		t.Errorf("%s", &out)
	}
	w.setUp()
	w.write(filepath.Join(w.o.Home, "config.toml"), "# mine\n")
	r := w.removal()
	out.Reset()
	r.Text(&out, 80)
	for _, f := range append(slices.Clone(r.Files), r.Kept...) {
		if !strings.Contains(out.String(), f.Path) {
			t.Errorf("no %s", f.Path)
		}
	}
	if !strings.HasSuffix(out.String(), "it:\n  pybox setup --yes --remove\n") {
		t.Errorf("%s", &out)
	}
	left := w.remove()
	out.Reset()
	if r.TellDone(&out, left, 80); !strings.Contains(out.String(), "config.toml") || !strings.Contains(out.String(), "is not empty") {
		t.Errorf("%s", &out)
	}
}

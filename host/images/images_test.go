package images

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pybox/pybox/guest/bundle"
	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/vm"
)

var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func newStore(t *testing.T) *Store {
	t.Helper()
	s, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func built(name string) Record {
	return Record{
		Name: name, Arch: vm.ArchAMD64, Kind: KindBuilt, Python: "3.13.5",
		Built:    &Built{Base: Base{"stdlib", strings.Repeat("1", 64)}, LockSHA256: strings.Repeat("2", 64), LockKind: "requirements", Bytecode: true},
		Packages: []Package{{Name: "six", Version: "1.17.0", Bytes: 34_567, Wheel: "six-1.17.0-py2.py3-none-any.whl", SHA256: strings.Repeat("3", 64)}},
	}
}

// padded is as long as a disk may be.
func padded(content string) []byte {
	return append([]byte(content), make([]byte, sectorBytes-len(content))...)
}

func commit(s *Store, r Record, content string, c Commit) (*Record, error) {
	st, err := s.Stage(context.Background())
	if err != nil {
		return nil, err
	}
	defer st.Close()
	if err := os.WriteFile(st.Path(), padded(content), 0o600); err != nil {
		return nil, err
	}
	c.Now = func() time.Time { return noon }
	return s.Commit(context.Background(), st, r, c)
}

func mustCommit(t *testing.T, s *Store, name, content string) *Record {
	t.Helper()
	r, err := commit(s, built(name), content, Commit{Bundled: 1})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// files are the names in the store's folder, but for the lock.
func files(t *testing.T, s *Store) []string {
	t.Helper()
	names, err := s.names()
	if err != nil {
		t.Fatal(err)
	}
	names = slices.DeleteFunc(names, func(n string) bool { return n == lockName })
	slices.Sort(names)
	return names
}

// expectOne expects nothing in the store but that image.
func expectOne(t *testing.T, s *Store, r *Record) {
	t.Helper()
	want := []string{r.SHA256 + ".erofs", r.Name + ".json"}
	slices.Sort(want)
	if got := files(t, s); !slices.Equal(got, want) {
		t.Errorf("files %v, want %v", got, want)
	}
}

func TestCommitAndRemove(t *testing.T) {
	s := newStore(t)
	if list, err := s.List(); err != nil || len(list) != 0 {
		t.Errorf("an empty store: %v, %v", list, err)
	}
	a := mustCommit(t, s, "a", "content")
	if a.Schema != Schema || a.Bytes != sectorBytes || !a.CreatedAt.Equal(noon) || len(a.SHA256) != 64 {
		t.Errorf("record: %+v", a)
	}
	b := mustCommit(t, s, "b", "content") // the same
	c := mustCommit(t, s, "c", "other")
	want := []string{a.SHA256 + ".erofs", c.SHA256 + ".erofs", "a.json", "b.json", "c.json"}
	slices.Sort(want)
	if got := files(t, s); !slices.Equal(got, want) {
		t.Errorf("files %v, want %v", got, want)
	}
	if st, err := os.Stat(s.Path(a)); err != nil || st.Mode().Perm() != 0o644 {
		t.Errorf("content: %v, %v; want mode 0644, for a VMM that is somebody else", st, err)
	}
	got, err := s.Get("a")
	if err != nil || got.Packages[0].Name != "six" || got.Built.Base.Name != "stdlib" || !got.CreatedAt.Equal(noon) {
		t.Errorf("Get: %+v, %v", got, err)
	}
	if err := s.Verify(t.Context(), got); err != nil {
		t.Error(err)
	}
	if _, err := s.Remove(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if err := s.Verify(t.Context(), b); err != nil {
		t.Errorf("the content that two had is gone with one: %v", err)
	}
	if _, err := s.Remove(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	expectOne(t, s, c)
	for _, name := range []string{"a", "nobody", "../c", "c.json", "C", ""} {
		if _, err := s.Remove(t.Context(), name); !errors.Is(err, ErrNotFound) {
			t.Errorf("removing %q: %v, want ErrNotFound", name, err)
		}
	}
}

func TestReplace(t *testing.T) {
	s := newStore(t)
	old := mustCommit(t, s, "a", "old")
	if _, err := commit(s, built("a"), "new", Commit{Bundled: 1}); !errors.Is(err, ErrExists) || !strings.Contains(err.Error(), "--replace") {
		t.Errorf("a second image of the name: %v", err)
	}
	if err := s.Admit("a", Commit{Bundled: 1}); !errors.Is(err, ErrExists) {
		t.Errorf("Admit: %v", err)
	}
	if r, err := s.Get("a"); err != nil || r.SHA256 != old.SHA256 {
		t.Errorf("the old one: %+v, %v", r, err)
	}
	r, err := commit(s, built("a"), "new", Commit{Bundled: 1, Replace: true})
	if err != nil {
		t.Fatal(err)
	}
	expectOne(t, s, r)
}

func TestRoom(t *testing.T) {
	s := newStore(t)
	for i := range MaxImages {
		mustCommit(t, s, fmt.Sprintf("i%d", i), fmt.Sprint(i))
	}
	_, err := commit(s, built("more"), "more", Commit{Bundled: 1})
	if !errors.Is(err, ErrFull) {
		t.Fatalf("image number %d: %v, want ErrFull", MaxImages+1, err)
	}
	for _, word := range []string{"16 disks", "14", "pybox image remove"} {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%q does not say %q", err, word)
		}
	}
	if _, err := commit(s, built("i3"), "anew", Commit{Bundled: 1, Replace: true}); err != nil {
		t.Errorf("in the place of another: %v", err)
	}
	if err := s.Room("more", 2); !errors.Is(err, ErrFull) || !strings.Contains(err.Error(), "13 for images of your own") {
		t.Errorf("beside two images of the bundle: %v", err)
	}
	if n := len(s.Attach(t.Context(), vm.ArchAMD64, bundled("stdlib", "data")).Images); n != 13 {
		t.Errorf("%d images in a VM with two others, want 13", n)
	}
}

func TestNames(t *testing.T) {
	for _, name := range []string{"a", "0", "my-image-2", strings.Repeat("a", 40), "data2"} {
		if err := CheckName(name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, name := range []string{"", "-a", "A", "a_b", "a.b", "a/b", "..", "ä", "a\n", "stdlib", "data", strings.Repeat("a", 41)} {
		if err := CheckName(name); !errors.Is(err, ErrName) {
			t.Errorf("%q: %v, want ErrName", name, err)
		}
		if _, err := commit(newStore(t), built(name), "x", Commit{Bundled: 1}); !errors.Is(err, ErrName) {
			t.Errorf("commit of %q: %v, want ErrName", name, err)
		}
	}
}

func bundled(names ...string) (list []bundle.Image) {
	for i, n := range names {
		sum := strings.Repeat(fmt.Sprintf("%x", i+10), 64)
		list = append(list, bundle.Image{Name: n, File: bundle.File{File: n + ".erofs", SHA256: sum, Bytes: 4096}, Serial: bundle.ImageSerial(sum)})
	}
	return list
}

// TestAttach: whatever is wrong with an image, the others come, and the person is told
// what to do.
func TestAttach(t *testing.T) {
	s := newStore(t)
	good := mustCommit(t, s, "good", "content")
	mustCommit(t, s, "same", "content")
	for name, spoil := range map[string]func(r *Record){
		"changed":   func(r *Record) { overwrite(t, s.Path(r), string(padded("cOntent of changed"))) },
		"truncated": func(r *Record) { overwrite(t, s.Path(r), "content") },
		"longer":    func(r *Record) { overwrite(t, s.Path(r), string(padded("content of longer"))+"x") },
		"missing":   func(r *Record) { remove(t, s.Path(r)) },
		"linked": func(r *Record) {
			remove(t, s.Path(r))
			if err := os.Symlink(s.Path(good), s.Path(r)); err != nil {
				t.Fatal(err)
			}
		},
		"fifo": func(r *Record) {
			remove(t, s.Path(r))
			if err := syscall.Mkfifo(s.Path(r), 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"no-json": func(r *Record) { overwrite(t, s.recordPath(r.Name), "{") },
		"foreign": func(r *Record) {
			r.Arch = vm.ArchARM64
			rewrite(t, s, r)
		},
		"bundled": func(*Record) {},
		"odd": func(r *Record) {
			r.Bytes++
			rewrite(t, s, r)
		},
	} {
		spoil(mustCommit(t, s, name, "content of "+name))
	}
	if err := os.WriteFile(s.recordPath("copy"), mustRead(t, s.recordPath("good")), 0o600); err != nil {
		t.Fatal(err)
	}
	a := s.Attach(t.Context(), vm.ArchAMD64, bundled("stdlib", "bundled"))
	var got []string
	for _, i := range a.Images {
		got = append(got, i.Name)
		if i.Serial != "img-"+i.SHA256[:16] || i.Base != "stdlib" {
			t.Errorf("image: %+v", i)
		}
	}
	if want := []string{"good", "same"}; !slices.Equal(got, want) {
		t.Errorf("images %v, want %v", got, want)
	}
	if a.Images[0].Path != s.Path(good) || a.Images[1].Path != "" {
		t.Errorf("disks %q and %q, want one for both", a.Images[0].Path, a.Images[1].Path)
	}
	for name, word := range map[string]string{
		"changed": "SHA-256", "truncated": "has 7 bytes, expected 512", "longer": "more than 512 bytes", "missing": "is missing", "linked": "no regular file",
		"fifo": "no regular file", "no-json": "damaged", "foreign": "arm64", "bundled": "guest bundle", "odd": "multiple of 512", "copy": "another image",
	} {
		i := slices.IndexFunc(a.LeftOut, func(l LeftOut) bool { return l.Name == name })
		if i < 0 || !strings.Contains(a.LeftOut[i].Why, word) || !strings.Contains(a.LeftOut[i].Next, "pybox image remove "+name) {
			t.Errorf("%s: left out as %+v, want a reason with %q and what to do", name, a.LeftOut, word)
			continue
		}
		if r, err := s.Get(name); err == nil && (a.LeftOut[i].SHA256 != r.SHA256 || !a.LeftOut[i].CreatedAt.Equal(r.CreatedAt)) || err != nil && a.LeftOut[i].SHA256 != "" {
			t.Errorf("%s: left out as %+v, of the record %+v", name, a.LeftOut[i], r)
		}
	}
	if len(a.LeftOut) != 11 {
		t.Errorf("%d left out: %+v", len(a.LeftOut), a.LeftOut)
	}
	a.Release()
}

func TestAttachHasNoTime(t *testing.T) {
	s := newStore(t)
	mustCommit(t, s, "a", "content")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	a := s.Attach(ctx, vm.ArchAMD64, bundled("stdlib"))
	defer a.Release()
	if len(a.Images) != 0 || len(a.LeftOut) != 1 {
		t.Errorf("got %+v", a)
	}
}

// TestAttachWaits: a command that has the store to itself for long costs a VM time, and
// not its images.
func TestAttachWaits(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	mustCommit(t, s, "a", "content")
	unlock, err := s.lock(t.Context(), true, lockWait)
	if err != nil {
		t.Fatal(err)
	}
	const long = 6 * time.Second
	time.AfterFunc(long, unlock)
	ctx, cancel := context.WithTimeout(t.Context(), 10*long)
	defer cancel()
	a := s.Attach(ctx, vm.ArchAMD64, bundled("stdlib"))
	defer a.Release()
	if len(a.Images) != 1 || len(a.LeftOut) != 0 {
		t.Errorf("got %+v", a)
	}
}

func TestAttachKeepsContents(t *testing.T) {
	s := newStore(t)
	r := mustCommit(t, s, "a", "content")
	a := s.Attach(t.Context(), vm.ArchAMD64, bundled("stdlib"))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := s.Remove(ctx, "a"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("removed while a VM is about to open it: %v", err)
	}
	if err := s.Verify(t.Context(), r); err != nil {
		t.Error(err)
	}
	a.Release()
	if _, err := s.Remove(t.Context(), "a"); err != nil {
		t.Error(err)
	}
}

func TestAttachMakesNothing(t *testing.T) {
	home := t.TempDir()
	a := View(home).Attach(t.Context(), vm.ArchAMD64, bundled("stdlib"))
	a.Release()
	if _, err := os.Stat(filepath.Join(home, Dir)); !errors.Is(err, os.ErrNotExist) || len(a.Images)+len(a.LeftOut) > 0 {
		t.Errorf("%+v, %v", a, err)
	}
}

// TestAbandoned: what a maker that was cut off has left goes with the next change, and
// what one that lives has does not.
func TestAbandoned(t *testing.T) {
	s := newStore(t)
	alive, err := s.Stage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer alive.Close()
	overwrite(t, alive.Path(), "half")
	dead, err := s.Stage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	overwrite(t, dead.Path(), "half")
	if err := dead.lock.Close(); err != nil { // as its process's end does
		t.Fatal(err)
	}
	orphan := strings.Repeat("e", 64) + imageSuffix
	overwrite(t, filepath.Join(s.dir, orphan), "no record names it")
	mustCommit(t, s, "a", "content")
	got := files(t, s)
	if slices.Contains(got, filepath.Base(dead.dir)) || slices.Contains(got, orphan) {
		t.Errorf("left behind: %v", got)
	}
	if string(mustRead(t, alive.Path())) != "half" {
		t.Error("a stage in use was removed")
	}
	// A record that cannot be read may name any content.
	overwrite(t, s.recordPath("b"), "{")
	overwrite(t, filepath.Join(s.dir, orphan), "perhaps b's")
	mustCommit(t, s, "c", "other")
	if !slices.Contains(files(t, s), orphan) {
		t.Error("a content was removed that a damaged record may name")
	}
	if _, err := s.Remove(t.Context(), "b"); err != nil {
		t.Errorf("removing an image with a damaged record: %v", err)
	}
	if slices.Contains(files(t, s), orphan) {
		t.Error("an orphan stays")
	}
}

func TestManyChangeTogether(t *testing.T) {
	s := newStore(t)
	var wg sync.WaitGroup
	won := make(chan *Record, 8)
	for i := range 8 {
		wg.Go(func() {
			r, err := commit(s, built("a"), fmt.Sprint("content ", i), Commit{Bundled: 1})
			switch {
			case err == nil:
				won <- r
			case !errors.Is(err, ErrExists):
				t.Error(err)
			}
		})
	}
	wg.Wait()
	close(won)
	if len(won) != 1 {
		t.Fatalf("%d of them won", len(won))
	}
	r := <-won
	expectOne(t, s, r)
	if err := s.Verify(t.Context(), r); err != nil {
		t.Error(err)
	}
}

func TestParseRecord(t *testing.T) {
	r := built("a")
	r.Schema, r.SHA256, r.Bytes, r.CreatedAt = Schema, strings.Repeat("4", 64), 1, noon
	whole, err := r.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ParseRecord(whole); err != nil {
		t.Fatal(err)
	}
	var keys map[string]any
	if err := json.Unmarshal(whole, &keys); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(m map[string]any){
		"another schema": func(m map[string]any) { m["schema"] = "pybox.image-record/v2" },
		"unknown key":    func(m map[string]any) { m["x"] = 1 },
		"name":           func(m map[string]any) { m["name"] = "../a" },
		"digest":         func(m map[string]any) { m["sha256"] = "../../../etc/passwd" },
		"upper digest":   func(m map[string]any) { m["sha256"] = strings.Repeat("A", 64) },
		"bytes":          func(m map[string]any) { m["bytes"] = -1 },
		"huge":           func(m map[string]any) { m["bytes"] = maxImageBytes + 1 },
		"arch":           func(m map[string]any) { m["arch"] = "riscv64" },
		"no time":        func(m map[string]any) { delete(m, "created_at") },
		"kind":           func(m map[string]any) { m["kind"] = KindImported },
		"two origins":    func(m map[string]any) { m["imported"] = map[string]any{} },
		"no origin":      func(m map[string]any) { delete(m, "built") },
		"escape":         func(m map[string]any) { m["packages"].([]any)[0].(map[string]any)["name"] = "a\x1b[2J" },
		"bidi":           func(m map[string]any) { m["notes"] = []string{"a\u202eb"} },
		"wheel's digest": func(m map[string]any) { m["packages"].([]any)[0].(map[string]any)["sha256"] = "x" },
		"python":         func(m map[string]any) { m["python"] = "3\n" },
		"many notes":     func(m map[string]any) { m["notes"] = slices.Repeat([]string{"a"}, maxNotes+1) },
	} {
		var m map[string]any
		if err := json.Unmarshal(whole, &m); err != nil {
			t.Fatal(err)
		}
		change(m)
		b, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ParseRecord(b); !errors.Is(err, errRecord) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := ParseRecord(append(whole, "{}"...)); err == nil {
		t.Error("something after its end")
	}
}

func FuzzParseRecord(f *testing.F) {
	r := built("a")
	r.Schema, r.SHA256, r.Bytes, r.CreatedAt = Schema, strings.Repeat("4", 64), 1, noon
	b, err := r.Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(`{"schema":"pybox.image-record/v1","kind":"imported","imported":{"layers":[{}]}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := ParseRecord(b)
		if err != nil {
			return
		}
		again, err := r.Encode()
		if err != nil {
			t.Fatalf("%v in %q", err, b)
		}
		if _, err := ParseRecord(again); err != nil {
			t.Fatalf("%v in %q", err, again)
		}
	})
}

func overwrite(t *testing.T, name, content string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, name string) {
	t.Helper()
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
}

func mustRead(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// rewrite writes a record as nobody but the folder's owner would.
func rewrite(t *testing.T, s *Store, r *Record) {
	t.Helper()
	b, err := r.Encode()
	if err != nil {
		t.Fatal(err)
	}
	overwrite(t, s.recordPath(r.Name), string(b))
}

// TestCutOff: a replacement that is cut off between any two of its steps leaves the old
// image or the new one, whole, and the next change sweeps up.
func TestCutOff(t *testing.T) {
	for name, cut := range map[string]struct {
		steps func(s *Store, st *Stage, r *Record, text []byte) error
		isNew bool
	}{
		"before any": {func(*Store, *Stage, *Record, []byte) error { return nil }, false},
		"after the content": {func(s *Store, st *Stage, r *Record, _ []byte) error {
			return os.Rename(st.Path(), s.Path(r))
		}, false},
		"after the record": {func(s *Store, st *Stage, r *Record, text []byte) error { return s.put(st, r, text) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			old := mustCommit(t, s, "a", "old")
			st, err := s.Stage(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(st.Path(), padded("new"), 0o600); err != nil {
				t.Fatal(err)
			}
			r := built("a")
			r.Schema, r.CreatedAt = Schema, noon
			if r.SHA256, r.Bytes, err = seal(t.Context(), st.Path()); err != nil {
				t.Fatal(err)
			}
			text, err := r.Encode()
			if err != nil {
				t.Fatal(err)
			}
			if err := cut.steps(s, st, &r, text); err != nil {
				t.Fatal(err)
			}
			if err := st.lock.Close(); err != nil { // the process has ended
				t.Fatal(err)
			}
			got, err := s.Get("a")
			if err != nil || (got.SHA256 == r.SHA256) != cut.isNew || (got.SHA256 == old.SHA256) == cut.isNew {
				t.Fatalf("the name stands for %+v, %v", got, err)
			}
			if err := s.Verify(t.Context(), got); err != nil {
				t.Error(err)
			}
			mustCommit(t, s, "b", "another")
			if _, err := s.Remove(t.Context(), "b"); err != nil {
				t.Fatal(err)
			}
			expectOne(t, s, got)
		})
	}
}

// TestTooManyEntries: who cannot see all of the folder takes nothing for missing.
func TestTooManyEntries(t *testing.T) {
	s := newStore(t)
	var records []*Record
	for i := range MaxImages - 1 {
		records = append(records, mustCommit(t, s, fmt.Sprint("i", i), fmt.Sprint("content ", i)))
	}
	for i := range 2 * maxEntries {
		overwrite(t, filepath.Join(s.dir, fmt.Sprint("junk-", i)), "")
	}
	if list, err := s.List(); err == nil || !strings.Contains(err.Error(), "move away") {
		t.Errorf("List: %d images, %v", len(list), err)
	}
	if _, err := commit(s, built("more"), "more", Commit{Bundled: 1}); err == nil {
		t.Error("an image went in")
	}
	if a := s.Attach(t.Context(), vm.ArchAMD64, bundled("stdlib")); len(a.Images) != 0 || len(a.LeftOut) != 1 || a.LeftOut[0].Name != "" {
		t.Errorf("attached: %+v", a)
	} else {
		a.Release()
	}
	if _, err := s.Remove(t.Context(), records[0].Name); err != nil {
		t.Errorf("Remove: %v", err)
	}
	for _, r := range records[1:] {
		if err := s.Verify(t.Context(), r); err != nil {
			t.Error(err)
		}
	}
}

// TestStray: what is named as a record and is none is told of, keeps all contents, and is
// for its owner to move away.
func TestStray(t *testing.T) {
	s := newStore(t)
	r := mustCommit(t, s, "a", "content")
	newer := filepath.Join(s.dir, "New_Name.json") // of another release, perhaps
	if err := os.Rename(s.recordPath("a"), newer); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(s.recordPath("folder"), "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	mustCommit(t, s, "b", "another")
	if err := s.Verify(t.Context(), r); err != nil {
		t.Error(err)
	}
	all, err := s.Overview(nil)
	if err != nil || len(all.Images) != 3 {
		t.Fatalf("%+v, %v", all, err)
	}
	for _, i := range all.Images {
		if path := s.recordPath(i.Name); i.Name != "b" && (!strings.Contains(i.Damaged, path+" is no record") || i.Next != "move "+path+" away") {
			t.Errorf("it says %+v", i)
		}
	}
	a := s.Attach(t.Context(), vm.ArchAMD64, bundled("stdlib"))
	a.Release()
	if len(a.Images) != 1 || len(a.LeftOut) != 2 || !strings.Contains(a.LeftOut[0].Next, "away; then 'pybox vm restart'") {
		t.Errorf("attached: %+v", a)
	}
	away := "move " + s.recordPath("folder") + " away"
	if _, err := s.Remove(t.Context(), "folder"); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), away) {
		t.Errorf("Remove: %v", err)
	}
	if _, err := commit(s, built("folder"), "more", Commit{Bundled: 1, Replace: true}); !errors.Is(err, ErrExists) || !strings.Contains(err.Error(), away) {
		t.Errorf("Commit: %v", err)
	}
}

// TestRoomComesBack: what a maker that was cut off has left is gone before the next begins,
// and a content whose record could not be written goes at once.
func TestRoomComesBack(t *testing.T) {
	s := newStore(t)
	old := mustCommit(t, s, "a", "content")
	dead, err := s.Stage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	overwrite(t, dead.Path(), "half")
	if err := dead.lock.Close(); err != nil {
		t.Fatal(err)
	}
	next, err := s.Stage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	if _, err := os.Stat(dead.dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("while the next is made: %v, %v", files(t, s), err)
	}
	full := errors.New("the disk is full")
	err = s.change(t.Context(), func() error {
		overwrite(t, filepath.Join(s.dir, strings.Repeat("e", 64)+imageSuffix), "its record does not fit any more")
		return full
	})
	if !errors.Is(err, full) {
		t.Errorf("got %v", err)
	}
	next.Close()
	expectOne(t, s, old)
}

// TestPruneIsShort: what may be large is removed when others can have the store again.
func TestPruneIsShort(t *testing.T) {
	s := newStore(t)
	dead, err := s.Stage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := dead.lock.Close(); err != nil {
		t.Fatal(err)
	}
	left := s.prune()
	if _, err := os.Stat(dead.dir); err != nil || len(left) != 1 {
		t.Fatalf("%d stages are left to remove, %v", len(left), err)
	}
	if again := s.prune(); len(again) != 0 {
		t.Errorf("two remove the same: %v", again)
	}
	closeAll(left)
	if got := files(t, s); len(got) != 0 {
		t.Errorf("left: %v", got)
	}
}

// TestIn: a reason counts for the very image that it was said of.
func TestIn(t *testing.T) {
	sum, other, later := strings.Repeat("1", 64), strings.Repeat("2", 64), noon.Add(time.Hour)
	whole := Summary{Name: "a", SHA256: sum, CreatedAt: &noon}
	of := func(has []api.Image, left ...api.LeftOut) api.Status {
		return api.Status{State: api.StateRunning, VM: &api.VM{Images: has, LeftOut: left}}
	}
	for name, c := range map[string]struct {
		s    api.Status
		i    Summary
		want Presence
	}{
		"stopped":                    {api.Status{State: api.StateStopped}, whole, PresenceStopped},
		"starts":                     {api.Status{State: api.StateStarting}, whole, PresenceUnknown},
		"has it":                     {of([]api.Image{{Name: "a", SHA256: sum}}), whole, PresenceYes},
		"has another":                {of([]api.Image{{Name: "a", SHA256: other}}), whole, PresenceOther},
		"has it not":                 {of(nil), whole, PresenceNo},
		"left out":                   {of(nil, api.LeftOut{Name: "a", SHA256: sum, CreatedAt: noon}), whole, PresenceLeftOut},
		"left out, a damaged record": {of(nil, api.LeftOut{Name: "a"}), Summary{Name: "a"}, PresenceLeftOut},
		"all left out":               {of(nil, api.LeftOut{}), whole, PresenceLeftOut},
		"another left out":           {of(nil, api.LeftOut{Name: "b", SHA256: sum, CreatedAt: noon}), whole, PresenceNo},
		"replaced by another":        {of(nil, api.LeftOut{Name: "a", SHA256: other, CreatedAt: noon}), whole, PresenceNo},
		"made again, to the byte":    {of(nil, api.LeftOut{Name: "a", SHA256: sum, CreatedAt: noon}), Summary{Name: "a", SHA256: sum, CreatedAt: &later}, PresenceNo},
		"a record where none was":    {of(nil, api.LeftOut{Name: "a"}), whole, PresenceNo},
	} {
		if got, left := In(c.s, c.i); got != c.want || (left != nil) != (got == PresenceLeftOut) {
			t.Errorf("%s: %s, %+v; want %s", name, got, left, c.want)
		}
	}
}

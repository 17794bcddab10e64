package receipts

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pybox/pybox/host/home"
	"github.com/pybox/pybox/host/receipt"
	"github.com/pybox/pybox/host/receipt/receipttest"
)

// sample is the receipt of the n-th run, a second after the one before.
func sample(n int) *receipt.Receipt {
	r := receipttest.Example()
	r.Run.ID = fmt.Sprintf("run-%04d", n)
	r.Run.StartedAt = r.Run.StartedAt.Add(time.Duration(n) * time.Second)
	return r
}

func open(t *testing.T, dir string, keep int) *Store {
	t.Helper()
	s, err := Open(dir, keep)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func put(t *testing.T, s *Store, receipts ...*receipt.Receipt) {
	t.Helper()
	for _, r := range receipts {
		if err := s.Put(r); err != nil {
			t.Fatal(err)
		}
	}
}

// ids lists the ids of s, newest first.
func ids(t *testing.T, s *Store, limit int) []string {
	t.Helper()
	list, err := s.List(limit)
	if err != nil {
		t.Fatal(err)
	}
	got := []string{}
	for _, l := range list {
		got = append(got, l.ID)
	}
	return got
}

// files are the names in dir but the lock's.
func files(t *testing.T, dir string) []string {
	t.Helper()
	all, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range all {
		if f.Name() != lockName {
			names = append(names, f.Name())
		}
	}
	return names
}

func newFolder(t *testing.T) string { return filepath.Join(t.TempDir(), "receipts") }

func TestPutAndGet(t *testing.T) {
	dir := newFolder(t)
	s := open(t, dir, 10)
	r := sample(1)
	text, b64 := "42\n", "AA=="
	r.Program.Stdout.Text, r.Program.Stderr.Base64 = &text, &b64
	put(t, s, r)
	if r.Program.Stdout.Text == nil || r.Program.Stderr.Base64 == nil {
		t.Error("the caller's receipt was changed")
	}
	for name, s := range map[string]*Store{"same": s, "opened again": open(t, dir, 10)} {
		got, err := s.Get("run-0001")
		if err != nil {
			t.Fatal(name, err)
		}
		want := sample(1)
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, want %+v", name, got, want)
		}
		receipttest.Check(t, got)
		if !s.Has("run-0001") || s.Has("run-0002") || s.Has("run-000") {
			t.Errorf("%s: Has is wrong", name)
		}
		if _, err := s.Get("run-0002"); !errors.Is(err, ErrNotFound) {
			t.Errorf("%s: Get of an unknown id: %v", name, err)
		}
	}
	if got := files(t, dir); !slices.Equal(got, []string{"20261129T232048.123Z-run-0001.json"}) {
		t.Errorf("files: %v", got)
	}
	for path, mode := range map[string]os.FileMode{"": 0o700, files(t, dir)[0]: 0o600, lockName: 0o600} {
		if st, err := os.Stat(filepath.Join(dir, path)); err != nil || st.Mode().Perm() != mode {
			t.Errorf("%q: mode %v, %v; want %v", path, st.Mode().Perm(), err, mode)
		}
	}
}

func TestPutReplaces(t *testing.T) {
	dir := newFolder(t)
	s := open(t, dir, 10)
	r := sample(1)
	r.Cleanup.Status = receipt.CleanupIncomplete
	put(t, s, r)
	r.Cleanup.Status = receipt.CleanupRemoved
	put(t, s, r)
	later := sample(2)
	later.Run.ID = r.Run.ID // the same run by another's clock
	put(t, s, sample(3), later)
	for _, s := range []*Store{s, open(t, dir, 10)} {
		if got := ids(t, s, 10); !slices.Equal(got, []string{"run-0003", "run-0001"}) {
			t.Errorf("list: %v", got)
		}
		if got, err := s.Get(r.Run.ID); err != nil || got.Cleanup.Status != receipt.CleanupRemoved || !got.Run.StartedAt.Equal(later.Run.StartedAt) {
			t.Errorf("got %+v, %v", got, err)
		}
	}
	if n := len(files(t, dir)); n != 2 {
		t.Errorf("%d files, want 2", n)
	}
}

// TestTheOldestGo also when they are stored out of order, and never the one that
// was just stored.
func TestTheOldestGo(t *testing.T) {
	dir := newFolder(t)
	s := open(t, dir, 3)
	for _, n := range []int{5, 2, 9, 1, 7} {
		put(t, s, sample(n))
		if !s.Has(sample(n).Run.ID) {
			t.Errorf("%d went at once", n)
		}
	}
	want := []string{"run-0009", "run-0007", "run-0005"}
	if got := ids(t, s, 10); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := ids(t, s, 2); !slices.Equal(got, want[:2]) {
		t.Errorf("two: %v", got)
	}
	if id, ok := s.Newest(); id != want[0] || !ok {
		t.Errorf("the newest is %q, %v", id, ok)
	}
	if got := ids(t, s, -1); len(got) != 0 {
		t.Errorf("-1: %v", got)
	}
	if got := ids(t, open(t, dir, 1), 10); !slices.Equal(got, want[:1]) {
		t.Errorf("kept 1: %v", got)
	}
	if got := files(t, dir); len(got) != 1 {
		t.Errorf("files: %v", got)
	}
}

func TestFind(t *testing.T) {
	s := open(t, newFolder(t), 100)
	for i, id := range []string{"abc1", "abc", "abd", "x-1", "last"} {
		r := sample(i)
		r.Run.ID = id
		put(t, s, r)
	}
	for i := range 9 {
		r := sample(i)
		r.Run.ID = fmt.Sprintf("many%d", i)
		put(t, s, r)
	}
	for prefix, want := range map[string]string{"abc": "abc", "abc1": "abc1", "abd": "abd", "x": "x-1", "many7": "many7", "l": "last"} {
		if got, err := s.Find(prefix); got != want || err != nil {
			t.Errorf("Find(%q) is %q, %v; want %q", prefix, got, err, want)
		}
	}
	for prefix, want := range map[string]error{
		"ab": ErrAmbiguous, "many": ErrAmbiguous, "q": ErrNotFound, "abc12": ErrNotFound,
		"": ErrBadID, "../abc": ErrBadID, "ABC": ErrBadID, "a\x1b": ErrBadID, strings.Repeat("a", 41): ErrBadID,
	} {
		if got, err := s.Find(prefix); got != "" || !errors.Is(err, want) {
			t.Errorf("Find(%q) is %q, %v; want %v", prefix, got, err, want)
		}
	}
	if _, err := s.Find("many"); !strings.Contains(err.Error(), "many8, many7, many6, many5, many4 and 4 more") {
		t.Errorf("ambiguous: %v", err)
	}
}

func TestForeignFilesStay(t *testing.T) {
	dir := newFolder(t)
	open(t, dir, 1)
	foreign := []string{
		"notes.txt", ".20261129T232047.123Z-x.json", ".notes.json123", "20261129T232047.123Z-.json", "20261129T232047.123Z-X.json",
		"20261129T232047.123Z-x.json.bak", "20261329T232047.123Z-x.json", "20261129T232047.12Z-x.json", "20261129T232047.123Z-x.JSON", ".json1",
	}
	ours := []string{".20261129T232047.123Z-x.json123456", ".20261129T232047.123Z-y-1.json0"}
	for _, name := range append(slices.Clone(foreign), ours...) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("mine"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "folder"), 0o700); err != nil {
		t.Fatal(err)
	}
	s := open(t, dir, 1)
	put(t, s, sample(1), sample(2))
	got := files(t, dir)
	for _, name := range append(foreign, "folder", "20261129T232049.123Z-run-0002.json") {
		if !slices.Contains(got, name) {
			t.Errorf("%s is gone", name)
		}
	}
	if len(got) != len(foreign)+2 {
		t.Errorf("files: %v", got)
	}
}

func TestDamagedFiles(t *testing.T) {
	dir := newFolder(t)
	s := open(t, dir, 100)
	put(t, s, sample(0), sample(50))
	good, err := json.Marshal(sample(7))
	if err != nil {
		t.Fatal(err)
	}
	change := func(old, new string) string {
		if !strings.Contains(string(good), old) {
			t.Fatalf("%q is not there", old)
		}
		return strings.Replace(string(good), old, new, 1)
	}
	bad := map[string]struct {
		content string
		want    error
	}{
		"empty":     {"", ErrDamaged},
		"half":      {string(good[:len(good)/2]), ErrDamaged},
		"twice":     {string(good) + string(good), ErrDamaged},
		"other":     {change("run-0007", "run-0008"), ErrDamaged},
		"field":     {change(`"run":`, `"more":1,"run":`), ErrDamaged},
		"future":    {change("receipt/v1", "receipt/v2"), ErrVersion},
		"no-schema": {change("pybox.receipt/v1", "frob"), ErrDamaged},
		"no-ending": {change(`"how":"exited"`, `"how":""`), ErrDamaged},
		"number":    {change(`"code":0`, `"code":"0"`), ErrDamaged},
		"deep":      {strings.Repeat("[", 1<<20), ErrDamaged},
		"large":     {strings.Repeat(" ", MaxBytes+1), ErrDamaged},
		"null":      {"null", ErrDamaged},
	}
	i := 10
	for name, c := range bad {
		e := entry{ms: sample(i).Run.StartedAt.UnixMilli(), id: name}
		i++
		if err := os.WriteFile(filepath.Join(dir, e.name()), []byte(c.content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	e := entry{ms: sample(40).Run.StartedAt.UnixMilli(), id: "fifo"}
	if err := syscall.Mkfifo(filepath.Join(dir, e.name()), 0o600); err != nil {
		t.Fatal(err)
	}
	e.id = "link"
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, e.name())); err != nil {
		t.Fatal(err)
	}
	bad["fifo"] = struct {
		content string
		want    error
	}{"", ErrDamaged}
	bad["link"] = bad["fifo"]
	s = open(t, dir, 100)
	for name, c := range bad {
		r, err := s.Get(name)
		if r != nil || !errors.Is(err, c.want) || !strings.Contains(err.Error(), dir+"/2026") {
			t.Errorf("%s: %v, %v; want %v with the path", name, r, err, c.want)
		}
	}
	list, err := s.List(1000)
	if err != nil || len(list) != len(bad)+2 {
		t.Fatalf("%d rows, %v; want %d", len(list), err, len(bad)+2)
	}
	for i, l := range list {
		good := i == 0 || i == len(list)-1
		if (l.Damaged == "") != good || l.StartedAt.IsZero() || l.How == "" {
			t.Errorf("row %d: %+v", i, l)
		}
	}
}

func TestWhatCannotBeFiled(t *testing.T) {
	dir := newFolder(t)
	s := open(t, dir, 10)
	for name, spoil := range map[string]func(r *receipt.Receipt){
		"format":    func(r *receipt.Receipt) { r.Schema = "" },
		"id":        func(r *receipt.Receipt) { r.Run.ID = "../x" },
		"time":      func(r *receipt.Receipt) { r.Run.StartedAt = time.Time{} },
		"far time":  func(r *receipt.Receipt) { r.Run.StartedAt = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) },
		"no JSON":   func(r *receipt.Receipt) { r.Run.HostElapsedMS = math.NaN() },
		"too large": func(r *receipt.Receipt) { r.Configured.Args = []string{strings.Repeat("x", MaxBytes)} },
		"ending":    func(r *receipt.Receipt) { r.Ending = receipt.Ending{} },
	} {
		r := sample(1)
		spoil(r)
		if err := s.Put(r); err == nil || !strings.Contains(err.Error(), "could not be kept") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := files(t, dir); len(got) != 0 {
		t.Errorf("files: %v", got)
	}
}

func TestUnsafeFolders(t *testing.T) {
	for name, prepare := range map[string]func(dir string) error{
		"readable by others": func(dir string) error { return errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, 0o755)) },
		"a file":             func(dir string) error { return os.WriteFile(dir, nil, 0o600) },
		"a link": func(dir string) error {
			return errors.Join(os.Mkdir(dir+"2", 0o700), os.Symlink(dir+"2", dir))
		},
		"another's": func(dir string) error {
			if os.Geteuid() != 0 {
				return os.Symlink("/", dir) // as good as it gets
			}
			return errors.Join(os.Mkdir(dir, 0o700), os.Chown(dir, 12345, 0))
		},
	} {
		dir := newFolder(t)
		if err := prepare(dir); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(dir, 1); !errors.Is(err, home.ErrUnsafe) || !strings.Contains(err.Error(), dir) {
			t.Errorf("%s: Open: %v", name, err)
		}
		if _, err := View(dir); !errors.Is(err, home.ErrUnsafe) {
			t.Errorf("%s: View: %v", name, err)
		}
	}
	if _, err := Open(newFolder(t), 0); err == nil {
		t.Error("keeping none is possible")
	}
	if _, err := Open(filepath.Join(newFolder(t), "x"), 1); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no parent: %v", err)
	}
}

func TestView(t *testing.T) {
	dir := newFolder(t)
	s, err := View(dir)
	if err != nil {
		t.Fatal(err)
	}
	if got := ids(t, s, 10); len(got) != 0 || s.Has("x") {
		t.Errorf("a missing folder has %v", got)
	}
	if _, err := s.Get("x"); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	if _, err := s.Find("x"); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	if err := s.Put(sample(1)); !errors.Is(err, ErrReadOnly) {
		t.Error(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("viewing made the folder: %v", err)
	}
	put(t, open(t, dir, 10), sample(1), sample(2))
	before := files(t, dir)
	if s, err = View(dir); err != nil {
		t.Fatal(err)
	}
	if got := ids(t, s, 10); !slices.Equal(got, []string{"run-0002", "run-0001"}) {
		t.Errorf("viewed: %v", got)
	}
	if after := files(t, dir); !slices.Equal(before, after) {
		t.Errorf("files: %v, before %v", after, before)
	}
}

// TestTwoStores act on one folder as two processes do.
func TestTwoStores(t *testing.T) {
	dir := newFolder(t)
	const keep, each = 12, 30
	stores := []*Store{open(t, dir, keep), open(t, dir, keep)}
	put(t, stores[0], sample(1000))
	if !stores[1].Has("run-1000") {
		t.Error("one does not see what the other stored")
	}
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			s := stores[i%2]
			for n := range each {
				r := sample(100*i + n)
				if err := s.Put(r); err != nil {
					t.Error(err)
				}
				if got, err := s.Get(r.Run.ID); err == nil && got.Run.ID != r.Run.ID || err != nil && !errors.Is(err, ErrNotFound) {
					t.Error(got, err)
				}
				if list, err := stores[(i+1)%2].List(5); err != nil || len(list) > 5 {
					t.Error(list, err)
				}
			}
		})
	}
	wg.Wait()
	want := ids(t, open(t, dir, keep), 100)
	for _, s := range stores {
		if got := ids(t, s, 100); !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	}
	if got := files(t, dir); len(got) != keep {
		t.Errorf("%d files, want %d", len(got), keep)
	}
}

// TestHasWaitsForNobody: neither for another process that changes the folder, nor
// for a Put of its own that waits for that.
func TestHasWaitsForNobody(t *testing.T) {
	dir := newFolder(t)
	s, other := open(t, dir, 10), open(t, dir, 10)
	put(t, s, sample(1))
	put(t, other, sample(2)) // s does not know of it yet
	unlock, err := other.folder.lock()
	if err != nil {
		t.Fatal(err)
	}
	putting := make(chan error, 1)
	go func() { putting <- s.Put(sample(3)) }()
	waits := func() bool {
		free := s.changing.TryLock()
		if free {
			s.changing.Unlock()
		}
		return !free
	}
	for deadline := time.Now().Add(10 * time.Second); !waits(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("Put does not wait")
		}
	}
	has := make(chan bool, 1)
	go func() { has <- s.Has("run-0001") && !s.Has("run-0003") }()
	select {
	case ok := <-has:
		if !ok {
			t.Error("what was known is not")
		}
	case err := <-putting:
		t.Fatalf("Has has waited until Put returned %v", err)
	}
	unlock()
	if err := <-putting; err != nil {
		t.Error(err)
	}
	for _, id := range []string{"run-0001", "run-0002", "run-0003"} {
		if !s.Has(id) {
			t.Errorf("%s is not there", id)
		}
	}
}

// TestLockedForLong: a folder that another process does not let go of is not waited
// for without end.
func TestLockedForLong(t *testing.T) {
	s := open(t, newFolder(t), 10)
	unlock, err := s.folder.lock()
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		err := s.Put(sample(1))
		if took := time.Since(began); err == nil || !strings.Contains(err.Error(), "another process has been changing") || took < lockPatience || took > 3*time.Second {
			t.Errorf("after %v: %v", took, err)
		}
	})
}

// TestNotDurable: a receipt whose name could not be made durable is there.
func TestNotDurable(t *testing.T) {
	s := open(t, newFolder(t), 10)
	s.sync = func() error { return syscall.EIO }
	err := s.Put(sample(1))
	if !errors.Is(err, syscall.EIO) || strings.Contains(err.Error(), "not be kept") || !strings.Contains(err.Error(), "the receipt is kept, but a crash") {
		t.Error(err)
	}
	if _, err := s.Get("run-0001"); err != nil {
		t.Error(err)
	}
}

// TestDuplicatesAfterACrash: the newer of two files of one run counts.
func TestDuplicatesAfterACrash(t *testing.T) {
	dir := newFolder(t)
	put(t, open(t, dir, 10), sample(1))
	later := sample(2)
	later.Run.ID = "run-0001"
	b, err := encode(later)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "20261129T232049.123Z-run-0001.json"), b, 0o600); err != nil {
		t.Fatal(err)
	}
	s := open(t, dir, 10)
	if got, err := s.Get("run-0001"); err != nil || !got.Run.StartedAt.Equal(later.Run.StartedAt) {
		t.Error(got, err)
	}
	if got := files(t, dir); len(got) != 1 {
		t.Errorf("files: %v", got)
	}
}

func TestRemovedByHand(t *testing.T) {
	dir := newFolder(t)
	s := open(t, dir, 2)
	put(t, s, sample(1), sample(2))
	if err := os.Remove(filepath.Join(dir, files(t, dir)[0])); err != nil {
		t.Fatal(err)
	}
	if s.Has("run-0001") {
		t.Error("it is said to be kept")
	}
	if _, err := s.Get("run-0001"); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	put(t, s, sample(3))
	if got := ids(t, s, 9); !slices.Equal(got, []string{"run-0003", "run-0002"}) {
		t.Error(got)
	}
}

func FuzzDecode(f *testing.F) {
	good, err := encode(sample(1))
	if err != nil {
		f.Fatal(err)
	}
	lost, err := encode(receipttest.Lost())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(lost)
	f.Add([]byte(`{"schema":"pybox.receipt/v2"}`))
	f.Add([]byte(`{"schema":"pybox.receipt/v1","run":{"id":"x","started_at":"2026-01-02T03:04:05Z"},"ending":{"how":"x","by":"y"}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decode(b)
		if err != nil {
			if !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrVersion) {
				t.Errorf("%v", err)
			}
			return
		}
		again, err := encode(r)
		if err != nil {
			t.Fatalf("what was read cannot be written: %v", err)
		}
		r.Program.Stdout.Text, r.Program.Stdout.Base64, r.Program.Stderr.Text, r.Program.Stderr.Base64 = nil, nil, nil, nil
		if back, err := decode(again); err != nil || !reflect.DeepEqual(r, back) {
			t.Errorf("%v; %+v came back as %+v", err, r, back)
		}
		_ = summary(r)
	})
}

func FuzzParseName(f *testing.F) {
	f.Add("20261129T232047.123Z-5319e024.json")
	f.Add(".20261129T232047.123Z-5319e024.json123")
	f.Add("99991231T235959.999Z--.json")
	f.Fuzz(func(t *testing.T, name string) {
		if e, ok := parseName(name); ok && (e.name() != name || strings.ContainsAny(name, "/\x00")) {
			t.Errorf("%q is %+v, which is %q", name, e, e.name())
		}
	})
}

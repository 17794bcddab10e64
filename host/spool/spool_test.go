package spool

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"golang.org/x/sys/unix"
)

// clock is a time that the test moves.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

func open(t *testing.T) (*Spool, *clock) {
	t.Helper()
	c := &clock{t: time.Unix(1e9, 0)}
	s, err := Open(filepath.Join(t.TempDir(), "files [*?\\"), c.now)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Close()
		if s.files != 0 || s.bytes != 0 || s.taken != 0 || len(s.ready) != 0 {
			t.Errorf("at the end %d files, %d bytes, %d taken, %d ready", s.files, s.bytes, s.taken, len(s.ready))
		}
		if e, err := os.ReadDir(s.dir); err != nil || len(e) != 0 {
			t.Errorf("left in the folder: %v, %v", e, err)
		}
	})
	return s, c
}

func put(t *testing.T, s *Spool, content string) string {
	t.Helper()
	f, err := s.Put(strings.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	return f.File
}

func content(t *testing.T, h *Handle) string {
	t.Helper()
	r, err := h.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestOneFileServesOneRun(t *testing.T) {
	s, _ := open(t)
	for _, want := range []string{"", "abc", strings.Repeat("0123456789", 100_000)} {
		f, err := s.Put(iotest.OneByteReader(iotest.DataErrReader(strings.NewReader(want[:min(len(want), 5000)]))))
		if len(want) > 5000 {
			f, err = s.Put(strings.NewReader(want))
		}
		sum := sha256.Sum256([]byte(want))
		if err != nil || f.Bytes != int64(len(want)) || f.SHA256 != hex.EncodeToString(sum[:]) || len(f.File) != 32 {
			t.Fatalf("%+v, %v", f, err)
		}
		h, err := s.Take(f.File)
		if err != nil || h.Bytes() != int64(len(want)) || h.SHA256() != f.SHA256 {
			t.Fatalf("%+v, %v", h, err)
		}
		if _, err := s.Take(f.File); !errors.Is(err, ErrNotFound) {
			t.Errorf("taken twice: %v", err)
		}
		for range 2 {
			if content(t, h) != want {
				t.Error("another content")
			}
		}
		h.Close()
		h.Close()
		r, err := h.Open()
		if err == nil {
			_, err = io.ReadAll(r)
		}
		if err == nil && want != "" {
			t.Error("it can be read when it is closed")
		}
	}
	for _, id := range []string{"", "x", "../x", strings.Repeat("0", 32)} {
		if _, err := s.Take(id); !errors.Is(err, ErrNotFound) {
			t.Errorf("%q: %v", id, err)
		}
	}
}

func TestNothingIsInTheFolder(t *testing.T) {
	s, _ := open(t)
	put(t, s, "secret")
	pr, pw := io.Pipe()
	done := make(chan error)
	go func() { _, err := s.Put(pr); pr.Close(); done <- err }()
	pw.Write([]byte("half"))
	if e, err := os.ReadDir(s.dir); err != nil || len(e) != 0 {
		t.Errorf("%v, %v: a process that is killed would leave it", e, err)
	}
	if st, err := os.Stat(s.dir); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", st.Mode(), err)
	}
	mine := errors.New("mine")
	pw.CloseWithError(mine)
	if err := <-done; !errors.Is(err, mine) {
		t.Errorf("a body that breaks off: %v", err)
	}
	if s.files != 1 || s.bytes != 6 {
		t.Errorf("%d files, %d bytes are counted", s.files, s.bytes)
	}
}

func TestForgets(t *testing.T) {
	s, c := open(t)
	a := put(t, s, "a")
	c.add(Forget - time.Second)
	b := put(t, s, "b")
	taken, err := s.Take(a)
	if err != nil {
		t.Fatal(err)
	}
	a = put(t, s, "a")
	c.add(2 * time.Second)
	s.Sweep() // nothing is old
	if s.files != 3 {
		t.Errorf("%d files", s.files)
	}
	c.add(Forget - 2*time.Second)
	if _, err := s.Take(b); !errors.Is(err, ErrNotFound) {
		t.Errorf("b: %v", err)
	}
	if _, err := s.Take(a); !errors.Is(err, ErrNotFound) {
		t.Errorf("a: %v", err)
	}
	if s.files != 1 || s.bytes != 1 || content(t, taken) != "a" {
		t.Errorf("%d files: what a run has taken is its own", s.files)
	}
	taken.Close()
}

func TestBounds(t *testing.T) {
	s, _ := open(t)
	s.max = limits{files: 3, fileBytes: 100, total: 250}
	if _, err := s.Put(strings.NewReader(strings.Repeat("x", 101))); !errors.Is(err, ErrTooLarge) {
		t.Errorf("101 bytes: %v", err)
	}
	if _, err := s.Put(iotest.OneByteReader(strings.NewReader(strings.Repeat("x", 101)))); !errors.Is(err, ErrTooLarge) {
		t.Errorf("101 bytes, one by one: %v", err)
	}
	ids := []string{put(t, s, strings.Repeat("x", 100)), put(t, s, strings.Repeat("x", 100))}
	if _, err := s.Put(strings.NewReader(strings.Repeat("x", 51))); !errors.Is(err, ErrTooMuch) || !strings.Contains(err.Error(), "MiB") {
		t.Errorf("251 bytes together: %v", err)
	}
	put(t, s, strings.Repeat("x", 50))
	if _, err := s.Put(strings.NewReader("")); !errors.Is(err, ErrTooMuch) {
		t.Errorf("a fourth file: %v", err)
	}
	h, err := s.Take(ids[0])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Put(strings.NewReader("")); !errors.Is(err, ErrTooMuch) {
		t.Errorf("a taken file takes room until its run is over: %v", err)
	}
	h.Close()
	put(t, s, "x")
}

func TestClose(t *testing.T) {
	s, _ := open(t)
	id := put(t, s, "abc")
	h, err := s.Take(put(t, s, "taken"))
	if err != nil {
		t.Fatal(err)
	}
	pr, pw := io.Pipe()
	done := make(chan error)
	go func() { _, err := s.Put(pr); pr.Close(); done <- err }()
	pw.Write([]byte("a"))
	s.Close()
	pw.Write([]byte("b"))
	pw.Close()
	if err := <-done; !errors.Is(err, ErrClosed) {
		t.Errorf("one that comes: %v", err)
	}
	if _, err := s.Take(id); !errors.Is(err, ErrClosed) {
		t.Errorf("one that waits: %v", err)
	}
	if _, err := s.Put(strings.NewReader("")); !errors.Is(err, ErrClosed) {
		t.Errorf("a new one: %v", err)
	}
	if content(t, h) != "taken" {
		t.Error("a taken one is gone")
	}
	h.Close()
}

// A process that could not unlink its files left them.
func TestLeftovers(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "files")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{prefix + "123", "mine", ".hidden"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s, err := Open(dir, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	e, err := os.ReadDir(dir)
	if err != nil || len(e) != 2 {
		t.Errorf("%v, %v: want the two that are not ours", e, err)
	}
}

func TestUnsafeFolders(t *testing.T) {
	base := t.TempDir()
	for name, prepare := range map[string]func(string) error{
		"file":     func(p string) error { return os.WriteFile(p, nil, 0o600) },
		"link":     func(p string) error { return os.Symlink(base, p) },
		"readable": func(p string) error { return errors.Join(os.Mkdir(p, 0o700), os.Chmod(p, 0o755)) },
	} {
		p := filepath.Join(base, name)
		if err := prepare(p); err != nil {
			t.Fatal(err)
		}
		if s, err := Open(p, time.Now); err == nil || !strings.Contains(err.Error(), p) {
			t.Errorf("%s: %v, %v", name, s, err)
		}
	}
	if _, err := Open(filepath.Join(base, "no", "folder"), time.Now); err == nil {
		t.Error("a folder in none was made")
	}
}

// A full disk is told as such, and what was written does not stay.
func TestFullDisk(t *testing.T) {
	if os.Geteuid() != 0 || runtime.GOOS != "linux" {
		t.Skip("SKIPPED: only root can mount a small file system")
	}
	dir := filepath.Join(t.TempDir(), "small")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := mountSmall(dir); err != nil {
		t.Skipf("SKIPPED: cannot mount a small file system here: %v", err)
	}
	t.Cleanup(func() { unmount(dir) })
	s, err := Open(dir, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for range 2 { // the first leaves the room that the second finds
		if _, err := s.Put(bytes.NewReader(make([]byte, 4<<20))); !errors.Is(err, ErrFull) || !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("got %v", err)
		}
		h, err := s.Take(put(t, s, strings.Repeat("x", 500<<10)))
		if err != nil {
			t.Fatal(err)
		}
		h.Close()
	}
	room := reserve(t, s, 1, 4<<20)
	leaving, err := room.Create(4 << 20)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(leaving, bytes.NewReader(make([]byte, 4<<20))); !errors.Is(err, ErrFull) {
		t.Errorf("what a run leaves: %v", err)
	}
	leaving.Discard()
	room.Close()
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil || st.Bfree != st.Blocks {
		t.Errorf("%d of %d blocks are free, %v", st.Bfree, st.Blocks, err)
	}
}

func TestManyAtOnce(t *testing.T) {
	s, c := open(t)
	s.max = limits{files: 20, fileBytes: 1000, total: 5000}
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			want := strings.Repeat("x", i*20)
			f, err := s.Put(iotest.HalfReader(strings.NewReader(want)))
			if errors.Is(err, ErrTooMuch) {
				return
			}
			if err != nil {
				t.Error(err)
				return
			}
			if i%5 == 0 {
				c.add(Forget / 4)
				s.Sweep()
				return
			}
			h, err := s.Take(f.File)
			if errors.Is(err, ErrNotFound) {
				return // forgotten
			}
			if err != nil || content(t, h) != want {
				t.Errorf("%v", err)
				return
			}
			h.Close()
		})
	}
	wg.Wait()
}

func TestWaiting(t *testing.T) {
	s, clock := open(t)
	expect := func(when string, forRuns, forClients int) {
		t.Helper()
		if r, c := s.Waiting(); r != forRuns || c != forClients {
			t.Errorf("%s: %d for runs and %d for clients, want %d and %d", when, r, c, forRuns, forClients)
		}
	}
	expect("at first", 0, 0)
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() { _, err := s.Put(r); done <- err }()
	if _, err := w.Write([]byte("half")); err != nil {
		t.Fatal(err)
	}
	expect("while one comes", 1, 0)
	w.Close()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	h, err := s.Take(put(t, s, "another"))
	if err != nil {
		t.Fatal(err)
	}
	expect("one waits, its run has the other", 1, 0)
	h.Close()
	h.Close()
	expect("the run has ended", 1, 0)
	room, err := s.Reserve(t.Context(), 1, 3, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer room.Close()
	leaving, err := room.Create(3)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := leaving.Write([]byte("out")); err != nil {
		t.Fatal(err)
	}
	if _, err := leaving.Publish(sha256.Sum256([]byte("out"))); err != nil {
		t.Fatal(err)
	}
	expect("a run left one", 1, 1)
	clock.add(Forget)
	expect("their time is over", 0, 0)
}

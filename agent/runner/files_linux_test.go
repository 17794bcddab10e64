package runner

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"

	"golang.org/x/sys/unix"
)

func TestFiles(t *testing.T) {
	b := newBox(t, baseEnv, "main.py")
	old := syscall.Umask(0o022)
	defer syscall.Umask(old)
	big := make([]byte, 3*pipeBytes+17)
	_, _ = rand.Read(big)
	deep := strings.Repeat(strings.Repeat("d", MaxNameBytes)+"/", MaxDepth-1) + strings.Repeat("f", MaxNameBytes)
	files := []struct {
		name string
		mode fs.FileMode
		data []byte
	}{
		{"empty", 0o644, nil},
		{"small", 0o640, big[:smallFile]},
		{"no longer small", 0o604, big[:smallFile+1]},
		{"a/b/c.bin", 0o755, big},
		{"a/b/one pipe", 0o400, big[:pipeBytes]},
		{"ä €", 0o666, []byte("x")},
		{deep, 0o600, []byte("deep")},
	}
	for _, f := range files {
		r := iotest.HalfReader(bytes.NewReader(f.data))
		if err := b.conn.WriteFile(b.ctx(), f.name, f.mode, int64(len(f.data)), r); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"a", "a/b", "new/er/folder"} {
		if err := b.conn.MkdirAll(b.ctx(), name); err != nil {
			t.Fatal(err)
		}
	}
	root, err := os.OpenRoot(b.work) // by parts: the deep path is too long
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for _, f := range files {
		got, err := root.ReadFile(f.name)
		if err != nil || !bytes.Equal(got, f.data) {
			t.Errorf("%.20s: %d bytes, %v", f.name, len(got), err)
		}
		if st, err := root.Stat(f.name); err != nil || st.Mode() != f.mode {
			t.Errorf("%.20s: %v, %v", f.name, st.Mode(), err)
		}
	}
	if st, err := root.Stat("new/er/folder"); err != nil || st.Mode() != fs.ModeDir|0o755 {
		t.Errorf("%v %v", st.Mode(), err)
	}
	b.start("main.py", "print('ran')")
	if n := cap(b.conn.buf); n > 0 {
		t.Errorf("the program runs, and %d bytes are kept for files", n)
	}
	if r := b.finish(); r.out != "ran\n" {
		t.Errorf("%+v", r)
	}
}

// A Python that has no splice, before 3.10, takes files as well.
func TestNoSplice(t *testing.T) {
	whole := source
	defer func() { source = whole }()
	source = bytes.Replace(whole, []byte(`getattr(posix, "splice", None)`), []byte("None"), 1)
	if bytes.Equal(source, whole) {
		t.Fatal("the runner looks for splice in another way")
	}
	b := newBox(t, baseEnv, "main.py")
	b.write("file", "x")
	data := make([]byte, 3*pipeBytes+17)
	_, _ = rand.Read(data)
	for name, want := range map[string]error{"a/big": nil, "file": fs.ErrExist} {
		err := b.conn.WriteFile(b.ctx(), name, 0o644, int64(len(data)), bytes.NewReader(data))
		if !errors.Is(err, want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got, err := os.ReadFile(filepath.Join(b.work, "a/big")); err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes of %d, or others: %v", len(got), len(data), err)
	}
	b.start("main.py", "print('ran')")
	if r := b.finish(); r.out != "ran\n" {
		t.Errorf("%+v", r)
	}
}

// Files that the box refuses are no end of the conversation.
func TestFileErrors(t *testing.T) {
	b := newBox(t, baseEnv, "main.py")
	b.write("a/file", "x")
	data := strings.Repeat("x", 2*pipeBytes)
	write := func(name string) error {
		return b.conn.WriteFile(b.ctx(), name, 0o644, int64(len(data)), strings.NewReader(data))
	}
	if err := write("a/file"); !errors.Is(err, fs.ErrExist) {
		t.Errorf("an existing file: %v", err)
	}
	if err := write("a"); !errors.Is(err, fs.ErrExist) {
		t.Errorf("an existing folder: %v", err)
	}
	if err := write("a/file/below"); !errors.Is(err, syscall.ENOTDIR) {
		t.Errorf("below a file: %v", err)
	}
	if err := b.conn.MkdirAll(b.ctx(), "a/file"); !errors.Is(err, syscall.ENOTDIR) {
		t.Errorf("a folder where a file is: %v", err)
	}
	if err := write("../x"); !errors.Is(err, ErrName) {
		t.Errorf("a bad name: %v", err)
	}
	if err := b.conn.WriteFile(b.ctx(), "s", 0o4755|fs.ModeSetuid, 0, strings.NewReader("")); !errors.Is(err, fs.ErrInvalid) {
		t.Errorf("a bad mode: %v", err)
	}
	if got, err := os.ReadFile(filepath.Join(b.work, "a/file")); string(got) != "x" {
		t.Errorf("the file is now %.20q, %v", got, err)
	}
	b.start("main.py", "print('ran')")
	if r := b.finish(); r.out != "ran\n" {
		t.Errorf("%+v", r)
	}
}

func TestNoSpace(t *testing.T) {
	work := workFolder(t)
	const size = 1 << 20
	if err := unix.Mount("work", work, "tmpfs", 0, "size=1m,nr_inodes=20"); err != nil {
		t.Skip("no tmpfs can be mounted:", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(work, unix.MNT_DETACH) })
	b := boxSpec{env: baseEnv, args: []string{"main.py"}, work: work}.mustStart(t)
	err := b.conn.WriteFile(b.ctx(), "big", 0o644, 2*size, io.LimitReader(manyBytes{}, 2*size))
	if !errors.Is(err, ErrNoSpace) || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("bytes: %v", err)
	}
	if err := os.Remove(filepath.Join(work, "big")); err != nil {
		t.Error(err)
	}
	err = b.conn.MkdirAll(b.ctx(), strings.Repeat("d/", MaxDepth-1)+"d")
	for i := 0; err == nil && i < 20; i++ {
		err = b.conn.MkdirAll(b.ctx(), string(rune('a'+i)))
	}
	if !errors.Is(err, ErrNoSpace) {
		t.Errorf("files: %v", err)
	}
	if err := os.RemoveAll(filepath.Join(work, "d")); err != nil {
		t.Error(err)
	}
	b.start("main.py", "print('ran')")
	if r := b.finish(); r.out != "ran\n" {
		t.Errorf("%+v", r)
	}
}

// The file that there is no room for must be none that the program finds open.
func TestNoSpaceForSmallFile(t *testing.T) {
	work := workFolder(t)
	if err := unix.Mount("work", work, "tmpfs", 0, "size=256k,nr_inodes=200"); err != nil {
		t.Skip("no tmpfs can be mounted:", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(work, unix.MNT_DETACH) })
	b := boxSpec{env: baseEnv, args: []string{"main.py"}, work: work}.mustStart(t)
	var err error
	for i := 0; err == nil && i < 100; i++ {
		err = b.conn.WriteFile(b.ctx(), "small"+strconv.Itoa(i), 0o644, smallFile, io.LimitReader(manyBytes{}, smallFile))
	}
	if !errors.Is(err, ErrNoSpace) || !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("small files: %v", err)
	}
	if err := os.Remove(filepath.Join(work, "small0")); err != nil {
		t.Fatal(err)
	}
	b.start("main.py", `import os
fds = os.listdir("/proc/self/fd")
print(sorted(fd for fd in fds if os.path.exists("/proc/self/fd/" + fd)))`) // not that of the list
	if r := b.finish(); r.out != "['0', '1', '2']\n" {
		t.Errorf("%+v", r)
	}
}

// A reader that fails leaves half a file: no program may run beside it.
func TestReaderFails(t *testing.T) {
	broken := errors.New("broken")
	tests := map[string]struct {
		r    io.Reader
		want error
	}{
		"shorter": {strings.NewReader("12"), ErrSize},
		"longer":  {strings.NewReader("1234"), ErrSize},
		"failing": {iotest.ErrReader(broken), broken},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBox(t, baseEnv, "main.py")
			err := b.conn.WriteFile(b.ctx(), "f", 0o644, 3, test.r)
			if !errors.Is(err, test.want) {
				t.Error(err)
			}
			if err := b.conn.Go(b.ctx()); !errors.Is(err, ErrOrder) || !errors.Is(err, test.want) {
				t.Errorf("go: %v", err)
			}
		})
	}
}

// heldReader gives nothing until it is let go, and tells when it is asked.
type heldReader struct{ asked, held chan struct{} }

func (r heldReader) Read([]byte) (int, error) {
	close(r.asked)
	<-r.held
	return 0, io.EOF
}

func TestCancelled(t *testing.T) {
	b := newBox(t, baseEnv, "main.py")
	r := heldReader{make(chan struct{}), make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- b.conn.WriteFile(ctx, "f", 0o644, 3, r) }()
	<-r.asked
	cancel()
	close(r.held)
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := b.conn.Go(t.Context()); !errors.Is(err, ErrOrder) {
		t.Errorf("go: %v", err)
	}
}

func TestOrder(t *testing.T) {
	b := newBox(t, baseEnv, "main.py")
	b.start("main.py", "print('ran')")
	if err := b.conn.MkdirAll(b.ctx(), "late"); !errors.Is(err, ErrOrder) {
		t.Error(err)
	}
	if err := b.conn.Go(b.ctx()); !errors.Is(err, ErrOrder) {
		t.Error(err)
	}
	if r := b.finish(); r.out != "ran\n" {
		t.Errorf("%+v", r)
	}
	if _, err := os.Stat(filepath.Join(b.work, "late")); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

package readback

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// Files gives what os.DirFS gives, and the same errors by name.
func TestFiles(t *testing.T) {
	dir := t.TempDir()
	long := make([]byte, 100_000)
	for i := range long {
		long[i] = byte(i)
	}
	for name, text := range map[string][]byte{"empty": nil, "long": long} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "folder"), 0o700), os.Symlink("long", filepath.Join(dir, "link"))); err != nil {
		t.Fatal(err)
	}
	ours, theirs := Files(dir), os.DirFS(dir)
	for _, name := range []string{"empty", "long", "link", "missing", "folder", "long/below", "../" + filepath.Base(dir) + "/long", "/long", ""} {
		got, err := readAll(ours, name)
		want, wantErr := readAll(theirs, name)
		if got != want || (err == nil) != (wantErr == nil) || errors.Is(err, fs.ErrNotExist) != errors.Is(wantErr, fs.ErrNotExist) || errors.Is(err, fs.ErrInvalid) != errors.Is(wantErr, fs.ErrInvalid) {
			t.Errorf("%q: %d bytes, %v; package os gives %d, %v", name, len(got), err, len(want), wantErr)
		}
	}
	if link, err := fs.ReadLink(ours, "link"); err != nil || link != "long" {
		t.Errorf("the link: %q, %v", link, err)
	}
	if all, err := fs.ReadDir(ours, "."); err != nil || len(all) != 4 {
		t.Errorf("the folder: %v, %v", all, err)
	}
	if _, err := ours.Open("folder/.."); !errors.Is(err, fs.ErrInvalid) {
		t.Errorf("a way up: %v", err)
	}
	f, err := ours.Open(".")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // piece by piece
		if some, err := f.(fs.ReadDirFile).ReadDir(2); err != nil || len(some) != 2 {
			t.Errorf("%v, %v", some, err)
		}
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if err := f.Close(); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("closed twice: %v", err)
	}
	if f, err = ours.Open("long"); err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if all, err := f.(fs.ReadDirFile).ReadDir(-1); err == nil {
		t.Errorf("a file as a folder: %v", all)
	}
	if info, err := fs.Stat(ours, "long"); err != nil || info.Size() != int64(len(long)) {
		t.Errorf("the long file: %v, %v", info, err)
	}
}

// readAll opens and reads, as a reading does.
func readAll(fsys fs.FS, name string) (string, error) {
	b, err := newReader(context.Background(), Subject{}).read(fsys, name, 1<<20)
	return string(b), err
}

// A file is no program's that is started meanwhile, and closed once.
func TestFilesClose(t *testing.T) {
	f, err := Files("/proc").Open("self/status")
	if err != nil {
		t.Fatal(err)
	}
	fd := f.(*kernelFile).fd
	if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("flags %#x, %v", flags, err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if link, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd)); err == nil && filepath.Base(link) == "status" {
		t.Errorf("descriptor %d is %s still", fd, link)
	}
	if err := f.Close(); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("closed twice: %v", err)
	}
	if n, err := f.Read(make([]byte, 10)); n != 0 || err == nil {
		t.Errorf("read when closed: %d, %v", n, err)
	}
}

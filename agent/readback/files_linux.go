package readback

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Files is os.DirFS for the many small files that the kernel tells of a box in. Package os
// asks of each whether it can be waited for, which takes up to six system calls beside the
// open, the read and the close.
func Files(dir string) fs.FS {
	return files{os.DirFS(dir).(dirFS), dir}
}

// dirFS is what os.DirFS says that it implements.
type dirFS interface {
	fs.StatFS
	fs.ReadDirFS
	fs.ReadLinkFS
}

type files struct {
	dirFS
	dir string
}

// Open implements fs.FS. What it gives implements fs.ReadDirFile, be it a folder or not.
func (f files) Open(name string) (fs.File, error) {
	fail := func(err error) (fs.File, error) { return nil, &fs.PathError{Op: "open", Path: name, Err: err} }
	if !fs.ValidPath(name) {
		return fail(fs.ErrInvalid)
	}
	for {
		fd, err := unix.Open(filepath.Join(f.dir, name), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			return &kernelFile{fd: fd, name: name, fsys: f}, nil
		}
		if !errors.Is(err, unix.EINTR) {
			return fail(err)
		}
	}
}

// kernelFile is for one goroutine.
type kernelFile struct {
	fd   int // -1: closed
	name string
	fsys files
	// folder has the descriptor from the first ReadDir on.
	folder *os.File
}

// Read implements fs.File.
func (f *kernelFile) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	for {
		n, err := unix.Read(f.fd, b)
		switch {
		case err == nil && n > 0:
			return n, nil
		case err == nil:
			return 0, io.EOF
		case !errors.Is(err, unix.EINTR):
			return 0, &fs.PathError{Op: "read", Path: f.name, Err: err}
		}
	}
}

// Stat implements fs.File, by the file's name.
func (f *kernelFile) Stat() (fs.FileInfo, error) { return f.fsys.Stat(f.name) }

// ReadDir implements fs.ReadDirFile.
func (f *kernelFile) ReadDir(n int) ([]fs.DirEntry, error) {
	if f.folder == nil {
		if f.fd < 0 {
			return nil, &fs.PathError{Op: "readdir", Path: f.name, Err: fs.ErrClosed}
		}
		f.folder = os.NewFile(uintptr(f.fd), filepath.Join(f.fsys.dir, f.name))
	}
	return f.folder.ReadDir(n)
}

// Close implements fs.File.
func (f *kernelFile) Close() error {
	fd := f.fd
	if f.folder != nil {
		f.fd = -1
		return f.folder.Close()
	}
	if f.fd = -1; fd < 0 {
		return &fs.PathError{Op: "close", Path: f.name, Err: fs.ErrClosed}
	}
	return os.NewSyscallError("close", unix.Close(fd))
}

// Package logfile is a log on disk that cannot grow without end: what is written
// goes to one file, and when that is full it becomes the one old generation. A
// hostile guest's console and the daemon's own log are kept in such files.
package logfile

import (
	"io"
	"os"
	"sync"
)

// File is such a log. It is safe for concurrent use.
type File struct {
	path string
	max  int64

	mu   sync.Mutex
	f    *os.File
	size int64
}

// Open appends to the log at path, of which at most about twice max bytes are
// kept: in path itself and in path with ".1" added. Files are made with mode 0600.
func Open(path string, max int64) (*File, error) {
	l := &File{path: path, max: max}
	if err := l.open(); err != nil {
		return nil, err
	}
	return l, nil
}

func (l *File) open() error {
	f, err := os.OpenFile(l.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return err
	}
	l.f, l.size = f, st.Size()
	return nil
}

// Write implements io.Writer. One write is never split over two files.
func (l *File) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.f == nil {
		return 0, os.ErrClosed
	}
	if l.size > 0 && l.size+int64(len(p)) > l.max {
		l.rotate()
	}
	n, err := l.f.Write(p)
	l.size += int64(n)
	return n, err
}

// rotate begins a new file. Where it cannot (no room, no descriptors), the old one
// goes on growing until a later write finds it can: losing the log would be worse.
func (l *File) rotate() {
	next, err := os.OpenFile(l.path+".new", os.O_WRONLY|os.O_CREATE|os.O_APPEND|os.O_TRUNC, 0o600)
	if err != nil {
		return
	}
	if os.Rename(l.path, l.path+".1") != nil || os.Rename(next.Name(), l.path) != nil {
		os.Rename(l.path+".1", l.path)
		next.Close()
		return
	}
	l.f.Close()
	l.f, l.size = next, 0
}

// Close implements io.Closer.
func (l *File) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.f == nil {
		return os.ErrClosed
	}
	err := l.f.Close()
	l.f = nil
	return err
}

// Tail reads the last n bytes of the log at path, also from its old generation;
// a log that is not there is empty.
func Tail(path string, n int64) ([]byte, error) {
	cur, err := tail(path, n)
	if err != nil || int64(len(cur)) >= n {
		return cur, err
	}
	old, err := tail(path+".1", n-int64(len(cur)))
	return append(old, cur...), err
}

func tail(path string, n int64) ([]byte, error) {
	f, err := os.Open(path)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(io.NewSectionReader(f, max(0, size-n), n), n))
}

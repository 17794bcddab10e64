package inputs

import (
	"fmt"
	"io"
	"io/fs"
	"os"
)

// Open opens the file Items[n] for reading from its beginning. The reader gives
// exactly as many bytes as the item has, and an error that matches ErrChanged, instead
// of the last of them or of the end, when the file is another one or was written to
// since it was found. Its errors name the file.
func (s *Set) Open(n int) (*Reader, error) {
	i := s.Items[n]
	f, err := i.open()
	if err != nil {
		return nil, fmt.Errorf("%q: %w: %w", i.path, ErrChanged, unlike(err))
	}
	r := &Reader{item: i, f: f, left: i.Bytes}
	if err := r.same(); err != nil {
		f.Close()
		return nil, err
	}
	return r, nil
}

// unlike keeps an error's words and not what it matches: that a file of ours is
// missing must not be taken for a missing socket.
func unlike(err error) error { return fmt.Errorf("%s", err) }

// Reader reads a file. It is not safe for concurrent use.
type Reader struct {
	item Item
	f    *os.File
	left int64
	err  error // what every read gives from now on
}

// Read implements io.Reader.
func (r *Reader) Read(b []byte) (int, error) {
	if r.err != nil || len(b) == 0 {
		return 0, r.err
	}
	if r.left == 0 {
		r.err = r.end()
		return 0, r.err
	}
	n, err := r.f.Read(b[:min(int64(len(b)), r.left)])
	r.left -= int64(n)
	switch {
	case err == io.EOF:
		r.err = r.changed("it is shorter")
	case err != nil:
		r.err = fmt.Errorf("%q: %w", r.item.path, unlike(cause(err)))
	}
	if n > 0 {
		return n, nil
	}
	return 0, r.err
}

// end looks at a file that was read whole.
func (r *Reader) end() error {
	n, err := r.f.Read(make([]byte, 1))
	switch {
	case n > 0:
		return r.changed("it has more bytes than it says, or grows")
	case err != io.EOF:
		return fmt.Errorf("%q: %w", r.item.path, unlike(cause(err)))
	}
	if err := r.same(); err != nil {
		return err
	}
	return io.EOF
}

// same holds the open file to what was found.
func (r *Reader) same() error {
	now, err := r.f.Stat()
	if err != nil {
		return fmt.Errorf("%q: %w", r.item.path, unlike(cause(err)))
	}
	was := r.item.info
	switch {
	case !os.SameFile(was, now):
		return r.changed("another file has its name")
	case now.Mode()&fs.ModeType != was.Mode()&fs.ModeType, now.Size() != was.Size(), !now.ModTime().Equal(was.ModTime()):
		return r.changed("it was written to")
	}
	return nil
}

func (r *Reader) changed(how string) error {
	return fmt.Errorf("%q: %w: %s", r.item.path, ErrChanged, how)
}

// Err is the error that reading ended with; nil: it did not, or the file is read to its
// end.
func (r *Reader) Err() error {
	if r.err == io.EOF {
		return nil
	}
	return r.err
}

// Close implements io.Closer.
func (r *Reader) Close() error { return r.f.Close() }

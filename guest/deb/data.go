package deb

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"strings"

	"github.com/pybox/pybox/guest/tree"
)

// Type of an entry.
type Type uint8

const (
	Dir Type = iota + 1
	File
	Symlink
	Link // a hard link to an earlier file of the same package
)

// Entry is one entry of a package's data tar.
type Entry struct {
	// Path is clean and relative; "." is the package's root.
	Path string
	Type Type
	// Mode has permission bits only: set-user-id, set-group-id and sticky
	// bits are dropped, since nothing in a guest may gain privileges from a
	// file.
	Mode     fs.FileMode
	UID, GID uint32
	// Size and Body are those of a File.
	Size int64
	Body io.Reader
	// Target is a Symlink's text as written, or a Link's clean relative path.
	Target string
}

// openTar decompresses a member and returns its tar, bounded to max bytes.
func openTar(m *arMember, prefix string, max int64) (*tar.Reader, func(), error) {
	suffix, err := suffixOf(m, prefix)
	if err != nil {
		return nil, nil, err
	}
	r, done, err := decompress(m, suffix)
	if err != nil {
		return nil, nil, err
	}
	return tar.NewReader(&boundedReader{r, max}), done, nil
}

// boundedReader fails with ErrTooBig when more than left bytes come.
type boundedReader struct {
	r    io.Reader
	left int64
}

func (b *boundedReader) Read(p []byte) (int, error) {
	if b.left < 0 {
		return 0, fmt.Errorf("%w: it unpacks to more than is allowed", ErrTooBig)
	}
	if int64(len(p)) > b.left+1 {
		p = p[:b.left+1]
	}
	n, err := b.r.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, fmt.Errorf("%w: it unpacks to more than is allowed", ErrTooBig)
	}
	return n, err
}

func readData(a *arReader, l Limits, fn func(*Entry) error) error {
	m, err := a.next()
	if err != nil {
		return noEOF(err)
	}
	tr, done, err := openTar(m, "data.tar", l.Bytes)
	if err != nil {
		return err
	}
	defer done()
	seen := map[string]Type{}
	var total int64 // of declared sizes: a sparse file has more than it reads
	for {
		h, err := tr.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return tarErr(err)
		}
		e, err := newEntry(h, l)
		if err != nil {
			return err
		}
		if err := admit(seen, e, l.Entries); err != nil {
			return err
		}
		if total += e.Size; total > l.Bytes {
			return fmt.Errorf("%w: its files have more than %d bytes", ErrTooBig, l.Bytes)
		}
		e.Body = tarBody{tr}
		if err := fn(e); err != nil {
			return err
		}
	}
}

// admit keeps account of names: none twice, hard links only to files before.
func admit(seen map[string]Type, e *Entry, max int) error {
	if _, dup := seen[e.Path]; dup {
		return fmt.Errorf("%w: %q stands twice in it", ErrRefused, e.Path)
	}
	if len(seen) == max {
		return fmt.Errorf("%w: more than %d entries", ErrTooBig, max)
	}
	if e.Type == Link && seen[e.Target] != File {
		return fmt.Errorf("%w: %q is a hard link to %q, which is no file before it", ErrRefused, e.Path, e.Target)
	}
	t := e.Type
	if t == Link {
		t = File
	}
	seen[e.Path] = t
	return nil
}

func newEntry(h *tar.Header, l Limits) (*Entry, error) {
	p, err := cleanName(h.Name)
	if err != nil {
		return nil, err
	}
	if h.Uid < 0 || h.Uid > math.MaxUint16 || h.Gid < 0 || h.Gid > math.MaxUint16 {
		return nil, fmt.Errorf("%w: owner %d:%d of %q", ErrRefused, h.Uid, h.Gid, p)
	}
	e := &Entry{Path: p, Mode: fs.FileMode(h.Mode) & fs.ModePerm, UID: uint32(h.Uid), GID: uint32(h.Gid)}
	switch h.Typeflag {
	case tar.TypeDir:
		e.Type = Dir
	case tar.TypeReg:
		e.Type, e.Size = File, h.Size
		if h.Size < 0 || h.Size > l.File {
			return nil, fmt.Errorf("%w: %q has %d bytes", ErrTooBig, p, h.Size)
		}
	case tar.TypeSymlink:
		e.Type, e.Target = Symlink, h.Linkname
	case tar.TypeLink:
		e.Type = Link
		if e.Target, err = cleanName(h.Linkname); err != nil {
			return nil, err
		}
	default:
		return nil, fmt.Errorf("%w: %q is of type %q; only directories, files and links are taken", ErrRefused, p, h.Typeflag)
	}
	if p == "." && e.Type != Dir {
		return nil, fmt.Errorf("%w: its root is no directory", ErrRefused)
	}
	return e, nil
}

// cleanName turns "./usr/bin/" into "usr/bin" and refuses everything that would
// need more than that.
func cleanName(name string) (string, error) {
	p := strings.TrimSuffix(name, "/")
	if p != "." {
		p = strings.TrimPrefix(p, "./")
	}
	if err := tree.CheckPath(p); err != nil {
		return "", fmt.Errorf("%w: %w", ErrRefused, err)
	}
	return p, nil
}

// tarBody maps the tar reader's errors to this package's.
type tarBody struct{ r *tar.Reader }

func (b tarBody) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if err != nil && err != io.EOF {
		err = tarErr(err)
	}
	return n, err
}

// tarErr marks what archive/tar or a decompressor says of damaged input.
func tarErr(err error) error {
	if errors.Is(err, ErrFormat) || errors.Is(err, ErrTooBig) {
		return err
	}
	return fmt.Errorf("%w: data: %w", ErrFormat, err)
}

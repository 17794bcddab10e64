package erofs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	goerofs "github.com/erofs/go-erofs"

	"github.com/pybox/pybox/guest/mapped"
	"github.com/pybox/pybox/guest/tree"
)

// ErrImage marks bytes that are no image of this package's making: damaged, of
// another kind, or with something in it that a tree does not have.
var ErrImage = errors.New("unreadable image")

// maxDepth bounds how deep folders may lie in one another: go-erofs finds each entry
// anew from the root. The images that are made here take up a fifth of it.
const maxDepth = 100

func imageErr(format string, a ...any) error {
	return fmt.Errorf("%w: %w", ErrImage, fmt.Errorf(format, a...))
}

// Read makes a tree of an image, which is taken as hostile. The tree's files are
// parts of img, which must stay as it is for as long as the tree is used; times,
// extended attributes and link counts are left behind. Errors match ErrImage, tree's,
// or mapped.ErrFault where img is mapped and no longer there.
func Read(img []byte, l tree.Limits) (t *tree.Tree, err error) {
	err = mapped.Guard(func() (err error) {
		t, err = read(img, l)
		return err
	})
	if err != nil {
		return nil, err
	}
	return t, nil
}

func read(img []byte, l tree.Limits) (*tree.Tree, error) {
	fsys, err := goerofs.Open(padded(img))
	if err != nil {
		return nil, imageErr("%w", err)
	}
	r := reader{img: img, fs: fsys, t: tree.New(l), left: l.Bytes, folders: map[uint64]bool{}}
	if err := fs.WalkDir(fsys, ".", r.add); err != nil {
		return nil, err
	}
	return r.t, nil
}

// padded reads zeros behind an image, for images that have no padding (see Write).
type padded []byte

// ReadAt implements io.ReaderAt.
func (p padded) ReadAt(b []byte, at int64) (int, error) {
	if at < 0 || at >= int64(len(p)) {
		return 0, io.EOF
	}
	n := copy(b, p[at:])
	if more := min(len(b)-n, padding); more > 0 {
		clear(b[n : n+more])
		n += more
	}
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

type reader struct {
	img  []byte
	fs   fs.FS
	t    *tree.Tree
	left int64 // bytes of files that may still come
	// folders are the inodes of those that were seen: one that is in itself would
	// have no end.
	folders map[uint64]bool
}

// inode and ranger are what go-erofs says of an entry.
type inode interface {
	Ino() uint64
	UID() uint32
	GID() uint32
}

type ranger interface{ DataRange() []goerofs.DataRange }

func (r *reader) add(p string, d fs.DirEntry, err error) error {
	if err != nil {
		return imageErr("%.200q: %w", p, err)
	}
	info, err := d.Info()
	if err != nil {
		return imageErr("%.200q: %w", p, err)
	}
	i, ok := info.(inode)
	if !ok {
		return imageErr("%.200q has no owner", p)
	}
	// Set-id bits are read as 0o6000 and left behind with all others.
	a := tree.Attr{Mode: info.Mode() & (fs.ModePerm | fs.ModeSticky), UID: i.UID(), GID: i.GID()}
	switch {
	case info.Mode().Type() != d.Type():
		return imageErr("%.200q is a %v by its folder and a %v by itself", p, d.Type(), info.Mode().Type())
	case strings.Count(p, "/") > maxDepth:
		return imageErr("%.200q: more than %d folders in one another", p, maxDepth)
	case p != "." && r.t.Lookup(p) != nil:
		return imageErr("%.200q stands there twice", p)
	}
	switch d.Type() {
	case fs.ModeDir:
		if r.folders[i.Ino()] {
			return imageErr("the folder %.200q has another name too", p)
		}
		r.folders[i.Ino()] = true
		return r.t.Mkdir(p, a)
	case fs.ModeSymlink:
		target, err := fs.ReadLink(r.fs, p)
		if err != nil {
			return imageErr("%.200q: %w", p, err)
		}
		return r.t.Symlink(p, target, a)
	case 0:
		data, err := r.file(p, info)
		if err != nil {
			return err
		}
		return r.t.WriteFile(p, data, a)
	}
	return imageErr("%.200q is neither folder, file nor link (%v)", p, d.Type())
}

// file returns the content of a file. It is a part of the image where it lies in one
// piece, as all files do that Write writes.
func (r *reader) file(p string, info fs.FileInfo) ([]byte, error) {
	size := info.Size()
	if size < 0 || size > r.left {
		return nil, fmt.Errorf("%w: %.200q with %d bytes", tree.ErrTooBig, p, size)
	}
	r.left -= size
	if size == 0 {
		return nil, nil
	}
	if d, ok := info.(ranger); ok {
		if ranges := d.DataRange(); len(ranges) == 1 && ranges[0].Offset >= 0 && ranges[0].Device == 0 {
			at := ranges[0].Offset
			if at > int64(len(r.img)) || size > int64(len(r.img))-at {
				return nil, imageErr("%.200q lies behind the end", p)
			}
			return r.img[at : at+size : at+size], nil
		}
	}
	if size > int64(len(r.img)) {
		return nil, imageErr("%.200q is larger than the image", p)
	}
	b, err := fs.ReadFile(r.fs, p)
	if err != nil {
		return nil, imageErr("%.200q: %w", p, err)
	}
	return b, nil
}

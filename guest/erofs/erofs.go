// Package erofs writes a file tree as an uncompressed erofs image
// (https://docs.kernel.org/filesystems/erofs.html). Equal trees give equal
// bytes: entries are sorted, all times are one fixed time, and the volume has
// the nil UUID. Images are read by the guest's kernel from a read-only disk.
package erofs

import (
	"fmt"
	"io"
	"time"

	goerofs "github.com/erofs/go-erofs"

	"github.com/pybox/pybox/guest/mapped"
	"github.com/pybox/pybox/guest/tree"
)

// Time is the modification time of everything in an image: 2025-08-09, the day
// Debian 13 was released. (Times of the packages' files would do as well; one
// time makes the inodes half as big.)
var Time = time.Date(2025, 8, 9, 0, 0, 0, 0, time.UTC)

// Write writes t to w, which must be at offset 0 of an empty file. Contents go there
// from where the tree has them: where those are mapped and no longer there, the error
// matches mapped.ErrFault.
func Write(w io.WriteSeeker, t *tree.Tree) error {
	return mapped.Guard(func() error { return writeImage(w, t) })
}

func writeImage(w io.WriteSeeker, t *tree.Tree) error {
	img := goerofs.Create(w, goerofs.WithBuildTime(uint64(Time.Unix()), 0))
	if err := img.CopyFrom(newSource(t)); err != nil {
		return fmt.Errorf("erofs: %w", err)
	}
	if err := img.Close(); err != nil {
		return fmt.Errorf("erofs: %w", err)
	}
	if _, err := w.Seek(0, io.SeekEnd); err != nil {
		return fmt.Errorf("erofs: %w", err)
	}
	if _, err := w.Write(make([]byte, padding)); err != nil {
		return fmt.Errorf("erofs: %w", err)
	}
	return nil
}

// padding follows an image. Where its last bytes are an inode, programs that read a
// little more than that at once, fsck.erofs among them, take it for damaged otherwise.
const padding = 4096

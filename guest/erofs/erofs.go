// Package erofs writes a file tree as an uncompressed erofs image
// (https://docs.kernel.org/filesystems/erofs.html). Equal trees give equal
// bytes: entries are sorted, all times are one fixed time, and the volume has
// the nil UUID. Images are read by the guest's kernel from a read-only disk.
package erofs

import (
	"fmt"
	"io"
	"io/fs"
	"time"

	goerofs "github.com/erofs/go-erofs"

	"github.com/pybox/pybox/guest/tree"
)

// Time is the modification time of everything in an image: 2025-08-09, the day
// Debian 13 was released. (Times of the packages' files would do as well; one
// time makes the inodes half as big.)
var Time = time.Date(2025, 8, 9, 0, 0, 0, 0, time.UTC)

// Write writes t to w, which must be at offset 0 of an empty file. Large
// contents are spooled in tempDir ("": the system's) on the way.
func Write(w io.WriteSeeker, t *tree.Tree, tempDir string) error {
	img := goerofs.Create(w, goerofs.WithBuildTime(uint64(Time.Unix()), 0), goerofs.WithTempDir(tempDir))
	for _, n := range t.Nodes() {
		if err := add(img, n); err != nil {
			return fmt.Errorf("erofs: %s: %w", n.Path, err)
		}
	}
	if err := img.Close(); err != nil {
		return fmt.Errorf("erofs: %w", err)
	}
	return nil
}

func add(img *goerofs.Writer, n *tree.Node) error {
	name := "/" + n.Path
	if n.Path == "." {
		name = "/"
	}
	var err error
	switch n.Kind {
	case tree.Dir:
		err = img.Mkdir(name, n.Mode.Perm())
	case tree.Symlink:
		err = img.Symlink(n.Target, name)
	case tree.File:
		err = addFile(img, name, n.Data)
	default:
		err = fmt.Errorf("unknown kind of entry %d", n.Kind)
	}
	if err != nil {
		return err
	}
	if n.Kind != tree.Symlink {
		if err := img.Chmod(name, n.Mode&(fs.ModePerm|fs.ModeSticky)); err != nil {
			return err
		}
	}
	if err := img.Chown(name, int(n.UID), int(n.GID)); err != nil {
		return err
	}
	return img.Chtimes(name, Time, Time)
}

func addFile(img *goerofs.Writer, name string, data []byte) error {
	f, err := img.Create(name)
	if err != nil {
		return err
	}
	if _, err := f.Write(data); err != nil {
		return err
	}
	return f.Close()
}

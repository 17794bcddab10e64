// Package newfile writes a file where there is none, whole and never in the place of
// another, also of one that came meanwhile. It decides neither names nor what to tell
// whom: a folder as a whole is package outputs' affair.
package newfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
)

// Write makes the file path with the content b, synced to the disk, and with as much of
// mode as the process's umask lets it have. It is there whole or not at all; on file
// systems without hard links that holds as long as the machine does not fail meanwhile.
// The error matches fs.ErrExist where something of that name is there: it is left alone.
func Write(path string, b []byte, mode fs.FileMode) error {
	f, err := renameio.NewPendingFile(path, renameio.WithTempDir(filepath.Dir(path)), renameio.WithPermissions(mode))
	if err != nil {
		return err
	}
	defer f.Cleanup()
	if _, err := f.Write(b); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	err = os.Link(f.Name(), path)
	if err == nil || errors.Is(err, fs.ErrExist) {
		return err
	}
	return inPlace(path, b, mode) // the file system may have no hard links
}

// inPlace is Write without a link.
func inPlace(path string, b []byte, mode fs.FileMode) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(path)) // half of it is none
	}
	return nil
}

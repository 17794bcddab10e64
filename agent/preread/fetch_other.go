//go:build !linux

package preread

import (
	"io"
	"os"
)

// fetch reads n bytes at an offset.
func fetch(f *os.File, offset, n int64) error {
	_, err := io.Copy(io.Discard, io.NewSectionReader(f, offset, n))
	return err
}

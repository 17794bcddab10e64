package maker

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// nameless makes a file without a name, which is gone with the process; nil where the
// file system has no such thing, or no way to name it later.
func nameless(dir string) *os.File {
	f, err := os.OpenFile(dir, os.O_RDWR|unix.O_TMPFILE, 0o666)
	if err != nil {
		return nil
	}
	if _, err := os.Stat(descriptor(f)); err != nil { // no /proc
		_ = f.Close()
		return nil
	}
	return f
}

func descriptor(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }

// linkNameless names it (open(2), O_TMPFILE).
func linkNameless(f *os.File, name string) error {
	err := unix.Linkat(unix.AT_FDCWD, descriptor(f), unix.AT_FDCWD, name, unix.AT_SYMLINK_FOLLOW)
	if err != nil {
		return &os.LinkError{Op: "link", Old: f.Name(), New: name, Err: err}
	}
	return nil
}

package maker

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestKilledExport: what a killed process was writing has no name that would stay.
func TestKilledExport(t *testing.T) {
	dir := t.TempDir()
	if fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600); errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EISDIR) {
		t.Skip("the file system has no nameless files")
	} else if err == nil {
		_ = unix.Close(fd)
	}
	o, err := newOutFile(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer o.discard()
	if left := must(os.ReadDir(dir)); len(left) != 0 {
		t.Errorf("%v would be left", left)
	}
}

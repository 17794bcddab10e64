package initd

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// rootSerial is the serial number of the disk with the guest's root.
const rootSerial = "root"

// checkRoot refuses a root that is not on the disk with the serial "root": the
// host attaches images beside it, and the order of disks must not decide whose
// init runs. sys is where sysfs is mounted.
func checkRoot(root, sys string) error {
	var st unix.Stat_t
	if err := unix.Stat(root, &st); err != nil {
		return &os.PathError{Op: "stat", Path: root, Err: err}
	}
	dev := fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev))
	serial, err := os.ReadFile(filepath.Join(sys, "dev/block", dev, "serial"))
	if err != nil {
		return fmt.Errorf("the root file system (device %s) is on no disk with a serial number: %w", dev, err)
	}
	if got := trimSerial(serial); got != rootSerial {
		return fmt.Errorf("the root file system is on the disk %.32q, want %q: the disks are in the wrong order", got, rootSerial)
	}
	return nil
}

// trimSerial is a disk's serial number out of what sysfs shows of it.
func trimSerial(b []byte) string { return strings.Trim(string(b), " \n\x00") }

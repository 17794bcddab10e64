//go:build linux

// Command guest is the conformance suite's guest: PID 1 of a machine with nothing
// else in it. It serves vmtest.ServeGuest on virtio sockets.
package main

import (
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/mdlayher/vsock"
	"github.com/pybox/pybox/vm/vmtest"
	"golang.org/x/sys/unix"
)

func main() {
	// devtmpfs is there already: the kernel mounts it (CONFIG_DEVTMPFS_MOUNT).
	fmt.Println(vmtest.Banner)
	err := vmtest.ServeGuest(guest{})
	fmt.Println("vmtest: guest failed:", err)
	reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

type guest struct{}

func (guest) Listen(port uint32) (net.Listener, error) { return vsock.Listen(port, nil) }

func (guest) Do(word string) error {
	switch word {
	case "poweroff":
		return reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	case "reboot":
		return reboot(unix.LINUX_REBOOT_CMD_RESTART)
	case "panic":
		os.Exit(3) // the end of PID 1 is a kernel panic
	case "flood":
		_, err := fmt.Print(strings.Repeat(strings.Repeat("x", 62)+"\n", (128<<10)/63+1))
		return err
	}
	return fmt.Errorf("unknown word %q", word)
}

func reboot(how int) error { return unix.Reboot(how) }

//go:build linux

// Command guest is the conformance suite's guest: PID 1 of a machine with nothing
// else in it. It serves vmtest.ServeGuest on virtio sockets.
package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/mdlayher/vsock"
	"github.com/pybox/pybox/vm/vmtest"
	"golang.org/x/sys/unix"
)

func main() {
	mountDev()
	fmt.Println(vmtest.Banner)
	go echoSerial()
	err := vmtest.ServeGuest(guest{})
	fmt.Println("vmtest: guest failed:", err)
	reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

// mountDev makes the device nodes, which the kernel has done already
// (CONFIG_DEVTMPFS_MOUNT) unless an initial RAM file system came first.
func mountDev() {
	if _, err := os.Lstat("/dev/null"); err == nil {
		return
	}
	if err := unix.Mount("devtmpfs", "/dev", "devtmpfs", 0, ""); err != nil {
		fmt.Println("vmtest: /dev:", err)
	}
}

// echoSerial sends back what comes in on a virtio-serial port, where a benchmark
// adds one to compare sockets with.
func echoSerial() {
	ports, _ := filepath.Glob("/dev/vport*")
	if len(ports) == 0 {
		return
	}
	f, err := os.OpenFile(ports[0], os.O_RDWR, 0)
	if err != nil {
		fmt.Println("vmtest: serial:", err)
		return
	}
	for buf := make([]byte, 4096); ; {
		n, err := f.Read(buf) // 0 bytes: nobody at the host's end
		if err != nil && err != io.EOF {
			fmt.Println("vmtest: serial:", err)
			return
		}
		f.Write(buf[:n])
	}
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

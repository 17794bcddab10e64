//go:build linux

package main

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

func socketChecks() []check {
	return []check{
		{"unix sockets", unixPair},
		{"vsock listens", vsockListen},
		{"vsock address of this machine", vsockCID},
		{"vsock has no local loopback", vsockLoopback},
	}
}

func unixPair() error {
	for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_DGRAM, unix.SOCK_SEQPACKET} {
		fds, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("type %d: %w", kind, err)
		}
		unix.Close(fds[0])
		unix.Close(fds[1])
	}
	return nil
}

func vsockListen() error {
	fd, err := unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrVM{CID: unix.VMADDR_CID_ANY, Port: 1024}); err != nil {
		return err
	}
	return unix.Listen(fd, 1)
}

// vsockCID is the device's answer: a number that the VMM gave, from 3 on.
func vsockCID() error {
	f, err := os.Open("/dev/vsock")
	if err != nil {
		return err
	}
	defer f.Close()
	var cid uint32
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, f.Fd(), unix.IOCTL_VM_SOCKETS_GET_LOCAL_CID, uintptr(unsafe.Pointer(&cid))); e != 0 {
		return e
	}
	if cid < 3 || cid == unix.VMADDR_CID_ANY {
		return fmt.Errorf("it is %d: there is no vsock device", cid)
	}
	return nil
}

// vsockLoopback: a box that got at vsock could else reach the agent as if from
// inside (VMADDR_CID_LOCAL).
func vsockLoopback() error {
	fd, err := unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Connect(fd, &unix.SockaddrVM{CID: unix.VMADDR_CID_LOCAL, Port: 1024}); err == nil {
		return fmt.Errorf("a connection to the local address works")
	}
	return nil
}

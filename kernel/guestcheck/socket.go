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
	fd, err := listenVsock()
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// checkPort is where the checks listen.
const checkPort = 1024

func listenVsock() (fd int, err error) {
	if fd, err = unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
		return -1, err
	}
	err = unix.Bind(fd, &unix.SockaddrVM{CID: unix.VMADDR_CID_ANY, Port: checkPort})
	if err == nil {
		err = unix.Listen(fd, 1)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// vsockCID is the device's answer: a number that the VMM gave, from 3 on.
func vsockCID() error {
	cid, err := localCID()
	if err != nil {
		return err
	}
	if cid < 3 || cid == unix.VMADDR_CID_ANY {
		return fmt.Errorf("it is %d: there is no vsock device", cid)
	}
	return nil
}

func localCID() (uint32, error) {
	f, err := os.Open("/dev/vsock")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var cid uint32
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, f.Fd(), unix.IOCTL_VM_SOCKETS_GET_LOCAL_CID, uintptr(unsafe.Pointer(&cid))); e != 0 {
		return 0, e
	}
	return cid, nil
}

// vsockLoopback: a box that got at vsock could else reach the agent as if from
// inside, by VMADDR_CID_LOCAL or by the machine's own number. Somebody listens
// here, so that what fails is the way there.
func vsockLoopback() error {
	listener, err := listenVsock()
	if err != nil {
		return err
	}
	defer unix.Close(listener)
	own, err := localCID()
	if err != nil {
		return err
	}
	for _, cid := range []uint32{unix.VMADDR_CID_LOCAL, own} {
		if err := wantErr(connectVsock(cid), unix.ECONNRESET, unix.ETIMEDOUT, unix.ENODEV); err != nil {
			return fmt.Errorf("connect to %d: %w", cid, err)
		}
	}
	fd, _, err := unix.Accept4(listener, unix.SOCK_CLOEXEC)
	if err == nil {
		unix.Close(fd)
	}
	return wantErr(err, unix.EAGAIN)
}

// connectVsock waits at most as long as the kernel's default, two seconds.
func connectVsock(cid uint32) error {
	fd, err := unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Connect(fd, &unix.SockaddrVM{CID: cid, Port: checkPort})
}

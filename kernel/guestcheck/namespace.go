//go:build linux

package main

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

func namespaceChecks() []check {
	return []check{
		{"all kinds of namespaces", func() error {
			return presentFiles("/proc/self/ns", "cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts")
		}},
		{"a box's namespaces: processes, mounts, name, loopback", func() error { return inChild(asBox, "box") }},
		{"time namespace", func() error { return inChild(nil, "time-ns") }},
		{"user namespaces are refused to ordinary users", func() error { return inChild(asUser, "new-user") }},
	}
}

// asBox gives a child what a box has: a namespace of each kind, and a root that
// is an ordinary user outside.
func asBox(a *syscall.SysProcAttr) {
	a.Cloneflags = unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWNS |
		unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP
	a.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: 100000, Size: 65536}}
	a.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: 100000, Size: 65536}}
	a.Credential = &syscall.Credential{}
}

func boxChild([]string) error {
	if pid := os.Getpid(); pid != 1 {
		return fmt.Errorf("its process id is %d, want 1", pid)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount proc: %w", err)
	}
	if err := unix.Mount("tmpfs", "/mnt", "tmpfs", 0, "size=1m"); err != nil {
		return fmt.Errorf("mount tmpfs: %w", err)
	}
	if err := wantErr(unix.Mount("/dev/vdb", "/mnt", "erofs", unix.MS_RDONLY, ""), unix.EPERM); err != nil {
		return fmt.Errorf("mount a disk: %w", err)
	}
	if err := unix.Sethostname([]byte("box")); err != nil {
		return fmt.Errorf("set host name: %w", err)
	}
	if err := loopbackUp(); err != nil {
		return err
	}
	return tcpEcho()
}

// loopbackUp switches on the loopback of a new network namespace.
func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	r, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	r.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, r); err != nil {
		return fmt.Errorf("switch on lo: %w", err)
	}
	return nil
}

func tcpEcho() error {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer l.Close()
	c, err := net.DialTimeout("tcp4", l.Addr().String(), childTime)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(childTime)); err != nil {
		return err
	}
	s, err := l.Accept()
	if err != nil {
		return err
	}
	defer s.Close()
	if _, err := fmt.Fprintln(s, "hello"); err != nil {
		return err
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil || line != "hello\n" {
		return fmt.Errorf("loopback brought %q: %w", line, err)
	}
	return nil
}

func timeNamespaceChild([]string) error { return unix.Unshare(unix.CLONE_NEWTIME) }

// newUserChild, an ordinary user, must not start a process in a new user
// namespace.
func newUserChild([]string) error {
	err := inChild(func(a *syscall.SysProcAttr) { a.Cloneflags = unix.CLONE_NEWUSER }, "burn", "0")
	return wantErr(err, unix.EPERM)
}

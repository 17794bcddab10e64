//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Serial numbers of the disks: doc.go.
const (
	rootSerial  = "root"
	imageSerial = "img-0123456789abcdef"
	helloText   = "hello from the image"
)

func fileSystemChecks() []check {
	return []check{
		{"root is the first disk, erofs and read-only", rootDisk},
		{"a disk is found by its serial number", func() error { _, err := imageDisk(); return err }},
		{"erofs mounts from a disk", erofsDisk},
		{"a disk cannot be written", diskReadOnly},
		{"a mounted disk cannot be opened for writing", mountedDiskClosed},
		{"overlay over erofs copies up into tmpfs", overlay},
		{"tmpfs holds extended attributes", tmpfsXattr},
		{"tmpfs keeps its size", tmpfsSize},
		{"device nodes of devtmpfs are not executable", devtmpfsSafe},
		{"memfd and its seals", memfd},
	}
}

func rootDisk() error {
	if err := wantFile("/sys/block/vda/serial", rootSerial); err != nil {
		return err
	}
	mounts, err := read("/proc/self/mounts")
	if err != nil {
		return err
	}
	first, _, _ := strings.Cut(mounts, "\n")
	f := strings.Fields(first)
	if len(f) < 4 || f[1] != "/" || f[2] != "erofs" || !strings.HasPrefix(f[3]+",", "ro,") {
		return fmt.Errorf("the first mount is %q", first)
	}
	return wantErr(os.WriteFile("/written", nil, 0o600), unix.EROFS)
}

// imageDisk finds the second disk as the agent finds images.
func imageDisk() (string, error) {
	serials, err := filepath.Glob("/sys/block/vd*/serial")
	if err != nil {
		return "", err
	}
	for _, f := range serials {
		if readOr(f) == imageSerial {
			return "/dev/" + filepath.Base(filepath.Dir(f)), nil
		}
	}
	return "", fmt.Errorf("no disk has the serial %s (%d disks)", imageSerial, len(serials))
}

// mounted mounts something on a new folder, calls fn with it and unmounts it.
func mounted(source, fs string, flags uintptr, data string, fn func(dir string) error) error {
	dir, err := os.MkdirTemp("/tmp", "mnt-")
	if err != nil {
		return err
	}
	if err := unix.Mount(source, dir, fs, flags, data); err != nil {
		return fmt.Errorf("mount %s: %w", fs, err)
	}
	return errors.Join(fn(dir), unix.Unmount(dir, 0), os.Remove(dir))
}

func hasHello(dir string) error { return wantFile(dir+"/hello", helloText) }

func erofsDisk() error {
	disk, err := imageDisk()
	if err != nil {
		return err
	}
	return mounted(disk, "erofs", unix.MS_RDONLY, "", hasHello)
}

func diskReadOnly() error {
	disk, err := imageDisk()
	if err != nil {
		return err
	}
	f, err := os.OpenFile(disk, os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteAt(make([]byte, 4096), 0)
		f.Close()
	}
	return wantErr(err, unix.EPERM, unix.EACCES, unix.EROFS)
}

// mountedDiskClosed is about BLK_DEV_WRITE_MOUNTED: who can write below a mounted
// file system can attack the kernel through it. The same open works before.
func mountedDiskClosed() error {
	disk, err := imageDisk()
	if err != nil {
		return err
	}
	open := func() error {
		f, err := os.OpenFile(disk, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		return f.Close()
	}
	if err := open(); err != nil {
		return fmt.Errorf("before it is mounted: %w", err)
	}
	return mounted(disk, "erofs", unix.MS_RDONLY, "", func(string) error {
		return wantErr(open(), unix.EBUSY)
	})
}

func overlay() error {
	disk, err := imageDisk()
	if err != nil {
		return err
	}
	upper, work := "/tmp/upper", "/tmp/work"
	if err := errors.Join(os.MkdirAll(upper, 0o755), os.MkdirAll(work, 0o755)); err != nil {
		return err
	}
	defer os.RemoveAll(upper)
	defer os.RemoveAll(work)
	return mounted(disk, "erofs", unix.MS_RDONLY, "", func(lower string) error {
		data := "lowerdir=" + lower + ",upperdir=" + upper + ",workdir=" + work
		return mounted("overlay", "overlay", 0, data, func(dir string) error {
			f, err := os.OpenFile(dir+"/hello", os.O_APPEND|os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			_, err = f.WriteString("!")
			if err := errors.Join(err, f.Close()); err != nil {
				return err
			}
			return errors.Join(wantFile(upper+"/hello", helloText+"\n!"), hasHello(lower))
		})
	})
}

func tmpfsXattr() error {
	f, err := os.CreateTemp("/tmp", "")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	return unix.Fsetxattr(int(f.Fd()), "trusted.overlay.test", []byte("y"), 0)
}

func tmpfsSize() error {
	return mounted("tmpfs", "tmpfs", 0, "size=1m", func(dir string) error {
		return wantErr(os.WriteFile(dir+"/big", make([]byte, 2<<20), 0o600), unix.ENOSPC)
	})
}

func devtmpfsSafe() error {
	mounts, err := read("/proc/self/mounts")
	if err != nil {
		return err
	}
	for line := range strings.Lines(mounts) {
		f := strings.Fields(line)
		if len(f) >= 4 && f[1] == "/dev" && f[2] == "devtmpfs" {
			if !strings.Contains(f[3], "noexec") || !strings.Contains(f[3], "nosuid") {
				return fmt.Errorf("/dev is mounted %s", f[3])
			}
			return nil
		}
	}
	return errors.New("there is no devtmpfs on /dev")
}

func memfd() error {
	fd, err := unix.MemfdCreate("check", unix.MFD_ALLOW_SEALING|unix.MFD_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_WRITE); err != nil {
		return err
	}
	_, err = unix.Write(fd, []byte("x"))
	return wantErr(err, unix.EPERM)
}

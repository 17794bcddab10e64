package spool

import "golang.org/x/sys/unix"

// mountSmall puts a file system of 1 MiB at dir.
func mountSmall(dir string) error {
	return unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m,mode=0700")
}

func unmount(dir string) error { return unix.Unmount(dir, 0) }

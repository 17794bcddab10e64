package oci

import (
	"strconv"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// Sizes of the file systems that a box has besides its work folder. All are
// memory and count against Limits.MemoryBytes, with their inodes.
const (
	// DevBytes bounds /dev, in which only the runtime can write.
	DevBytes = 64 << 10
	// ShmBytes and ShmFiles bound /dev/shm, where POSIX shared memory and
	// semaphores live: without it multiprocessing.Lock() fails.
	ShmBytes, ShmFiles = 64 << 20, 1024
	// TmpBytes and TmpFiles bound /tmp.
	TmpBytes, TmpFiles = 64 << 20, 16384
)

// Mount is one file system of a box. Of its flags, those not named are off.
type Mount struct {
	// Target is where it is in the box; Type its file system. The work folder's
	// is the guest's tmpfs, bound in.
	Target, Type string
	// ReadOnly to NoExec are the flags of mount(8).
	ReadOnly, NoSuid, NoDev, NoExec bool
	// Bytes and Files are the limits of a tmpfs: size= and nr_inodes= of
	// tmpfs(5); 0 where it has no such option.
	Bytes, Files int64
	// Mode is the mode of a tmpfs's root.
	Mode uint32
}

// Mounts returns what a box with these limits has mounted besides its root, its
// Devices, MaskedPaths and ReadonlyPaths, in the order of mounting.
//
// There is no /sys (nothing needs it, and much of the kernel shows there), no
// /dev/pts (a box has no terminal) and no /dev/mqueue.
func Mounts(l Limits) []Mount {
	return []Mount{
		{Target: "/proc", Type: "proc", NoSuid: true, NoDev: true, NoExec: true},
		{Target: "/dev", Type: "tmpfs", NoSuid: true, NoExec: true, Bytes: DevBytes, Mode: 0o755},
		{Target: "/dev/shm", Type: "tmpfs", NoSuid: true, NoDev: true, NoExec: true, Bytes: ShmBytes, Files: ShmFiles, Mode: 0o1777},
		{Target: "/tmp", Type: "tmpfs", NoSuid: true, NoDev: true, NoExec: true, Bytes: TmpBytes, Files: TmpFiles, Mode: 0o1777},
		{Target: WorkDir, Type: "tmpfs", NoSuid: true, NoDev: true, NoExec: true, Bytes: l.WorkBytes, Files: l.WorkFiles},
	}
}

// Devices returns the device files of every box. The runtime makes them without
// being asked (default devices of the specification) by binding the guest's, each
// a mount of its own. /dev/tty leads nowhere: no process of a box has a terminal.
func Devices() []string {
	return []string{"/dev/null", "/dev/zero", "/dev/full", "/dev/tty", "/dev/random", "/dev/urandom"}
}

// specMounts are Mounts in the specification's words.
func specMounts(c Config) []specs.Mount {
	var out []specs.Mount
	for _, m := range Mounts(c.Limits) {
		s := specs.Mount{Destination: m.Target, Type: m.Type, Source: m.Type, Options: m.options()}
		if m.Target == WorkDir {
			s.Type, s.Source = "bind", c.Work
		}
		out = append(out, s)
	}
	return out
}

func (m Mount) options() []string {
	var out []string
	add := func(on bool, option string) {
		if on {
			out = append(out, option)
		}
	}
	add(m.Target == WorkDir, "bind")
	add(true, map[bool]string{true: "ro", false: "rw"}[m.ReadOnly])
	add(m.NoSuid, "nosuid")
	add(m.NoDev, "nodev")
	add(m.NoExec, "noexec")
	if m.Target == WorkDir {
		return out // its size was set when the agent mounted it
	}
	add(m.Mode != 0, "mode="+strconv.FormatUint(uint64(m.Mode), 8))
	add(m.Bytes != 0, "size="+strconv.FormatInt(m.Bytes, 10))
	add(m.Files != 0, "nr_inodes="+strconv.FormatInt(m.Files, 10))
	return out
}

// Package oci says what a box is: Config is the whole policy of one box as plain
// data, Spec the OCI runtime specification made from it, Seccomp the system call
// filter. It does no I/O, so a box can be looked at, compared and tested on any
// system; making one is package engine's, comparing a made one with its Config
// package readback's.
package oci

import (
	"math"
	"time"
)

// Where things are in a box and in the guest.
const (
	// WorkDir is the program's working folder in every box.
	WorkDir = "/box"
	// HostName is every box's.
	HostName = "box"
	// UID and GID are the program's, inside its user namespace.
	UID, GID = 1000, 1000
	// FirstID is the first user id of slot 0, IDRange how many each slot has:
	// user_namespaces(7).
	FirstID, IDRange = 100000, 65536
	// MaxSlots bounds the boxes alive at a time.
	MaxSlots = 64
	// CgroupParent is the parent of every box's cgroup, below the cgroup root.
	CgroupParent = "/pybox/boxes"
)

// CPUPeriod is the period of cpu.max. A long one costs a small box less
// switching than the kernel's default of 100 ms.
const CPUPeriod = time.Second

// Limits are what a box may use at most.
type Limits struct {
	// MemoryBytes is memory.max; there is no swap.
	MemoryBytes int64
	// PIDs is pids.max: processes and threads, box set-up included.
	PIDs int64
	// MilliCPU is the CPU time per second of real time, in thousandths of one
	// CPU; cpu.max follows from it.
	MilliCPU int64
	// WorkBytes and WorkFiles bound the tmpfs at WorkDir, in bytes and inodes.
	// What lies there counts against MemoryBytes too.
	WorkBytes, WorkFiles int64
}

// CPUQuota is the quota of cpu.max within one CPUPeriod, rounded up to a
// microsecond.
func (l Limits) CPUQuota() time.Duration {
	return time.Duration(l.MilliCPU) * CPUPeriod / 1000
}

// Threads is what OMP_NUM_THREADS and its like are set to: the CPUs, rounded up,
// at least 1.
func (l Limits) Threads() int {
	return max(1, int(math.Ceil(float64(l.MilliCPU)/1000)))
}

// Config is one box.
type Config struct {
	// ID names the box, its container and its cgroup: 1 to 40 of [a-z0-9-], or two such
	// names with a "." between them. No run has an id of the second kind.
	ID string
	// Slot picks the user-id range, from 0 up to MaxSlots-1.
	Slot int
	// ImageRoot is where the image is mounted read-only, in the guest; Work is
	// the tmpfs for WorkDir.
	ImageRoot, Work string
	// Args are the process's arguments, Args[0] the program, and Env its
	// environment, both as the kernel gets them.
	Args, Env []string
	Limits    Limits
}

// HostUID and HostGID are UID and GID as the guest sees them.
func (c Config) HostUID() int { return FirstID + IDRange*c.Slot + UID }

// HostGID is GID as the guest sees it.
func (c Config) HostGID() int { return FirstID + IDRange*c.Slot + GID }

// Cgroup is the path of the box's cgroup below the cgroup root.
func (c Config) Cgroup() string { return CgroupParent + "/" + c.ID }

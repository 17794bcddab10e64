// Package vm is the contract between PyBox and the virtual machine monitors
// (VMMs) that carry its guest. It is plain data and two small interfaces: it
// knows nothing about containers, Python or the agent's protocol, and it uses
// no cgo. Each VMM has a driver of its own in a folder below; all of them pass
// the conformance suite in vm/vmtest.
//
// A machine made here has no network device, no shared folder and no writable
// disk. Its only channel to the host is a virtio socket device (vsock) that the
// host dials; the host listens on no vsock port, so a guest can start nothing.
package vm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"time"
)

// Architectures of a guest, as Go and Debian name them.
const (
	ArchAMD64 = "amd64"
	ArchARM64 = "arm64"
)

// Bounds that Config.Validate holds a configuration to.
const (
	// MinMemoryBytes is what a guest needs to boot and run its agent.
	MinMemoryBytes = 128 << 20
	// MaxCPUs is NR_CPUS of our kernel configuration.
	MaxCPUs = 64
	// MaxDisks keeps every disk on the machine's first PCI bus.
	MaxDisks = 16
	// MaxSerialBytes is VIRTIO_BLK_ID_BYTES (virtio 1.2, 5.2.6).
	MaxSerialBytes = 20
	// MaxKernelArgsBytes is COMMAND_LINE_SIZE of the smallest architecture.
	MaxKernelArgsBytes = 2048
)

// Config describes a machine. It is plain data: a driver turns it into whatever
// its VMM wants, and refuses what it cannot honour rather than approximating.
type Config struct {
	// Name stands in process lists and errors. Letters, digits and "-", at
	// most 64 bytes.
	Name string
	// Arch is the guest's architecture, ArchAMD64 or ArchARM64.
	Arch string
	// CPUs is the number of virtual CPUs, 1 to MaxCPUs.
	CPUs int
	// MemoryBytes is the guest's RAM, at least MinMemoryBytes and a multiple
	// of 1 MiB (Virtualization.framework asks for that granularity).
	MemoryBytes int64
	// Kernel is the path of the kernel to boot directly: a bzImage on amd64,
	// an uncompressed Image on arm64.
	Kernel string
	// KernelArgs is the command line without "console=": the driver adds the
	// console device that it makes.
	KernelArgs []string
	// Initramfs is the path of an initial RAM file system; empty for none.
	Initramfs string
	// Disks are attached read-only, in this order: the first is /dev/vda.
	Disks []Disk
	// Console receives every byte that the guest writes to its console, in
	// order and from one goroutine. The bytes are hostile. A Write that blocks
	// stalls the guest's console; an error ends the copying, not the machine.
	// Nil discards.
	Console io.Writer
}

// Disk is one read-only block device.
type Disk struct {
	// Path is a raw disk image on the host. The driver opens it before Start
	// returns, so a later rename or removal does not matter.
	Path string
	// Serial is the device's serial number as the guest reads it: 1 to
	// MaxSerialBytes bytes of letters, digits and "-", unique in a machine.
	Serial string
}

// Driver starts machines on one kind of VMM. Implementations hold no machine
// state of their own and are safe for concurrent use.
type Driver interface {
	// Name is a short fixed word: "qemu", "vz".
	Name() string
	// Check looks, without changing anything, at what the driver needs from
	// this host. It returns a row for each need, met or not, within ctx.
	Check(ctx context.Context) []Finding
	// Start boots a machine and returns when the VMM has accepted the start;
	// the guest may still be booting. The machine has its disks open then: their
	// files may be removed. ctx bounds the start only: once Start
	// has returned a Machine, that machine lives until its guest powers off,
	// it is stopped, or this process ends. It never outlives this process.
	// On an error nothing is left running.
	Start(ctx context.Context, c Config) (Machine, error)
}

// ArchChecker is an optional ability of a Driver, found by type assertion: Check for
// guests of an architecture (ArchAMD64, ArchARM64) that may not be the host's.
type ArchChecker interface {
	CheckFor(ctx context.Context, arch string) []Finding
}

// Machine is a started guest. All methods are safe for concurrent use, and all
// of them may be called after the machine has ended.
type Machine interface {
	// Dial connects to a vsock port of the guest. ctx always bounds the call;
	// a connection outlives it. While the guest's driver is not up yet, Dial
	// waits for it. It fails with ErrRefused when nobody listens on the port
	// and with ErrEnded when the machine is gone. A protocol on top must not
	// depend on half-close: not every driver has it.
	Dial(ctx context.Context, port uint32) (net.Conn, error)
	// Wait blocks until the machine has ended and all its host resources are
	// free, and says why: nil when the guest powered itself off, otherwise an
	// *EndError. Any number of callers get the same answer.
	Wait() error
	// Stop ends the machine: it asks the guest to go where the VMM can ask, and
	// gives it until ctx ends to go by itself; then it does as Kill. Where the
	// VMM cannot ask (our kernel has no power button), the caller first makes
	// the agent's power-off call. Nil means that the machine is gone.
	Stop(ctx context.Context) error
	// Kill ends the machine at once and waits until it is gone, at most a few
	// seconds. Killing an ended machine is no error.
	Kill() error
}

// Pauser is an optional ability of a Machine, found by type assertion. A paused
// guest executes nothing and its clock may stop with it.
type Pauser interface {
	Pause(ctx context.Context) error
	Resume(ctx context.Context) error
}

// Reporter is an optional ability of a Machine: facts for receipts and status.
type Reporter interface {
	Facts() Facts
}

// Facts are what a driver knows about a machine that it started.
type Facts struct {
	// Driver is the driver's name.
	Driver string `json:"driver"`
	// VMM names the monitor and its version, such as "QEMU 7.2.22".
	VMM string `json:"vmm"`
	// Acceleration is what executes guest code: "kvm", "tcg", "hvf", "vz".
	Acceleration string `json:"acceleration"`
	// AccelerationReason says how that was decided, in a few words.
	AccelerationReason string `json:"acceleration_reason,omitempty"`
	// PID is the VMM's process, 0 where it has none of its own.
	PID int `json:"pid,omitempty"`
	// Started is when the VMM was asked to start; FirstOutput is when the
	// guest's first console byte reached the host (zero: not yet).
	Started     time.Time `json:"started"`
	FirstOutput time.Time `json:"first_output,omitzero"`
}

// Finding is one row of a driver's Check, as `pybox doctor` shows it.
type Finding struct {
	// ID is stable and machine readable: "qemu.binary", "vz.entitlement".
	ID string `json:"id"`
	// OK tells whether the need is met. Advice is a row that is not met but
	// does not keep a machine from starting.
	OK     bool `json:"ok"`
	Advice bool `json:"advice,omitempty"`
	// Unknown tells that it was not found out before Check's context, or the
	// driver's own patience, ended: the need may be met, and OK and Advice are false.
	Unknown bool `json:"unknown,omitempty"`
	// Observed says what was seen, Fix what to do or run next ("" when OK or
	// Unknown).
	Observed string `json:"observed"`
	Fix      string `json:"fix,omitempty"`
}

// StallMark is in what a Linux kernel writes when a timer that was set on a processor has
// not fired for CONFIG_RCU_CPU_STALL_TIMEOUT (21 s by default), while others go on: see
// Documentation/RCU/stallwarn.rst, "timer wakeup didn't happen". A processor that an
// emulator has lost the timer interrupt of stands still for ever: QEMU 7.2 was seen to do
// that, once.
const StallMark = "Possible timer handling issue on cpu="

// Sentinels, to be tested with errors.Is.
var (
	// ErrConfig marks a configuration that no driver, or not this one, takes.
	ErrConfig = errors.New("invalid machine configuration")
	// ErrHost marks something that this host lacks or refuses; the message
	// says what to do about it.
	ErrHost = errors.New("this host cannot start the machine")
	// ErrEnded is returned by calls on a machine that has ended.
	ErrEnded = errors.New("the machine has ended")
	// ErrRefused: the guest runs but nobody listens on the dialled port.
	ErrRefused = errors.New("connection refused by the guest")

	// ErrGuestReset: the guest rebooted or its kernel panicked.
	ErrGuestReset = errors.New("the guest reset itself (a kernel panic or a reboot)")
	// ErrKilled: this process killed the machine through Kill or Stop.
	ErrKilled = errors.New("the machine was killed by its owner")
	// ErrVMM: the VMM failed or was killed from outside.
	ErrVMM = errors.New("the virtual machine monitor ended unexpectedly")
)

// EndError tells why a machine ended other than by powering off. It matches
// one of ErrGuestReset, ErrKilled and ErrVMM.
type EndError struct {
	// Cause is one of the three sentinels.
	Cause error
	// Detail is what the VMM said or how its process ended; may be empty.
	Detail string
}

// Error implements error.
func (e *EndError) Error() string {
	if e.Detail == "" {
		return e.Cause.Error()
	}
	return e.Cause.Error() + ": " + e.Detail
}

// Unwrap makes errors.Is find the cause.
func (e *EndError) Unwrap() error { return e.Cause }

// Validate reports the first thing in c that no driver accepts, as an error
// that matches ErrConfig. It does not touch the file system.
func (c Config) Validate() error {
	bad := func(format string, a ...any) error {
		return fmt.Errorf("%w: %s", ErrConfig, fmt.Sprintf(format, a...))
	}
	switch {
	case !isWord(c.Name, 64):
		return bad("name %q: want 1 to 64 letters, digits or -", c.Name)
	case c.Arch != ArchAMD64 && c.Arch != ArchARM64:
		return bad("architecture %q: want %s or %s", c.Arch, ArchAMD64, ArchARM64)
	case c.CPUs < 1 || c.CPUs > MaxCPUs:
		return bad("%d CPUs: want 1 to %d", c.CPUs, MaxCPUs)
	case c.MemoryBytes < MinMemoryBytes:
		return bad("%d bytes of memory: want at least %d MiB", c.MemoryBytes, MinMemoryBytes>>20)
	case c.MemoryBytes%(1<<20) != 0:
		return bad("%d bytes of memory: want a multiple of 1 MiB", c.MemoryBytes)
	case c.Kernel == "":
		return bad("no kernel")
	case len(c.Disks) > MaxDisks:
		return bad("%d disks: want at most %d", len(c.Disks), MaxDisks)
	}
	args := 0
	for _, a := range c.KernelArgs {
		args += len(a) + 1
		if !isPrintable(a) {
			return bad("kernel argument %q: want printable ASCII without spaces", a)
		}
	}
	if args > MaxKernelArgsBytes-64 { // the driver's console= needs room too
		return bad("kernel command line of %d bytes: want at most %d", args, MaxKernelArgsBytes-64)
	}
	seen := map[string]bool{}
	for i, d := range c.Disks {
		switch {
		case d.Path == "":
			return bad("disk %d has no path", i)
		case !isWord(d.Serial, MaxSerialBytes):
			return bad("disk serial %q: want 1 to %d letters, digits or -", d.Serial, MaxSerialBytes)
		case seen[d.Serial]:
			return bad("two disks have the serial %q", d.Serial)
		}
		seen[d.Serial] = true
	}
	return nil
}

// HostArch is the architecture of this host in the terms of Config.Arch.
func HostArch() string { return runtime.GOARCH }

func isWord(s string, max int) bool {
	if s == "" || len(s) > max {
		return false
	}
	for i := range len(s) {
		b := s[i]
		if !(b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || b == '-') {
			return false
		}
	}
	return true
}

func isPrintable(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return s != ""
}

package vzcore

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/pybox/pybox/vm"
)

// DeviceKind is a kind of virtio device.
type DeviceKind string

// The devices that a machine may have. There is no network card, no shared folder
// and no display among them: a realisation that knows only these can make none.
const (
	DeviceSerial  DeviceKind = "serial"  // virtio console with one port: hvc0
	DeviceEntropy DeviceKind = "entropy" // virtio-rng
	DeviceBalloon DeviceKind = "balloon" // virtio traditional memory balloon
	DeviceSocket  DeviceKind = "socket"  // virtio socket device
	DeviceDisk    DeviceKind = "disk"    // virtio-blk, read-only
)

// Device is one device of a machine.
type Device struct {
	Kind DeviceKind
	// Path and Identifier are of a DeviceDisk: an absolute path, and 1 to
	// vm.MaxSerialBytes bytes of ASCII (blockDeviceIdentifier, macOS 12.3).
	Path, Identifier string
}

// Spec is a machine in the framework's terms, complete: a realisation adds
// nothing to it.
type Spec struct {
	CPUs        uint
	MemoryBytes uint64 // a multiple of 1 MiB
	// Kernel and Initramfs are absolute paths; no Initramfs when empty.
	Kernel, Initramfs string
	CommandLine       string
	// Devices are in the order in which the guest finds those of one kind: the
	// first disk is /dev/vda.
	Devices []Device
}

// console is the serial port as Linux names it.
const console = "hvc0"

// sectorBytes is the unit of virtio-blk (virtio 1.2, 5.2.5). The framework refuses
// an image that is no multiple of it as "format is not recognized".
const sectorBytes = 512

// newSpec turns a valid c into the framework's terms, or says what about it the
// framework would not take, as vm.ErrConfig.
func newSpec(c vm.Config, l Limits) (Spec, error) {
	s := Spec{
		CPUs: uint(c.CPUs), MemoryBytes: uint64(c.MemoryBytes),
		CommandLine: strings.Join(append([]string{"console=" + console}, c.KernelArgs...), " "),
		Devices: []Device{
			{Kind: DeviceSerial}, {Kind: DeviceEntropy}, {Kind: DeviceBalloon}, {Kind: DeviceSocket},
		},
	}
	if err := checkLimits(s, l); err != nil {
		return Spec{}, err
	}
	var err error
	if s.Kernel, _, err = openable(c.Kernel); err != nil {
		return Spec{}, err
	}
	if c.Initramfs != "" {
		if s.Initramfs, _, err = openable(c.Initramfs); err != nil {
			return Spec{}, err
		}
	}
	for _, d := range c.Disks {
		path, size, err := openable(d.Path)
		if err != nil {
			return Spec{}, err
		}
		if size == 0 || size%sectorBytes != 0 {
			return Spec{}, fmt.Errorf("%w: the disk image %s has %d bytes: want a multiple of %d (build the image again)",
				vm.ErrConfig, path, size, sectorBytes)
		}
		s.Devices = append(s.Devices, Device{Kind: DeviceDisk, Path: path, Identifier: d.Serial})
	}
	return s, nil
}

func checkLimits(s Spec, l Limits) error {
	if s.CPUs < l.MinCPUs || s.CPUs > l.MaxCPUs {
		return fmt.Errorf("%w: %d CPUs: Virtualization.framework takes %d to %d on this Mac (set cpus in [vm] of config.toml)",
			vm.ErrConfig, s.CPUs, l.MinCPUs, l.MaxCPUs)
	}
	if s.MemoryBytes < l.MinMemoryBytes || s.MemoryBytes > l.MaxMemoryBytes {
		return fmt.Errorf("%w: %d MiB of memory: Virtualization.framework takes %d to %d MiB on this Mac (set memory in [vm] of config.toml)",
			vm.ErrConfig, s.MemoryBytes>>20, (l.MinMemoryBytes+1<<20-1)>>20, l.MaxMemoryBytes>>20)
	}
	return nil
}

// openable returns the absolute path and the size of a regular file that this
// process may read. The framework takes paths and opens them later; a path that is
// no UTF-8 makes it throw an exception, which would end this process.
func openable(path string) (abs string, size int64, err error) {
	bad := func(err error) (string, int64, error) {
		return "", 0, fmt.Errorf("%w: %w", vm.ErrConfig, err)
	}
	if abs, err = filepath.Abs(path); err != nil {
		return bad(err)
	}
	if !utf8.ValidString(abs) || strings.ContainsRune(abs, 0) {
		return bad(fmt.Errorf("the path %q is not valid UTF-8, which macOS asks of a path", abs))
	}
	st, err := os.Stat(abs)
	if err != nil {
		return bad(err)
	}
	if !st.Mode().IsRegular() { // and is not opened: a FIFO would hang us
		return bad(fmt.Errorf("%s is not a regular file", abs))
	}
	f, err := os.Open(abs)
	if err != nil {
		return bad(err)
	}
	return abs, st.Size(), f.Close()
}

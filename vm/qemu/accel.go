//go:build linux

package qemu

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"github.com/google/renameio/v2"
	"github.com/pybox/pybox/vm"
	"golang.org/x/sys/unix"
)

// Values of Options.Accel and of Facts.Acceleration.
const (
	AccelAuto = "auto"
	accelKVM  = "kvm"
	accelTCG  = "tcg"
)

// choice is a decision between KVM and emulation, and why.
type choice struct {
	accel  string
	reason string
	// probe: nobody knows yet whether KVM can run a kernel here. A device that
	// opens and creates machines may still be unable to (nested and
	// paravirtual hosts), so the first boot with it is the test.
	probe bool
}

// decide chooses without starting anything.
func (d *driver) decide(arch, binary string) (choice, error) {
	switch d.o.Accel {
	case accelTCG:
		return choice{accel: accelTCG, reason: "asked for"}, nil
	case accelKVM:
		if why := d.kvmUnusable(arch); why != "" {
			return choice{}, fmt.Errorf("%w: acceleration \"kvm\" was asked for, but %s", vm.ErrHost, why)
		}
		return choice{accel: accelKVM, reason: "asked for"}, nil
	}
	if why := d.kvmUnusable(arch); why != "" {
		return choice{accel: accelTCG, reason: why}, nil
	}
	if c, ok := d.recall(binary); ok {
		return c, nil
	}
	return choice{accel: accelKVM, reason: "probed: the guest spoke", probe: true}, nil
}

// kvmUnusable says why KVM cannot even be tried, "" when it can.
func (d *driver) kvmUnusable(arch string) string {
	if arch != vm.HostArch() {
		return fmt.Sprintf("the guest is %s and this host is %s", arch, vm.HostArch())
	}
	err := unix.Access(d.o.KVMDevice, unix.R_OK|unix.W_OK)
	switch {
	case err == nil && dropsPrivileges() && !openToGroup(d.o.KVMDevice):
		return fmt.Sprintf("only root may open %s, and QEMU does not run as root ('chgrp kvm %s && chmod 660 %s' gives it to a group that QEMU then joins)",
			d.o.KVMDevice, d.o.KVMDevice, d.o.KVMDevice)
	case err == nil:
		return ""
	case errors.Is(err, fs.ErrNotExist):
		return "this host has no " + d.o.KVMDevice
	case errors.Is(err, fs.ErrPermission):
		return fmt.Sprintf("this user may not open %s (joining the group kvm allows it)", d.o.KVMDevice)
	}
	return fmt.Sprintf("%s cannot be opened: %v", d.o.KVMDevice, err)
}

// openToGroup tells whether a device node can be opened by everybody, or by a group
// other than root's, which the unprivileged QEMU then gets.
func openToGroup(path string) bool {
	st, err := os.Stat(path)
	if err != nil {
		return false
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	perm := st.Mode().Perm()
	return perm&0o006 == 0o006 || ok && sys.Gid != 0 && perm&0o060 == 0o060
}

// memory is the file that remembers a probe's answer. A new boot of the host or
// another QEMU asks again.
type memory struct {
	HostBootID string `json:"host_boot_id"`
	Binary     string `json:"binary"` // path, size and time of change
	Accel      string `json:"accel"`
	Reason     string `json:"reason"`
}

// maxMemory bounds the file: it holds four short strings.
const maxMemory = 4 << 10

func (d *driver) recall(binary string) (choice, bool) {
	if d.o.AccelMemory == "" {
		return choice{}, false
	}
	data, err := readBounded(d.o.AccelMemory, maxMemory)
	if err != nil {
		return choice{}, false // missing or unreadable: probing again is always right
	}
	var m memory
	if json.Unmarshal(data, &m) != nil || m != (memory{hostBootID(), fingerprint(binary), m.Accel, m.Reason}) {
		return choice{}, false
	}
	if m.Accel != accelKVM && m.Accel != accelTCG {
		return choice{}, false
	}
	return choice{accel: m.Accel, reason: m.Reason + " (remembered for this boot of the host)"}, true
}

func (d *driver) remember(binary string, c choice) {
	if d.o.AccelMemory == "" {
		return
	}
	data, err := json.Marshal(memory{hostBootID(), fingerprint(binary), c.accel, c.reason})
	if err == nil {
		err = renameio.WriteFile(d.o.AccelMemory, data, 0o600)
	}
	if err != nil { // costs the next start its probe, no more
		d.log.Warn("could not remember the acceleration", "file", d.o.AccelMemory, "error", err)
	}
}

func hostBootID() string {
	b, err := readBounded("/proc/sys/kernel/random/boot_id", 64)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

func fingerprint(binary string) string {
	st, err := os.Stat(binary)
	if err != nil {
		return binary
	}
	return fmt.Sprintf("%s %d %d", binary, st.Size(), st.ModTime().UnixNano())
}

//go:build linux

package qemu

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/pybox/pybox/vm"
)

const (
	// checkWait bounds each question that a check asks QEMU, unless the context
	// ends before.
	checkWait = 10 * time.Second
	// checkGrace is how long a process that was killed may hold its output open.
	checkGrace = 100 * time.Millisecond
)

// Check implements vm.Driver for guests of the host's architecture.
func (d *driver) Check(ctx context.Context) []vm.Finding { return d.CheckFor(ctx, vm.HostArch()) }

// CheckFor implements vm.ArchChecker.
func (d *driver) CheckFor(ctx context.Context, arch string) []vm.Finding {
	kvm := d.checkKVM(arch)
	binary, err := d.binary(arch)
	if err != nil {
		return []vm.Finding{{ID: "qemu.binary", Observed: d.missing(arch), Fix: d.fixBinary(arch)}, kvm}
	}
	var version, vsock vm.Finding
	var both sync.WaitGroup
	both.Go(func() { version = d.checkBinary(ctx, binary, arch) })
	both.Go(func() { vsock = d.checkVsock(ctx, binary, arch) })
	both.Wait()
	return []vm.Finding{version, vsock, kvm, d.checkAcceleration(arch, binary)}
}

// missing says which program is not there. The error of a start says what to do too,
// which a finding keeps apart.
func (d *driver) missing(arch string) string {
	if d.o.Binary == "" {
		return "no " + binaryFor(arch) + " in PATH"
	}
	if _, err := exec.LookPath(d.o.Binary); errors.Is(err, fs.ErrPermission) {
		return d.o.Binary + " is no program that may be run"
	}
	return "there is no program " + d.o.Binary
}

// fixBinary says how to get an emulator that works.
func (d *driver) fixBinary(arch string) string {
	if d.o.Binary != "" {
		return "give PYBOX_QEMU the path of a working " + binaryFor(arch) + ", or unset it; " + installHint(arch)
	}
	return installHint(arch)
}

func (d *driver) checkBinary(ctx context.Context, binary, arch string) vm.Finding {
	f := vm.Finding{ID: "qemu.binary"}
	out, err := output(ctx, binary, "--version")
	line, _, _ := strings.Cut(out, "\n")
	switch {
	case errors.Is(err, errSlow):
		f.Unknown, f.Observed = true, fmt.Sprintf("%s has not said its version: %v", binary, err)
	case err != nil:
		f.Observed, f.Fix = fmt.Sprintf("%s does not say its version: %v", binary, err), d.fixBinary(arch)
	default:
		f.OK, f.Observed = true, fmt.Sprintf("%s (%.120s)", binary, strings.TrimSpace(line))
	}
	return f
}

func (d *driver) checkVsock(ctx context.Context, binary, arch string) vm.Finding {
	const device = "vhost-user-vsock-pci"
	f := vm.Finding{ID: "qemu.vsock"}
	out, err := output(ctx, binary, "-M", "none", "-device", "help")
	switch {
	case errors.Is(err, errSlow):
		f.Unknown, f.Observed = true, fmt.Sprintf("%s has not said which devices it has: %v", binary, err)
	case err != nil:
		f.Observed, f.Fix = fmt.Sprintf("%s does not say which devices it has: %v", binary, err), d.fixBinary(arch)
	case !strings.Contains(out, `"`+device+`"`):
		f.Observed, f.Fix = "this QEMU lacks the device "+device, "install a full QEMU 7.2 or newer: "+installHint(arch)
	default:
		f.OK, f.Observed = true, "this QEMU has the device "+device
	}
	return f
}

// checkKVM tells whether KVM can be tried. Where emulation was asked for it does not
// matter, and where KVM was, its lack is more than advice.
func (d *driver) checkKVM(arch string) vm.Finding {
	why := d.kvmUnusable(arch)
	f := vm.Finding{ID: "qemu.kvm", OK: why == "", Observed: d.o.KVMDevice + " can be opened"}
	if f.OK {
		return f
	}
	f.Observed = why
	switch {
	case d.o.Accel == accelTCG:
		f.OK = true
		return f
	case d.o.Accel == accelKVM:
		f.Fix = "PYBOX_ACCEL=auto, or accel = \"auto\" in config.toml, goes on without it; else: "
	default:
		f.Advice = true
		f.Observed += ": emulation is used, 5 to 20 times slower"
	}
	f.Fix += d.fixKVM(arch)
	return f
}

// fixKVM says what could make KVM usable.
func (d *driver) fixKVM(arch string) string {
	if arch != vm.HostArch() {
		return "install a guest bundle for " + vm.HostArch()
	}
	if _, err := os.Stat(d.o.KVMDevice); err == nil {
		return "run 'sudo usermod -aG kvm $USER' and log in again (for root: 'chgrp kvm " + d.o.KVMDevice + "; chmod 660 " + d.o.KVMDevice + "')"
	}
	return "enable virtualization in the firmware, or nested virtualization where this host is a VM itself, then 'modprobe kvm_intel' or 'modprobe kvm_amd'"
}

// checkAcceleration tells what executes, or will execute, the guest's code, and how
// that is known.
func (d *driver) checkAcceleration(arch, binary string) vm.Finding {
	f := vm.Finding{ID: "qemu.acceleration"}
	c, err := d.decide(arch, binary)
	switch {
	case err != nil:
		f.Observed, f.Fix = "\"kvm\" was asked for and cannot be used", "run 'PYBOX_ACCEL=tcg pybox vm start' for emulation"
		return f
	case c.probe:
		f.OK, f.Observed = true, "not probed yet: the first start finds out whether KVM can run a guest here"+d.forgotten()
		return f
	case d.o.Accel != AccelAuto || d.kvmUnusable(arch) != "":
		f.OK, f.Observed = true, accelerationName(c.accel)+": "+c.reason
		return f
	}
	f.Observed = fmt.Sprintf("%s, as probed%s: %s", accelerationName(c.accel), d.probedAt(), strings.TrimPrefix(c.reason, "probed: "))
	if f.OK = c.accel == accelKVM; !f.OK {
		f.Advice = true
		f.Fix = fmt.Sprintf("run 'PYBOX_ACCEL=kvm pybox vm restart' to insist on KVM, or remove %s to have it probed again", d.o.AccelMemory)
	}
	return f
}

func accelerationName(accel string) string {
	if accel == accelTCG {
		return "emulation (TCG)"
	}
	return "KVM"
}

// forgotten says that an earlier answer does not hold, where there is one.
func (d *driver) forgotten() string {
	data, err := readBounded(d.o.AccelMemory, maxMemory)
	var m memory
	switch {
	case err != nil:
		return ""
	case json.Unmarshal(data, &m) != nil:
		return " (acceleration.json cannot be read and will be written anew)"
	case m.HostBootID != hostBootID():
		return " (the last answer is of an earlier boot of this host)"
	}
	return " (the last answer is of another QEMU)"
}

// probedAt says when the remembered answer was written.
func (d *driver) probedAt() string {
	st, err := os.Stat(d.o.AccelMemory)
	if err != nil {
		return ""
	}
	return " at " + st.ModTime().Format(time.DateTime)
}

// errSlow: a question was given up, and would perhaps have had a good answer.
var errSlow = errors.New("it did not end in time")

// output runs a short command and returns at most 1 MiB of what it prints. The error
// matches errSlow when the command was ended for want of time.
func output(ctx context.Context, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, checkWait)
	defer cancel()
	var b limited
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.WaitDelay = &b, checkGrace
	err := cmd.Run()
	if err != nil && ctx.Err() != nil {
		err = errSlow
	}
	return b.b.String(), err
}

// limited keeps the first MiB written to it. The buffer is a field and not
// embedded: io.Copy would find its ReadFrom and go past Write.
type limited struct{ b bytes.Buffer }

func (l *limited) Write(p []byte) (int, error) {
	l.b.Write(p[:min(len(p), max(0, 1<<20-l.b.Len()))])
	return len(p), nil
}

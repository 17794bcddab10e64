//go:build linux

package qemu

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"time"

	"github.com/pybox/pybox/vm"
)

// Options are a driver's settings; the zero value is right for most.
type Options struct {
	// Logger receives what an operator may want to know; nil discards.
	Logger *slog.Logger
	// Binary is the emulator to run; "" looks for the architecture's usual
	// name in PATH.
	Binary string
	// Accel is "auto" (also ""), "kvm" or "tcg". Auto boots with KVM where its
	// device can be opened, and falls back to emulation (TCG) when the guest
	// has not written to its console or brought up its socket device within
	// ProbeTimeout; Start then returns only once that is known.
	Accel string
	// AccelMemory is a file that remembers what auto found, for this boot of
	// the host; "" forgets.
	AccelMemory string
	// ProbeTimeout bounds auto's wait for a guest under KVM; 0 means 5 s, some
	// twenty times what such a guest needs.
	ProbeTimeout time.Duration
	// KVMDevice is the device node, "/dev/kvm" when empty.
	KVMDevice string
	// ExtraArgs are added to QEMU's command line: for benchmarks and tests.
	ExtraArgs []string
	// ExtraFiles are descriptors for ExtraArgs. They follow those of the
	// machine itself: the first is 7 plus the number of disks, plus one with
	// an initramfs.
	ExtraFiles []*os.File
}

type driver struct {
	o   Options
	log *slog.Logger
}

// New returns the QEMU driver.
func New(o Options) vm.Driver {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Accel == "" {
		o.Accel = AccelAuto
	}
	if o.ProbeTimeout == 0 {
		o.ProbeTimeout = 5 * time.Second
	}
	if o.KVMDevice == "" {
		o.KVMDevice = "/dev/kvm"
	}
	return &driver{o: o, log: o.Logger}
}

// Name implements vm.Driver.
func (d *driver) Name() string { return "qemu" }

// Start implements vm.Driver.
func (d *driver) Start(ctx context.Context, c vm.Config) (vm.Machine, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	switch d.o.Accel {
	case AccelAuto, accelKVM, accelTCG:
	default:
		return nil, fmt.Errorf("%w: acceleration %q: want auto, kvm or tcg", vm.ErrConfig, d.o.Accel)
	}
	if err := vm.CheckKernel(c.Kernel, c.Arch); err != nil {
		return nil, err
	}
	binary, err := d.binary(c.Arch)
	if err != nil {
		return nil, err
	}
	choice, err := d.decide(c.Arch, binary)
	if err != nil {
		return nil, err
	}
	start := d.launch
	if choice.probe {
		start = d.startProbing
	}
	m, err := start(ctx, c, binary, choice)
	if err != nil {
		return nil, err // not m: a nil *machine in an interface is not nil
	}
	return m, nil
}

// startProbing boots with KVM; when that guest does not speak it boots another
// with emulation. Either answer is remembered.
func (d *driver) startProbing(ctx context.Context, c vm.Config, binary string, kvm choice) (*machine, error) {
	m, err := d.launch(ctx, c, binary, kvm)
	why := ""
	if err == nil {
		wait, cancel := context.WithTimeout(ctx, d.o.ProbeTimeout)
		err = m.spoken(wait)
		cancel()
		if err == nil {
			d.remember(binary, kvm)
			return m, nil
		}
		why = fmt.Sprintf("probed: a guest under KVM did not speak within %v", d.o.ProbeTimeout)
		died := errors.Is(err, vm.ErrEnded)
		if died { // its reason is a moment away
			settle, cancel := context.WithTimeout(ctx, 2*deviceGrace)
			m.Stop(settle) // kills in the end; an error shows in the next line
			cancel()
		}
		if kerr := m.Kill(); kerr != nil {
			return nil, kerr
		}
		if died {
			why = "probed: a guest under KVM ended at once"
			if end := m.Wait(); end != nil {
				why += ": " + end.Error()
			}
		}
	} else {
		why = "probed: QEMU did not start with KVM: " + err.Error()
	}
	if ctx.Err() != nil { // not KVM's fault
		return nil, fmt.Errorf("starting the machine: %w", context.Cause(ctx))
	}
	tcg := choice{accel: accelTCG, reason: why}
	d.log.Warn("KVM cannot run the guest here: using emulation, which is slow", "reason", why)
	mt, err := d.launch(ctx, c, binary, tcg)
	if err != nil {
		return nil, err
	}
	// A guest that is silent under emulation too says nothing about KVM: only one
	// that speaks is worth remembering.
	go func() {
		if mt.spoken(context.Background()) == nil { // ends with the machine at the latest
			d.remember(binary, tcg)
		}
	}()
	return mt, nil
}

// binary finds the emulator.
func (d *driver) binary(arch string) (string, error) {
	name := d.o.Binary
	if name == "" {
		name = binaryFor(arch)
	}
	p, err := exec.LookPath(name)
	if errors.Is(err, fs.ErrPermission) {
		return "", fmt.Errorf("%w: %s is no program that may be run", vm.ErrHost, name)
	}
	if err != nil {
		return "", fmt.Errorf("%w: %s is not installed; PyBox runs its VM in it: %s", vm.ErrHost, name, installHint(arch))
	}
	return p, nil
}

func installHint(arch string) string {
	deb, rpm := "qemu-system-x86", "qemu-system-x86-core"
	if arch == vm.ArchARM64 {
		deb, rpm = "qemu-system-arm", "qemu-system-aarch64-core"
	}
	return fmt.Sprintf("'apt-get install %s' (Debian, Ubuntu) or 'dnf install %s' (Fedora)", deb, rpm)
}

// errNotStarted wraps what QEMU said when it gave up on its command line.
func errNotStarted(binary, said string, err error) error {
	if said != "" {
		return fmt.Errorf("%w: %s refused to start: %s", vm.ErrHost, binary, said)
	}
	if errors.Is(err, errQMPClosed) {
		return fmt.Errorf("%w: %s ended before it was ready", vm.ErrHost, binary)
	}
	return fmt.Errorf("%w: %s: %w", vm.ErrHost, binary, err)
}

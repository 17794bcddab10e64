package vzcore

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/pybox/pybox/vm"
)

// Name is the driver's name and its word for Facts.Acceleration.
const Name = "vz"

// Options are a driver's settings; the zero value is right.
type Options struct {
	// Logger receives what an operator may want to know; nil discards.
	Logger *slog.Logger
	// Accel is [vm] accel of config.toml: "auto" or "". The framework has no
	// other way to run a guest, so that Start refuses anything else.
	Accel string
}

type driver struct {
	fw  Framework
	o   Options
	log *slog.Logger
	t   timing
}

// timing is how long the driver waits for what the framework need not do.
type timing struct {
	retry    time.Duration // between two connects to a guest that is not up
	patience time.Duration // for one connect to a guest that is not up
	kill     time.Duration // for a stop to be carried out
	drain    time.Duration // for the last of the console
	settle   time.Duration // for what is on its way after a start was given up, or a stop was carried out
}

// defaultTiming: the guest is up some 300 ms after its start, and a stop takes
// milliseconds.
var defaultTiming = timing{
	retry: 10 * time.Millisecond, patience: time.Second, kill: 10 * time.Second, drain: time.Second,
	settle: time.Second,
}

// New returns the driver over a realisation of the framework.
func New(fw Framework, o Options) vm.Driver {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &driver{fw: fw, o: o, log: o.Logger, t: defaultTiming}
}

// Name implements vm.Driver.
func (d *driver) Name() string { return Name }

// Start implements vm.Driver.
func (d *driver) Start(ctx context.Context, c vm.Config) (vm.Machine, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if d.o.Accel != "" && d.o.Accel != "auto" {
		return nil, fmt.Errorf("%w: acceleration %.20q is QEMU's: on macOS leave accel in [vm] of config.toml at \"auto\"", vm.ErrConfig, d.o.Accel)
	}
	if ctx.Err() != nil {
		return nil, startCut(ctx)
	}
	h, err := d.fw.Host()
	if err != nil {
		return nil, fmt.Errorf("%w: asking macOS about this Mac: %w", vm.ErrHost, err)
	}
	if f := hostFault(h); f != nil {
		return nil, f.err()
	}
	if c.Arch != vm.HostArch() {
		return nil, fmt.Errorf("%w: the guest is %s, but Virtualization.framework runs only %s on this Mac: use a bundle built for %s",
			vm.ErrConfig, c.Arch, vm.HostArch(), vm.HostArch())
	}
	if err := vm.CheckKernel(c.Kernel, c.Arch); err != nil {
		return nil, err
	}
	s, err := newSpec(c, d.fw.Limits())
	if err != nil {
		return nil, err
	}
	m, err := d.launch(ctx, c, s, h)
	if err != nil {
		return nil, err // not m: a nil *machine in an interface is not nil
	}
	return m, nil
}

func startCut(ctx context.Context) error {
	return fmt.Errorf("starting the machine: %w", context.Cause(ctx))
}

// launch makes and starts a machine. On an error nothing of it is left, or will be
// once the framework answers: a start that hangs is stopped as soon as it can be, and
// outlasts ctx by timing.settle, so that one that is only slow leaves nothing.
func (d *driver) launch(ctx context.Context, c vm.Config, s Spec, h Host) (*machine, error) {
	con, err := newConsole()
	if err != nil {
		return nil, fmt.Errorf("%w: making the console's pipes: %w", vm.ErrHost, err)
	}
	v, err := d.fw.New(s, con.port)
	if err != nil {
		con.close(0)
		return nil, explain(err, h)
	}
	m := newMachine(v, con, d, h)
	go con.copyTo(c.Console)
	result := make(chan error, 1)
	go func() { result <- v.Start() }()
	select {
	case err = <-result:
		if err == nil {
			go m.watch()
			return m, nil
		}
		m.finish(err)
		return nil, explain(err, h)
	case <-ctx.Done():
	}
	go func() {
		if err := <-result; err != nil {
			m.finish(err)
			return
		}
		go m.watch()
		if err := m.Kill(); err != nil {
			d.log.Error("a machine whose start was given up cannot be stopped", "error", err)
		}
	}()
	select {
	case <-m.gone:
	case <-time.After(d.t.settle):
		d.log.Error("the framework does not answer a start that was given up: its machine is stopped when it does")
	}
	return nil, startCut(ctx)
}

// Check implements vm.Driver.
func (d *driver) Check(ctx context.Context) []vm.Finding {
	h, err := d.fw.Host()
	if err != nil {
		return []vm.Finding{{ID: "vz.macos", Observed: "macOS does not say what it is: " + err.Error(), Fix: "see what 'sw_vers' and 'sysctl kern.hv_support' say"}}
	}
	return []vm.Finding{
		finding("vz.macos", macOSFault(h), "macOS "+h.MacOS),
		finding("vz.translated", translatedFault(h), "built for this Mac's processor ("+vm.HostArch()+")"),
		finding("vz.hardware", hardwareFault(h), "the hardware can run virtual machines"),
		d.checkEntitlement(ctx, h),
	}
}

func finding(id string, f *fault, good string) vm.Finding {
	if f != nil {
		return vm.Finding{ID: id, Observed: f.what, Fix: f.fix}
	}
	return vm.Finding{ID: id, OK: true, Observed: good}
}

// checkEntitlement asks the framework itself, with the smallest machine there is:
// what it would say at a start counts, whatever the signature looks like. Its
// kernel is any file that exists, as validation does not look into it.
func (d *driver) checkEntitlement(ctx context.Context, h Host) vm.Finding {
	const id = "vz.entitlement"
	l := d.fw.Limits()
	s := Spec{
		CPUs: max(1, l.MinCPUs), MemoryBytes: max(vm.MinMemoryBytes, l.MinMemoryBytes), Kernel: h.Executable,
		CommandLine: "console=" + console, Devices: []Device{{Kind: DeviceEntropy}, {Kind: DeviceSocket}},
	}
	if _, err := os.Stat(s.Kernel); err != nil {
		return vm.Finding{ID: id, Observed: "this program's own file cannot be found: " + err.Error(), Fix: "run pybox by its full path"}
	}
	result := make(chan error, 1)
	go func() { result <- d.fw.Validate(s) }()
	select {
	case err := <-result:
		switch {
		case err == nil:
			return vm.Finding{ID: id, OK: true, Observed: "the framework accepts this program (" + Entitlement + ")"}
		case entitlementMissing(err):
			return finding(id, entitlementFault(h), "")
		case unavailable(err):
			return finding(id, hardwareFault(Host{Virtual: h.Virtual}), "")
		}
		return vm.Finding{ID: id, Observed: "the framework refuses the smallest machine: " + err.Error(),
			Fix: "see Console.app for com.apple.Virtualization"}
	case <-ctx.Done():
		return vm.Finding{ID: id, Unknown: true, Observed: "the framework did not answer in time; where it never does, the Mac wants a restart"}
	}
}

//go:build darwin && cgo

package vz

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"sync/atomic"

	"github.com/Code-Hex/vz/v3"
	"github.com/pybox/pybox/vm"
	"github.com/pybox/pybox/vm/vz/vzcore"
	"golang.org/x/sys/unix"
)

// New returns the driver.
func New(o Options) vm.Driver { return vzcore.New(framework{}, o) }

// framework implements vzcore.Framework.
type framework struct{}

// Host implements vzcore.Framework.
func (framework) Host() (vzcore.Host, error) {
	version, err := unix.Sysctl("kern.osproductversion")
	if err != nil {
		return vzcore.Host{}, fmt.Errorf("sysctl kern.osproductversion: %w", err)
	}
	h := vzcore.Host{
		MacOS: version,
		// Where the kernel does not say, the framework will.
		Hypervisor: flag("kern.hv_support", true),
		Virtual:    flag("kern.hv_vmm_present", false),
		// There is no such name on an Intel Mac.
		Translated: flag("sysctl.proc_translated", false),
	}
	h.Executable, err = os.Executable()
	if err != nil {
		return vzcore.Host{}, err
	}
	return h, nil
}

// flag reads a sysctl that is 0 or 1; absent stands for one that cannot be read.
func flag(name string, absent bool) bool {
	v, err := unix.SysctlUint32(name)
	if err != nil {
		return absent
	}
	return v != 0
}

// Limits implements vzcore.Framework.
func (framework) Limits() vzcore.Limits {
	return vzcore.Limits{
		MinCPUs:        vz.VirtualMachineConfigurationMinimumAllowedCPUCount(),
		MaxCPUs:        vz.VirtualMachineConfigurationMaximumAllowedCPUCount(),
		MinMemoryBytes: vz.VirtualMachineConfigurationMinimumAllowedMemorySize(),
		MaxMemoryBytes: vz.VirtualMachineConfigurationMaximumAllowedMemorySize(),
	}
}

// Validate implements vzcore.Framework.
func (framework) Validate(s vzcore.Spec) error {
	_, err := configure(s, vzcore.SerialPort{})
	return err
}

// New implements vzcore.Framework.
func (framework) New(s vzcore.Spec, p vzcore.SerialPort) (vzcore.VirtualMachine, error) {
	c, err := configure(s, p)
	if err != nil {
		return nil, err
	}
	v, err := vz.NewVirtualMachine(c)
	if err != nil {
		return nil, convert("making the machine", err)
	}
	sockets := v.SocketDevices()
	if len(sockets) != 1 {
		return nil, fmt.Errorf("the machine has %d socket devices, want 1", len(sockets))
	}
	m := &machine{}
	m.live.Store(&live{vm: v, socket: sockets[0]})
	return m, nil
}

// configure puts s into the framework's terms and has it validated.
func configure(s vzcore.Spec, p vzcore.SerialPort) (*vz.VirtualMachineConfiguration, error) {
	options := []vz.LinuxBootLoaderOption{vz.WithCommandLine(s.CommandLine)}
	if s.Initramfs != "" {
		options = append(options, vz.WithInitrd(s.Initramfs))
	}
	loader, err := vz.NewLinuxBootLoader(s.Kernel, options...)
	if err != nil {
		return nil, convert("the boot loader", err)
	}
	c, err := vz.NewVirtualMachineConfiguration(loader, s.CPUs, s.MemoryBytes)
	runtime.KeepAlive(loader)
	if err != nil {
		return nil, convert("the configuration", err)
	}
	var d devices
	for _, device := range s.Devices {
		if err := d.add(device, p); err != nil {
			return nil, convert("the device "+string(device.Kind)+" "+device.Path, err)
		}
	}
	d.attach(c)
	ok, err := c.Validate()
	if err != nil {
		return nil, convert("validating the machine", err)
	}
	if !ok {
		return nil, &vzcore.Error{Domain: vzcore.DomainVZ, Code: vzcore.CodeInvalidConfiguration, Text: "the configuration is not valid"}
	}
	return c, nil
}

// devices collects a machine's devices by kind, as the framework wants them. It
// also keeps them reachable, and so unreleased, until attach has handed them over.
type devices struct {
	serial  []*vz.VirtioConsoleDeviceSerialPortConfiguration
	entropy []*vz.VirtioEntropyDeviceConfiguration
	balloon []vz.MemoryBalloonDeviceConfiguration
	socket  []vz.SocketDeviceConfiguration
	disk    []vz.StorageDeviceConfiguration
}

// add makes one device. A constructor's pointer is appended only when its error is
// nil, since a nil pointer in an interface would pass for a device.
func (d *devices) add(device vzcore.Device, p vzcore.SerialPort) error {
	switch device.Kind {
	case vzcore.DeviceSerial:
		// Taking a descriptor's number makes our end of it blocking: a console
		// that is not read stalls its guest, as the contract has it.
		attachment, err := vz.NewFileHandleSerialPortAttachment(p.Input, p.Output)
		if err != nil {
			return err
		}
		v, err := vz.NewVirtioConsoleDeviceSerialPortConfiguration(attachment)
		runtime.KeepAlive(attachment)
		if err != nil {
			return err
		}
		d.serial = append(d.serial, v)
	case vzcore.DeviceEntropy:
		v, err := vz.NewVirtioEntropyDeviceConfiguration()
		if err != nil {
			return err
		}
		d.entropy = append(d.entropy, v)
	case vzcore.DeviceBalloon:
		v, err := vz.NewVirtioTraditionalMemoryBalloonDeviceConfiguration()
		if err != nil {
			return err
		}
		d.balloon = append(d.balloon, v)
	case vzcore.DeviceSocket:
		v, err := vz.NewVirtioSocketDeviceConfiguration()
		if err != nil {
			return err
		}
		d.socket = append(d.socket, v)
	case vzcore.DeviceDisk:
		return d.addDisk(device)
	default:
		return errors.New("unknown kind")
	}
	return nil
}

// addDisk attaches a raw image read-only. Images are read through the host's page
// cache: the framework's automatic choice has shown Linux guests wrong data on
// Apple Silicon. The mode of synchronization is of no use without writes.
func (d *devices) addDisk(device vzcore.Device) error {
	attachment, err := vz.NewDiskImageStorageDeviceAttachmentWithCacheAndSync(device.Path, true,
		vz.DiskImageCachingModeCached, vz.DiskImageSynchronizationModeFsync)
	if err != nil {
		return err
	}
	v, err := vz.NewVirtioBlockDeviceConfiguration(attachment)
	if err != nil {
		return err
	}
	if err := v.SetBlockDeviceIdentifier(device.Identifier); err != nil {
		return err
	}
	d.disk = append(d.disk, v)
	return nil
}

// attach hands the devices over to c, which copies the lists.
func (d *devices) attach(c *vz.VirtualMachineConfiguration) {
	c.SetSerialPortsVirtualMachineConfiguration(d.serial)
	c.SetEntropyDevicesVirtualMachineConfiguration(d.entropy)
	c.SetMemoryBalloonDevicesVirtualMachineConfiguration(d.balloon)
	c.SetSocketDevicesVirtualMachineConfiguration(d.socket)
	c.SetStorageDevicesVirtualMachineConfiguration(d.disk)
	runtime.KeepAlive(d)
}

// machine implements vzcore.VirtualMachine.
type machine struct{ live atomic.Pointer[live] }

// live is what a machine has until it is released.
type live struct {
	vm     *vz.VirtualMachine
	socket *vz.VirtioSocketDevice
}

var errReleased = errors.New("the machine has been released")

// with calls do with the machine, which stays reachable meanwhile.
func (m *machine) with(what string, do func(*vz.VirtualMachine) error) error {
	l := m.live.Load()
	if l == nil {
		return errReleased
	}
	defer runtime.KeepAlive(l)
	return convert(what, do(l.vm))
}

// Start implements vzcore.VirtualMachine.
func (m *machine) Start() error {
	return m.with("starting the machine", func(v *vz.VirtualMachine) error { return v.Start() })
}

// Stop implements vzcore.VirtualMachine.
func (m *machine) Stop() error { return m.with("stopping the machine", (*vz.VirtualMachine).Stop) }

// Pause implements vzcore.VirtualMachine.
func (m *machine) Pause() error { return m.with("pausing the machine", (*vz.VirtualMachine).Pause) }

// Resume implements vzcore.VirtualMachine.
func (m *machine) Resume() error { return m.with("resuming the machine", (*vz.VirtualMachine).Resume) }

// State implements vzcore.VirtualMachine.
func (m *machine) State() vzcore.State {
	l := m.live.Load()
	if l == nil {
		return vzcore.StateStopped
	}
	return vzcore.State(l.vm.State())
}

// NextState implements vzcore.VirtualMachine.
func (m *machine) NextState(done <-chan struct{}) (vzcore.State, bool) {
	l := m.live.Load()
	if l == nil {
		return 0, false
	}
	select {
	case s := <-l.vm.StateChangedNotify():
		return vzcore.State(s), true
	case <-done:
		return 0, false
	}
}

// Connect implements vzcore.VirtualMachine.
func (m *machine) Connect(port uint32) (net.Conn, error) {
	l := m.live.Load()
	if l == nil {
		return nil, errReleased
	}
	defer runtime.KeepAlive(l)
	c, err := l.socket.Connect(port)
	return vzcore.Conn(c, convert("connecting", err))
}

// Release implements vzcore.VirtualMachine.
func (m *machine) Release() { m.live.Store(nil) }

// convert names what failed and puts an error of the framework into vzcore's terms.
func convert(what string, err error) error {
	var ns *vz.NSError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &ns):
		return fmt.Errorf("%s: %w", what, &vzcore.Error{
			Domain: ns.Domain, Code: ns.Code, Text: ns.LocalizedDescription, Info: ns.UserInfo,
		})
	}
	return fmt.Errorf("%s: %w", what, err)
}

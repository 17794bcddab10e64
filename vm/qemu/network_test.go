//go:build linux

package qemu

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pybox/pybox/vm"
)

// devices are all that a machine may have.
var devices = []string{"vhost-user-vsock-pci-non-transitional", "virtio-rng-pci-non-transitional", "virtio-blk-pci-non-transitional"}

// TestNoNetworkDevice: whatever a configuration says, and however it is accelerated,
// QEMU is told of no device but those three kinds, and to add none by itself.
func TestNoNetworkDevice(t *testing.T) {
	full := vm.Config{
		Name: "pybox", Arch: vm.ArchAMD64, CPUs: 2, MemoryBytes: 1 << 30, Kernel: "/k",
		KernelArgs: []string{"-netdev", "user,id=n0", "-device", "virtio-net-pci,netdev=n0", "ip=dhcp"},
	}
	for i := range vm.MaxDisks {
		full.Disks = append(full.Disks, vm.Disk{Path: fmt.Sprintf("/disk,netdev=n%d", i), Serial: fmt.Sprintf("img-%d", i)})
	}
	initramfs := full
	initramfs.Initramfs, initramfs.Name = "/i -nic user", "pybox-compile"
	bare := vm.Config{Name: "pybox", Arch: vm.ArchAMD64, CPUs: 1, MemoryBytes: vm.MinMemoryBytes, Kernel: "/k"}
	for _, c := range []vm.Config{full, initramfs, bare} {
		if err := c.Validate(); err != nil {
			t.Fatal(err)
		}
		for _, arch := range []string{vm.ArchAMD64, vm.ArchARM64} {
			for _, accel := range []string{accelKVM, accelTCG} {
				c.Arch = arch
				checkDevices(t, commandLine(c, accel, nil), 2+len(c.Disks))
			}
		}
	}
}

func checkDevices(t *testing.T, args []string, want int) {
	t.Helper()
	if !slices.Contains(args, "-nodefaults") || !slices.Contains(args, "-no-user-config") {
		t.Errorf("QEMU may add devices by itself: %q", args)
	}
	got := 0
	for i := 0; i < len(args); i++ {
		switch word := args[i]; word {
		case "-append": // one word, which is the kernel's alone
			i++
		case "-device":
			i++
			got++
			kind, rest, _ := strings.Cut(args[i], ",")
			if !slices.Contains(devices, kind) || strings.Contains(rest, "net") {
				t.Errorf("device %q", args[i])
			}
		case "-netdev", "-nic", "-net", "-usb", "-usbdevice", "-readconfig", "-incoming":
			t.Errorf("%s %q", word, args[i+1:])
		case "-chardev":
			i++
			if !strings.HasPrefix(args[i], "socket,id=") || !strings.Contains(args[i], ",fd=") || strings.Count(args[i], ",") != 2 {
				t.Errorf("a channel that is no descriptor of ours: %q", args[i])
			}
		}
	}
	if got != want {
		t.Errorf("%d devices, want %d: %q", got, want, args)
	}
}

// TestNoNetworkByName: what a person may choose cannot grow into another option.
func TestNoNetworkByName(t *testing.T) {
	for name, change := range map[string]func(*vm.Config){
		"name":   func(c *vm.Config) { c.Name = "x,netdev=n" },
		"serial": func(c *vm.Config) { c.Disks = []vm.Disk{{Path: "/d", Serial: "a,netdev=n"}} },
		"arch":   func(c *vm.Config) { c.Arch = "amd64,usb=on" },
		"kernel": func(c *vm.Config) { c.KernelArgs = []string{"a -nic user"} },
	} {
		c := vm.Config{Name: "x", Arch: vm.ArchAMD64, CPUs: 1, MemoryBytes: vm.MinMemoryBytes, Kernel: "/k"}
		change(&c)
		if err := c.Validate(); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

//go:build linux

package qemu

import (
	"fmt"
	"strings"

	"github.com/pybox/pybox/vm"
)

// Descriptors that the QEMU process inherits, in the order of exec.Cmd.ExtraFiles
// (which begin at 3).
const (
	fdVsock = 3 + iota
	fdQMP
	fdConsole
	fdKernel
	fdFirstFile // the initramfs when there is one, then the disks
)

// commandLine is what QEMU is told. It depends on its arguments alone, so that a
// test can hold it to the letter.
func commandLine(c vm.Config, accel string, extra []string) []string {
	console, machine, cpu := platform(c.Arch, accel)
	a := []string{
		"-name", c.Name, // no debug-threads: a name per thread is not worth its syscalls
		"-no-user-config", "-nodefaults", "-no-reboot", "-display", "none",
		"-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
		"-machine", machine + ",accel=" + accel + ",memory-backend=mem,dump-guest-core=off",
		"-cpu", cpu,
		"-smp", fmt.Sprint(c.CPUs),
		"-m", fmt.Sprintf("%dM", c.MemoryBytes>>20),
		// A memfd that our vsock device can map; sealed, so that nobody can
		// shrink it below that mapping.
		"-object", fmt.Sprintf("memory-backend-memfd,id=mem,size=%dM,share=on,seal=on", c.MemoryBytes>>20),
		"-rtc", "base=utc",
		"-chardev", fmt.Sprintf("socket,id=qmp,fd=%d", fdQMP),
		"-mon", "chardev=qmp,mode=control",
		"-chardev", fmt.Sprintf("socket,id=console,fd=%d", fdConsole),
		"-serial", "chardev:console",
		"-chardev", fmt.Sprintf("socket,id=vsock,fd=%d", fdVsock),
		"-device", "vhost-user-vsock-pci-non-transitional,chardev=vsock",
		"-object", "rng-builtin,id=rng",
		"-device", "virtio-rng-pci-non-transitional,rng=rng",
		"-kernel", fmt.Sprintf("/proc/self/fd/%d", fdKernel), // -kernel takes no fdset
	}
	next := fdFirstFile
	if c.Initramfs != "" {
		a = append(a, "-initrd", fmt.Sprintf("/proc/self/fd/%d", next))
		next++
	}
	for i, d := range c.Disks {
		set := i + 1
		a = append(a,
			"-add-fd", fmt.Sprintf("fd=%d,set=%d", next, set),
			"-blockdev", fmt.Sprintf("driver=raw,node-name=disk%d,read-only=on,file.driver=file,file.filename=/dev/fdset/%d,file.locking=off", i, set),
			"-device", fmt.Sprintf("virtio-blk-pci-non-transitional,drive=disk%d,serial=%s", i, d.Serial),
		)
		next++
	}
	a = append(a, "-append", strings.Join(append([]string{"console=" + console}, c.KernelArgs...), " "))
	return append(a, extra...)
}

// platform gives an architecture's first serial port as Linux names it, its
// machine type and its CPU model.
func platform(arch, accel string) (console, machine, cpu string) {
	cpu = "host"
	if arch == vm.ArchARM64 {
		if accel == accelTCG {
			// Pointer authentication by QEMU's own hash instead of the
			// architected one, which costs more than half of the run time.
			cpu = "max,pauth-impdef=on"
		}
		return "ttyAMA0", "virt", cpu
	}
	if accel == accelTCG {
		// Without "fast" string instructions, which every copy in the guest would
		// then use: emulated, rep movsb takes a turn for each byte where rep movsq,
		// the next best, takes one for eight. And without a fifth level of page tables,
		// which Linux uses wherever it can and no guest of this size needs: emulated, each
		// level is walked by a program, anew after each change of process.
		cpu = "max,-erms,-fsrm,-la57"
	}
	// Nothing that the guest has no driver for.
	return "ttyS0", "q35,usb=off,sata=off,smbus=off,i8042=off,vmport=off", cpu
}

// binaryFor is the name of the emulator for a guest architecture.
func binaryFor(arch string) string {
	if arch == vm.ArchARM64 {
		return "qemu-system-aarch64"
	}
	return "qemu-system-x86_64"
}

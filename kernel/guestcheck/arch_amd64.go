//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"

	"golang.org/x/sys/unix"
)

func archChecks() []check {
	return []check{
		{"no system call modify_ldt", func() error { return enosys(unix.SYS_MODIFY_LDT) }},
		{"no system call iopl", func() error { return enosys(unix.SYS_IOPL) }},
		{"no system call ioperm", func() error { return enosys(unix.SYS_IOPERM) }},
		{"no system calls of x32", func() error { return enosys(x32Bit | unix.SYS_GETPID) }},
		{"32-bit system calls are off", func() error { return inChild(nil, "int80") }},
		{"perf is for root only", func() error { return wantFile("/proc/sys/kernel/perf_event_paranoid", "3") }},
	}
}

// x32Bit is __X32_SYSCALL_BIT.
const x32Bit = 0x40000000

// int80 calls getpid as a 32-bit program does.
func int80() int64

func archChildren() map[string]child { return map[string]child{"int80": int80Child} }

// int80Child wants the gate of 32-bit system calls closed: then using it is a general
// protection fault, which the kernel makes a SIGSEGV of and Go a panic. It is a child's
// because a fault of PID 1 is logged even where it is handled.
func int80Child([]string) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		switch p := recover().(type) {
		case nil: // it came back
		case runtime.Error:
			err = nil
		default:
			panic(p)
		}
	}()
	return fmt.Errorf("int $0x80 gave %d", int80())
}

// kaslr reads the boot loader's flags: KASLR_FLAG of loadflags in the setup
// header (Documentation/arch/x86/boot.rst), which the decompressor sets.
func kaslr() error {
	const loadflags, flag = 0x211, 1 << 1
	b, err := os.ReadFile("/sys/kernel/boot_params/data")
	if err != nil {
		return err
	}
	if len(b) <= loadflags || b[loadflags]&flag == 0 {
		return errors.New("the kernel runs where it was linked")
	}
	return nil
}

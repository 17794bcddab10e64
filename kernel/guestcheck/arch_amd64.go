//go:build linux

package main

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

func archChecks() []check {
	return []check{
		{"no system call modify_ldt", func() error { return enosys(unix.SYS_MODIFY_LDT) }},
		{"no system call iopl", func() error { return enosys(unix.SYS_IOPL) }},
		{"no system call ioperm", func() error { return enosys(unix.SYS_IOPERM) }},
		{"no system calls of x32", func() error { return enosys(x32Bit | unix.SYS_GETPID) }},
		{"perf is for root only", func() error { return wantFile("/proc/sys/kernel/perf_event_paranoid", "3") }},
	}
}

// x32Bit is __X32_SYSCALL_BIT.
const x32Bit = 0x40000000

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

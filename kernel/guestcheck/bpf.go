//go:build linux

package main

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// bpfInstruction is struct bpf_insn.
type bpfInstruction struct {
	code, registers byte
	offset          int16
	immediate       int32
}

// loadAttr and attachAttr are the parts of union bpf_attr that are used.
type loadAttr struct {
	progType, count      uint32
	instructions         uint64
	license              uint64
	logLevel, logSize    uint32
	logBuf               uint64
	kernVersion, flags   uint32
	name                 [16]byte
	ifindex, expectedTyp uint32
}

type attachAttr struct{ target, prog, kind, flags uint32 }

// loadProgram loads "return 0" as a program of a type.
func loadProgram(kind uint32) (int, error) {
	const movImmediate, exit = 0xb7, 0x95
	program := []bpfInstruction{{code: movImmediate}, {code: exit}}
	license := []byte("GPL\x00")
	a := loadAttr{
		progType:     kind,
		count:        uint32(len(program)),
		instructions: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(program)))),
		license:      uint64(uintptr(unsafe.Pointer(unsafe.SliceData(license)))),
	}
	// The verifier gives up with EAGAIN when a signal is pending, and Go's runtime
	// sends itself some.
	const tries = 100
	var fd uintptr
	var e unix.Errno
	for range tries {
		fd, _, e = unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_LOAD, uintptr(unsafe.Pointer(&a)), unsafe.Sizeof(a))
		if e != unix.EAGAIN {
			break
		}
	}
	runtime.KeepAlive(program)
	runtime.KeepAlive(license)
	if e != 0 {
		return -1, e
	}
	return int(fd), nil
}

func attachDeviceProgram(group, prog int) error {
	a := attachAttr{target: uint32(group), prog: uint32(prog), kind: unix.BPF_CGROUP_DEVICE, flags: unix.BPF_F_ALLOW_MULTI}
	if _, _, e := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_ATTACH, uintptr(unsafe.Pointer(&a)), unsafe.Sizeof(a)); e != 0 {
		return e
	}
	return nil
}

// bpfLoadChild, an ordinary user, must not load any program.
func bpfLoadChild([]string) error {
	fd, err := loadProgram(unix.BPF_PROG_TYPE_SOCKET_FILTER)
	if err == nil {
		unix.Close(fd)
	}
	return wantErr(err, unix.EPERM)
}

package bulk

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/pybox/pybox/agent/api"
)

// tuner makes a vsock connection wake its reader for large pieces only: the kernel
// gets them in packets of 4 KiB, and would do so for each. What cannot be tuned works
// all the same.
type tuner struct {
	raw syscall.RawConn // nil: nothing is tuned
	low *int
}

// newTuner gives c room for one piece while another is read.
func newTuner(c net.Conn) tuner {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return tuner{}
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return tuner{}
	}
	_ = raw.Control(func(fd uintptr) {
		for _, option := range []int{unix.SO_VM_SOCKETS_BUFFER_MAX_SIZE, unix.SO_VM_SOCKETS_BUFFER_SIZE} {
			if err = unix.SetsockoptUint64(int(fd), unix.AF_VSOCK, option, 2*api.BulkPiece); err != nil {
				return
			}
		}
	})
	if err != nil {
		return tuner{}
	}
	return tuner{raw: raw, low: new(int)}
}

// await has the next read wait until n bytes are there, or the end.
func (t tuner) await(n int) {
	if n = min(n, api.BulkPiece); t.raw == nil || n == *t.low {
		return
	}
	_ = t.raw.Control(func(fd uintptr) {
		if unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT, n) == nil {
			*t.low = n
		}
	})
}

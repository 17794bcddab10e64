package oom

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pybox/pybox/agent/boottime"
)

// Open follows the kernel's log at path, "/dev/kmsg", until ctx is done. It
// begins with the oldest record that is there; kills get their time from now.
// Reading the log takes CAP_SYSLOG.
func Open(ctx context.Context, path string, now boottime.Clock, log *slog.Logger) (*Log, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open the kernel's log: %w", err)
	}
	// Without the runtime's poller nothing could end a wait.
	if err := f.SetReadDeadline(time.Time{}); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("wait for the kernel's log: %w", err)
	}
	return newLog(ctx, &kmsg{f}, now, log), nil
}

// kmsg is /dev/kmsg. Each read(2) gives one record.
type kmsg struct{ f *os.File }

func (k *kmsg) next(b []byte) (n int, err error) {
	raw, err := k.f.SyscallConn()
	if err != nil {
		return 0, err
	}
	if cerr := raw.Control(func(fd uintptr) { n, err = unix.Read(int(fd), b) }); cerr != nil {
		return 0, cerr
	}
	return max(n, 0), err
}

// wait leaves it to the poller; only a look at the device tells whether there is
// something before it waits.
func (k *kmsg) wait(ctx context.Context) error {
	raw, err := k.f.SyscallConn()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = k.f.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	var perr error
	err = raw.Read(func(fd uintptr) bool {
		var ready bool
		ready, perr = readable(int(fd))
		return ready || perr != nil
	})
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return errors.Join(err, perr)
}

// readable tells whether a read would give a record or EPIPE.
func readable(fd int) (bool, error) {
	for {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(p, 0)
		if !errors.Is(err, unix.EINTR) {
			return n > 0, os.NewSyscallError("poll", err)
		}
	}
}

func (k *kmsg) close() error { return k.f.Close() }

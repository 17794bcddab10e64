//go:build linux

package vhostuser

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The front end's eventfds (eventfd(2)) are open files that both sides share,
// O_NONBLOCK included: whoever reads or writes one may block for as long as the
// front end likes, since no check before the call holds until it. So a kick is
// never read or written, and a call is written only by a goroutine of its own.

var errNotEventfd = errors.New("not a non-blocking eventfd")

// checkEventfd refuses what is not a non-blocking eventfd, as QEMU makes them.
func checkEventfd(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("stat: %w", err)
	}
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return fmt.Errorf("get flags: %w", err)
	}
	// The anonymous inode of an eventfd has no file type; a pipe, a socket or
	// a file has one.
	if st.Mode&unix.S_IFMT != 0 || flags&unix.O_NONBLOCK == 0 {
		return errNotEventfd
	}
	return nil
}

// kick is an eventfd that the driver's notifications come through.
type kick struct {
	f   *os.File
	raw syscall.RawConn
}

// newKick takes over fd, also when it fails.
func newKick(fd int) (*kick, error) {
	if err := checkEventfd(fd); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("kick: %w", err)
	}
	f := os.NewFile(uintptr(fd), "vsock-kick")
	raw, err := f.SyscallConn()
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("kick: %w", err)
	}
	return &kick{f: f, raw: raw}, nil
}

// watch calls f at once and after every notification, several at a time taken
// together, until the kick is closed. f must not block.
//
// Go's poller is edge-triggered and every write to an eventfd is an edge,
// whatever the counter (epoll(7), EPOLLET), so there is no need to read it. The
// vhost of the kernel leaves the counter alone too.
func (k *kick) watch(f func()) {
	_ = k.raw.Read(func(uintptr) bool {
		f()
		return false
	})
}

// close ends watch. It does not block.
func (k *kick) close() { _ = k.f.Close() }

// drainInterval is how long a call that was closed may take to end before it is
// helped to, and how often it is helped.
const drainInterval = 10 * time.Millisecond

// call is an eventfd that the guest is interrupted through.
type call struct {
	fd   int
	due  chan struct{} // holds one: what comes before it is taken is the same interrupt
	quit chan struct{}
	done chan struct{} // closed when nobody writes any more
}

// newCall takes over fd, also when it fails.
func newCall(fd int) (*call, error) {
	if err := checkEventfd(fd); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("call: %w", err)
	}
	c := &call{fd: fd, due: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{})}
	go c.run()
	return c, nil
}

// signal sees to it that the counter goes up. It never blocks, and does nothing
// once the call is closed.
func (c *call) signal() {
	select {
	case c.due <- struct{}{}:
	default:
	}
}

func (c *call) run() {
	defer close(c.done)
	for {
		select {
		case <-c.due:
			c.add()
		case <-c.quit:
			return
		}
	}
}

// add adds one to the counter. One that is full is signalled already, so no
// outcome is an error. It blocks while the front end, having cleared O_NONBLOCK,
// keeps the counter full.
func (c *call) add() {
	if full(c.fd) {
		return
	}
	one := [8]byte{1}
	_, _ = unix.Write(c.fd, one[:])
}

// full tells whether one more does not fit into the counter.
func full(fd int) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
	n, err := unix.Poll(p, 0)
	return err == nil && (n == 0 || p[0].Revents&unix.POLLOUT == 0)
}

// close ends the call, which nobody may signal for something new any more. The
// channel is closed when the goroutine is gone and the descriptor is closed:
// soon, unless the front end fills the counter again and again. Against one that
// is gone itself it always succeeds.
func (c *call) close() <-chan struct{} {
	close(c.quit)
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		t := time.NewTicker(drainInterval)
		defer t.Stop()
		for {
			select {
			case <-c.done:
				_ = unix.Close(c.fd)
				return
			case <-t.C:
				c.drain()
			}
		}
	}()
	return gone
}

// drain makes room in a counter that is full: it lets a write that is stuck in
// the kernel go on. One that is not full holds up nobody and may hold an
// interrupt that QEMU has yet to see.
func (c *call) drain() {
	if !full(c.fd) {
		return
	}
	// RWF_NOWAIT, which eventfds know since Linux 5.8, does what O_NONBLOCK
	// does, but for this call alone. The front end may have been here first.
	var b [8]byte
	_, _ = unix.Preadv2(c.fd, [][]byte{b[:]}, -1, unix.RWF_NOWAIT)
}

// errCallStuck is the front end's fault: no other one races for the counter.
var errCallStuck = fmt.Errorf("%w: it keeps the counter of an interrupt full and its eventfd blocking", errFrontEnd)

// retired are eventfds that went out of use. They are closed without the
// device's lock, so that whatever happens there holds up nobody else.
type retired struct {
	kicks []*kick
	calls []*call
}

func (r *retired) kick(k *kick) {
	if k != nil {
		r.kicks = append(r.kicks, k)
	}
}

func (r *retired) call(c *call) {
	if c != nil {
		r.calls = append(r.calls, c)
	}
}

// close closes all of them. It waits at most for limit; what the front end holds
// up beyond that, errCallStuck, ends when the front end does.
func (r *retired) close(limit time.Duration) error {
	for _, k := range r.kicks {
		k.close()
	}
	var gone []<-chan struct{}
	for _, c := range r.calls {
		gone = append(gone, c.close())
	}
	if len(gone) == 0 {
		return nil
	}
	t := time.NewTimer(limit)
	defer t.Stop()
	for _, g := range gone {
		select {
		case <-g:
		case <-t.C:
			return errCallStuck
		}
	}
	return nil
}

package pid1

import (
	"errors"
	"net"
	"sync"
	"syscall"
)

// LimitListener passes on the connections of l whose peer allow accepts, at most
// max at a time, and closes all others at once: nobody waits for a slot, and the
// ones in use are not disturbed.
func LimitListener(l net.Listener, max int, allow func(net.Addr) bool) net.Listener {
	return &limitListener{Listener: l, allow: allow, slots: make(chan struct{}, max)}
}

type limitListener struct {
	net.Listener
	allow func(net.Addr) bool
	slots chan struct{}
}

// Accept implements net.Listener.
func (l *limitListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.allow(c.RemoteAddr()) {
			select {
			case l.slots <- struct{}{}:
				return &limitConn{Conn: c, release: sync.OnceFunc(func() { <-l.slots })}, nil
			default:
			}
		}
		_ = c.Close()
	}
}

// limitConn gives its slot back when it is closed.
type limitConn struct {
	net.Conn
	release func()
}

// SyscallConn implements syscall.Conn where the connection itself does.
func (c *limitConn) SyscallConn() (syscall.RawConn, error) {
	if raw, ok := c.Conn.(syscall.Conn); ok {
		return raw.SyscallConn()
	}
	return nil, errors.ErrUnsupported
}

// Close implements net.Conn.
func (c *limitConn) Close() error {
	defer c.release()
	return c.Conn.Close()
}

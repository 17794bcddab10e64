package vzcore

import (
	"fmt"
	"net"
	"sync"
)

// conn is a connection to the guest. It shows net.Conn and nothing else: what the
// framework's connections have beyond it (or lack, such as the half close) must
// not become something that a protocol relies on.
type conn struct {
	net.Conn
	m    *machine
	port uint32
	once sync.Once
	err  error
}

// Close implements net.Conn. Closing twice is no error, since the machine's end
// closes too.
func (c *conn) Close() error {
	c.m.mu.Lock()
	delete(c.m.conns, c)
	c.m.mu.Unlock()
	return c.close()
}

func (c *conn) close() error {
	c.once.Do(func() { c.err = c.Conn.Close() })
	return c.err
}

// LocalAddr and RemoteAddr are of the virtio socket. The framework's own are of a
// nameless Unix socket.
func (c *conn) LocalAddr() net.Addr { return addr("host") }

// RemoteAddr implements net.Conn.
func (c *conn) RemoteAddr() net.Addr { return addr(fmt.Sprintf("guest:%d", c.port)) }

type addr string

func (addr) Network() string  { return "vsock" }
func (a addr) String() string { return string(a) }

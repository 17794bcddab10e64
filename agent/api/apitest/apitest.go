// Package apitest helps tests to serve the agent's protocol in memory.
package apitest

import (
	"net"
	"sync"
	"sync/atomic"
)

// Listener accepts the one connection conn, and after it nothing until it is closed.
// It is safe for concurrent use.
func Listener(conn net.Conn) net.Listener {
	return &listener{conn: conn, closed: make(chan struct{})}
}

type listener struct {
	conn   net.Conn
	taken  atomic.Bool
	once   sync.Once
	closed chan struct{}
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	if !l.taken.Swap(true) {
		return l.conn, nil
	}
	<-l.closed
	return nil, net.ErrClosed
}

// Close implements net.Listener.
func (l *listener) Close() error { l.once.Do(func() { close(l.closed) }); return nil }

// Addr implements net.Listener.
func (l *listener) Addr() net.Addr { return l.conn.LocalAddr() }

//go:build linux

package vhostuser

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// stack is a guest's socket layer on top of the emulated driver. It gives and
// takes credit by the rules of Linux (net/vmw_vsock/virtio_transport_common.c):
// a writer out of credit waits and does not ask.
type stack struct {
	g         *guest
	mu        sync.Mutex
	putting   sync.Mutex
	conns     map[[2]uint32]*guestConn
	listeners map[uint32]func(*guestConn)
	down      bool
	running   sync.WaitGroup
}

var errStackDown = errors.New("the guest is down")

// guestConn is the guest's end of a stream.
type guestConn struct {
	s                     *stack
	hostPort, port        uint32
	changed               *sync.Cond
	in                    bytes.Buffer
	alloc, forwards, told uint32
	peerAlloc, peerFwd    uint32
	sent                  uint32
	peerShut, localShut   uint32
	reset                 bool
}

// newStack starts a socket layer that serves ports with handlers; each runs in
// a goroutine of its own and closes its connection.
func newStack(g *guest, listeners map[uint32]func(*guestConn)) *stack {
	s := &stack{g: g, conns: map[[2]uint32]*guestConn{}, listeners: listeners}
	s.running.Go(s.run)
	g.t.Cleanup(s.stop)
	return s
}

// stop ends the socket layer and its handlers.
func (s *stack) stop() {
	s.mu.Lock()
	s.down = true
	for _, c := range s.conns {
		c.changed.Broadcast()
	}
	s.mu.Unlock()
	s.g.rx.call.SetReadDeadline(time.Unix(1, 0))
	s.g.tx.call.SetReadDeadline(time.Unix(1, 0))
	s.running.Wait()
}

func (s *stack) isDown() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.down
}

func (s *stack) run() {
	for !s.isDown() {
		p, ok := s.g.poll(true)
		if ok {
			s.dispatch(p)
			// Linux refills its receive ring by halves.
			if len(s.g.rx.free) >= ringSize/4 {
				s.g.fillRx()
			}
			continue
		}
		// A short deadline: stop sets one too, and await sets its own.
		err := s.g.rx.await(time.Now().Add(100 * time.Millisecond))
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
	}
}

func (s *stack) put(h header, data []byte) error {
	s.putting.Lock()
	defer s.putting.Unlock()
	if s.isDown() {
		return errStackDown
	}
	return s.g.tryPut(h, data)
}

func (s *stack) dispatch(p packet) {
	s.mu.Lock()
	key := [2]uint32{p.srcPort, p.dstPort}
	c := s.conns[key]
	var answer op
	switch {
	case c == nil && p.op == opRequest && s.listeners[p.dstPort] != nil:
		c = &guestConn{s: s, hostPort: p.srcPort, port: p.dstPort, changed: sync.NewCond(&s.mu), alloc: 256 << 10}
		c.peerAlloc, c.peerFwd = p.bufAlloc, p.forwards
		s.conns[key] = c
		answer = opResponse
	case c == nil && p.op != opReset:
		answer = opReset
	case c != nil:
		c.peerAlloc, c.peerFwd = p.bufAlloc, p.forwards
		answer = c.receive(p)
	}
	h := header{srcPort: p.dstPort, dstPort: p.srcPort, op: answer}
	if c != nil {
		h = c.header(answer)
		c.changed.Broadcast()
		if c.reset {
			delete(s.conns, key)
		}
	}
	s.mu.Unlock()
	if answer != opInvalid {
		if err := s.put(h, nil); err != nil {
			return
		}
	}
	if answer == opResponse {
		s.running.Go(func() { s.listeners[c.port](c) })
	}
}

// receive returns the packet that answers p.
func (c *guestConn) receive(p packet) op {
	switch p.op {
	case opRW:
		if c.in.Len()+len(p.data) > int(c.alloc) {
			c.s.g.t.Errorf("the host sent more than its credit")
		}
		c.in.Write(p.data)
	case opReset:
		c.reset = true
	case opShutdown:
		c.peerShut |= p.flags
		if c.peerShut == shutBoth && c.in.Len() == 0 {
			c.reset = true
			return opReset
		}
	case opCreditRequest:
		return opCreditUpdate
	}
	return opInvalid
}

// header makes a packet's header; the stack is locked.
func (c *guestConn) header(o op) header {
	c.told = c.forwards
	return header{srcPort: c.port, dstPort: c.hostPort, op: o, bufAlloc: c.alloc, forwards: c.forwards, flags: c.localShut}
}

func (c *guestConn) Read(p []byte) (int, error) {
	c.s.mu.Lock()
	for c.in.Len() == 0 {
		var err error
		switch {
		case c.s.down:
			err = errStackDown
		case c.peerShut&shutSend != 0:
			err = io.EOF
		case c.reset:
			err = net.ErrClosed
		}
		if err != nil {
			c.s.mu.Unlock()
			return 0, err
		}
		c.changed.Wait()
	}
	n, _ := c.in.Read(p)
	c.forwards += uint32(n)
	delta := c.forwards - c.told
	update := delta > 0 && (c.alloc-delta < 64<<10 || c.in.Len() == 0) && !c.reset
	h := c.header(opCreditUpdate)
	if !update {
		c.told = c.forwards - delta
	}
	c.s.mu.Unlock()
	if update {
		if err := c.s.put(h, nil); err != nil {
			return n, err
		}
	}
	return n, nil
}

func (c *guestConn) Write(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		c.s.mu.Lock()
		var credit int64
		for {
			credit = int64(c.peerAlloc) - int64(c.sent-c.peerFwd)
			if credit > 0 || c.s.down || c.reset || c.peerShut&shutReceive != 0 {
				break
			}
			c.changed.Wait()
		}
		if c.s.down || c.reset || c.peerShut&shutReceive != 0 {
			c.s.mu.Unlock()
			return n, errStackDown
		}
		m := min(len(p)-n, int(credit), 64<<10)
		c.sent += uint32(m)
		h := c.header(opRW)
		c.s.mu.Unlock()
		if err := c.s.put(h, p[n:n+m]); err != nil {
			return n, err
		}
		n += m
	}
	return n, nil
}

func (c *guestConn) shutdown(how uint32) error {
	c.s.mu.Lock()
	if c.reset {
		c.s.mu.Unlock()
		return nil
	}
	c.localShut |= how
	h := c.header(opShutdown)
	c.s.mu.Unlock()
	return c.s.put(h, nil)
}

func (c *guestConn) CloseWrite() error { return c.shutdown(shutSend) }
func (c *guestConn) Close() error      { return c.shutdown(shutBoth) }

// The services of the emulated guest.
const (
	echoPort = 1000
	sinkPort = 1001 // reads to the end, answers the number of bytes
	srcPort  = 1002 // reads 8 bytes n, sends n bytes
	holdPort = 1003 // reads nothing, sends nothing, until the guest is down
)

func services() map[uint32]func(*guestConn) {
	return map[uint32]func(*guestConn){
		echoPort: func(c *guestConn) {
			defer c.Close()
			io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c})
		},
		sinkPort: func(c *guestConn) {
			defer c.Close()
			n, _ := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{c}, make([]byte, 64<<10))
			c.Write(le.AppendUint64(nil, uint64(n)))
		},
		srcPort: func(c *guestConn) {
			defer c.Close()
			var b [8]byte
			if _, err := io.ReadFull(c, b[:]); err != nil {
				return
			}
			buf := make([]byte, 64<<10)
			for left := int(le.Uint64(b[:])); left > 0; {
				n, err := c.Write(buf[:min(left, len(buf))])
				if err != nil {
					return
				}
				left -= n
			}
		},
		holdPort: func(c *guestConn) {
			c.s.mu.Lock()
			defer c.s.mu.Unlock()
			for !c.s.down {
				c.changed.Wait()
			}
		},
	}
}

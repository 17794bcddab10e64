//go:build linux

package vhostuser

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/pybox/pybox/vm"
)

const network = "vsock"

// connState is where a stream is. The order matters: what is below stateOpen
// never was established, what is above it never carries data again.
type connState int

const (
	stateConnecting connState = iota
	stateOpen
	stateClosing   // closed here; the guest has still to say RST
	stateResetting // over; an RST is still to be sent
	stateGone      // not in the table any more
)

// What a connection has to send besides data. A packet is made when the guest
// has a buffer for it, so it always carries the newest credit, and what waits
// for buffers is bounded by the number of connections.
type wants uint8

const (
	wantRequest wants = 1 << iota
	wantReset
	wantShutdown
	wantCreditUpdate
)

// errViolation: the guest sent what the stream's state does not allow.
var errViolation = fmt.Errorf("the guest broke the vsock protocol: %w", syscall.EPROTO)

// conn is one stream of the host to the guest. It implements net.Conn. All of
// it is under the device's lock.
type conn struct {
	d                     *Device
	localPort, remotePort uint32

	state   connState
	settled chan struct{} // closed when state leaves stateConnecting
	err     error         // why it ended, other than in order
	closed  bool          // by Close, or because Dial failed
	freed   bool          // its slot is
	want    wants
	queued  bool // among the device's senders
	linger  *time.Timer

	localShut, peerShut uint32 // bits of shutBoth

	// Receiving. All counters are modulo 2^32 (virtio 1.2, 5.10.6.3).
	in        buffer
	window    uint32 // what we promise, buf_alloc
	received  uint32 // bytes that came
	forwarded uint32 // bytes that were read or thrown away, fwd_cnt
	told      uint32 // forwarded as the guest last heard it
	canRead   sync.Cond
	readBy    deadline

	// Sending. out is what the one Write under way has still to send: it goes
	// from the caller's memory straight to the guest's.
	out           []byte
	writing       bool
	sent          uint32
	peerAlloc     uint32
	peerForwarded uint32
	asked         bool // for credit, and nothing has changed since
	canWrite      sync.Cond
	writeBy       deadline
}

func newConn(d *Device, local, remote uint32, window int) *conn {
	c := &conn{
		d: d, localPort: local, remotePort: remote,
		settled: make(chan struct{}),
		in:      buffer{limit: window}, window: uint32(window),
	}
	c.canRead.L, c.canWrite.L = &d.mu, &d.mu
	return c
}

// known tells whether the guest has heard of c.
func (c *conn) known() bool { return c.state > stateConnecting || c.want&wantRequest == 0 }

// credit is how many bytes the guest has room for (5.10.6.3). Its window may
// have shrunk below what is under way.
func (c *conn) credit() int {
	return int(max(0, int64(c.peerAlloc)-int64(c.sent-c.peerForwarded)))
}

func (c *conn) maySend() bool {
	return c.state == stateOpen && c.localShut&shutSend == 0 && c.peerShut&shutReceive == 0
}

// due is what c would send now, opInvalid for nothing.
func (c *conn) due() op {
	switch {
	case c.state == stateGone:
		return opInvalid
	case c.want&wantReset != 0:
		return opReset
	case c.want&wantRequest != 0:
		return opRequest
	case c.want&wantShutdown != 0:
		return opShutdown
	case len(c.out) > 0 && c.maySend() && c.credit() > 0:
		return opRW
	case len(c.out) > 0 && c.maySend() && !c.asked:
		// Once for each stall: the guest answers even when it has no room, and
		// asking again then would go on for as long as it has none.
		return opCreditRequest
	case c.want&wantCreditUpdate != 0:
		return opCreditUpdate
	}
	return opInvalid
}

// next makes the packet that is due, with at most room bytes of payload, and
// takes note that it was sent.
func (c *conn) next(room uint64) (header, []byte) {
	h := header{
		srcCID: hostCID, dstCID: uint64(c.d.cid),
		srcPort: c.localPort, dstPort: c.remotePort,
		typ: typeStream, op: c.due(),
		bufAlloc: c.window, forwards: c.forwarded,
	}
	var payload []byte
	c.told = c.forwarded
	c.want &^= wantCreditUpdate // every packet is one
	switch h.op {
	case opReset:
		c.end(c.err)
	case opRequest:
		c.want &^= wantRequest
	case opShutdown:
		c.want &^= wantShutdown
		h.flags = c.localShut
	case opCreditRequest:
		c.asked = true
	case opRW:
		n := min(uint64(len(c.out)), uint64(c.credit()), room)
		payload, c.out = c.out[:n], c.out[n:]
		c.sent += uint32(n)
		if len(c.out) == 0 {
			c.canWrite.Broadcast()
		}
	}
	return h, payload
}

// receive handles a packet of the guest for c.
func (c *conn) receive(h header, payload [][]byte) {
	switch {
	case h.op == opReset:
		c.peerReset()
	case c.state == stateConnecting && h.op == opResponse:
		c.updateCredit(h)
		c.d.stats.Established++
		c.state = stateOpen
		close(c.settled)
	case c.state == stateConnecting:
		c.violation("answer to a REQUEST that is none")
	case c.state == stateOpen, c.state == stateClosing:
		c.updateCredit(h)
		c.receiveOpen(h, payload)
	}
	// In stateResetting everything else crossed our RST.
	c.d.enqueue(c)
}

func (c *conn) peerReset() {
	switch {
	case c.state == stateConnecting:
		c.end(vm.ErrRefused)
	case c.state == stateOpen && c.peerShut != shutBoth:
		c.end(syscall.ECONNRESET)
	default: // the guest's answer to our SHUTDOWN, or it crossed our RST
		c.end(c.err)
	}
}

// updateCredit takes the credit that every packet carries.
func (c *conn) updateCredit(h header) {
	if c.peerAlloc != h.bufAlloc {
		c.peerAlloc = h.bufAlloc
		c.asked = false
	}
	switch advance := h.forwards - c.peerForwarded; {
	case advance == 0:
	case advance <= c.sent-c.peerForwarded:
		c.peerForwarded = h.forwards
		c.asked = false
	default:
		// More than was sent, or backwards. Believing neither is safe: the
		// guest can only starve itself.
		c.d.fault("false forward count")
	}
}

func (c *conn) receiveOpen(h header, payload [][]byte) {
	switch h.op {
	case opRW:
		c.receiveData(h.len, payload)
	case opCreditUpdate:
	case opCreditRequest:
		c.want |= wantCreditUpdate
	case opShutdown:
		c.peerShut |= h.flags & shutBoth
		if c.peerShut == shutBoth {
			// The guest closed it and waits for our RST to free its end.
			c.reset(c.err)
		}
		c.wakeAll()
	default: // REQUEST and RESPONSE among them
		c.violation("packet out of place")
	}
}

func (c *conn) receiveData(n uint32, payload [][]byte) {
	if c.peerShut&shutSend != 0 {
		c.violation("data after shutdown")
		return
	}
	// The guest knows of told, not of forwarded. In 64 bits: n is hostile.
	if uint64(c.received-c.told)+uint64(n) > uint64(c.window) {
		c.violation("more data than credit")
		return
	}
	c.received += n
	c.d.stats.BytesFromGuest += uint64(n)
	if c.closed {
		c.forwarded += n
		c.d.stats.DiscardedBytes += uint64(n)
	} else {
		for left := int(n); left > 0; payload = payload[1:] {
			p := payload[0][:min(left, len(payload[0]))]
			c.in.write(p)
			left -= len(p)
		}
		c.canRead.Broadcast()
	}
	c.offerCredit()
}

// offerCredit has the guest told about freed room when that matters to it: a
// quarter of the window at a time, and at once when all it knows of is used up,
// because Linux does not ask for credit but waits to hear of it.
func (c *conn) offerCredit() {
	freed := c.forwarded - c.told
	exhausted := c.received-c.told == c.window
	if freed > 0 && (exhausted || freed >= c.window/4) {
		c.want |= wantCreditUpdate
	}
}

// violation ends c because of what the guest sent.
func (c *conn) violation(kind string) {
	c.d.fault(kind)
	c.reset(errViolation)
}

// reset ends c for everybody here and sends RST as soon as it can. A nil error
// is an end in order.
func (c *conn) reset(err error) {
	c.fail(err)
	c.state = stateResetting
	c.want = wantReset
	c.wakeAll()
}

// end takes c out of the table: the guest knows nothing of it any more.
func (c *conn) end(err error) {
	c.fail(err)
	c.state = stateGone
	c.want = 0
	if c.d.conns[c.localPort] == c {
		delete(c.d.conns, c.localPort)
	}
	if c.queued {
		c.queued = false
		c.d.senders.remove(c)
	}
	if c.linger != nil {
		c.linger.Stop()
	}
	c.wakeAll()
	c.release()
}

// fail sets the error that Read and Write return. An end that the guest has
// announced on both halves is none.
func (c *conn) fail(err error) {
	if c.err == nil && c.peerShut != shutBoth {
		c.err = err
	}
	if c.state == stateConnecting {
		close(c.settled)
	}
}

func (c *conn) wakeAll() {
	c.canRead.Broadcast()
	c.canWrite.Broadcast()
}

// abandon ends a dial that ran out of time. If the guest has the REQUEST, its
// answer may still come: RST follows, and a late RESPONSE finds no connection.
func (c *conn) abandon() {
	known := c.known()
	c.closed = true
	if !known {
		c.end(os.ErrDeadlineExceeded)
		return
	}
	c.reset(os.ErrDeadlineExceeded)
	c.d.transmit(c)
}

// forget lets go of a connection that was not established.
func (c *conn) forget() {
	c.closed = true
	c.release()
}

// release frees c's slot and its share of memory when nobody needs c any more.
func (c *conn) release() {
	if c.state == stateGone && c.closed && !c.freed {
		c.freed = true
		c.d.slots--
		c.d.extraUsed -= int(c.window) - c.d.cfg.leastWindow
	}
}

// Read implements net.Conn. It returns io.EOF once the guest sends no more.
func (c *conn) Read(p []byte) (int, error) {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	for {
		switch {
		case c.closed:
			return 0, c.opError("read", net.ErrClosed)
		case c.readBy.passed:
			return 0, c.opError("read", os.ErrDeadlineExceeded)
		case len(p) == 0:
			return 0, nil
		case c.in.len() > 0:
			return c.consume(p), nil
		case c.peerShut&shutSend != 0:
			return 0, io.EOF
		case c.err != nil:
			return 0, c.opError("read", c.err)
		}
		c.canRead.Wait()
	}
}

// consume moves received bytes to p and tells the guest if that matters.
func (c *conn) consume(p []byte) int {
	n := c.in.read(p)
	c.forwarded += uint32(n)
	if c.state == stateOpen {
		c.offerCredit()
		c.d.transmit(c)
	}
	return n
}

// Write implements net.Conn. It returns when the guest's driver has all of p,
// or with what it has when an error or the deadline ends it. Concurrent calls
// are not mixed.
func (c *conn) Write(p []byte) (int, error) {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	for c.writing && !c.closed && !c.writeBy.passed {
		c.canWrite.Wait()
	}
	if err := c.writeError(); err != nil {
		return 0, c.opError("write", err)
	}
	if len(p) == 0 {
		return 0, nil
	}
	c.out, c.writing = p, true
	c.d.transmit(c)
	var err error
	for len(c.out) > 0 {
		if err = c.writeError(); err != nil {
			err = c.opError("write", err)
			break
		}
		c.canWrite.Wait()
	}
	n := len(p) - len(c.out)
	c.out, c.writing = nil, false
	c.canWrite.Broadcast() // the next writer
	return n, err
}

// writeError tells why no byte can be written, nil if one can.
func (c *conn) writeError() error {
	switch {
	case c.closed:
		return net.ErrClosed
	case c.writeBy.passed:
		return os.ErrDeadlineExceeded
	case c.err != nil:
		return c.err
	case !c.maySend():
		return syscall.EPIPE
	}
	return nil
}

// CloseWrite ends the sending half: the guest reads what was written and then
// end-of-file. A Write under way fails with EPIPE.
func (c *conn) CloseWrite() error {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	switch {
	case c.closed:
		return c.opError("close", net.ErrClosed)
	case c.err != nil:
		return c.opError("close", c.err)
	case c.state != stateOpen:
		return c.opError("close", syscall.ENOTCONN)
	case c.localShut&shutSend != 0:
		return nil
	}
	c.localShut |= shutSend
	c.want |= wantShutdown
	c.wakeAll()
	c.d.transmit(c)
	return nil
}

// Close implements net.Conn. It does not wait for the guest: SHUTDOWN goes out,
// and RST after the linger time unless the guest says RST first (5.10.6.6).
func (c *conn) Close() error {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	if c.closed {
		return c.opError("close", net.ErrClosed)
	}
	c.closed = true
	// What is thrown away counts as forwarded: a guest writer that is out of
	// credit looks at the shutdown only when it gets some.
	discarded := c.in.len()
	c.forwarded += uint32(discarded)
	c.d.stats.DiscardedBytes += uint64(discarded)
	c.in = buffer{}
	c.readBy.stop()
	c.writeBy.stop()
	c.wakeAll()
	if c.state == stateOpen {
		c.state = stateClosing
		c.localShut = shutBoth
		c.want |= wantShutdown
		c.linger = time.AfterFunc(c.d.cfg.linger, c.lingered)
		c.d.transmit(c)
	}
	c.release()
	return nil
}

// lingered gives up on the guest's RST.
func (c *conn) lingered() {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	if c.state == stateClosing {
		c.reset(c.err)
		c.d.transmit(c)
	}
}

// LocalAddr implements net.Conn with an Addr.
func (c *conn) LocalAddr() net.Addr { return Addr{hostCID, c.localPort} }

// RemoteAddr implements net.Conn with an Addr.
func (c *conn) RemoteAddr() net.Addr { return Addr{c.d.cid, c.remotePort} }

// SetDeadline implements net.Conn.
func (c *conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline implements net.Conn.
func (c *conn) SetReadDeadline(t time.Time) error { return c.setDeadline(&c.readBy, &c.canRead, t) }

// SetWriteDeadline implements net.Conn.
func (c *conn) SetWriteDeadline(t time.Time) error { return c.setDeadline(&c.writeBy, &c.canWrite, t) }

func (c *conn) setDeadline(dl *deadline, cond *sync.Cond, t time.Time) error {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	if c.closed {
		return c.opError("set", net.ErrClosed)
	}
	dl.stop()
	dl.passed = false
	if t.IsZero() {
		return nil
	}
	left := time.Until(t)
	if left <= 0 {
		dl.passed = true
		cond.Broadcast()
		return nil
	}
	// A timer that fires as it is replaced must not touch its successor.
	generation := dl.generation
	dl.timer = time.AfterFunc(left, func() {
		c.d.mu.Lock()
		defer c.d.mu.Unlock()
		if dl.generation == generation {
			dl.passed = true
			cond.Broadcast()
		}
	})
	return nil
}

// deadline is one of a connection's two. Whether it has passed is a flag that
// its timer sets, not a comparison of times: a wall clock may be set back.
type deadline struct {
	timer      *time.Timer
	generation int
	passed     bool
}

func (dl *deadline) stop() {
	dl.generation++
	if dl.timer != nil {
		dl.timer.Stop()
		dl.timer = nil
	}
}

func (c *conn) opError(op string, err error) error {
	return &net.OpError{Op: op, Net: network, Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
}

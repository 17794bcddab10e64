//go:build linux

package vhostuser

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/pybox/pybox/vm"
)

// The two queues that a vhost-user vsock back end sees, named by the driver's
// point of view (virtio 1.2, 5.10.2). The event queue is QEMU's own.
const (
	rxQueue   = 0 // to the guest
	txQueue   = 1 // from the guest
	numQueues = 2
)

const (
	// turnPackets and turnBytes bound what one turn of processing does under
	// the lock, each way. A turn that ends early is continued by the worker
	// after everybody who waits for the lock had a chance.
	turnPackets = 64
	turnBytes   = 1 << 20
	// maxResets bounds the RSTs that wait for a receive buffer on behalf of no
	// connection. Those beyond are dropped rather than the tx ring stalled: a
	// guest that floods without offering receive buffers then hurts neither its
	// other streams nor, when both sides wait for the other's buffers, itself.
	maxResets = 1024
	// firstPort is where local ports start. They only have to be unique.
	firstPort = 1 << 30
	// closeLimit is how long eventfds may take to close. They do at once unless
	// the front end works against it.
	closeLimit = time.Second
)

// ErrTooManyConns is returned by Dial when the device has as many connections
// as WithMaxConns allows.
var ErrTooManyConns = errors.New("too many connections to the guest")

// errGone is what a connection gets when its device is dead.
var errGone = fmt.Errorf("%w: %w", vm.ErrEnded, syscall.ECONNRESET)

// Device is one guest's vsock device. It serves one front end in its life. All
// methods are safe for concurrent use.
type Device struct {
	cid uint32
	cfg config

	// worker drains the rings; wake tells it that there may be something.
	wake chan struct{}
	// dead is closed when the device is.
	dead chan struct{}

	mu monitor // guards everything below, guest memory included

	serving          bool
	features         uint64
	protocolFeatures uint64
	mem              memory
	queues           [numQueues]virtqueue
	watchers         sync.WaitGroup // goroutines that wait for kicks
	retired          retired        // eventfds to be closed once the lock is free
	scratch          chain
	ready            chan struct{} // closed while the guest's driver runs the rings

	conns     map[uint32]*conn // by local port: the host is the only one that dials
	lastPort  uint32
	slots     int // connections that count against cfg.maxConns
	extraUsed int // bytes of windows above cfg.leastWindow

	senders   fifo[*conn]  // those with something to send, each at most once
	resets    fifo[header] // RSTs of no connection
	resetTurn bool         // resets and senders take turns

	stats  Stats
	logged map[string]bool // kinds of faults that are in the log
}

// Stats are counters since New, except Conns. Packets are counted once their
// header could be read.
type Stats struct {
	// Conns is how many connections count against WithMaxConns now.
	Conns int
	// Dials is how many connections were asked for, Established how many the
	// guest accepted.
	Dials, Established uint64
	// PacketsToGuest and PacketsFromGuest count packets, BytesToGuest and
	// BytesFromGuest the payload of streams.
	PacketsToGuest, PacketsFromGuest uint64
	BytesToGuest, BytesFromGuest     uint64
	// DiscardedBytes is payload that came for a connection closed here.
	DiscardedBytes uint64
	// DroppedResets is how many RSTs of no connection found no room to wait in.
	DroppedResets uint64
	// UnwantedPackets counts what was answered with RST because it belongs to
	// no connection: the guest's own connection attempts, mostly.
	UnwantedPackets uint64
	// Faults counts what no correct driver does: malformed buffers and headers,
	// false addresses, broken credit, packets that a state does not allow.
	Faults uint64
}

// monitor is the device's lock. Interrupts that became due under it are sent
// once it is released, which batches them.
type monitor struct {
	sync.Mutex
	due [numQueues]*call
}

// Unlock releases the lock and interrupts the guest where that is due.
func (m *monitor) Unlock() {
	due := m.due
	m.due = [numQueues]*call{}
	m.Mutex.Unlock()
	for _, c := range due {
		if c != nil {
			c.signal()
		}
	}
}

// New makes the device of a guest that gets the context identifier cid, 3 or
// above. It holds no resources before Serve.
func New(cid uint32, opts ...Option) (*Device, error) {
	if cid < minGuestCID || cid == anyCID {
		return nil, fmt.Errorf("vhost-user vsock: CID %d: want %d to %d", cid, minGuestCID, uint32(anyCID-1))
	}
	cfg, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	d := &Device{
		cid:      cid,
		cfg:      cfg,
		wake:     make(chan struct{}, 1),
		dead:     make(chan struct{}),
		ready:    make(chan struct{}),
		conns:    make(map[uint32]*conn),
		lastPort: firstPort - 1,
		logged:   make(map[string]bool),
	}
	for i := range d.queues {
		d.queues[i].index = i
	}
	return d, nil
}

// Stats returns the counters.
func (d *Device) Stats() Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.stats
	s.Conns = d.slots
	return s
}

// WaitReady waits until the guest's driver runs the rings. It fails with
// vm.ErrEnded once the device is dead, and with the context's error.
func (d *Device) WaitReady(ctx context.Context) error {
	for {
		d.mu.Lock()
		ready, live := d.ready, d.live()
		d.mu.Unlock()
		if live {
			return nil
		}
		select {
		case <-ready:
		case <-d.dead:
			return vm.ErrEnded
		case <-ctx.Done():
			return fmt.Errorf("wait for the guest's vsock driver: %w", ctx.Err())
		}
	}
}

// Dial opens a stream to a port of the guest. It waits, within ctx, for the
// guest's driver and for the guest's answer, also across a reboot of the guest;
// the connection outlives ctx. Errors are *net.OpError and match vm.ErrRefused
// when nobody listens on the port, vm.ErrEnded once the device is dead,
// ErrTooManyConns, or the context's error.
//
// The connection has a CloseWrite() error method that ends its sending half.
// Its Close discards what was received and not read. After the device's end it
// still gives what was received before, and then an error that matches
// vm.ErrEnded and syscall.ECONNRESET.
func (d *Device) Dial(ctx context.Context, port uint32) (net.Conn, error) {
	c, err := d.dial(ctx, port)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Addr: Addr{d.cid, port}, Err: err}
	}
	return c, nil
}

func (d *Device) dial(ctx context.Context, port uint32) (*conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	c, err := d.connect(port)
	if err != nil {
		return nil, err
	}
	select {
	case <-c.settled:
	case <-ctx.Done():
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case c.state == stateConnecting:
		c.abandon()
		return nil, ctx.Err()
	case c.err != nil:
		err := c.err
		c.forget()
		return nil, err
	}
	return c, nil
}

// connect registers a new connection and sends its REQUEST as soon as it can.
func (d *Device) connect(port uint32) (*conn, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	select {
	case <-d.dead:
		return nil, vm.ErrEnded
	default:
	}
	if d.slots >= d.cfg.maxConns {
		return nil, ErrTooManyConns
	}
	d.slots++
	d.stats.Dials++
	extra := min(d.cfg.receiveBuffer-d.cfg.leastWindow, d.cfg.extraBytes-d.extraUsed)
	d.extraUsed += extra
	c := newConn(d, d.freePort(), port, d.cfg.leastWindow+extra)
	d.conns[c.localPort] = c
	c.want = wantRequest
	d.transmit(c)
	return c, nil
}

// freePort returns a local port that no connection has. There is always one:
// the table is much smaller than the port space.
func (d *Device) freePort() uint32 {
	for {
		if d.lastPort++; d.lastPort == anyPort {
			d.lastPort = firstPort
		}
		if d.conns[d.lastPort] == nil {
			return d.lastPort
		}
	}
}

func (d *Device) live() bool { return d.queues[rxQueue].live() && d.queues[txQueue].live() }

// work runs until done is closed. It is the only one that takes packets from
// the guest; packets to the guest also go out from where they arise.
func (d *Device) work(done <-chan struct{}) {
	for {
		select {
		case <-d.wake:
		case <-done:
			return
		}
		for d.turn() {
			runtime.Gosched()
		}
	}
}

// turn does a bounded amount of work and tells whether there may be more.
func (d *Device) turn() (more bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	more = d.receiveTurn()
	return d.sendTurn() || more
}

func (d *Device) wakeWorker() {
	select {
	case d.wake <- struct{}{}:
	default: // it is awake or about to be
	}
}

// giveBack returns a buffer to the driver.
func (d *Device) giveBack(q *virtqueue, head uint16, n uint32) {
	q.push(head, n)
	d.mu.due[q.index] = q.call
}

// receiveTurn takes packets from the guest.
func (d *Device) receiveTurn() (more bool) {
	q := &d.queues[txQueue]
	bytes := 0
	for range turnPackets {
		if !d.live() {
			return false
		}
		ok, err := q.pop(&d.mem, d.indirect(), &d.scratch)
		if err == nil && !ok {
			return false
		}
		if errors.Is(err, errRing) {
			d.breakQueue(q)
			return false
		}
		if err == nil {
			bytes += d.receiveBuffer(&d.scratch)
		} else {
			d.fault(err.Error())
		}
		d.giveBack(q, d.scratch.head, 0)
		if bytes >= turnBytes {
			break
		}
	}
	return true
}

// receiveBuffer takes one packet out of a buffer, returning its payload's size.
func (d *Device) receiveBuffer(c *chain) int {
	var raw [headerLen]byte
	payload, ok := gather(raw[:], c.readable)
	if !ok {
		d.fault("packet shorter than its header")
		return 0
	}
	h := parseHeader(&raw)
	d.stats.PacketsFromGuest++
	if uint64(h.len) > size(payload) {
		d.fault("packet shorter than its length")
		return 0
	}
	d.receive(h, payload)
	return int(h.len)
}

// receive handles one packet of the guest.
func (d *Device) receive(h header, payload [][]byte) {
	if h.srcCID != uint64(d.cid) {
		// 5.10.4: a driver sends under its own CID. No answer could reach the
		// one that is named.
		d.fault("packet with a false source")
		return
	}
	c := d.conns[h.dstPort]
	if h.dstCID != hostCID || h.typ != typeStream || c == nil || c.remotePort != h.srcPort || !c.known() {
		d.refuse(h)
		return
	}
	c.receive(h, payload)
}

// refuse answers a packet that belongs to no connection.
func (d *Device) refuse(h header) {
	if h.op == opReset { // 5.10.6.4: never an RST for an RST
		return
	}
	d.stats.UnwantedPackets++
	switch {
	case d.resets.len() >= maxResets:
		d.stats.DroppedResets++
	default:
		d.resets.push(resetFor(h))
	}
}

// transmit puts c among the senders if it has anything to send, and sends what
// can be sent now.
func (d *Device) transmit(c *conn) {
	d.enqueue(c)
	if d.sendTurn() {
		d.wakeWorker()
	}
}

func (d *Device) enqueue(c *conn) {
	if !c.queued && c.due() != opInvalid {
		c.queued = true
		d.senders.push(c)
	}
}

// sendTurn fills receive buffers of the guest with what waits for them.
func (d *Device) sendTurn() (more bool) {
	q := &d.queues[rxQueue]
	for range turnPackets {
		if !d.live() || !d.anySender() {
			return false
		}
		ok, err := q.pop(&d.mem, d.indirect(), &d.scratch)
		switch {
		case errors.Is(err, errRing):
			d.breakQueue(q)
			return false
		case err != nil:
			d.fault(err.Error())
			d.giveBack(q, d.scratch.head, 0)
		case !ok:
			return false // the driver's kick continues this
		case len(d.scratch.readable) > 0 || size(d.scratch.writable) <= headerLen:
			d.fault("useless receive buffer")
			d.giveBack(q, d.scratch.head, 0)
		default:
			d.giveBack(q, d.scratch.head, d.sendNext(d.scratch.writable))
		}
	}
	return true
}

// anySender tells whether anybody has something to send, and drops from the
// head of the senders those who have not any more.
func (d *Device) anySender() bool {
	for d.senders.len() > 0 && d.senders.front().due() == opInvalid {
		d.senders.pop().queued = false
	}
	return d.senders.len() > 0 || d.resets.len() > 0
}

// sendNext writes the next packet into a receive buffer and returns its size.
// anySender has said that there is one. Senders are served in turn, a packet
// each, so neither a bulk writer nor a flood of RSTs starves the others.
func (d *Device) sendNext(room [][]byte) uint32 {
	var h header
	var payload []byte
	if d.resets.len() > 0 && (d.resetTurn || d.senders.len() == 0) {
		d.resetTurn = false
		h = d.resets.pop()
	} else {
		d.resetTurn = true
		c := d.senders.pop()
		c.queued = false
		h, payload = c.next(min(size(room)-headerLen, maxPayload))
		d.enqueue(c)
	}
	h.len = uint32(len(payload))
	var raw [headerLen]byte
	h.encode(&raw)
	scatter(payload, scatter(raw[:], room))
	d.stats.PacketsToGuest++
	d.stats.BytesToGuest += uint64(len(payload))
	return headerLen + h.len
}

func (d *Device) indirect() bool { return d.features&featIndirectDesc != 0 }

// fault counts an offence of the guest and logs the first of its kind. kind is
// one of a fixed set of strings.
func (d *Device) fault(kind string) {
	d.stats.Faults++
	if !d.logged[kind] {
		d.logged[kind] = true
		d.cfg.log.Warn("vsock: the guest misbehaved; more of this kind is only counted", "kind", kind, "cid", d.cid)
	}
}

// breakQueue takes a queue out of service whose indices make no sense, until
// the driver resets the device (virtio 1.2, 2.1.2). No stream survives that.
func (d *Device) breakQueue(q *virtqueue) {
	d.fault(errRing.Error())
	q.broken = true
	d.ringsChanged()
	d.resetConns(fmt.Errorf("%w: %w", errRing, syscall.ECONNRESET))
}

// ringsChanged follows any change of what live looks at.
func (d *Device) ringsChanged() {
	var isReady bool
	select {
	case <-d.ready:
		isReady = true
	default:
	}
	switch live := d.live(); {
	case live && !isReady:
		close(d.ready)
	case !live && isReady:
		d.ready = make(chan struct{})
	}
	d.wakeWorker() // kicks that came before are gone
}

// resetConns ends every connection that the guest knows of, because the guest
// has forgotten them all. Those still connecting start again.
func (d *Device) resetConns(err error) {
	d.resets = fifo[header]{}
	for _, c := range d.conns {
		if c.state == stateConnecting {
			c.want = wantRequest
			d.enqueue(c)
			continue
		}
		c.end(err)
	}
}

// begin marks the device as served; false when it is, or was.
func (d *Device) begin() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.serving {
		return false
	}
	d.serving = true
	return true
}

// die ends the device: nothing of the front end is left in use afterwards, but
// for what errCallStuck says.
func (d *Device) die() error {
	d.mu.Lock()
	close(d.dead)
	for i := range d.queues {
		q := &d.queues[i]
		d.stopQueue(q)
		d.retired.call(q.call)
		q.call = nil
	}
	for _, c := range d.conns {
		c.end(errGone)
	}
	d.senders, d.resets = fifo[*conn]{}, fifo[header]{}
	d.mem.unmap()
	retired := d.takeRetired()
	d.mu.Unlock()
	err := retired.close(closeLimit)
	d.watchers.Wait()
	return err
}

// takeRetired is called under the lock; the caller closes what it gets after it.
func (d *Device) takeRetired() retired {
	r := d.retired
	d.retired = retired{}
	return r
}

// startQueue takes over the eventfd of the driver's kicks.
func (d *Device) startQueue(q *virtqueue, k *kick) {
	d.retired.kick(q.kick)
	q.kick, q.started = k, true
	if d.features&featProtocolFeatures == 0 { // no SET_VRING_ENABLE will come
		q.enabled = true
	}
	d.watchers.Go(func() { k.watch(d.wakeWorker) })
	d.ringsChanged()
}

func (d *Device) stopQueue(q *virtqueue) {
	d.retired.kick(q.kick)
	q.kick = nil
	q.started, q.broken, q.placed = false, false, false
	q.unmapRings()
	d.ringsChanged()
}

//go:build linux

package vhostuser

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The emulator is a QEMU and a guest's driver in this process: a vhost-user
// front end over a real socket pair, real memory files and eventfds, and the
// driver's side of real virtqueues. Packets go in and out raw; stack_test.go
// puts a guest's socket layer on top.

const (
	testCID     = 42
	testWait    = 30 * time.Second // for what happens at once unless there is a bug
	ringSize    = 128
	guestMemory = 24 << 20
	userBase    = 0x7f00_0000_0000 // where "QEMU" has the guest's memory
	guestBase   = 0x1_0000_0000    // where the guest sees it
	rxBufLen    = 4096
	txBufLen    = headerLen + 64<<10
	rxRingAt    = 0x10000
	txRingAt    = 0x20000
	scratchAt   = 0x40000
	rxBufsAt    = 0x100000
	txBufsAt    = rxBufsAt + ringSize*rxBufLen
)

// guest is a front end and a driver.
type guest struct {
	t      testing.TB
	dev    *Device
	sock   *net.UnixConn
	served chan error
	cancel context.CancelFunc
	memfd  int
	mem    []byte
	rx, tx *driverRing
}

// driverRing is the driver's side of a split virtqueue.
type driverRing struct {
	g          *guest
	index      uint32
	at         uint64 // offset in guest memory: descriptors, avail, used
	availIdx   uint16
	usedIdx    uint16
	free       []uint16 // descriptor pairs: i stands for 2i and 2i+1
	kick, call *os.File
	callRaw    int // what the device gets
	kickRaw    int
}

func (r *driverRing) desc(i uint16) []byte { return r.g.mem[r.at+16*uint64(i):][:16] }
func (r *driverRing) avail() []byte        { return r.g.mem[r.at+0x4000:][:4+2*ringSize] }
func (r *driverRing) used() []byte         { return r.g.mem[r.at+0x8000:][:4+8*ringSize] }

// setDesc writes one descriptor.
func (r *driverRing) setDesc(i uint16, addr uint64, length uint32, flags, next uint16) {
	d := r.desc(i)
	le.PutUint64(d, addr)
	le.PutUint32(d[8:], length)
	le.PutUint16(d[12:], flags)
	le.PutUint16(d[14:], next)
}

// offer makes the chain at head available, without a kick.
func (r *driverRing) offer(head uint16) {
	le.PutUint16(r.avail()[4+2*int(r.availIdx%ringSize):], head)
	r.availIdx++
	indexWord(r.avail()).Store(uint32(r.availIdx) << 16)
}

func (r *driverRing) notify() {
	if _, err := r.kick.Write([]byte{1, 0, 0, 0, 0, 0, 0, 0}); err != nil {
		r.g.t.Errorf("kick: %v", err)
	}
}

// reap takes one used buffer; false when there is none.
func (r *driverRing) reap() (head uint16, n uint32, ok bool) {
	if indexOf(r.used()) == r.usedIdx {
		return 0, 0, false
	}
	e := r.used()[4+8*int(r.usedIdx%ringSize):]
	r.usedIdx++
	return uint16(le.Uint32(e)), le.Uint32(e[4:]), true
}

// await waits until there is a used buffer. It must not run in two goroutines.
func (r *driverRing) await(deadline time.Time) error {
	for indexOf(r.used()) == r.usedIdx {
		if err := r.call.SetReadDeadline(deadline); err != nil {
			return err
		}
		var b [8]byte
		if _, err := r.call.Read(b[:]); err != nil {
			return fmt.Errorf("no used buffer in ring %d: %w", r.index, err)
		}
	}
	return nil
}

// newGuest makes a device, serves it and boots a guest on it.
func newGuest(t testing.TB, opts ...Option) *guest {
	t.Helper()
	g := newFrontEnd(t, opts...)
	g.boot()
	return g
}

// newFrontEnd makes a device and connects a front end that has said nothing.
func newFrontEnd(t testing.TB, opts ...Option) *guest {
	t.Helper()
	dev, err := New(testCID, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return attach(t, dev)
}

// attach connects a front end to dev.
func attach(t testing.TB, dev *Device) *guest {
	t.Helper()
	ours, theirs := socketPair(t)
	ctx, cancel := context.WithCancel(context.Background())
	g := &guest{t: t, dev: dev, sock: ours, served: make(chan error, 1), cancel: cancel}
	g.memfd, g.mem = memoryFile(t, guestMemory, true)
	g.rx = &driverRing{g: g, index: rxQueue, at: rxRingAt}
	g.tx = &driverRing{g: g, index: txQueue, at: txRingAt}
	for _, r := range []*driverRing{g.rx, g.tx} {
		r.kickRaw, r.kick = eventFile(t)
		r.callRaw, r.call = eventFile(t)
	}
	go func() { g.served <- dev.Serve(ctx, theirs) }()
	t.Cleanup(func() {
		g.powerOff()
		for _, r := range []*driverRing{g.rx, g.tx} {
			r.kick.Close()
			r.call.Close()
			unix.Close(r.kickRaw)
			unix.Close(r.callRaw)
		}
		unix.Close(g.memfd)
		unix.Munmap(g.mem)
	})
	return g
}

// powerOff cuts the socket, as the end of QEMU does, and waits for Serve.
func (g *guest) powerOff() {
	g.sock.Close()
	if g.served == nil {
		return
	}
	select {
	case err := <-g.served:
		if err != nil && !errors.Is(err, errFrontEnd) && !errors.Is(err, context.Canceled) {
			g.t.Errorf("Serve: %v", err)
		}
	case <-time.After(testWait):
		g.t.Error("Serve does not return")
	}
	g.served = nil
	g.cancel()
}

func socketPair(t testing.TB) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	conns := make([]*net.UnixConn, 2)
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socketpair")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		conns[i] = c.(*net.UnixConn)
	}
	return conns[0], conns[1]
}

// memoryFile makes a memory file as memory-backend-memfd does.
func memoryFile(t testing.TB, size int, seal bool) (int, []byte) {
	t.Helper()
	fd, err := unix.MemfdCreate("guest", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		t.Fatal(err)
	}
	if seal {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW); err != nil {
			t.Fatal(err)
		}
	}
	mem, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	return fd, mem
}

// eventFile makes an eventfd and gives it twice: to send away and to use.
func eventFile(t testing.TB) (int, *os.File) {
	t.Helper()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return fd, os.NewFile(uintptr(own), "eventfd")
}

// send sends one vhost-user message and returns the reply's payload if one is
// due: of a GET, or the acknowledgement.
func (g *guest) send(req request, flags uint32, body []byte, fds ...int) error {
	raw := le.AppendUint32(nil, uint32(req))
	raw = le.AppendUint32(raw, flagVersion|flags)
	raw = le.AppendUint32(raw, uint32(len(body)))
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	_, _, err := g.sock.WriteMsgUnix(append(raw, body...), oob, nil)
	return err
}

func (g *guest) reply(req request) ([]byte, error) {
	if err := g.sock.SetReadDeadline(time.Now().Add(testWait)); err != nil {
		return nil, err
	}
	var raw [messageHeaderLen]byte
	if _, err := readFull(g.sock, raw[:]); err != nil {
		return nil, err
	}
	if got := request(le.Uint32(raw[0:])); got != req {
		return nil, fmt.Errorf("reply to %d, want %d", got, req)
	}
	if flags := le.Uint32(raw[4:]); flags != flagVersion|flagReply {
		return nil, fmt.Errorf("reply flags %#x", flags)
	}
	body := make([]byte, le.Uint32(raw[8:]))
	_, err := readFull(g.sock, body)
	return body, err
}

func readFull(c net.Conn, b []byte) (int, error) {
	n := 0
	for n < len(b) {
		m, err := c.Read(b[n:])
		n += m
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// get sends a request that has a reply of its own.
func (g *guest) get(req request, body []byte) []byte {
	g.t.Helper()
	if err := g.send(req, 0, body); err != nil {
		g.t.Fatal(err)
	}
	b, err := g.reply(req)
	if err != nil {
		g.t.Fatalf("request %d: %v", req, err)
	}
	return b
}

// try sends a request and returns whether it was acknowledged as done.
func (g *guest) try(req request, body []byte, fds ...int) bool {
	g.t.Helper()
	if err := g.send(req, flagNeedReply, body, fds...); err != nil {
		g.t.Fatal(err)
	}
	b, err := g.reply(req)
	if err != nil {
		g.t.Fatalf("request %d: %v", req, err)
	}
	return le.Uint64(b) == 0
}

// set is try for what must succeed.
func (g *guest) set(req request, body []byte, fds ...int) {
	g.t.Helper()
	if !g.try(req, body, fds...) {
		g.t.Fatalf("request %d was refused", req)
	}
}

func state(index, num uint32) []byte { return le.AppendUint32(le.AppendUint32(nil, index), num) }

func memTable(regions ...regionSpec) []byte {
	b := state(uint32(len(regions)), 0)
	for _, r := range regions {
		for _, v := range []uint64{r.guest, r.size, r.user, r.offset} {
			b = le.AppendUint64(b, v)
		}
	}
	return b
}

func ringAddr(index uint32, desc, used, avail uint64) []byte {
	b := state(index, 0)
	for _, v := range []uint64{desc, used, avail, 0} {
		b = le.AppendUint64(b, v)
	}
	return b
}

// negotiate is what QEMU says before the guest's driver does anything.
func (g *guest) negotiate() {
	g.t.Helper()
	if f := le.Uint64(g.get(reqGetFeatures, nil)); f != offeredFeatures {
		g.t.Fatalf("features %#x", f)
	}
	if f := le.Uint64(g.get(reqGetProtocolFeatures, nil)); f != offeredProtoFeatures {
		g.t.Fatalf("protocol features %#x", f)
	}
	if err := g.send(reqSetProtocolFeatures, 0, u64(offeredProtoFeatures)); err != nil {
		g.t.Fatal(err)
	}
	g.set(reqSetOwner, nil)
	g.get(reqGetConfig, append(le.AppendUint32(state(0, 8), 0), make([]byte, 8)...))
}

// boot negotiates and starts a fresh driver.
func (g *guest) boot() {
	g.t.Helper()
	g.negotiate()
	g.freshDriver()
	g.start(0, 0)
	g.fillRx()
}

// freshDriver resets the driver's own state.
func (g *guest) freshDriver() {
	for _, r := range []*driverRing{g.rx, g.tx} {
		r.availIdx, r.usedIdx, r.free = 0, 0, nil
		clear(g.mem[r.at:][:0x9000])
		for i := range uint16(ringSize / 2) {
			r.free = append(r.free, i)
		}
	}
}

func (g *guest) wholeMemory() regionSpec {
	return regionSpec{guest: guestBase, size: guestMemory, user: userBase}
}

// start starts both rings, as QEMU does when the driver is ready.
func (g *guest) start(rxBase, txBase uint32) {
	g.t.Helper()
	g.set(reqSetFeatures, u64(offeredFeatures))
	g.set(reqSetMemTable, memTable(g.wholeMemory()), g.memfd)
	for _, r := range []*driverRing{g.rx, g.tx} {
		base := rxBase
		if r == g.tx {
			base = txBase
		}
		g.set(reqSetVringNum, state(r.index, ringSize))
		g.set(reqSetVringBase, state(r.index, base))
		g.set(reqSetVringAddr, ringAddr(r.index, userBase+r.at, userBase+r.at+0x8000, userBase+r.at+0x4000))
		g.set(reqSetVringKick, u64(uint64(r.index)), r.kickRaw)
		g.set(reqSetVringCall, u64(uint64(r.index)), r.callRaw)
	}
	g.set(reqSetVringEnable, state(rxQueue, 1))
	g.set(reqSetVringEnable, state(txQueue, 1))
}

// stop stops both rings and returns their bases.
func (g *guest) stop() (rxBase, txBase uint32) {
	g.t.Helper()
	return le.Uint32(g.get(reqGetVringBase, state(rxQueue, 0))[4:]), le.Uint32(g.get(reqGetVringBase, state(txQueue, 0))[4:])
}

// fillRx offers every receive buffer that the driver has.
func (g *guest) fillRx() {
	for _, i := range g.rx.free {
		g.offerRx(i)
	}
	g.rx.free = g.rx.free[:0]
	g.rx.notify()
}

// starve takes every receive buffer away from the device; fillRx gives them
// back.
func (g *guest) starve() {
	g.t.Helper()
	for range ringSize / 2 {
		g.put(header{srcPort: 1, dstPort: 1, op: opRequest}, nil)
	}
	for len(g.rx.free) < ringSize/2 {
		if err := g.rx.await(time.Now().Add(testWait)); err != nil {
			g.t.Fatal(err)
		}
		g.poll(true)
	}
}

func (g *guest) offerRx(i uint16) {
	g.rx.setDesc(2*i, guestBase+rxBufsAt+uint64(i)*rxBufLen, rxBufLen, descWrite, 0)
	g.rx.offer(2 * i)
}

// packet is one as the guest sees it.
type packet struct {
	header
	data []byte
}

// poll takes one packet if there is one. Its buffer is offered again, or
// kept for fillRx.
func (g *guest) poll(keep bool) (packet, bool) {
	head, n, ok := g.rx.reap()
	if !ok {
		return packet{}, false
	}
	if n < headerLen || n > rxBufLen {
		g.t.Errorf("receive buffer came back with %d bytes", n)
		return packet{}, false
	}
	b := g.mem[rxBufsAt+uint64(head/2)*rxBufLen:]
	p := packet{header: parseHeader((*[headerLen]byte)(b))}
	p.data = append([]byte(nil), b[headerLen:n]...)
	if int(p.len) != len(p.data) {
		g.t.Errorf("packet %+v with %d bytes", p.header, len(p.data))
	}
	if keep {
		g.rx.free = append(g.rx.free, head/2)
	} else {
		g.offerRx(head / 2)
		g.rx.notify()
	}
	return p, true
}

// recv waits for the next packet.
func (g *guest) recv() packet {
	g.t.Helper()
	if err := g.rx.await(time.Now().Add(testWait)); err != nil {
		g.t.Fatal(err)
	}
	p, _ := g.poll(false)
	if p.srcCID != hostCID || p.dstCID != testCID {
		g.t.Fatalf("packet with addresses %d to %d", p.srcCID, p.dstCID)
	}
	return p
}

// expect waits for the next packet, which has to be o.
func (g *guest) expect(o op) packet {
	g.t.Helper()
	p := g.recv()
	if p.op != o {
		g.t.Fatalf("got packet %+v, want op %d", p.header, o)
	}
	return p
}

// quiet makes sure that the device has done everything it was asked and sent
// nothing: an unwanted packet goes to it, and the first answer is that one's.
func (g *guest) quiet() {
	g.t.Helper()
	probe := quietPort.Add(1)
	g.put(header{srcPort: probe, dstPort: 1, op: opRequest}, nil)
	if p := g.expect(opReset); p.dstPort != probe {
		g.t.Fatalf("got %+v, want nothing", p.header)
	}
}

var quietPort atomic.Uint32

// put is tryPut for what must succeed.
func (g *guest) put(h header, data []byte) {
	g.t.Helper()
	if err := g.tryPut(h, data); err != nil {
		g.t.Fatal(err)
	}
}

// tryPut sends a packet; zero addresses, type and length mean the right ones.
func (g *guest) tryPut(h header, data []byte) error {
	if h.srcCID == 0 {
		h.srcCID = testCID
	}
	if h.dstCID == 0 {
		h.dstCID = hostCID
	}
	if h.typ == 0 {
		h.typ = typeStream
	}
	if h.len == 0 {
		h.len = uint32(len(data))
	}
	i, err := g.txSlot()
	if err != nil {
		return err
	}
	at := txBufsAt + uint64(i)*txBufLen
	h.encode((*[headerLen]byte)(g.mem[at:]))
	copy(g.mem[at+headerLen:][:64<<10], data)
	if len(data) > 0 {
		g.tx.setDesc(2*i, guestBase+at, headerLen, descNext, 2*i+1)
		g.tx.setDesc(2*i+1, guestBase+at+headerLen, uint32(len(data)), 0, 0)
	} else {
		g.tx.setDesc(2*i, guestBase+at, headerLen, 0, 0)
	}
	g.tx.offer(2 * i)
	g.tx.notify()
	return nil
}

// txSlot waits for a free send buffer.
func (g *guest) txSlot() (uint16, error) {
	for len(g.tx.free) == 0 {
		if err := g.tx.await(time.Now().Add(testWait)); err != nil {
			return 0, err
		}
		for {
			head, _, ok := g.tx.reap()
			if !ok {
				break
			}
			g.tx.free = append(g.tx.free, head/2)
		}
	}
	i := g.tx.free[len(g.tx.free)-1]
	g.tx.free = g.tx.free[:len(g.tx.free)-1]
	return i, nil
}

// peer is a raw connection as the guest's end sees it.
type peer struct {
	g        *guest
	hostPort uint32
	port     uint32
	alloc    uint32
	forwards uint32
}

func (p *peer) put(o op, flags uint32, data []byte) {
	p.g.t.Helper()
	p.g.put(header{srcPort: p.port, dstPort: p.hostPort, op: o, flags: flags, bufAlloc: p.alloc, forwards: p.forwards}, data)
}

// dialing starts a Dial and returns once the guest has the REQUEST.
func (g *guest) dialing(ctx context.Context, port uint32) (*peer, <-chan dialed) {
	g.t.Helper()
	out := make(chan dialed, 1)
	go func() {
		c, err := g.dev.Dial(ctx, port)
		out <- dialed{c, err}
	}()
	req := g.expect(opRequest)
	if req.dstPort != port || req.typ != typeStream {
		g.t.Fatalf("REQUEST %+v", req.header)
	}
	return &peer{g: g, hostPort: req.srcPort, port: port, alloc: 256 << 10}, out
}

type dialed struct {
	c   net.Conn
	err error
}

// pair makes an established connection.
func (g *guest) pair(port uint32) (net.Conn, *peer) {
	g.t.Helper()
	p, out := g.dialing(g.t.Context(), port)
	p.put(opResponse, 0, nil)
	d := <-out
	if d.err != nil {
		g.t.Fatal(d.err)
	}
	return d.c, p
}

//go:build linux

package vhostuser

import (
	"bytes"
	"errors"
	"io"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// bare is a device on memory of this process, without sockets and goroutines:
// what it does is a function of what it is given.
type bare struct {
	dev    *Device
	mem    []byte
	rx, tx *driverRing
	free   []uint16
	g      *guest
}

const bareMemory = 0x200000

func newBare(t testing.TB, opts ...Option) *bare {
	t.Helper()
	dev, err := New(testCID, append([]Option{WithLinger(time.Minute)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	b := &bare{dev: dev, mem: make([]byte, bareMemory)}
	b.g = &guest{t: t, dev: dev, mem: b.mem}
	b.rx = &driverRing{g: b.g, index: rxQueue, at: rxRingAt}
	b.tx = &driverRing{g: b.g, index: txQueue, at: txRingAt}
	dev.features = offeredFeatures
	dev.mem.regions = []region{{regionSpec: regionSpec{guest: guestBase, size: bareMemory, user: userBase}, mem: b.mem}}
	for i, r := range []*driverRing{b.rx, b.tx} {
		q := &dev.queues[i]
		q.size, q.started, q.enabled, q.placed = ringSize, true, true, true
		q.descAddr, q.availAddr, q.usedAddr = userBase+r.at, userBase+r.at+0x4000, userBase+r.at+0x8000
		if err := q.mapRings(&dev.mem); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

// turns lets the device work until it has nothing to do.
func (b *bare) turns(t testing.TB) {
	t.Helper()
	for range 1 << 12 {
		if !b.dev.turn() {
			return
		}
	}
	t.Fatal("the device is never done")
}

// check verifies what has to hold between any two steps.
func (b *bare) check(t testing.TB) {
	t.Helper()
	d := b.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.resets.len() > maxResets {
		t.Fatalf("%d resets wait", d.resets.len())
	}
	waiting := d.senders.items[d.senders.head:]
	extra := 0
	for port, c := range d.conns {
		switch {
		case port != c.localPort, c.state == stateGone:
			t.Fatalf("connection %d in the table is in state %d", port, c.state)
		case c.in.len() > int(c.window), len(c.in.b) > int(c.window):
			t.Fatalf("%d bytes in a window of %d", c.in.len(), c.window)
		case c.received-c.told > c.window:
			t.Fatalf("window of %d exceeded: received %d, told %d", c.window, c.received, c.told)
		case !c.closed && c.received-c.forwarded != uint32(c.in.len()):
			t.Fatalf("received %d, forwarded %d, %d held", c.received, c.forwarded, c.in.len())
		case c.queued != slices.Contains(waiting, c):
			t.Fatalf("connection %d: queued %v", port, c.queued)
		case c.due() != opInvalid && !c.queued:
			t.Fatalf("connection %d has op %d to send and does not wait", port, c.due())
		case c.freed:
			t.Fatalf("connection %d in the table has no slot", port)
		}
		extra += int(c.window) - d.cfg.leastWindow
	}
	if extra > d.extraUsed || d.extraUsed > d.cfg.extraBytes || d.slots < len(d.conns) || d.slots > d.cfg.maxConns {
		t.Fatalf("%d slots for %d connections, %d extra bytes of %d for %d", d.slots, len(d.conns), d.extraUsed, d.cfg.extraBytes, extra)
	}
	for i, c := range waiting {
		if c.state == stateGone || slices.Contains(waiting[i+1:], c) {
			t.Fatal("a sender waits twice, or is gone")
		}
	}
}

// FuzzDescriptors gives the device rings and memory full of anything.
func FuzzDescriptors(f *testing.F) {
	desc := func(addr uint64, length uint32, flags, next uint16) []byte {
		b := le.AppendUint64(nil, addr)
		b = le.AppendUint32(b, length)
		return le.AppendUint16(le.AppendUint16(b, flags), next)
	}
	packet := make([]byte, 64)
	(&header{srcCID: testCID, dstCID: hostCID, srcPort: 7, dstPort: firstPort, typ: typeStream, op: opRW, len: 4, bufAlloc: 1 << 16}).encode((*[headerLen]byte)(packet))
	at := uint64(guestBase + scratchAt)
	f.Add(desc(at, 48, 0, 0), packet, uint16(1), uint16(0))
	f.Add(append(desc(at, 44, descNext, 1), desc(at+44, 4, 0, 0)...), packet, uint16(1), uint16(0))
	f.Add(desc(at+64, 32, descIndirect, 0), append(packet, append(desc(at, 44, descNext, 1), desc(at+44, 9, 0, 0)...)...), uint16(1), uint16(0))
	f.Add(append(desc(at, 44, descNext, 1), desc(at+44, 4, descNext, 0)...), packet, uint16(2), uint16(0))
	f.Add(desc(at, 4096, descWrite, 0), packet, uint16(3), uint16(1))
	f.Add(desc(guestBase+rxRingAt, 4096, descWrite, 0), packet, uint16(128), uint16(1))
	f.Add(desc(guestBase+bareMemory-2, 44, 0, 0), packet, uint16(129), uint16(0))
	f.Add(desc(1<<64-4, 1<<32-1, descWrite|descNext, 0xffff), packet, uint16(0xffff), uint16(1))
	f.Fuzz(func(t *testing.T, table, memory []byte, offered, ring uint16) {
		b := newBare(t)
		c, err := b.dev.connect(7)
		if err != nil {
			t.Fatal(err)
		}
		b.dev.mu.Lock()
		c.state, c.want, c.peerAlloc = stateOpen, 0, 1<<20
		b.dev.mu.Unlock()
		r := b.tx
		if ring%2 == 1 {
			r = b.rx
			b.dev.mu.Lock()
			c.out = make([]byte, 100<<10)
			b.dev.enqueue(c)
			b.dev.mu.Unlock()
		}
		copy(b.mem[r.at:][:0x4000], table)
		copy(b.mem[scratchAt:], memory)
		for i := range uint16(ringSize) {
			le.PutUint16(r.avail()[4+2*int(i):], i%uint16(max(1, len(table)/descLen)))
		}
		indexWord(r.avail()).Store(uint32(offered) << 16)
		b.turns(t)
		b.check(t)
		if used := indexOf(r.used()); used > offered && !overlapsUsed(table) {
			t.Errorf("%d of %d buffers used", used, offered)
		}
	})
}

// overlapsUsed tells whether any descriptor could have let the device write over
// the used index itself.
func overlapsUsed(table []byte) bool {
	for ; len(table) >= descLen; table = table[descLen:] {
		if le.Uint16(table[12:])&(descWrite|descIndirect) != 0 {
			return true
		}
	}
	return false
}

// FuzzPackets plays a guest and a host's program against the connections: each
// step of five bytes is a packet or a call.
func FuzzPackets(f *testing.F) {
	dial, respond := []byte{20, 0, 0, 0, 0}, []byte{2, 0, 0, 255, 0}
	f.Add(bytes.Join([][]byte{dial, respond, {5, 0, 10, 255, 0}, {21, 0, 5, 0, 0}, {23, 0, 0, 0, 0}, {3, 0, 0, 0, 0}}, nil))
	f.Add(bytes.Join([][]byte{dial, respond, {22, 0, 200, 0, 0}, {6, 0, 0, 255, 100}, {4, 0, 0, 0, 3}}, nil))
	f.Add(bytes.Join([][]byte{dial, dial, respond, {2, 1, 0, 1, 0}, {22, 1, 255, 0, 0}, {6, 1, 0, 0, 1}, {24, 1, 0, 0, 0}, {4, 1, 0, 0, 1}, {4, 1, 0, 0, 2}}, nil))
	f.Add(bytes.Join([][]byte{dial, {25, 0, 0, 0, 0}, respond, dial, {3, 1, 0, 0, 0}, {26, 0, 0, 0, 0}}, nil))
	f.Add(bytes.Join([][]byte{dial, respond, {28, 0, 0, 0, 0}, {4, 0, 0, 0, 3}, {27, 0, 0, 0, 0}, {28, 1, 0, 0, 0}}, nil))
	f.Add(bytes.Join([][]byte{dial, respond, {5, 0, 255, 0, 0}, {5, 0, 255, 0, 0}, {5, 0, 255, 0, 0}, {5, 0, 255, 0, 0}, {21, 0, 1, 0, 0}}, nil))
	f.Fuzz(func(t *testing.T, script []byte) {
		b := newBare(t, WithMaxConns(8), WithReceiveBuffer(4096), WithReceiveMemory(8*4096))
		h := &host{bare: b}
		h.free = []uint16{0, 1, 2, 3} // few enough to run out
		h.offer()
		script = script[:min(len(script), 5*200)] // longer ones only cost time
		for ; len(script) >= 5; script = script[5:] {
			h.step(t, script[0], script[1], script[2], script[3], script[4])
			b.turns(t)
			b.check(t)
			h.drain(t)
		}
		for _, c := range h.conns {
			c.Close()
		}
		b.dev.die()
		if n := b.dev.Stats().Conns; n != 0 {
			t.Fatalf("%d connections are left", n)
		}
	})
}

// host is what FuzzPackets plays with.
type host struct {
	*bare
	conns   []*conn
	starved bool
}

func (h *host) step(t *testing.T, what, which, a, alloc, x byte) {
	d := h.dev
	if what%32 < 20 {
		h.packet(op(what%32), which, a, alloc, x)
		return
	}
	if what%32 == 20 {
		if c, err := d.connect(uint32(which)); err == nil {
			h.conns = append(h.conns, c)
		} else if !errors.Is(err, ErrTooManyConns) {
			t.Fatal(err)
		}
		return
	}
	if what%32 == 28 {
		if h.starved = which%2 == 0; !h.starved {
			h.offer()
		}
		return
	}
	if len(h.conns) == 0 {
		return
	}
	c := h.conns[int(which)%len(h.conns)]
	d.mu.Lock()
	connecting, readable := c.state == stateConnecting, c.in.len() > 0
	d.mu.Unlock()
	switch what % 32 {
	case 21:
		if readable && !connecting {
			if n, err := c.Read(make([]byte, 1+int(a))); err == nil && n == 0 {
				t.Fatal("nothing read")
			}
		}
	case 22: // as Write does, without its waiting
		d.mu.Lock()
		if c.writeError() == nil {
			c.out = make([]byte, 64*int(a))
			d.transmit(c)
		}
		d.mu.Unlock()
	case 23:
		if !connecting { // only Dial has it then
			c.Close()
		}
	case 24:
		c.CloseWrite()
	case 25:
		d.mu.Lock()
		if connecting {
			c.abandon()
		}
		d.mu.Unlock()
	case 26:
		c.lingered()
	case 27:
		d.mu.Lock()
		d.resetConns(io.ErrUnexpectedEOF)
		d.mu.Unlock()
	}
}

func (h *host) packet(o op, which, a, alloc, x byte) {
	p := header{srcCID: testCID, dstCID: hostCID, typ: typeStream, op: o, flags: uint32(x), bufAlloc: 64 * uint32(alloc), forwards: 64 * uint32(x)}
	if len(h.conns) > 0 && which < 200 {
		c := h.conns[int(which)%len(h.conns)]
		p.srcPort, p.dstPort = c.remotePort, c.localPort
	}
	if which >= 250 {
		p.typ = uint16(a)
	}
	data := make([]byte, 16*int(a))
	p.len = uint32(len(data))
	h.dev.mu.Lock()
	h.dev.receive(p, [][]byte{data})
	h.dev.mu.Unlock()
}

// offer gives the device the receive buffers that it does not have.
func (h *host) offer() {
	for _, i := range h.free {
		h.g.rx = h.rx
		h.g.offerRx(i)
	}
	h.free = h.free[:0]
}

// drain takes what the device sent and checks that it makes sense.
func (h *host) drain(t *testing.T) {
	for {
		head, n, ok := h.rx.reap()
		if !ok {
			break
		}
		p := parseHeader((*[headerLen]byte)(h.mem[rxBufsAt+uint64(head/2)*rxBufLen:]))
		if n != headerLen+p.len || p.srcCID != hostCID || p.dstCID != testCID || p.op < opRequest || p.op > opCreditRequest || p.op == opResponse {
			t.Fatalf("packet %+v in %d bytes", p, n)
		}
		if p.op == opRW && p.len == 0 {
			t.Fatal("empty data packet")
		}
		if !h.starved {
			h.g.rx = h.rx
			h.g.offerRx(head / 2)
		} else {
			h.free = append(h.free, head/2)
		}
	}
}

// FuzzMessages gives the device any sequence of vhost-user messages with any
// descriptors, and looks for descriptors and mappings that are left.
func FuzzMessages(f *testing.F) {
	msg := func(req request, flags uint32, fds byte, body []byte) []byte {
		b := le.AppendUint32([]byte{fds}, uint32(req))
		b = le.AppendUint32(b, flagVersion|flags)
		return append(le.AppendUint32(b, uint32(len(body))), body...)
	}
	mem := memTable(regionSpec{guest: guestBase, size: 1 << 20, user: userBase})
	start := bytes.Join([][]byte{
		msg(reqSetFeatures, 0, 0, u64(offeredFeatures)),
		msg(reqSetProtocolFeatures, 0, 0, u64(offeredProtoFeatures)),
		msg(reqSetMemTable, flagNeedReply, 1, mem),
	}, nil)
	for i := range uint32(numQueues) {
		at := userBase + 0x10000*uint64(i+1)
		start = append(start, bytes.Join([][]byte{
			msg(reqSetVringNum, 0, 0, state(i, 128)),
			msg(reqSetVringBase, 0, 0, state(i, 0)),
			msg(reqSetVringAddr, 0, 0, ringAddr(i, at, at+0x8000, at+0x4000)),
			msg(reqSetVringKick, 0, 3, u64(uint64(i))),
			msg(reqSetVringCall, 0, 3, u64(uint64(i))),
			msg(reqSetVringEnable, flagNeedReply, 0, state(i, 1)),
		}, nil)...)
	}
	f.Add(start)
	f.Add(slices.Concat(start, msg(reqSetMemTable, flagNeedReply, 1, memTable(regionSpec{guest: 0, size: 4096, user: 0}))))
	f.Add(slices.Concat(start, msg(reqSetVringNum, flagNeedReply, 0, state(0, 2)), msg(reqGetVringBase, 0, 0, state(0, 0)), msg(reqSetVringNum, 0, 0, state(0, 1024))))
	f.Add(slices.Concat(start, msg(reqResetOwner, 0, 0, nil), msg(reqSetVringKick, flagNeedReply, 4, u64(0)), msg(reqSetVringCall, 0, 0, u64(vringNoFD))))
	f.Add(slices.Concat(msg(reqGetFeatures, 0, 0, nil), msg(reqGetProtocolFeatures, 0, 0, nil), msg(reqGetConfig, 0, 0, append(state(0, 8), make([]byte, 12)...))))
	f.Add(msg(reqSetMemTable, 0, 2, mem))

	memfd, mapped := memoryFile(f, 1<<20, true)
	unsealed, mapped2 := memoryFile(f, 1<<20, false)
	event, file := eventFile(f)
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_NONBLOCK|unix.O_CLOEXEC); err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		file.Close()
		for _, fd := range []int{memfd, unsealed, event, pipe[0], pipe[1]} {
			unix.Close(fd)
		}
		unix.Munmap(mapped)
		unix.Munmap(mapped2)
	})
	kinds := [][]int{nil, {memfd}, {unsealed}, {event}, {pipe[0]}, {memfd, memfd}, {event, event}, {memfd, unsealed}}
	f.Fuzz(func(t *testing.T, stream []byte) {
		before := openFDs(t)
		dev, err := New(testCID)
		if err != nil {
			t.Fatal(err)
		}
		c, err := dev.connect(7) // so that there is something to send
		if err != nil {
			t.Fatal(err)
		}
		r := bytes.NewReader(stream)
		for range 100 { // longer ones only cost time
			kind, err := r.ReadByte()
			if err != nil {
				break
			}
			m := &message{}
			for _, fd := range kinds[int(kind)%len(kinds)] {
				own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
				if err != nil {
					t.Fatal(err)
				}
				m.fds = append(m.fds, own)
			}
			if err := m.readBody(r, [messageHeaderLen]byte{}, 0); err != nil {
				m.closeFDs()
				break
			}
			if _, err := dev.answer(m); err != nil && !errors.Is(err, errFrontEnd) {
				t.Fatal(err)
			}
			for range 4 {
				dev.turn()
			}
		}
		dev.die()
		if c.err == nil {
			t.Error("the connection outlives the device")
		}
		if len(dev.mem.regions) != 0 {
			t.Error("memory is still mapped")
		}
		if now := openFDs(t); now != before {
			entries, _ := os.ReadDir("/proc/self/fd")
			t.Errorf("%d descriptors, %d before: %v", now, before, entries)
		}
	})
}

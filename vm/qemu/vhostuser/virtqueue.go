//go:build linux

package vhostuser

import (
	"errors"
	"sync/atomic"
	"unsafe"
)

// Descriptor flags (virtio 1.2, 2.7.5).
const (
	descNext     = 1
	descWrite    = 2
	descIndirect = 4
	descLen      = 16
)

const (
	// maxQueueSize is VIRTQUEUE_MAX_SIZE of QEMU; its vsock device asks for 128.
	maxQueueSize = 1024
	// maxChain is the most descriptors of one buffer. Linux uses two, and up
	// to MAX_SKB_FRAGS+2 = 19 with MSG_ZEROCOPY; the bound keeps a hostile
	// chain from costing more than an honest one.
	maxChain = 64
)

var (
	// errRing: the ring itself is broken and stays so until the driver resets
	// the device.
	errRing = errors.New("the driver broke its ring")
	// errChain: one buffer cannot be used; its head is known.
	errChain = errors.New("malformed descriptor chain")
)

// virtqueue is the device's side of one split virtqueue (virtio 1.2, 2.7). All
// of it is under the device's lock.
//
// Neither side's notifications are ever suppressed: suppression needs a full
// barrier between publishing an index and reading the other side's flag, and
// QEMU's TCG leaves that barrier out of a guest that has one CPU. A kick lost
// that way stalls a connection for ever.
type virtqueue struct {
	index int
	size  uint16

	placed                        bool   // the addresses are set
	descAddr, availAddr, usedAddr uint64 // in the front end's process
	desc, avail, used             []byte // nil: not mapped

	nextAvail, nextUsed uint16

	started, enabled, broken bool

	kick *kick
	call *call
}

// live tells whether the queue may be processed (vhost-user.rst, "Ring states").
func (q *virtqueue) live() bool {
	return q.started && q.enabled && !q.broken && q.desc != nil
}

// mapRings finds the three parts of the queue in m.
func (q *virtqueue) mapRings(m *memory) error {
	n := uint64(q.size)
	desc := m.user(q.descAddr, descLen*n)
	avail := m.user(q.availAddr, 6+2*n)
	used := m.user(q.usedAddr, 6+8*n)
	q.unmapRings()
	if n == 0 || desc == nil || avail == nil || used == nil {
		return errors.New("ring outside guest memory")
	}
	// Section 2.7 asks for 2 bytes for the available ring; we want 4 for
	// indexWord, and every driver in use has 16.
	if !aligned(avail) || !aligned(used) {
		return errors.New("ring not aligned to 4 bytes")
	}
	q.desc, q.avail, q.used = desc, avail, used
	return nil
}

func (q *virtqueue) unmapRings() { q.desc, q.avail, q.used = nil, nil, nil }

func aligned(b []byte) bool { return uintptr(unsafe.Pointer(unsafe.SliceData(b)))%4 == 0 }

// indexWord is the first four bytes of the available and of the used ring:
// flags, and the index in the upper half. Go has no atomic 16-bit access.
func indexWord(ring []byte) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(unsafe.SliceData(ring)))
}

func indexOf(ring []byte) uint16 { return uint16(indexWord(ring).Load() >> 16) }

// chain is one buffer of the driver: a chain of descriptors, resolved. Its
// slices are guest memory.
type chain struct {
	head     uint16
	readable [][]byte // device-readable, in order
	writable [][]byte // device-writable, in order
}

func (c *chain) reset() {
	clear(c.readable)
	clear(c.writable)
	c.readable, c.writable = c.readable[:0], c.writable[:0]
}

func size(pieces [][]byte) uint64 {
	n := uint64(0)
	for _, p := range pieces {
		n += uint64(len(p))
	}
	return n
}

// pop takes the next available buffer; false when there is none. With errChain
// the head is set and has to be given back, with errRing the queue is broken.
func (q *virtqueue) pop(m *memory, indirect bool, c *chain) (bool, error) {
	c.reset()
	// The atomic load is the acquire that orders the reads below after it.
	switch waiting := indexOf(q.avail) - q.nextAvail; {
	case waiting == 0:
		return false, nil
	case waiting > q.size: // 2.7.13.2: never more than the queue's size
		return false, errRing
	}
	c.head = le.Uint16(q.avail[4+2*int(q.nextAvail%q.size):])
	if c.head >= q.size {
		return false, errRing
	}
	q.nextAvail++
	return true, c.resolve(m, q.desc, indirect)
}

// resolve walks the descriptors from c.head.
func (c *chain) resolve(m *memory, table []byte, indirect bool) error {
	i := c.head
	for range maxChain {
		if int(i) >= len(table)/descLen {
			return errChain
		}
		// Copied out before it is checked: the guest may change it meanwhile.
		d := table[int(i)*descLen:]
		addr, length, flags, next := le.Uint64(d), le.Uint32(d[8:]), le.Uint16(d[12:]), le.Uint16(d[14:])
		if flags&descIndirect != 0 {
			// 2.7.5.3: a table of its own that ends the chain, not nested.
			if !indirect || flags&descNext != 0 || length == 0 || length%descLen != 0 {
				return errChain
			}
			if table = m.guest(addr, uint64(length)); table == nil {
				return errChain
			}
			i, indirect = 0, false
			continue
		}
		if err := c.add(m, addr, length, flags); err != nil {
			return err
		}
		if flags&descNext == 0 {
			return nil
		}
		i = next
	}
	return errChain // too long, or a loop
}

func (c *chain) add(m *memory, addr uint64, length uint32, flags uint16) error {
	ok := true
	if flags&descWrite != 0 {
		c.writable, ok = m.appendGuest(c.writable, addr, uint64(length))
	} else {
		if len(c.writable) > 0 { // 2.7.4.2: readable ones come first
			return errChain
		}
		c.readable, ok = m.appendGuest(c.readable, addr, uint64(length))
	}
	if !ok {
		return errChain
	}
	return nil
}

// push gives a buffer back with n bytes written to it.
func (q *virtqueue) push(head uint16, n uint32) {
	e := q.used[4+8*int(q.nextUsed%q.size):]
	le.PutUint32(e, uint32(head))
	le.PutUint32(e[4:], n)
	q.nextUsed++
	// The atomic store is the release that publishes the element; flags stay 0.
	indexWord(q.used).Store(uint32(q.nextUsed) << 16)
}

// gather copies the first bytes of pieces into b and returns what comes after
// them; false when there are too few.
func gather(b []byte, pieces [][]byte) ([][]byte, bool) {
	for len(b) > 0 {
		if len(pieces) == 0 {
			return nil, false
		}
		n := copy(b, pieces[0])
		b, pieces[0] = b[n:], pieces[0][n:]
		if len(pieces[0]) == 0 {
			pieces = pieces[1:]
		}
	}
	return pieces, true
}

// scatter copies b into the beginning of pieces and returns what is left of
// them. The caller has checked that there is room.
func scatter(b []byte, pieces [][]byte) [][]byte {
	for len(b) > 0 {
		n := copy(pieces[0], b)
		b, pieces[0] = b[n:], pieces[0][n:]
		if len(pieces[0]) == 0 {
			pieces = pieces[1:]
		}
	}
	return pieces
}

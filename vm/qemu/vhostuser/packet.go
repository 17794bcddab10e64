//go:build linux

package vhostuser

import (
	"encoding/binary"
	"fmt"
)

// Everything here and in a virtqueue is little-endian (virtio 1.2, 1.4).
var le = binary.LittleEndian

// op is the operation of a packet (virtio 1.2, 5.10.6).
type op uint16

const (
	opInvalid       op = 0
	opRequest       op = 1
	opResponse      op = 2
	opReset         op = 3
	opShutdown      op = 4
	opRW            op = 5
	opCreditUpdate  op = 6
	opCreditRequest op = 7
)

// Flags of opShutdown (virtio 1.2, 5.10.6.6): what the sender of the packet
// will do no more.
const (
	shutReceive = 1
	shutSend    = 2
	shutBoth    = shutReceive | shutSend
)

const (
	// headerLen is the size of struct virtio_vsock_hdr.
	headerLen = 44
	// hostCID is the host's well-known address (virtio 1.2, 5.10.4).
	hostCID = 2
	// minGuestCID is the lowest CID that is not reserved.
	minGuestCID = 3
	// anyCID and anyPort are Linux's wildcards VMADDR_CID_ANY and
	// VMADDR_PORT_ANY (vsock(7)): they name no real peer.
	anyCID  = 1<<32 - 1
	anyPort = 1<<32 - 1
	// typeStream is the only socket type that this device offers.
	typeStream = 1
	// maxPayload bounds one packet to the guest. Linux sends no larger ones
	// itself (VIRTIO_VSOCK_MAX_PKT_BUF_SIZE).
	maxPayload = 64 << 10
)

// header is struct virtio_vsock_hdr (virtio 1.2, 5.10.6).
type header struct {
	srcCID, dstCID     uint64
	srcPort, dstPort   uint32
	len                uint32
	typ                uint16
	op                 op
	flags              uint32
	bufAlloc, forwards uint32
}

func parseHeader(b *[headerLen]byte) header {
	return header{
		srcCID:   le.Uint64(b[0:]),
		dstCID:   le.Uint64(b[8:]),
		srcPort:  le.Uint32(b[16:]),
		dstPort:  le.Uint32(b[20:]),
		len:      le.Uint32(b[24:]),
		typ:      le.Uint16(b[28:]),
		op:       op(le.Uint16(b[30:])),
		flags:    le.Uint32(b[32:]),
		bufAlloc: le.Uint32(b[36:]),
		forwards: le.Uint32(b[40:]),
	}
}

func (h *header) encode(b *[headerLen]byte) {
	le.PutUint64(b[0:], h.srcCID)
	le.PutUint64(b[8:], h.dstCID)
	le.PutUint32(b[16:], h.srcPort)
	le.PutUint32(b[20:], h.dstPort)
	le.PutUint32(b[24:], h.len)
	le.PutUint16(b[28:], h.typ)
	le.PutUint16(b[30:], uint16(h.op))
	le.PutUint32(b[32:], h.flags)
	le.PutUint32(b[36:], h.bufAlloc)
	le.PutUint32(b[40:], h.forwards)
}

// resetFor is the RST that answers h when no connection does. It goes back with
// the addresses swapped and the type that came (virtio 1.2, 5.10.6.4).
func resetFor(h header) header {
	return header{
		srcCID: h.dstCID, dstCID: h.srcCID,
		srcPort: h.dstPort, dstPort: h.srcPort,
		typ: h.typ, op: opReset,
	}
}

// Addr is the address of one end of a vsock stream. It implements net.Addr.
type Addr struct {
	// CID is the context identifier: 2 is the host.
	CID uint32
	// Port is the vsock port.
	Port uint32
}

// Network is always "vsock".
func (Addr) Network() string { return "vsock" }

// String gives CID:PORT in decimal.
func (a Addr) String() string { return fmt.Sprintf("%d:%d", a.CID, a.Port) }

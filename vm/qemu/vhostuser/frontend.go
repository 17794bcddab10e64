//go:build linux

package vhostuser

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// request is the type of a front end's message (vhost-user.rst, "Front-end
// message types").
type request uint32

const (
	reqGetFeatures         request = 1
	reqSetFeatures         request = 2
	reqSetOwner            request = 3
	reqResetOwner          request = 4
	reqSetMemTable         request = 5
	reqSetVringNum         request = 8
	reqSetVringAddr        request = 9
	reqSetVringBase        request = 10
	reqGetVringBase        request = 11
	reqSetVringKick        request = 12
	reqSetVringCall        request = 13
	reqSetVringErr         request = 14
	reqGetProtocolFeatures request = 15
	reqSetProtocolFeatures request = 16
	reqSetVringEnable      request = 18
	reqGetConfig           request = 24
)

// Feature bits (virtio 1.2, section 6; vhost-user.rst).
const (
	featIndirectDesc     = 1 << 28 // VIRTIO_F_INDIRECT_DESC
	featProtocolFeatures = 1 << 30 // VHOST_USER_F_PROTOCOL_FEATURES
	featVersion1         = 1 << 32 // VIRTIO_F_VERSION_1
	offeredFeatures      = featIndirectDesc | featProtocolFeatures | featVersion1

	protoReplyAck        = 1 << 3 // VHOST_USER_PROTOCOL_F_REPLY_ACK
	protoConfig          = 1 << 9 // VHOST_USER_PROTOCOL_F_CONFIG: QEMU insists
	offeredProtoFeatures = protoReplyAck | protoConfig
)

// The message header (vhost-user.rst, "Header"). All numbers are in native byte
// order, which is little-endian on every host that PyBox supports.
const (
	messageHeaderLen = 12
	flagVersionMask  = 3
	flagVersion      = 1
	flagReply        = 1 << 2
	flagNeedReply    = 1 << 3

	// maxMessageFDs is one for each region of SET_MEM_TABLE.
	maxMessageFDs = maxRegions
	// maxConfigSize is VHOST_USER_MAX_CONFIG_SIZE.
	maxConfigSize = 256
	// maxMessageLen is the longest payload: SET_MEM_TABLE of all regions and
	// GET_CONFIG of everything are both below it.
	maxMessageLen = 512

	regionSpecLen   = 32
	configHeaderLen = 12
	vringAddrLen    = 40
	vringNoFD       = 1 << 8 // no descriptor comes with SET_VRING_KICK and its like
	vringIndexMask  = 0xff
)

// errFrontEnd marks what the front end must not send.
var errFrontEnd = errors.New("vhost-user front end")

// message is one of the front end. Descriptors that no handler takes are closed.
type message struct {
	request request
	flags   uint32
	body    []byte
	fds     []int
}

// takeFD hands the i-th descriptor to the caller.
func (m *message) takeFD(i int) int {
	fd := m.fds[i]
	m.fds[i] = -1
	return fd
}

func (m *message) closeFDs() {
	for _, fd := range m.fds {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

// want checks the size of the payload and the number of descriptors.
func (m *message) want(bytes, fds int) error {
	if len(m.body) != bytes || len(m.fds) != fds {
		return fmt.Errorf("%d bytes and %d descriptors: want %d and %d", len(m.body), len(m.fds), bytes, fds)
	}
	return nil
}

// Serve speaks vhost-user with one front end over c until the connection ends,
// ctx ends, or the front end does what it must not. It closes c. Afterwards
// the device is dead: connections end, Dial and WaitReady fail with vm.ErrEnded,
// the guest's memory is unmapped and no goroutine is left. (A front end that
// works against the end of the goroutine that interrupts its guest is reported
// after a second, and that goroutine ends with the front end's process.)
//
// It returns nil when the front end closed the connection, ctx's error when that
// ended it, and in any case what the front end did wrong, if that ended it: the
// caller should end such a front end. A device serves once.
func (d *Device) Serve(ctx context.Context, c *net.UnixConn) error {
	defer c.Close()
	if !d.begin() {
		return errors.New("vhost-user vsock: the device has been served before")
	}
	err := d.run(ctx, c)
	if end := d.die(); end != nil && !errors.Is(err, errFrontEnd) {
		err = end
	}
	switch {
	case errors.Is(err, errFrontEnd):
		return err
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return nil
	}
	return err
}

// run works for the guest while it converses with the front end.
func (d *Device) run(ctx context.Context, c *net.UnixConn) error {
	done, idle := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(idle)
		d.work(done)
	}()
	defer func() { close(done); <-idle }()
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	return d.converse(c)
}

func (d *Device) converse(c *net.UnixConn) error {
	for {
		m, err := readMessage(c)
		if err != nil {
			return err
		}
		reply, err := d.answer(m)
		if err != nil {
			return err
		}
		if reply == nil {
			continue
		}
		if _, err := c.Write(reply); err != nil {
			return fmt.Errorf("vhost-user reply: %w", err)
		}
	}
}

// readMessage reads one message. io.EOF means that the front end left between
// two of them.
func readMessage(c *net.UnixConn) (*message, error) {
	var raw [messageHeaderLen]byte
	oob := make([]byte, unix.CmsgSpace(maxMessageFDs*4))
	// The descriptors come with the first byte of a message. Go passes
	// MSG_CMSG_CLOEXEC, so no child inherits them.
	n, oobn, flags, _, err := c.ReadMsgUnix(raw[:], oob)
	if err != nil {
		return nil, fmt.Errorf("vhost-user request: %w", err)
	}
	if n == 0 {
		return nil, io.EOF
	}
	m := &message{}
	if m.fds, err = parseFDs(oob[:oobn]); err == nil && flags&unix.MSG_CTRUNC != 0 {
		err = fmt.Errorf("%w: more than %d descriptors in a message", errFrontEnd, maxMessageFDs)
	}
	if err == nil {
		err = m.readBody(c, raw, n)
	}
	if err != nil {
		m.closeFDs()
		return nil, err
	}
	return m, nil
}

// readBody reads the rest of a message of which n header bytes are there.
func (m *message) readBody(c io.Reader, raw [messageHeaderLen]byte, n int) error {
	if err := readRest(c, raw[n:]); err != nil {
		return fmt.Errorf("vhost-user header: %w", err)
	}
	m.request, m.flags = request(le.Uint32(raw[0:])), le.Uint32(raw[4:])
	length := le.Uint32(raw[8:])
	if m.flags&flagVersionMask != flagVersion || m.flags&flagReply != 0 || length > maxMessageLen {
		return fmt.Errorf("%w: bad header % x", errFrontEnd, raw)
	}
	m.body = make([]byte, length)
	if err := readRest(c, m.body); err != nil {
		return fmt.Errorf("vhost-user payload: %w", err)
	}
	return nil
}

// readRest fills b with what has to come: no end is an orderly one here.
func readRest(c io.Reader, b []byte) error {
	_, err := io.ReadFull(c, b)
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// parseFDs returns every descriptor in the ancillary data, also with an error.
func parseFDs(oob []byte) ([]int, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("vhost-user ancillary data: %w", err)
	}
	var all []int
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			return all, fmt.Errorf("vhost-user ancillary data: %w", err)
		}
		all = append(all, fds...)
	}
	return all, nil
}

// answer handles a message and returns the bytes of the reply, nil for none. An
// error ends the conversation; one that the front end asked to be told of does
// not.
func (d *Device) answer(m *message) ([]byte, error) {
	defer m.closeFDs()
	d.mu.Lock()
	body, err := d.handle(m)
	acks := d.protocolFeatures&protoReplyAck != 0
	retired := d.takeRetired()
	d.mu.Unlock()
	// Waiting for the end of the old ones bounds how many a front end can make.
	if err := retired.close(closeLimit); err != nil {
		return nil, err
	}
	if err != nil {
		err = fmt.Errorf("%w: request %d: %w", errFrontEnd, m.request, err)
	}
	if body == nil && m.flags&flagNeedReply != 0 && acks {
		ack := uint64(0) // vhost-user.rst, "VHOST_USER_PROTOCOL_F_REPLY_ACK"
		if err != nil {
			ack = 1
			d.cfg.log.Warn("vsock: the front end's request failed", "error", err)
			err = nil
		}
		body = u64(ack)
	}
	if err != nil || body == nil {
		return nil, err
	}
	// QEMU rejects a reply that repeats NEED_REPLY.
	reply := make([]byte, 0, messageHeaderLen+len(body))
	reply = le.AppendUint32(reply, uint32(m.request))
	reply = le.AppendUint32(reply, flagVersion|flagReply)
	reply = le.AppendUint32(reply, uint32(len(body)))
	return append(reply, body...), nil
}

func u64(v uint64) []byte { return le.AppendUint64(nil, v) }

// handle carries out one request and returns the payload of its own reply, nil
// for a request without one. What is changed by a request that fails stays as it
// was.
func (d *Device) handle(m *message) ([]byte, error) {
	switch m.request {
	case reqGetFeatures:
		return u64(offeredFeatures), m.want(0, 0)
	case reqGetProtocolFeatures:
		return u64(offeredProtoFeatures), m.want(0, 0)
	case reqSetFeatures:
		return nil, m.setFeatures(&d.features, offeredFeatures)
	case reqSetProtocolFeatures:
		return nil, m.setFeatures(&d.protocolFeatures, offeredProtoFeatures)
	case reqSetOwner:
		return nil, m.want(0, 0)
	case reqResetOwner:
		return nil, d.resetOwner(m)
	case reqGetConfig:
		return d.getConfig(m)
	case reqSetMemTable:
		return nil, d.setMemTable(m)
	case reqSetVringNum, reqSetVringBase, reqGetVringBase, reqSetVringEnable:
		return d.vringState(m)
	case reqSetVringAddr:
		return nil, d.setVringAddr(m)
	case reqSetVringKick, reqSetVringCall, reqSetVringErr:
		return nil, d.setVringFD(m)
	}
	return nil, errors.New("unknown request")
}

func (m *message) setFeatures(features *uint64, offered uint64) error {
	if err := m.want(8, 0); err != nil {
		return err
	}
	v := le.Uint64(m.body)
	if v&^offered != 0 {
		return fmt.Errorf("features %#x: never offered", v&^offered)
	}
	*features = v
	return nil
}

// resetOwner disables the rings, which is all that vhost-user.rst asks for. What
// the streams are worth shows when the rings come back: see setVringBase.
func (d *Device) resetOwner(m *message) error {
	if err := m.want(0, 0); err != nil {
		return err
	}
	for i := range d.queues {
		d.queues[i].enabled = false
	}
	d.ringsChanged()
	return nil
}

// getConfig reads struct virtio_vsock_config, eight bytes of CID (virtio 1.2,
// 5.10.4). The reply's payload is as long as the request's; bytes beyond the
// structure are zero.
func (d *Device) getConfig(m *message) ([]byte, error) {
	if len(m.body) < configHeaderLen || len(m.fds) != 0 {
		return nil, errors.New("malformed GET_CONFIG")
	}
	offset, length := le.Uint32(m.body), le.Uint32(m.body[4:])
	if int(length) != len(m.body)-configHeaderLen || length > maxConfigSize || offset > maxConfigSize-length {
		return nil, errors.New("malformed GET_CONFIG")
	}
	reply := make([]byte, len(m.body))
	copy(reply, m.body[:configHeaderLen])
	if config := u64(uint64(d.cid)); int(offset) < len(config) {
		copy(reply[configHeaderLen:], config[offset:])
	}
	return reply, nil
}

// setMemTable replaces the guest's memory. Rings that run go on in the new one.
func (d *Device) setMemTable(m *message) error {
	if len(m.body) < 8 {
		return errors.New("malformed memory table")
	}
	n := int(min(le.Uint32(m.body), maxRegions+1))
	if n > maxRegions {
		return fmt.Errorf("more than %d memory regions", maxRegions)
	}
	if err := m.want(8+n*regionSpecLen, n); err != nil {
		return err
	}
	specs := make([]regionSpec, n)
	for i := range specs {
		b := m.body[8+i*regionSpecLen:]
		specs[i] = regionSpec{guest: le.Uint64(b), size: le.Uint64(b[8:]), user: le.Uint64(b[16:]), offset: le.Uint64(b[24:])}
	}
	mem, err := mapMemory(specs, m.fds)
	if err != nil {
		return err
	}
	d.mem.unmap()
	d.mem = mem
	for i := range d.queues {
		q := &d.queues[i]
		if !q.placed {
			continue
		}
		if err := q.mapRings(&d.mem); err != nil {
			d.cfg.log.Warn("vsock: a ring is not in the new memory table", "queue", i, "error", err)
		}
	}
	d.ringsChanged()
	return nil
}

func (d *Device) queue(index uint32) (*virtqueue, error) {
	if index >= numQueues {
		return nil, fmt.Errorf("no queue %d", index)
	}
	return &d.queues[index], nil
}

// vringState handles the requests with a vring state description.
func (d *Device) vringState(m *message) ([]byte, error) {
	if err := m.want(8, 0); err != nil {
		return nil, err
	}
	index, num := le.Uint32(m.body), le.Uint32(m.body[4:])
	q, err := d.queue(index)
	if err != nil {
		return nil, err
	}
	switch m.request {
	case reqSetVringNum:
		return nil, d.setVringNum(q, num)
	case reqSetVringBase:
		return nil, d.setVringBase(q, num)
	case reqSetVringEnable:
		if num > 1 {
			return nil, fmt.Errorf("enable %d: want 0 or 1", num)
		}
		q.enabled = num == 1
		d.ringsChanged()
		return nil, nil
	}
	d.stopQueue(q) // GET_VRING_BASE does that
	return le.AppendUint32(le.AppendUint32(nil, index), uint32(q.nextAvail)), nil
}

func (d *Device) setVringNum(q *virtqueue, num uint32) error {
	// 2.7: a power of two.
	if num == 0 || num > maxQueueSize || num&(num-1) != 0 {
		return fmt.Errorf("queue of %d: want a power of two up to %d", num, maxQueueSize)
	}
	if q.started {
		return errors.New("the queue runs")
	}
	q.size = uint16(num)
	q.placed = false // it was measured with the old size
	q.unmapRings()
	return nil
}

// setVringBase says where in the available ring to go on. When that is not where
// the queue was stopped, the driver has started afresh: the guest rebooted or
// reloaded its driver, and knows none of the streams any more. (That both queues
// of a used device stand at exactly 0 is one chance in 2^32, and harmless: the
// guest answers each stale stream with RST.)
func (d *Device) setVringBase(q *virtqueue, num uint32) error {
	if num > 0xffff {
		return fmt.Errorf("base %d: want at most %d", num, 0xffff)
	}
	if q.started {
		return errors.New("the queue runs")
	}
	if q.nextAvail != uint16(num) {
		q.nextAvail = uint16(num)
		d.resetConns(syscall.ECONNRESET)
	}
	return nil
}

func (d *Device) setVringAddr(m *message) error {
	if err := m.want(vringAddrLen, 0); err != nil {
		return err
	}
	q, err := d.queue(le.Uint32(m.body))
	if err != nil {
		return err
	}
	if flags := le.Uint32(m.body[4:]); flags != 0 { // VHOST_VRING_F_LOG: never offered
		return fmt.Errorf("ring flags %#x", flags)
	}
	q.descAddr, q.usedAddr, q.availAddr = le.Uint64(m.body[8:]), le.Uint64(m.body[16:]), le.Uint64(m.body[24:])
	err = q.mapRings(&d.mem)
	q.placed = err == nil
	if q.placed {
		// Every buffer that was taken has been given back, so this is where we
		// stopped, or zero after a reset.
		q.nextUsed = indexOf(q.used)
	}
	d.ringsChanged()
	return err
}

// setVringFD handles the requests that bring an eventfd.
func (d *Device) setVringFD(m *message) error {
	if len(m.body) != 8 {
		return errors.New("malformed request")
	}
	v := le.Uint64(m.body)
	if v&^(vringIndexMask|vringNoFD) != 0 {
		return fmt.Errorf("queue %#x", v)
	}
	q, err := d.queue(uint32(v & vringIndexMask))
	if err != nil {
		return err
	}
	fds := 1
	if v&vringNoFD != 0 {
		fds = 0
	}
	if err := m.want(8, fds); err != nil {
		return err
	}
	switch m.request {
	case reqSetVringKick:
		return d.setVringKick(q, m)
	case reqSetVringCall:
		return d.setVringCall(q, m)
	}
	return nil // SET_VRING_ERR: we have nothing to say there
}

func (d *Device) setVringKick(q *virtqueue, m *message) error {
	if len(m.fds) == 0 {
		return errors.New("polling is not supported")
	}
	k, err := newKick(m.takeFD(0))
	if err != nil {
		return err
	}
	d.startQueue(q, k)
	return nil
}

func (d *Device) setVringCall(q *virtqueue, m *message) error {
	var c *call
	if len(m.fds) == 1 {
		var err error
		if c, err = newCall(m.takeFD(0)); err != nil {
			return err
		}
	}
	d.retired.call(q.call)
	q.call = c
	if q.started {
		d.mu.due[q.index] = c // nothing may be lost between two eventfds
	}
	return nil
}

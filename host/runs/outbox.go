package runs

import (
	"sync"
	"sync/atomic"

	agentapi "github.com/pybox/pybox/agent/api"
	"github.com/pybox/pybox/host/api"
)

// maxSamples bounds the samples that wait for a sink; newer ones are left out.
const maxSamples = 256

// outbox holds what a sink has not taken yet, in order, so that a slow one delays
// nothing but itself. Package guestrun bounds the number of all kinds of events but
// output and samples. Pieces of output that wait are joined, so that they cost about
// twice the output that is kept at most.
type outbox struct {
	mu      sync.Mutex
	changed sync.Cond
	items   []*item
	last    [3]*item // the last waiting piece of each stream, if it may grow
	samples int      // that wait
	bytes   int64    // of output that wait
	closed  bool
	all     *atomic.Int64 // bytes that wait in all outboxes of a service
}

// item is an event, or a piece of output of a stream.
type item struct {
	event  api.Event
	stream uint32 // 0: it is an event
	data   []byte
}

func newOutbox(all *atomic.Int64) *outbox {
	b := &outbox{all: all}
	b.changed.L = &b.mu
	return b
}

// put adds an event.
func (b *outbox) put(e api.Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e.Event == api.EventSample {
		if b.samples >= maxSamples {
			return
		}
		b.samples++
	} else {
		b.last = [3]*item{} // no output passes it by
	}
	b.add(&item{event: e})
}

// output adds a piece of output, which is not changed.
func (b *outbox) output(ms float64, stream uint32, data []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return
	}
	b.count(len(data))
	if l := b.last[stream]; l != nil && len(l.data)+len(data) <= agentapi.MaxOutputPiece {
		l.data = append(l.data, data...)
		return
	}
	i := &item{event: api.Event{MS: ms}, stream: stream, data: data[:len(data):len(data)]}
	b.last[stream] = i
	b.add(i)
}

// count adds n bytes to those that wait; the lock is held.
func (b *outbox) count(n int) {
	b.bytes += int64(n)
	b.all.Add(int64(n))
}

// waits is how many bytes of output wait.
func (b *outbox) waits() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.bytes
}

func (b *outbox) add(i *item) {
	if b.closed {
		return
	}
	b.items = append(b.items, i)
	b.changed.Signal()
}

// close says that nothing is to come.
func (b *outbox) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	b.changed.Signal()
}

// drop forgets what waits, and what is still to come.
func (b *outbox) drop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.items, b.last, b.closed = nil, [3]*item{}, true
	b.count(-int(b.bytes))
}

// deliver gives everything to sink until the outbox is closed. After an error, or
// a panic, of sink it is of no use any more.
func (b *outbox) deliver(sink Sink) error {
	defer b.drop()
	for i := b.take(); i != nil; i = b.take() {
		var err error
		if i.stream == 0 {
			err = sink.Event(i.event)
		} else {
			err = sink.Output(i.event.MS, int(i.stream), i.data)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// take waits for the next item; nil: there are no more.
func (b *outbox) take() *item {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.items) == 0 && !b.closed {
		b.changed.Wait()
	}
	if len(b.items) == 0 {
		return nil
	}
	i := b.items[0]
	b.items[0] = nil
	b.items = b.items[1:]
	b.count(-len(i.data))
	switch {
	case i.stream != 0 && b.last[i.stream] == i:
		b.last[i.stream] = nil
	case i.event.Event == api.EventSample:
		b.samples--
	}
	return i
}

package box

import (
	"context"
	"sync"

	agentv1 "github.com/pybox/pybox/agent/api/v1"
)

// source is kept output that one reader follows at its own pace.
type source interface {
	// Next waits for kept bytes from that offset on. done means that no more
	// will come; b is valid until the next call.
	Next(ctx context.Context, from int64) (b []byte, done bool, err error)
}

// maxPiece bounds one output event, in bytes.
const maxPiece = 64 << 10

// stream carries the events of a run to its client at the client's pace. What
// happens in the run never waits for it: events are queued (their number is
// bounded by what a run does), output stays in its captures until it is asked
// for. It is safe for concurrent use.
type stream struct {
	mu     sync.Mutex
	queue  []*agentv1.RunEvent
	closed bool
	wake   chan struct{}

	pieces chan *agentv1.RunEvent
	pumps  sync.WaitGroup
}

func newStream() *stream {
	return &stream{wake: make(chan struct{}, 1), pieces: make(chan *agentv1.RunEvent)}
}

// event queues e.
func (s *stream) event(e *agentv1.RunEvent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = append(s.queue, e)
	s.poke()
}

// close says that no more will be queued.
func (s *stream) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.poke()
}

func (s *stream) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// follow begins to send the output n out of src.
func (s *stream) follow(ctx context.Context, n uint32, src source) {
	s.pumps.Go(func() {
		for from := int64(0); ; {
			b, done, err := src.Next(ctx, from)
			if err != nil {
				return
			}
			for len(b) > 0 {
				piece := b[:min(len(b), maxPiece)]
				e := &agentv1.RunEvent{Event: &agentv1.RunEvent_Output{Output: &agentv1.Output{Stream: n, Data: piece}}}
				select {
				case s.pieces <- e:
				case <-ctx.Done():
					return
				}
				b, from = b[len(piece):], from+int64(len(piece))
			}
			if done {
				return
			}
		}
	})
}

// flush waits until all output that is followed is on its way to the client, or
// ctx ends.
func (s *stream) flush(ctx context.Context) {
	done := make(chan struct{})
	go func() {
		s.pumps.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// run sends until close was called and everything queued is out, or until a send
// fails or ctx ends. Events go before output that waits: they are few.
func (s *stream) run(ctx context.Context, send func(*agentv1.RunEvent) error) error {
	for {
		s.mu.Lock()
		batch, closed := s.queue, s.closed
		s.queue = nil
		s.mu.Unlock()
		for _, e := range batch {
			if err := send(e); err != nil {
				return err
			}
		}
		if len(batch) > 0 {
			continue
		}
		if closed {
			return nil
		}
		select {
		case <-s.wake:
		case e := <-s.pieces:
			if err := send(e); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

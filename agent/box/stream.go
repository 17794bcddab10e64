package box

import (
	"context"
	"errors"
	"math"
	"sync"
	"time"

	"github.com/pybox/pybox/agent/api"
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
// for, and files stay in the working folder. It is safe for concurrent use.
type stream struct {
	mu     sync.Mutex
	queue  []*agentv1.RunEvent
	taken  int // how many events are no longer in the queue
	closed bool
	wake   chan struct{}
	// late is whether events that nobody waits for will be sent after lateAfter.
	late bool

	pieces chan piece
	pumps  sync.WaitGroup
	over   chan struct{} // closed when nothing is sent any more
}

func newStream() *stream {
	return &stream{wake: make(chan struct{}, 1), pieces: make(chan piece), over: make(chan struct{})}
}

// piece is an event that was not queued: a piece of something large. It goes after
// as many queued events as there were when it was handed over.
type piece struct {
	event *agentv1.RunEvent
	after int
}

// errStreamOver: the client's stream took no more.
var errStreamOver = errors.New("the client's stream has ended")

// event queues e. A nil stream, of a box that no run has yet, has nobody to tell.
func (s *stream) event(e *agentv1.RunEvent) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = append(s.queue, e)
	s.poke()
}

// lateAfter is how long an event may wait for others that are sent with it.
const lateAfter = 50 * time.Millisecond

// later is event for what nobody waits for: it is sent with the next event or piece that
// somebody waits for, or after lateAfter. What is sent alone costs the run about as much
// as anything that it does.
func (s *stream) later(e *agentv1.RunEvent) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = append(s.queue, e)
	if !s.late {
		s.late = true
		time.AfterFunc(lateAfter, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.late = false
			s.poke()
		})
	}
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
				data := b[:min(len(b), maxPiece)]
				e := &agentv1.RunEvent{Event: &agentv1.RunEvent_Output{Output: &agentv1.Output{Stream: n, Data: data}}}
				if s.hand(ctx, e) != nil {
					return
				}
				b, from = b[len(data):], from+int64(len(data))
			}
			if done {
				return
			}
		}
	})
}

// hand sends e after all that is queued, and returns when it is about to be sent:
// what was handed over before is with the client's connection by then.
func (s *stream) hand(ctx context.Context, e *agentv1.RunEvent) error {
	s.mu.Lock()
	p := piece{e, s.taken + len(s.queue)}
	s.mu.Unlock()
	select {
	case s.pieces <- p:
		return nil
	case <-s.over:
		return errStreamOver
	case <-ctx.Done():
		return context.Cause(ctx)
	}
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
// fails or ctx ends. Events go before pieces that wait: they are few.
func (s *stream) run(ctx context.Context, send func(*agentv1.RunEvent) error) error {
	defer close(s.over)
	all := func(events []*agentv1.RunEvent) error {
		return api.Together(ctx, func() error {
			for _, e := range events {
				if err := send(e); err != nil {
					return err
				}
			}
			return nil
		})
	}
	for {
		batch, closed := s.take(math.MaxInt)
		if err := all(batch); err != nil {
			return err
		}
		if len(batch) > 0 {
			continue
		}
		if closed {
			return nil
		}
		select {
		case <-s.wake:
		case p := <-s.pieces:
			batch, _ := s.take(p.after)
			if err := all(append(batch, p.event)); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// take takes events out of the queue, until so many have ever been taken, and tells
// whether no more will be queued.
func (s *stream) take(until int) (batch []*agentv1.RunEvent, closed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := max(0, min(until-s.taken, len(s.queue)))
	batch, s.queue = s.queue[:n:n], s.queue[n:]
	s.taken += n
	return batch, s.closed
}

package engine

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/containers"
)

// storeCeiling bounds a call of the store, which writes a few pages of memory.
const storeCeiling = 10 * time.Second

// store is containerd's container records. The data base below (bbolt) has one
// writer at a time and knows no contexts: a call that waits for a writer which
// never ends would not return. Here it does, and trouble tells of it.
type store struct {
	containers.Store

	ceiling time.Duration

	mu    sync.Mutex
	calls map[*storeCall]bool // in progress, given up or not
}

// storeCall is one call, until it returns.
type storeCall struct {
	begun             time.Time
	finished, givenUp bool
	err               error
}

func newStore(s containers.Store) *store {
	return &store{Store: s, ceiling: storeCeiling, calls: map[*storeCall]bool{}}
}

// trouble is an error while a call takes longer than any should.
func (s *store) trouble() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.calls {
		if d := time.Since(c.begun); d > s.ceiling {
			return fmt.Errorf("%w for %v", ErrStore, d.Round(time.Second))
		}
	}
	return nil
}

// ask calls f and waits for it, but not for longer than ctx and the ceiling. When
// that is over and f is done after all, undo, which may be nil, takes it back.
func ask[T any](ctx context.Context, s *store, f func() (T, error), undo func()) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, s.ceiling)
	defer cancel()
	c := s.begin()
	var v T
	done := make(chan struct{})
	go func() {
		defer close(done)
		got, err := f()
		if s.end(c, err, func() { v = got }) && err == nil && undo != nil {
			undo()
		}
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !c.finished {
		c.givenUp = true
		return *new(T), fmt.Errorf("%w: %w", ErrStore, context.Cause(ctx))
	}
	return v, c.err
}

func (s *store) begin() *storeCall {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := &storeCall{begun: time.Now()}
	s.calls[c] = true
	return c
}

// end notes that a call has returned, with take where somebody still waits for it,
// and tells whether nobody does.
func (s *store) end(c *storeCall, err error, take func()) (givenUp bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.calls, c)
	if c.givenUp {
		return true
	}
	c.finished, c.err = true, err
	take()
	return false
}

// Create implements containers.Store.
func (s *store) Create(ctx context.Context, c containers.Container) (containers.Container, error) {
	return ask(ctx, s, func() (containers.Container, error) { return s.Store.Create(ctx, c) },
		func() { _ = s.Store.Delete(context.WithoutCancel(ctx), c.ID) })
}

// Delete implements containers.Store.
func (s *store) Delete(ctx context.Context, id string) error {
	_, err := ask(ctx, s, func() (struct{}, error) { return struct{}{}, s.Store.Delete(ctx, id) }, nil)
	return err
}

// Get implements containers.Store.
func (s *store) Get(ctx context.Context, id string) (containers.Container, error) {
	return ask(ctx, s, func() (containers.Container, error) { return s.Store.Get(ctx, id) }, nil)
}

// List implements containers.Store.
func (s *store) List(ctx context.Context, filters ...string) ([]containers.Container, error) {
	return ask(ctx, s, func() ([]containers.Container, error) { return s.Store.List(ctx, filters...) }, nil)
}

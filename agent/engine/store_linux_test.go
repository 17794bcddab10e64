package engine

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/containerd/v2/core/containers"
)

// fakeStore holds every call until released.
type fakeStore struct {
	containers.Store
	release chan struct{}
	deleted chan string
	err     error
}

func (f *fakeStore) Create(_ context.Context, c containers.Container) (containers.Container, error) {
	<-f.release
	return c, f.err
}

func (f *fakeStore) Delete(_ context.Context, id string) error {
	f.deleted <- id
	return nil
}

func (f *fakeStore) Get(_ context.Context, id string) (containers.Container, error) {
	<-f.release
	return containers.Container{ID: id}, nil
}

func TestStoreThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeStore{release: make(chan struct{}), deleted: make(chan string, 1)}
		s := newStore(f)
		begun := time.Now()
		_, err := s.Create(t.Context(), containers.Container{ID: "a"})
		if !errors.Is(err, ErrStore) || time.Since(begun) != storeCeiling {
			t.Errorf("after %v: %v", time.Since(begun), err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := s.Get(ctx, "a"); !errors.Is(err, ErrStore) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("with a deadline: %v", err)
		}
		if err := s.trouble(); !errors.Is(err, ErrStore) {
			t.Errorf("trouble: %v", err)
		}
		// It comes back, and what nobody waited for is taken back.
		close(f.release)
		if id := <-f.deleted; id != "a" {
			t.Errorf("%q was taken back", id)
		}
		synctest.Wait()
		if err := s.trouble(); err != nil {
			t.Errorf("trouble: %v", err)
		}
		if c, err := s.Get(t.Context(), "b"); c.ID != "b" || err != nil {
			t.Errorf("%v, %v", c, err)
		}
	})
}

// A call that fails after it was given up left nothing to take back, and one that
// is in time is kept.
func TestStoreTakesNothingElseBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeStore{release: make(chan struct{}), deleted: make(chan string), err: errors.New("no")}
		s := newStore(f)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := s.Create(ctx, containers.Container{ID: "a"}); !errors.Is(err, ErrStore) {
			t.Error(err)
		}
		if err := s.trouble(); err != nil {
			t.Errorf("it has not taken long: %v", err)
		}
		close(f.release)
		synctest.Wait()
		f.err = nil
		if c, err := s.Create(t.Context(), containers.Container{ID: "b"}); c.ID != "b" || err != nil {
			t.Errorf("%v, %v", c, err)
		}
		synctest.Wait() // a goroutine that deletes would be left over
	})
}

package box

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	agentv1 "github.com/pybox/pybox/agent/api/v1"
)

// kept is a source with everything in it already.
type kept []byte

func (k kept) Next(_ context.Context, from int64) ([]byte, bool, error) {
	return k[from:], true, nil
}

func stage(name string) *agentv1.RunEvent {
	return &agentv1.RunEvent{Event: &agentv1.RunEvent_Stage{Stage: &agentv1.Stage{Name: name}}}
}

func TestStreamSendsOutputInPiecesAndTheLastEventLast(t *testing.T) {
	s := newStream()
	s.event(stage("first"))
	out := bytes.Repeat([]byte("0123456789"), 20000)
	s.follow(t.Context(), 1, kept(out))
	var got []byte
	var names []string
	done := make(chan error, 1)
	go func() {
		done <- s.run(t.Context(), func(e *agentv1.RunEvent) error {
			if o := e.GetOutput(); o != nil {
				if len(o.Data) > maxPiece || o.Stream != 1 {
					t.Errorf("a piece of %d bytes of stream %d", len(o.Data), o.Stream)
				}
				got = append(got, o.Data...)
			} else {
				names = append(names, e.GetStage().GetName())
				if e.GetStage().GetName() == "last" && len(got) != len(out) {
					t.Errorf("the last event came after %d bytes of output", len(got))
				}
			}
			return nil
		})
	}()
	s.flush(t.Context())
	s.event(stage("last"))
	s.close()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, out) || len(names) != 2 || names[0] != "first" {
		t.Errorf("%d bytes, events %q", len(got), names)
	}
}

// A client that takes nothing delays neither events nor output sources.
func TestStreamNeverBlocksTheRun(t *testing.T) {
	s := newStream()
	ctx, cancel := context.WithCancel(t.Context())
	stuck, taken := make(chan struct{}), make(chan struct{}, 1)
	done := make(chan error, 1)
	go func() {
		done <- s.run(ctx, func(*agentv1.RunEvent) error {
			taken <- struct{}{}
			<-stuck
			return errors.New("the client is gone")
		})
	}()
	s.event(stage("one"))
	<-taken
	for range 1000 {
		s.event(stage("more"))
	}
	s.follow(ctx, 2, kept("output"))
	short, end := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer end()
	s.flush(short)
	if short.Err() == nil {
		t.Error("output that nobody took counts as flushed")
	}
	cancel()
	s.flush(t.Context()) // the pump ends with ctx
	close(stuck)
	if err := <-done; err == nil {
		t.Error("want the error of the send")
	}
}

// A piece goes after everything that was queued before it was handed over, and
// before everything that is queued after that.
func TestHandKeepsTheOrder(t *testing.T) {
	s := newStream()
	var got []string
	done := make(chan error, 1)
	go func() {
		done <- s.run(t.Context(), func(e *agentv1.RunEvent) error {
			if name := e.GetLeftFile().GetName(); name != "" {
				got = append(got, name)
			} else {
				got = append(got, e.GetStage().GetName())
			}
			return nil
		})
	}()
	var want []string
	for i := range 500 {
		before, file := fmt.Sprint("before ", i), fmt.Sprint("file ", i)
		s.event(stage(before))
		if err := s.hand(t.Context(), &agentv1.RunEvent{Event: &agentv1.RunEvent_LeftFile{LeftFile: &agentv1.LeftFile{Name: file}}}); err != nil {
			t.Fatal(err)
		}
		want = append(want, before, file)
	}
	s.event(stage("last"))
	s.close()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if want = append(want, "last"); !slices.Equal(got, want) {
		t.Errorf("%d events came, or not in order: %.300q", len(got), got)
	}
}

// Files are in the way of nobody else: what waits to be sent is one piece, and it
// ends with the client.
func TestHandWaitsForTheClient(t *testing.T) {
	s := newStream()
	stuck := make(chan struct{})
	done := make(chan error, 1)
	broken := errors.New("the client is gone")
	go func() {
		done <- s.run(t.Context(), func(*agentv1.RunEvent) error {
			<-stuck
			return broken
		})
	}()
	piece := &agentv1.RunEvent{Event: &agentv1.RunEvent_LeftData{LeftData: []byte("x")}}
	if err := s.hand(t.Context(), piece); err != nil { // is being sent
		t.Fatal(err)
	}
	late := errors.New("it took too long")
	short, end := context.WithTimeoutCause(t.Context(), 20*time.Millisecond, late)
	defer end()
	if err := s.hand(short, piece); !errors.Is(err, late) {
		t.Errorf("a piece that nobody took: %v", err)
	}
	close(stuck)
	if err := s.hand(t.Context(), piece); !errors.Is(err, errStreamOver) {
		t.Errorf("a piece after the client's end: %v", err)
	}
	if err := <-done; !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
}

// TestStreamSendsLater: what nobody waits for goes with what somebody does, in order, and
// after a time also alone.
func TestStreamSendsLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStream()
		began := time.Now()
		var got []string
		done := make(chan error, 1)
		go func() {
			done <- s.run(t.Context(), func(e *agentv1.RunEvent) error {
				got = append(got, fmt.Sprintf("%s after %v", e.GetStage().GetName(), time.Since(began)))
				return nil
			})
		}()
		synctest.Wait()
		s.later(stage("one"))
		time.Sleep(lateAfter / 2)
		s.later(stage("two"))
		s.event(stage("three"))
		synctest.Wait()
		time.Sleep(lateAfter)
		s.later(stage("four"))
		time.Sleep(2 * lateAfter)
		s.later(stage("five"))
		s.close()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		half := lateAfter / 2
		want := []string{
			fmt.Sprintf("one after %v", half), fmt.Sprintf("two after %v", half), fmt.Sprintf("three after %v", half),
			fmt.Sprintf("four after %v", half+2*lateAfter), fmt.Sprintf("five after %v", half+3*lateAfter),
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	})
}

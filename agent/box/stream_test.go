package box

import (
	"bytes"
	"context"
	"errors"
	"testing"
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

package guestrun

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"

	"github.com/pybox/pybox/agent/api"
)

// A run that the agent does not take has no record, and is not the guest's end.
func TestNotTaken(t *testing.T) {
	for _, waits := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			g := newGuest(t, func(s *script) {
				if waits {
					s.Send(queuedEvent())
					s.Sleep(20 * time.Second)
				}
				s.Refuse(connect.CodeResourceExhausted, "no room within 20s")
			})
			res, err := Run(t.Context(), g, request(), nil, Options{})
			if !errors.Is(err, ErrNotTaken) || connect.CodeOf(err) != connect.CodeResourceExhausted || !strings.Contains(err.Error(), "no room") {
				t.Errorf("%v, want ErrNotTaken", err)
			}
			if res != nil || len(g.Killed()) > 0 {
				t.Errorf("the result is %+v, killed %q", res, g.Killed())
			}
		})
	}
}

// An agent that fails on a run that it has taken is not trusted with another.
func TestAgentFailsInARun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuest(t, func(s *script) { s.Begin(); s.Refuse(connect.CodeInternal, "the agent failed on this call") })
		res, err := Run(t.Context(), g, request(), nil, Options{})
		if err != nil {
			t.Fatal(err)
		}
		wantEnding(t, res, api.HowVMLost, api.ByHost)
		if said := res.Ending.GetEvidence()[0]; !strings.Contains(said, "failed on this call") || len(g.Killed()) != 1 {
			t.Errorf("evidence %q, killed %q", said, g.Killed())
		}
	})
}

// Output that was kept and not sent is named.
func TestOutputThatDoesNotCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuest(t, func(s *script) {
			s.Begin()
			s.Print(1, "abc")
			e, x := exitWith(0)
			r := s.Record(e, x, true)
			r.Stdout = printed([]byte("abcdef"))
			s.Finish(r)
		})
		res, err := Run(t.Context(), g, request(), nil, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if res.Stdout.Complete || !res.Stderr.Complete || res.Stdout.Bytes != 3 || len(res.Unknown) != 1 {
			t.Errorf("the result is %+v", res)
		}
	})
}

// A removal that is confirmed later comes later, and Run does not wait for it.
func TestCleanupThatComesLater(t *testing.T) {
	for name, c := range map[string]struct {
		play func(*script)
		come bool
		took time.Duration
	}{
		"in time":  {func(s *script) { s.Sleep(10 * time.Second); s.Send(cleanup()) }, true, 10 * time.Second},
		"too late": {func(s *script) { s.Sleep(2 * CompletionWait); s.Send(cleanup()) }, false, CompletionWait},
		"never":    {func(s *script) { s.Sleep(5 * time.Second) }, false, 5 * time.Second},
		"a lie":    {func(s *script) { s.Sleep(time.Second); s.Send(stage()) }, false, time.Second},
		"a loss":   {func(s *script) { s.Sleep(time.Second); s.Guest.Die(nil) }, false, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newGuest(t, func(s *script) {
					s.Begin()
					e, x := exitWith(0)
					r := s.Record(e, x, true)
					incomplete(r)
					s.Finish(r)
					c.play(s)
				})
				// A caller's context ends with its own affairs.
				ctx, cancel := context.WithCancel(t.Context())
				res, err := Run(ctx, g, request(), nil, Options{})
				cancel()
				if err != nil {
					t.Fatal(err)
				}
				wantAfter(t, res, 0)
				if res.Cleanup == nil {
					t.Fatal("nothing is to come")
				}
				m, ok := <-res.Cleanup
				if ok != c.come || ok && m.GetStatus() != api.CleanupRemoved {
					t.Errorf("%v, %v", m, ok)
				}
				if took := time.Since(res.Times.Ended); took != c.took {
					t.Errorf("it took %v, want %v", took, c.took)
				}
				if _, ok := <-res.Cleanup; ok {
					t.Error("there is a second one")
				}
			})
		})
	}
}

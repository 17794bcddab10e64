package guestrun

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pybox/pybox/agent/api"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/vm"
)

// lined counts the connections for large files, or refuses them with err.
type lined struct {
	*fakeGuest
	conns atomic.Int64
	err   error
}

// Bulk implements Guest.
func (g *lined) Bulk(ctx context.Context) (net.Conn, error) {
	g.conns.Add(1)
	if g.err != nil {
		return nil, g.err
	}
	return g.fakeGuest.Bulk(ctx)
}

// pattern has bytes that no part of it repeats at the distance of a piece.
func pattern(n int) string {
	var b strings.Builder
	for i := 0; b.Len() < n; i++ {
		b.WriteString(strings.Repeat(string(rune('a'+i%26)), 1+i%97))
	}
	return b.String()[:n]
}

// Large files go over one connection of the run, both ways and whole, and small ones
// need none.
func TestLargeFiles(t *testing.T) {
	for name, c := range map[string]struct {
		in, out []int
		conns   int64
	}{
		"small":     {[]int{0, 1, api.MaxDataPiece}, []int{0, 1, api.MaxDataPiece}, 0},
		"in":        {[]int{1, api.MaxDataPiece + 1, 2, 3<<20 + 5}, []int{7}, 1},
		"out":       {[]int{7}, []int{1, api.MaxDataPiece + 1, 2, 3<<20 + 5}, 1},
		"both ways": {[]int{api.BulkPiece, 5, 1 << 21}, []int{api.BulkPiece, 5, leftPiece, 1 << 21}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := &lined{fakeGuest: leaves(t, func(s *script) {
					for i, n := range c.in {
						if got := s.Got[string(rune('a'+i))]; string(got) != pattern(n) {
							t.Errorf("%d bytes came of the %d of file %d, or others", len(got), n, i)
						}
					}
					for i, n := range c.out {
						s.Leave(string(rune('a'+i)), []byte(pattern(n)))
					}
				})}
				b := newBasket()
				r := collecting(b)
				for i, n := range c.in {
					r.Files = append(r.Files, text(string(rune('a'+i)), pattern(n)))
				}
				res, err := Run(t.Context(), g, r, nil, Options{})
				if err != nil {
					t.Fatal(err)
				}
				wantEnding(t, res, api.HowExited, api.ByProgram)
				for i, n := range c.in {
					if in := res.Inputs[1+i]; in.SHA256 != sha256.Sum256([]byte(pattern(n))) {
						t.Errorf("%+v", in)
					}
				}
				for i, n := range c.out {
					f := res.Left[i]
					if k := b.kept[f.Name]; f.Err != nil || !bytes.Equal(k.Bytes(), []byte(pattern(n))) || f.SHA256 != sha256.Sum256(k.Bytes()) {
						t.Errorf("%d bytes came back of the %d of file %d, or others: %+v", k.Len(), n, i, f)
					}
				}
				if n := g.conns.Load(); n != c.conns {
					t.Errorf("%d connections, want %d", n, c.conns)
				}
			})
		})
	}
}

// A guest that cannot be connected to for a large file gets none, and the run ends.
func TestNoLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &lined{err: vm.ErrRefused, fakeGuest: newGuest(t, func(s *script) {
			s.Admit()
			go s.Upload()
			<-s.Cancelled
			s.Finish(newScript().Record(&agentv1.Ending{How: api.HowCancelled, By: api.ByClient}, nil, false))
		})}
		r := request()
		r.Files = append(r.Files, text("data", pattern(1<<20)))
		res, err := Run(t.Context(), g, r, nil, Options{})
		if !errors.Is(err, ErrFiles) || !errors.Is(err, vm.ErrRefused) || !strings.Contains(err.Error(), `"data"`) {
			t.Errorf("%v, want ErrFiles of data", err)
		}
		wantEnding(t, res, api.HowCancelled, api.ByClient)
	})
}

// A guest that cannot be connected to for a large file that comes back keeps it, and the
// run ends with the agent's record: the guest is well.
func TestNoLineBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		no := errors.New("no room for a connection")
		g := &lined{err: no, fakeGuest: newGuest(t, func(s *script) {
			if !s.Begin() {
				return
			}
			e, x := exitWith(0)
			s.Exited(e, x)
			s.Leave("a", []byte("small"))
			s.LeaveFile(&agentv1.LeftFile{Name: "b", Bytes: 1 << 20})
			<-s.Cancelled
			r := s.Record(e, x, true)
			r.Left.Complete = false
			s.Finish(r)
		})}
		b := newBasket()
		res, err := Run(t.Context(), g, collecting(b), nil, Options{})
		if err != nil || res.GuestLost || len(g.Killed()) > 0 {
			t.Fatalf("%v, %v, killed %q", err, res.Ending, g.Killed())
		}
		wantEnding(t, res, api.HowExited, api.ByProgram)
		if took := res.Times.Ended.Sub(res.Times.Exited); took > 0 || res.Record == nil {
			t.Errorf("it took %v, record %v", took, res.Record)
		}
		if len(res.Left) != 2 || res.Left[0].Err != nil || !errors.Is(res.Left[1].Err, no) {
			t.Errorf("%+v", res.Left)
		}
		synctest.Wait()
		if b.begun("b") && !b.discarded("b") {
			t.Error("a part of a file is kept")
		}
	})
}

// Guests that do what they should not on the connection, or nothing, lose the run, and
// in bounded time.
func TestHostileLines(t *testing.T) {
	file := func(bulk bool, n int64) *agentv1.RunEvent {
		return &agentv1.RunEvent{Event: &agentv1.RunEvent_LeftFile{LeftFile: &agentv1.LeftFile{Name: "a", Bytes: n, Bulk: bulk}}}
	}
	for name, c := range map[string]struct {
		play func(t *testing.T, s *script)
		most time.Duration
	}{
		"sends no byte of a file": {func(_ *testing.T, s *script) {
			s.Send(file(true, 1<<20))
			s.Hang()
		}, DefaultSilence + GiveUpAfter},
		"says it twice": {func(_ *testing.T, s *script) {
			s.Send(file(true, 1<<20))
			s.Send(&agentv1.RunEvent{Event: &agentv1.RunEvent_LeftData{LeftData: make([]byte, api.MaxDataPiece)}})
			s.Hang()
		}, DefaultSilence + GiveUpAfter},
		"cuts a file that nobody gave up": {func(t *testing.T, s *script) {
			s.LeaveFile(&agentv1.LeftFile{Name: "a", Bytes: 1 << 20})
			s.LeaveData(make([]byte, 1000))
			e, x := exitWith(0)
			r := s.Record(e, x, true)
			r.Left.Complete = false
			s.Finish(r)
		}, 0},
		"gives the rest in the stream": {func(_ *testing.T, s *script) {
			s.LeaveFile(&agentv1.LeftFile{Name: "a", Bytes: 2 * api.MaxDataPiece})
			s.LeaveData(make([]byte, api.MaxDataPiece))
			s.CloseLine()
			s.Send(&agentv1.RunEvent{Event: &agentv1.RunEvent_LeftData{LeftData: make([]byte, api.MaxDataPiece)}})
			s.Hang()
		}, 0},
		"more than was asked for": {func(_ *testing.T, s *script) {
			s.Send(file(true, 1<<40))
			s.Hang()
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newGuest(t, func(s *script) {
					if !s.Begin() {
						return
					}
					e, x := exitWith(0)
					s.Exited(e, x)
					c.play(t, s)
				})
				b := newBasket()
				res, err := Run(t.Context(), g, collecting(b), nil, Options{})
				if err != nil {
					t.Fatal(err)
				}
				if !res.GuestLost || len(g.Killed()) != 1 || res.Ending.GetHow() != api.HowVMLost {
					t.Errorf("it ended %v, killed %q", res.Ending, g.Killed())
				}
				if took := res.Times.Ended.Sub(res.Times.Exited); took > c.most {
					t.Errorf("it took %v, want at most %v", took, c.most)
				}
				synctest.Wait()
				if b.begun("a") && !b.discarded("a") {
					t.Error("a part of a file is kept")
				}
			})
		})
	}
}

// A guest that takes nothing of a large file is given up.
func TestLineThatIsNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuest(t, func(s *script) {
			s.Admit().Hang()
		})
		r := request()
		r.Files = append(r.Files, File{Name: "data", Bytes: 1 << 30, Open: func() (io.ReadCloser, error) { return reader(endless), nil }})
		res, err := Run(t.Context(), g, r, nil, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if took := res.Times.Ended.Sub(res.Times.Admitted); !res.GuestLost || took > DefaultSilence+GiveUpAfter {
			t.Errorf("after %v: %v", took, res.Ending)
		}
	})
}

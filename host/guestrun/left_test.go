package guestrun

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pybox/pybox/agent/api"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
)

// basket keeps what comes back in memory.
type basket struct {
	mu     sync.Mutex
	kept   map[string]*kept
	refuse map[string]error // by name, from the basket itself
	fail   map[string]error // from writing
	block  map[string]time.Duration
}

func newBasket() *basket {
	return &basket{kept: map[string]*kept{}, refuse: map[string]error{}, fail: map[string]error{}, block: map[string]time.Duration{}}
}

// kept is a file in it. Only one call may be in progress at a time.
type kept struct {
	b    *basket
	name string
	bytes.Buffer
	committed, discarded bool
}

func (b *basket) keep(f Left) (Kept, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.refuse[f.Name]; err != nil || f.Folder {
		return nil, err
	}
	k := &kept{b: b, name: f.Name}
	b.kept[f.Name] = k
	return k, nil
}

func (k *kept) Write(p []byte) (int, error) {
	if d := k.b.block[k.name]; d > 0 {
		time.Sleep(d) // of the bubble's clock
	}
	if err := k.b.fail[k.name]; err != nil {
		return 0, err
	}
	return k.Buffer.Write(p)
}

func (k *kept) Commit() error {
	k.b.mu.Lock()
	defer k.b.mu.Unlock()
	k.committed = true
	return nil
}

func (k *kept) Discard() {
	k.b.mu.Lock()
	defer k.b.mu.Unlock()
	k.discarded = true
}

func (b *basket) begun(name string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.kept[name] != nil
}

func (b *basket) discarded(name string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.kept[name] != nil && b.kept[name].discarded
}

// collecting asks for a run whose files come back into b.
func collecting(b *basket) Request {
	r := request()
	r.Start.Collect, r.Start.Files, r.Start.FilesBytes = true, 10, 8<<20
	if b != nil {
		r.Keep = b.keep
	}
	return r
}

// leaves is a program that exits with 0 and leaves what f says.
func leaves(t *testing.T, f func(*script)) *fakeGuest {
	return newGuest(t, func(s *script) {
		if !s.Begin() {
			return
		}
		s.Print(1, "done")
		e, x := exitWith(0)
		s.Exited(e, x)
		f(s)
		s.Finish(s.Record(e, x, true))
	})
}

func TestFilesComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		large := bytes.Repeat([]byte("0123456789abcdef"), 3<<16) // 3 MiB
		g := leaves(t, func(s *script) {
			s.Leave("a.csv", []byte("1,2\n"))
			s.LeaveFile(&agentv1.LeftFile{Name: "d", Folder: true})
			s.Leave("d/empty", nil)
			s.Leave("d/large", large)
			s.Stage("files collected")
			s.LeaveFile(&agentv1.LeftFile{Name: "d/run.sh", Bytes: 1, Executable: true})
			s.LeaveData([]byte("x"))
		})
		b := newBasket()
		var e events
		res, err := Run(t.Context(), g, collecting(b), e.take, Options{})
		if err != nil {
			t.Fatal(err)
		}
		wantEnding(t, res, api.HowExited, api.ByProgram)
		want := map[string][]byte{"a.csv": []byte("1,2\n"), "d/empty": nil, "d/large": large, "d/run.sh": []byte("x")}
		if len(res.Left) != 5 || res.Left[1].Name != "d" || !res.Left[1].Folder || res.Left[1].Err != nil || !res.Left[4].Executable {
			t.Errorf("left is %+v", res.Left)
		}
		for _, f := range res.Left {
			k := b.kept[f.Name]
			switch {
			case f.Folder:
			case k == nil || f.Kept != Kept(k) || !k.committed || k.discarded || !bytes.Equal(k.Bytes(), want[f.Name]):
				t.Errorf("%s is not kept as it came: %+v", f.Name, f)
			case f.Err != nil || f.Bytes != int64(k.Len()) || f.SHA256 != sha256.Sum256(want[f.Name]):
				t.Errorf("%s: %+v", f.Name, f)
			}
		}
		if got := e.kinds(); strings.Contains(got, "left") {
			t.Errorf("the consumer is told of the files: %s", got)
		}
	})
}

// What cannot be kept is dropped, with its reason, and the rest is not.
func TestFilesThatAreNotKept(t *testing.T) {
	full, twin := errors.New("the disk is full"), errors.New("a twin")
	for name, c := range map[string]struct {
		spoil func(*basket)
		want  map[string]error // what is not kept
	}{
		"nobody keeps":  {nil, map[string]error{"a": errNoKeeper, "b": errNoKeeper, "c": errNoKeeper, "d": errNoKeeper}},
		"a twin":        {func(b *basket) { b.refuse["b"] = twin }, map[string]error{"b": twin}},
		"a folder":      {func(b *basket) { b.refuse["d"] = twin }, map[string]error{"d": twin}},
		"a full disk":   {func(b *basket) { b.fail["b"] = full }, map[string]error{"b": full}},
		"a slow disk":   {func(b *basket) { b.block["b"] = KeepWait - time.Second }, nil},
		"a stuck disk":  {func(b *basket) { b.block["b"] = KeepWait + time.Second }, map[string]error{"b": errSlowKeep, "c": errSlowKeep, "d": errSlowKeep}},
		"nothing wrong": {func(*basket) {}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := leaves(t, func(s *script) {
					s.Leave("a", []byte("1"))
					s.Leave("b", make([]byte, 2*api.MaxDataPiece))
					s.Leave("c", nil)
					s.LeaveFile(&agentv1.LeftFile{Name: "d", Folder: true})
				})
				var b *basket
				if c.spoil != nil {
					b = newBasket()
					c.spoil(b)
				}
				// Shorter than the wait for the disk: the guest is not to blame.
				res, err := Run(t.Context(), g, collecting(b), nil, Options{Silence: KeepWait / 3})
				if err != nil {
					t.Fatal(err)
				}
				wantEnding(t, res, api.HowExited, api.ByProgram)
				if len(res.Left) != 4 || len(g.Killed()) > 0 || res.Record == nil {
					t.Fatalf("killed %q, the result is %+v", g.Killed(), res)
				}
				for _, f := range res.Left {
					if !errors.Is(f.Err, c.want[f.Name]) || (f.Kept != nil) != (f.Err == nil && !f.Folder) {
						t.Errorf("%s: %+v, want %v", f.Name, f, c.want[f.Name])
					}
				}
				time.Sleep(2 * KeepWait) // what is in progress comes to its end
				if b != nil && b.begun("b") && b.discarded("b") != (c.want["b"] != nil) {
					t.Errorf("b is discarded: %t", b.discarded("b"))
				}
			})
		})
	}
}

// Files that take as long as they may, and longer.
func TestSlowFiles(t *testing.T) {
	for name, c := range map[string]struct {
		pieces, every time.Duration
		how           string
	}{
		"in time":           {10, DefaultSilence - time.Second, api.HowExited},
		"silent":            {3, DefaultSilence + GiveUpAfter, api.HowVMLost},
		"without end":       {1000, DefaultSilence / 2, api.HowVMLost},
		"a bit at its time": {2000, time.Second, api.HowVMLost},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := leaves(t, func(s *script) {
					s.LeaveFile(&agentv1.LeftFile{Name: "a", Bytes: int64(c.pieces) * api.MinLeftPiece})
					for range c.pieces {
						s.Sleep(c.every)
						s.LeaveData(make([]byte, api.MinLeftPiece))
					}
				})
				b := newBasket()
				res, err := Run(t.Context(), g, collecting(b), nil, Options{})
				if err != nil {
					t.Fatal(err)
				}
				lost := c.how == api.HowVMLost
				if res.Ending.GetHow() != c.how || len(g.Killed()) == 1 != lost || (res.Record == nil) != lost {
					t.Errorf("it ended %v, killed %q", res.Ending, g.Killed())
				}
				if took := res.Times.Ended.Sub(res.Times.Exited); took > LeftWait+DefaultSilence+GiveUpAfter {
					t.Errorf("it took %v", took)
				}
				time.Sleep(KeepWait)
				if f := res.Left[0]; lost != errors.Is(f.Err, errNotWhole) && lost != errors.Is(f.Err, errSlowKeep) || b.discarded("a") != lost {
					t.Errorf("%+v, discarded: %t", f, b.discarded("a"))
				}
			})
		})
	}
}

// A piece that is stored at the very moment when it is given up is one or the other.
func TestKeptAtTheLastMoment(t *testing.T) {
	for range 30 {
		synctest.Test(t, func(t *testing.T) {
			g := leaves(t, func(s *script) {
				s.Leave("a", make([]byte, 2*api.MaxDataPiece))
				s.Leave("b", []byte("1"))
			})
			b := newBasket()
			b.block["a"] = KeepWait
			res, err := Run(t.Context(), g, collecting(b), nil, Options{})
			if err != nil {
				t.Fatal(err)
			}
			wantEnding(t, res, api.HowExited, api.ByProgram)
			time.Sleep(KeepWait)
			for _, f := range res.Left {
				if (f.Kept != nil) != (f.Err == nil) || b.begun(f.Name) && b.discarded(f.Name) == (f.Err == nil) {
					t.Errorf("%+v, discarded: %t", f, b.discarded(f.Name))
				}
			}
		})
	}
}

// A run that is given up in the middle of its files does not wait for the disk.
func TestCancelAmongFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		g := leaves(t, func(s *script) {
			s.Leave("a", []byte("1"))
			s.Leave("b", make([]byte, 3*api.MaxDataPiece))
			<-s.Cancelled
			s.Leave("c", []byte("2"))
		})
		b := newBasket()
		b.block["b"] = KeepWait / 2
		time.AfterFunc(time.Second, cancel)
		res, err := Run(ctx, g, collecting(b), nil, Options{})
		if err != nil {
			t.Fatal(err)
		}
		wantEnding(t, res, api.HowExited, api.ByProgram) // as it had before
		if took := res.Times.Ended.Sub(res.Times.Exited); took != time.Second || len(g.Killed()) > 0 {
			t.Errorf("it took %v, killed %q", took, g.Killed())
		}
		if len(res.Left) != 3 || res.Left[0].Err != nil || !errors.Is(res.Left[1].Err, errNoClient) || !errors.Is(res.Left[2].Err, errNoClient) {
			t.Errorf("left is %+v", res.Left)
		}
		time.Sleep(KeepWait)
		if b.discarded("a") || !b.discarded("b") || b.begun("c") {
			t.Error("what was in progress was not discarded, or something else was")
		}
	})
}

// A run that is given up in the middle of a large file has its record: the file is cut.
// One that the host did not give up may cut none.
func TestCutFile(t *testing.T) {
	cut := func(t *testing.T, cancel, complete bool) (*Result, *basket) {
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		g := newGuest(t, func(s *script) {
			if !s.Begin() {
				return
			}
			e, x := exitWith(0)
			s.Exited(e, x)
			s.LeaveFile(&agentv1.LeftFile{Name: "a", Bytes: 256 << 20})
			for n := 0; n < 5; n++ { // a file that would take minutes
				s.LeaveData(make([]byte, api.MaxDataPiece))
				s.Sleep(time.Second)
			}
			if cancel {
				stop()
				<-s.Cancelled
				s.Sleep(2 * time.Second)
			}
			r := s.Record(e, x, true)
			r.Left.Complete = complete
			s.Finish(r)
		})
		b := newBasket()
		r := collecting(b)
		r.Start.FilesBytes = 256 << 20
		res, err := Run(ctx, g, r, nil, Options{})
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if !b.discarded("a") || len(res.Left) != 1 || res.Left[0].Kept != nil {
			t.Errorf("a part of a file is kept: %+v", res.Left)
		}
		if lost := len(g.Killed()) == 1; lost == (res.Record != nil) || lost != res.GuestLost {
			t.Errorf("killed %q, the result is %+v", g.Killed(), res)
		}
		return res, b
	}
	synctest.Test(t, func(t *testing.T) {
		res, _ := cut(t, true, false)
		wantEnding(t, res, api.HowExited, api.ByProgram)
		if len(res.Unknown) > 0 || !errors.Is(res.Left[0].Err, errNoClient) {
			t.Errorf("the result is %+v", res)
		}
	})
	for name, c := range map[string]struct{ cancel, complete bool }{
		"nobody cancels":         {false, false},
		"it says it is complete": {true, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				res, _ := cut(t, c.cancel, c.complete)
				wantEnding(t, res, api.HowVMLost, api.ByHost)
			})
		})
	}
}

// A cancelled run whose output takes longer than CancelWait to come has its record, and
// one whose output has no end has none.
func TestCancelAmongOutput(t *testing.T) {
	for name, c := range map[string]struct {
		pieces int
		every  time.Duration
		record bool
		took   time.Duration
	}{
		"much":        {10, CancelWait / 3, true, 10 * CancelWait / 3},
		"without end": {1000, CancelWait / 3, false, CancelMost},
		"silent":      {1, CancelWait + time.Second, false, CancelWait},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				time.AfterFunc(time.Second, stop)
				g := newGuest(t, func(s *script) {
					if !s.Begin() {
						return
					}
					e, x := exitWith(0)
					s.Exited(e, x)
					<-s.Cancelled
					for range c.pieces {
						s.Sleep(c.every)
						s.Print(1, "x")
					}
					s.Finish(s.Record(e, x, true))
				})
				res, err := Run(ctx, g, request(), nil, Options{})
				if err != nil {
					t.Fatal(err)
				}
				wantEnding(t, res, api.HowExited, api.ByProgram)
				if took := res.Times.Ended.Sub(res.Times.Exited) - time.Second; took != c.took || (res.Record != nil) != c.record || len(g.Killed()) > 0 {
					t.Errorf("it took %v, killed %q, the result is %+v", took, g.Killed(), res)
				}
			})
		})
	}
}

// A disk that is slow holds up the guest, and not the memory of the host.
func TestBackPressure(t *testing.T) {
	const size = 8 << 20
	synctest.Test(t, func(t *testing.T) {
		var sent atomic.Int64
		g := leaves(t, func(s *script) {
			s.LeaveFile(&agentv1.LeftFile{Name: "a", Bytes: size})
			for sent.Load() < size {
				s.LeaveData(make([]byte, api.MaxDataPiece))
				sent.Add(api.MaxDataPiece)
			}
		})
		b := newBasket()
		b.block["a"] = time.Second
		time.AfterFunc(10*time.Second+time.Second/2, func() {
			// 10 pieces are kept, one is being kept and one is read; those on the way fit
			// into the stream's window.
			if most := int64(12*api.MaxDataPiece + 1<<20); sent.Load() > most {
				t.Errorf("%d bytes were sent, want at most %d", sent.Load(), most)
			}
		})
		res, err := Run(t.Context(), g, collecting(b), nil, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if b.kept["a"].Len() != size || res.Left[0].Err != nil {
			t.Errorf("%d bytes came, %+v", b.kept["a"].Len(), res.Left[0])
		}
	})
}

func leftFile(name string, size int64) *agentv1.RunEvent {
	return &agentv1.RunEvent{Event: &agentv1.RunEvent_LeftFile{LeftFile: &agentv1.LeftFile{Name: name, Bytes: size}}}
}

func leftFolder(name string) *agentv1.RunEvent {
	return &agentv1.RunEvent{Event: &agentv1.RunEvent_LeftFile{LeftFile: &agentv1.LeftFile{Name: name, Folder: true}}}
}

func leftData(n int) *agentv1.RunEvent {
	return &agentv1.RunEvent{Event: &agentv1.RunEvent_LeftData{LeftData: make([]byte, n)}}
}

// recorded is a record of what those events brought.
func recorded(brought ...*agentv1.RunEvent) *agentv1.RunEvent {
	return record(0, "", func(r *agentv1.RunRecord) {
		for _, m := range brought {
			r.Left.Files = append(r.Left.Files, m.GetLeftFile())
		}
	})
}

// What may come back after what, and what contradicts what came. The last event of
// each list is the one that must not pass.
func TestOrderOfFiles(t *testing.T) {
	const least, room = api.MinLeftPiece, 2*api.MinLeftPiece + 10
	one, two, folder := leftFile("a", 1), leftFile("b", least+1), leftFolder("f")
	good := map[string]list{
		"none":                {recorded()},
		"one":                 {one, leftData(1), recorded(one)},
		"several":             {one, leftData(1), two, leftData(least), leftData(1), folder, leftFile("f/x", 0), recorded(one, two, folder, leftFile("f/x", 0))},
		"an implied folder":   {leftFile("f/x", 0), recorded(leftFile("f/x", 0))},
		"beside a stage":      {one, stage(), leftData(1), sample(1), recorded(one)},
		"as many as may":      {leftFile("1", 0), leftFile("2", 0), leftFile("3", 0), leftFile("4", 0), recorded(leftFile("1", 0), leftFile("2", 0), leftFile("3", 0), leftFile("4", 0))},
		"as large as may":     {leftFile("a", room), leftData(least), leftData(least + 9), leftData(1), recorded(leftFile("a", room))},
		"a name that goes on": {leftFile("a", 0), leftFile("a-", 0), recorded(leftFile("a", 0), leftFile("a-", 0))},
	}
	bad := map[string]list{
		"data of nothing":         {leftData(1)},
		"data of a folder":        {folder, leftData(1)},
		"data of an empty file":   {leftFile("a", 0), leftData(1)},
		"too much data":           {one, leftData(2)},
		"more data":               {two, leftData(least + 1), leftData(1)},
		"too small a piece":       {two, leftData(least - 1)},
		"a small piece in it":     {leftFile("a", room), leftData(least), leftData(1)},
		"the next too soon":       {two, leftData(least), leftFile("c", 0)},
		"the record too soon":     {two, leftData(least), recorded(two)},
		"too many":                {leftFile("1", 0), leftFile("2", 0), leftFile("3", 0), leftFolder("4"), leftFile("5", 0)},
		"too large":               {leftFile("a", room+1)},
		"too large together":      {leftFile("a", 6), leftData(6), leftFile("b", room-5)},
		"far too large":           {one, leftData(1), leftFile("b", 1<<62)},
		"twice":                   {one, leftData(1), one},
		"out of order":            {two, leftData(least + 1), leftFile("a", 0)},
		"a folder too late":       {leftFile("f/x", 0), folder},
		"in a file":               {leftFile("f", 0), leftFile("f/x", 0)},
		"deep in a file":          {leftFile("f", 0), leftFile("f-", 0), leftFile("f/x/y", 0)},
		"output after them":       {one, leftData(1), output(1, "x")},
		"not in the record":       {one, leftData(1), record(0, "")},
		"a record without a list": {one, leftData(1), record(0, "", func(r *agentv1.RunRecord) { r.Left = nil })},
		"in the record alone":     {recorded(one)},
		"another in the record":   {one, leftData(1), recorded(leftFile("b", 1))},
		"another size":            {one, leftData(1), recorded(leftFile("a", 2))},
		"another mode": {one, leftData(1), record(0, "", func(r *agentv1.RunRecord) {
			r.Left.Files = []*agentv1.LeftFile{{Name: "a", Bytes: 1, Executable: true}}
		})},
		"after the record": {record(0, ""), leftFile("a", 0)},
	}
	before := list{admitted(), started(), exited(0)}
	start := collecting(nil).Start
	start.Files, start.FilesBytes = 4, room
	for name, events := range good {
		o := newOrder(start)
		for i, m := range append(before[:3:3], events...) {
			if err := errors.Join(api.Validate(m), o.next(m, false)); err != nil {
				t.Errorf("%s: event %d: %v", name, i, err)
			}
		}
	}
	for name, events := range bad {
		o := newOrder(start)
		all := append(before[:3:3], events...)
		for i, m := range all {
			err := o.next(m, false)
			if last := i == len(all)-1; last != (err != nil) || last && !errors.Is(err, api.ErrInvalid) {
				t.Errorf("%s: event %d of %d: %v", name, i+1, len(all), err)
			}
		}
	}
	// Before the end of the program, and where nobody asked for them.
	for name, events := range map[string]list{
		"in the queue":     {one},
		"before its start": {admitted(), one},
		"while it runs":    {admitted(), started(), one},
	} {
		o := newOrder(start)
		for i, m := range events {
			if err := o.next(m, false); (err != nil) != (i == len(events)-1) {
				t.Errorf("%s: event %d: %v", name, i, err)
			}
		}
	}
	start.Collect = false
	o := newOrder(start)
	for _, m := range before {
		if err := o.next(m, false); err != nil {
			t.Fatal(err)
		}
	}
	if err := o.next(one, false); !errors.Is(err, api.ErrInvalid) {
		t.Errorf("a file that was not asked for: %v", err)
	}
}

// A guest that lies about its files is ended, and nothing of the lie is kept.
func TestFilesOfALiar(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := leaves(t, func(s *script) {
			s.Leave("a", []byte("1"))
			s.LeaveFile(&agentv1.LeftFile{Name: "b", Bytes: 3})
			s.LeaveData([]byte("1234"))
		})
		b := newBasket()
		res, err := Run(t.Context(), g, collecting(b), nil, Options{})
		if err != nil {
			t.Fatal(err)
		}
		wantEnding(t, res, api.HowVMLost, api.ByHost)
		if len(g.Killed()) != 1 || len(res.Left) != 2 || res.Left[0].Err != nil || !errors.Is(res.Left[1].Err, errNotWhole) {
			t.Errorf("killed %q, left is %+v", g.Killed(), res.Left)
		}
		synctest.Wait()
		if !b.discarded("b") || b.discarded("a") {
			t.Errorf("discarded: a %t, b %t", b.discarded("a"), b.discarded("b"))
		}
	})
}

// Names in any order that a fuzzer finds: what passes is sorted, unique and within
// what was asked for.
func FuzzOrderOfFiles(f *testing.F) {
	f.Add("a\nb\nb/c", []byte{1, 2, 3})
	f.Add("a/b\na", []byte{0, 0})
	f.Add("f\nf-\nf/x", []byte{9, 200, 0})
	f.Fuzz(func(t *testing.T, names string, sizes []byte) {
		start := collecting(nil).Start
		start.Files, start.FilesBytes = 4, 300
		o := newOrder(start)
		for _, m := range (list{admitted(), started(), exited(0)}) {
			if err := o.next(m, false); err != nil {
				t.Fatal(err)
			}
		}
		seen, last, total := 0, "", int64(0)
		for i, name := range strings.Split(names, "\n") {
			size := int64(0)
			if i < len(sizes) {
				size = int64(sizes[i])
			}
			m := leftFile(name, size)
			if api.Validate(m) != nil || o.next(m, false) != nil {
				return
			}
			seen++
			total += size
			if name <= last || strings.HasPrefix(name, last+"/") && last != "" || seen > 4 || total > 300 {
				t.Errorf("%q passed after %q: %d, %d bytes", name, last, seen, total)
			}
			last = name
			if size > 0 {
				if err := o.next(leftData(int(size)), false); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}

// BenchmarkFiles streams what comes back through the whole path but the disk.
func BenchmarkFiles(b *testing.B) {
	const size = 64 << 20
	b.SetBytes(size)
	piece := make([]byte, api.MaxDataPiece)
	for b.Loop() {
		s := newShelf(func(Left) (Kept, error) { return nowhere{}, nil })
		s.begin(&agentv1.LeftFile{Name: "a", Bytes: size})
		for sent := 0; sent < size; sent += len(piece) {
			s.took(<-s.done)
			s.data(piece)
		}
		if s.took(<-s.done); s.all[0].Kept == nil {
			b.Fatal(fmt.Sprint(s.all))
		}
		s.stop(errNotWhole)
	}
}

// nowhere drops what it gets.
type nowhere struct{}

func (nowhere) Write(b []byte) (int, error) { return len(b), nil }
func (nowhere) Commit() error               { return nil }
func (nowhere) Discard()                    {}

package recall

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
	"time"

	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/config"
	"github.com/pybox/pybox/host/receipt"
)

// store is a Store with a clock of the test's.
type store struct {
	*Store
	t         *testing.T
	at        time.Time
	forgotten []string
}

func newStore(t *testing.T) *store {
	s := &store{t: t, at: time.Unix(1e9, 0)}
	s.Store = New(func() time.Time { return s.at }, func(ids []string) { s.forgotten = append(s.forgotten, ids...) })
	return s
}

func (s *store) ctx() context.Context {
	ctx, cancel := context.WithTimeout(s.t.Context(), 20*time.Second)
	s.t.Cleanup(cancel)
	return ctx
}

// begin makes the record of a run.
func (s *store) begin(id string, bytes int64) *Record {
	s.t.Helper()
	r, first, err := s.Enter(s.ctx(), id)
	if err != nil || !first {
		s.t.Fatalf("%s: first %v, %v", id, first, err)
	}
	if !r.Begin(sha256.Sum256([]byte(id)), map[string]string{"f": "sum"}, bytes) {
		s.t.Fatalf("%s: no room", id)
	}
	return r
}

// ended makes one of a run that printed so much and left files of 10 bytes with those ids.
func (s *store) ended(id string, n int, files ...string) *Record {
	s.t.Helper()
	r := s.begin(id, int64(n))
	r.Output(1, make([]byte, n))
	r.Finish(End{Receipt: receiptWith(id, files...)})
	return r
}

func receiptWith(id string, files ...string) *receipt.Receipt {
	rec := &receipt.Receipt{Run: receipt.Run{ID: id}}
	for _, f := range files {
		rec.Program.Files = append(rec.Program.Files, receipt.File{Name: f, Bytes: 10, File: f, Returned: true})
	}
	return rec
}

// has tells whether a record is there.
func (s *store) has(id string) bool {
	s.t.Helper()
	r, first, err := s.Enter(s.ctx(), id)
	if err != nil {
		s.t.Fatal(err)
	}
	if first {
		r.Drop()
	}
	r.Release()
	return !first
}

func TestRecord(t *testing.T) {
	s := newStore(t)
	r := s.begin("mine", 100)
	r.Output(1, []byte("a\xe2"))
	r.Output(2, []byte("oh"))
	r.Output(1, []byte("\x82\xacb\xff\xe2"))
	r.Exited(api.Event{Event: api.EventExited, MS: 3})
	again, first, err := s.Enter(s.ctx(), "mine")
	if err != nil || first || again != r {
		t.Fatalf("%v, %v", first, err)
	}
	short, cancel := context.WithCancelCause(s.ctx())
	cause := errors.New("gone")
	cancel(cause)
	if _, _, err := again.Wait(short); !errors.Is(err, cause) {
		t.Errorf("Wait: %v", err)
	}
	read := again.Read()
	var got []string
	for len(got) < 3 {
		p, err := read.Next(s.ctx())
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprintf("%d%q%v", p.Stream, p.Output, p.Exited != nil))
	}
	if want := `1"a€b\xff"false 2"oh"false 0""true`; strings.Join(got, " ") != want {
		t.Errorf("got %s", got)
	}
	if _, err := read.Next(short); !errors.Is(err, cause) {
		t.Errorf("Next: %v", err)
	}
	r.Finish(End{Receipt: receiptWith("mine")})
	if p, err := read.Next(s.ctx()); err != nil || string(p.Output) != "\xe2" {
		t.Errorf("the rest is %q, %v", p.Output, err)
	}
	if p, err := read.Next(s.ctx()); err != nil || p.End == nil || p.End.Receipt.Run.ID != "mine" {
		t.Errorf("the end is %+v, %v", p, err)
	}
	end, streams, err := again.Wait(s.ctx())
	if err != nil || end.Receipt == nil || string(bytes.Join(streams[0].Chunks(), nil)) != "a€b\xff\xe2" || streams[1].Len() != 2 || streams[0].Text() {
		t.Errorf("%+v %+v, %v", end, streams, err)
	}
	if err := again.Check(sha256.Sum256([]byte("mine"))); err != nil || again.Files()["f"] != "sum" {
		t.Errorf("%v, %v", err, again.Files())
	}
	if err := again.Check(Digest{}); !errors.Is(err, ErrOther) {
		t.Errorf("another: %v", err)
	}
}

func TestForgets(t *testing.T) {
	s := newStore(t)
	r := s.ended("a", 1, "f1")
	r.Release()
	kept := s.ended("b", 1, "f2")
	kept.Delivered()
	kept.Release()
	running := s.begin("c", 1)
	s.at = s.at.Add(Keep - 1)
	if n := s.Untaken(); n != 1 {
		t.Errorf("%d wait for their clients", n)
	}
	if !s.has("a") || !s.has("b") || !s.has("c") {
		t.Error("one is gone too early")
	}
	s.at = s.at.Add(1)
	if n := s.Untaken(); n != 0 {
		t.Errorf("%d still wait for their clients", n)
	}
	s.Sweep()
	if s.has("a") || s.has("b") || !s.has("c") {
		t.Error("one is there for too long, or one is gone that goes on")
	}
	if fmt.Sprint(s.forgotten) != "[f1]" { // those of b its client has
		t.Errorf("forgotten: %v", s.forgotten)
	}
	running.Finish(End{Err: errors.New("no run")})
	if s.has("c") {
		t.Error("one without a receipt is remembered")
	}
	running.Release()
	if s.bytes != 0 || s.kept != 0 || len(s.all) != 0 {
		t.Errorf("%d bytes, %d records, %v are left", s.bytes, s.kept, s.all)
	}
}

// TestRoom: the oldest that nobody has goes for a new one, and those that go on never.
func TestRoom(t *testing.T) {
	s := newStore(t)
	first := s.ended("first", 100)
	s.max = limits{bytes: s.bytes + 4*receiptRoom + 200 + 2*fileBytes, records: 4}
	second := s.ended("second", 100)
	second.Release()
	s.at = s.at.Add(time.Second)
	third := s.ended("third", 100, "f")
	third.Release()
	s.begin("going on", 100)
	s.begin("large", receiptRoom) // takes the place of the second, and of the third
	if s.has("second") || s.has("third") || !s.has("first") || !s.has("going on") || fmt.Sprint(s.forgotten) != "[f]" {
		t.Errorf("left are %v, forgotten %v", s.all, s.forgotten)
	}
	r, _, err := s.Enter(s.ctx(), "more")
	if err != nil || r.Begin(Digest{}, nil, receiptRoom) {
		t.Errorf("there was room for more, %v", err)
	}
	if s.has("more") {
		t.Error("one that there was no room for is there")
	}
	first.Release()
	s.max.bytes = s.bytes + receiptRoom
	s.begin("small", 1) // for the first, which nobody has any more
	if s.has("first") {
		t.Error("the first is still there")
	}
	s.max.records = 3
	r, _, _ = s.Enter(s.ctx(), "more")
	if r.Begin(Digest{}, nil, 0) {
		t.Error("there are more than may be")
	}
}

// TestNothingIsGivenUpForNothing: where all that could go is not enough nothing does. Two
// runs at the default ceiling are both remembered.
func TestNothingIsGivenUpForNothing(t *testing.T) {
	s := newStore(t)
	ceiling := int64(config.Default().Ceilings.Output)
	ids := []string{"a", "b", "c", "d"}
	for _, id := range ids {
		s.ended(id, 1<<20, "file-"+id).Release()
	}
	for _, id := range []string{"first", "second"} {
		s.begin(id, ceiling)
	}
	for _, id := range ids {
		if !s.has(id) { // it was in the way of the second
			s.ended(id, 1, "file2-"+id).Release()
		}
	}
	before := len(s.forgotten)
	r, _, err := s.Enter(s.ctx(), "third")
	if err != nil || r.Begin(Digest{}, nil, ceiling) {
		t.Errorf("there is room for a third, %v", err)
	}
	for _, id := range ids {
		if !s.has(id) {
			t.Errorf("%s was given up for nothing", id)
		}
	}
	if len(s.forgotten) != before {
		t.Errorf("forgotten: %v", s.forgotten)
	}
	s.max.records = s.kept
	if r, _, err = s.Enter(s.ctx(), "fourth"); err != nil || !r.Begin(Digest{}, nil, 1) {
		t.Errorf("there is none for a small one, %v", err)
	}
	s.max.records = s.kept - len(ids)
	before = len(s.forgotten)
	if r, _, err = s.Enter(s.ctx(), "fifth"); err != nil || r.Begin(Digest{}, nil, 1) || len(s.forgotten) != before {
		t.Errorf("too many records: %v, %v", err, s.forgotten)
	}
}

// TestForgetsUnlocked: while files are forgotten nobody is kept from the records.
func TestForgetsUnlocked(t *testing.T) {
	s := newStore(t)
	forgotten := 0
	s.forget = func([]string) {
		s.Sweep() // would wait for ever
		forgotten++
	}
	for _, id := range []string{"a", "b", "c"} {
		s.ended(id, 1, "f").Release()
		s.at = s.at.Add(time.Second) // a is the oldest
	}
	s.Relieve(1, 0)
	r, _, _ := s.Enter(s.ctx(), "b")
	r.Release()
	r.GiveUp()
	s.at = s.at.Add(Keep)
	s.Sweep()
	if forgotten == 0 || len(s.all) != 0 {
		t.Errorf("%d, left are %v", forgotten, s.all)
	}
}

// TestUsed: the files that one used up who asked again are the run's too, and count.
func TestUsed(t *testing.T) {
	s := newStore(t)
	r := s.ended("a", 1)
	before := s.bytes
	r.Used(map[string]string{"g": "sum2"})
	if files := r.Files(); files["f"] != "sum" || files["g"] != "sum2" || s.bytes != before+fileBytes {
		t.Errorf("%v, %d bytes", files, s.bytes-before)
	}
	s.max.bytes = s.bytes
	r.Used(map[string]string{"h": "sum3"})
	if files := r.Files(); len(files) != 2 {
		t.Errorf("%v without room", files)
	}
	r.Release()
	s.at = s.at.Add(Keep)
	if s.Sweep(); s.bytes != 0 {
		t.Errorf("%d bytes are left", s.bytes)
	}
}

// TestReadWhileEvicted: who reads a record goes on, and its room counts until then.
func TestReadWhileEvicted(t *testing.T) {
	s := newStore(t)
	s.ended("a", 1000).Release()
	r, _, err := s.Enter(s.ctx(), "a")
	if err != nil {
		t.Fatal(err)
	}
	s.at = s.at.Add(Keep)
	s.Sweep()
	if s.has("a") || s.bytes == 0 {
		t.Errorf("it is still there, or its %d bytes do not count", s.bytes)
	}
	if _, streams, err := r.Wait(s.ctx()); err != nil || streams[0].Len() != 1000 {
		t.Errorf("%v", err)
	}
	r.Release()
	if s.bytes != 0 || s.kept != 0 {
		t.Errorf("%d bytes of %d records are left", s.bytes, s.kept)
	}
}

func TestRelieve(t *testing.T) {
	s := newStore(t)
	held := s.ended("held", 1, "h1")
	for n, id := range []string{"a", "b", "c", "d"} {
		s.at = s.at.Add(time.Duration(n) * time.Second)
		r := s.ended(id, 1, id+"1", id+"2")
		if id == "b" {
			r.Delivered()
		}
		r.Release()
	}
	s.ended("none", 1).Release()
	s.Relieve(2, 20)
	if fmt.Sprint(s.forgotten) != "[a1 a2]" || s.has("a") || !s.has("b") || !s.has("none") {
		t.Errorf("forgotten: %v", s.forgotten)
	}
	s.Relieve(0, 1000)
	if fmt.Sprint(s.forgotten) != "[a1 a2 c1 c2 d1 d2]" || !s.has("none") || !s.has("held") {
		t.Errorf("forgotten: %v", s.forgotten)
	}
	held.GiveUp()
	if !s.has("held") {
		t.Error("one was given up that somebody has")
	}
	held.Release()
	held.GiveUp()
	if s.has("held") {
		t.Error("it was not given up")
	}
}

// TestEnter: whoever comes while it is not decided whether there is a run waits for that,
// and is the next to try where there is none.
func TestEnter(t *testing.T) {
	s := newStore(t)
	r, first, err := s.Enter(s.ctx(), "mine")
	if err != nil || !first {
		t.Fatal(first, err)
	}
	gone, cancel := context.WithCancel(s.ctx())
	cancel()
	if _, _, err := s.Enter(gone, "mine"); !errors.Is(err, context.Canceled) {
		t.Errorf("one that hung up: %v", err)
	}
	var wg sync.WaitGroup
	var firsts, others atomic.Int32
	for range 10 {
		wg.Go(func() {
			r, first, err := s.Enter(s.ctx(), "mine")
			switch {
			case err != nil:
				t.Error(err)
			case !first:
				others.Add(1)
			case firsts.Add(1) == 3: // the first two fail
				if !r.Begin(Digest{}, nil, 1) {
					t.Error("no room")
				}
			default:
				r.Drop()
			}
			r.Release()
		})
	}
	r.Drop()
	r.Release()
	wg.Wait()
	if firsts.Load() != 3 || others.Load() != 7 {
		t.Errorf("%d tried and %d found it", firsts.Load(), others.Load())
	}
}

// TestDropInTheMiddle: where a run comes to no end those who wait are told.
func TestDropInTheMiddle(t *testing.T) {
	s := newStore(t)
	r := s.begin("mine", 1)
	again, _, _ := s.Enter(s.ctx(), "mine")
	r.Drop()
	if end, _, err := again.Wait(s.ctx()); err != nil || end.Err == nil {
		t.Errorf("%+v, %v", end, err)
	}
	if s.has("mine") {
		t.Error("it is remembered")
	}
	select {
	case <-again.Ended():
	default:
		t.Error("it has not ended")
	}
	again.Release()
	r.Release()
	r.Output(1, []byte("late")) // by the run, which does not know
	r.Finish(End{Receipt: receiptWith("mine")})
	if s.bytes != 0 || s.kept != 0 || r.streams[0].Len() != 0 {
		t.Errorf("%d bytes and %d records are left", s.bytes, s.kept)
	}
}

// FuzzOutput: what is read is what was added, in whole characters until the end.
func FuzzOutput(f *testing.F) {
	f.Add([]byte("a€\xf0\x9f\x98\x80"), 2, 5)
	f.Fuzz(func(t *testing.T, b []byte, i, j int) {
		if i < 0 || j < i || j > len(b) {
			return
		}
		s := newStore(t)
		r := s.begin("x", 1)
		read := r.Read()
		var got []byte
		for n, piece := range [][]byte{b[:i], b[i:j], b[j:]} {
			r.Output(1, piece)
			if n == 1 { // some of it is read meanwhile
				if p, wait := read.next(); wait == nil {
					got = append(got, p.Output...)
				}
			}
		}
		r.Finish(End{Receipt: &receipt.Receipt{}})
		for {
			p, wait := read.next()
			if wait != nil {
				t.Fatal("there is no end")
			}
			if p.End != nil {
				break
			}
			got = append(got, p.Output...)
		}
		if !bytes.Equal(got, b) {
			t.Errorf("%q became %q", b, got)
		}
	})
}

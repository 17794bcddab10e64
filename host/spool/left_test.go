package spool

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// idle tells whether all room for what runs leave is free.
func (s *Spool) idle() bool {
	if !s.leftFiles.TryAcquire(s.max.left) {
		return false
	}
	s.leftFiles.Release(s.max.left)
	if !s.leftBytes.TryAcquire(s.max.leftBytes) {
		return false
	}
	s.leftBytes.Release(s.max.leftBytes)
	return true
}

// soon is a context that ends in a moment.
func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Second) // of the bubble's clock
	t.Cleanup(cancel)
	return ctx
}

func reserve(t *testing.T, s *Spool, files, bytes int64) *Room {
	t.Helper()
	r, err := s.Reserve(t.Context(), files, bytes, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// leave stores content in the room and gives its id.
func leave(t *testing.T, r *Room, content string) string {
	t.Helper()
	l, err := r.Create(int64(len(content)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(l, strings.NewReader(content)); err != nil {
		t.Fatal(err)
	}
	if err := l.Commit(); err != nil {
		t.Fatal(err)
	}
	id, err := l.Publish(sha256.Sum256([]byte(content)))
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func read(t *testing.T, s *Spool, id string) string {
	t.Helper()
	r, err := s.Read(id)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(b)
	if r.File.File != id || r.File.Bytes != int64(len(b)) || r.File.SHA256 != hex.EncodeToString(sum[:]) {
		t.Errorf("%+v of %d bytes", r.File, len(b))
	}
	return string(b)
}

// What a run left can be read as often as one likes, until it is forgotten.
func TestLeft(t *testing.T) {
	s, c := open(t)
	r := reserve(t, s, 4, 1000)
	a, b := leave(t, r, "hello"), leave(t, r, "")
	r.Close()
	r.Close()
	for range 3 {
		if read(t, s, a) != "hello" || read(t, s, b) != "" {
			t.Error("another content")
		}
	}
	if _, err := s.Take(a); !errors.Is(err, ErrNotFound) {
		t.Errorf("taken for a run: %v", err)
	}
	if e, err := os.ReadDir(s.dir); err != nil || len(e) != 0 {
		t.Errorf("files with names: %v, %v", e, err)
	}
	// Who reads it can go on when it is forgotten.
	reading, err := s.Read(a)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Forget(a); err != nil {
		t.Error(err)
	}
	if _, err := s.Read(a); !errors.Is(err, ErrNotFound) {
		t.Errorf("forgotten: %v", err)
	}
	if err := s.Forget(a); !errors.Is(err, ErrNotFound) {
		t.Errorf("forgotten twice: %v", err)
	}
	if got, err := io.ReadAll(reading); err != nil || string(got) != "hello" {
		t.Errorf("%q, %v", got, err)
	}
	reading.Close()
	reading.Close()
	c.add(Forget)
	if _, err := s.Read(b); !errors.Is(err, ErrNotFound) {
		t.Errorf("after its time: %v", err)
	}
	if !s.idle() {
		t.Error("room is not given back")
	}
	// Forget takes what waits for a run too.
	if err := s.Forget(put(t, s, "body")); err != nil || s.files != 0 {
		t.Errorf("%v, %d files", err, s.files)
	}
}

// Who reserves room has it, whatever the others do, and those who wait get theirs in
// order.
func TestReserve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c := open(t)
		s.bound(limits{files: 3, fileBytes: 100, total: 250, left: 4, leftBytes: 100})
		first := reserve(t, s, 2, 60)
		second := reserve(t, s, 2, 40)
		for what, room := range map[string][2]int64{"files": {1, 0}, "bytes": {0, 1}} {
			if _, err := s.Reserve(soon(t), room[0], room[1], nil); !errors.Is(err, ErrNoRoom) || !errors.Is(err, ErrTooMuch) || !strings.Contains(err.Error(), what) {
				t.Errorf("no more %s: %v", what, err)
			}
		}
		if _, err := first.Create(61); !errors.Is(err, ErrTooMuch) {
			t.Errorf("more than its room: %v", err)
		}
		if _, err := first.Create(-1); !errors.Is(err, ErrTooMuch) {
			t.Errorf("less than nothing: %v", err)
		}
		one := leave(t, first, strings.Repeat("x", 50))
		leave(t, first, "0123456789")
		if _, err := first.Create(0); !errors.Is(err, ErrTooMuch) {
			t.Errorf("a third of two files: %v", err)
		}
		// One who waits is served when there is room, before one who comes later.
		var order, told []int
		var mu sync.Mutex
		var wait sync.WaitGroup
		got := make(chan struct{}, 2)
		for i, bytes := range []int64{50, 1} {
			wait.Go(func() {
				r, err := s.Reserve(t.Context(), 1, bytes, func(ahead int) { told = append(told, ahead) })
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				r.Close()
				got <- struct{}{}
			})
			synctest.Wait() // it waits
		}
		if err := s.Forget(one); err != nil {
			t.Fatal(err)
		}
		<-got
		second.Close()
		<-got
		wait.Wait()
		if len(order) != 2 || order[0] != 0 {
			t.Errorf("served in the order %v", order)
		}
		if !slices.Equal(told, []int{0, 1}) || s.waiting.Load() != 0 {
			t.Errorf("told to wait behind %v, %d wait", told, s.waiting.Load())
		}
		first.Close()
		c.add(Forget)
		s.Sweep()
		if !s.idle() {
			t.Error("room is not given back")
		}
		// More than there is at all is cut to that.
		all := reserve(t, s, 1<<40, 1<<50)
		if all.files != 4 || all.bytes != 100 {
			t.Errorf("%+v", all)
		}
		all.Close()
	})
}

// A context that has ended, as one without any time, gets what is free.
func TestReserveWithoutWaiting(t *testing.T) {
	s, _ := open(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r, err := s.Reserve(ctx, 1, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
}

// What is given up at any step gives its room back.
func TestLeavingIsGivenUp(t *testing.T) {
	s, _ := open(t)
	r := reserve(t, s, 10, 1000)
	l, err := r.Create(5)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Write([]byte("123456")); err == nil {
		t.Error("more was written than it has")
	}
	if _, err := l.Write([]byte("1234")); err != nil {
		t.Fatal(err)
	}
	if l.Commit() == nil {
		t.Error("4 of 5 bytes are a whole file")
	}
	l.Discard()
	late, err := r.Create(3)
	if err != nil {
		t.Fatal(err)
	}
	r.Close() // before its file
	if _, err := late.Write([]byte("abc")); err != nil {
		t.Error(err)
	}
	if _, err := r.Create(0); !errors.Is(err, ErrTooMuch) {
		t.Errorf("in a room that is closed: %v", err)
	}
	s.Close()
	if _, err := late.Publish(sha256.Sum256([]byte("abc"))); !errors.Is(err, ErrClosed) {
		t.Errorf("published after the end: %v", err)
	}
	if _, err := s.Reserve(t.Context(), 1, 1, nil); !errors.Is(err, ErrClosed) {
		t.Errorf("reserved after the end: %v", err)
	}
	if !s.idle() {
		t.Error("room is not given back")
	}
}

func second[T any](_ T, err error) error { return err }

// The end of the spool leaves what is being read, and takes the rest.
func TestCloseWhileSomebodyReads(t *testing.T) {
	s, _ := open(t)
	r := reserve(t, s, 2, 10)
	id := leave(t, r, "hello")
	leave(t, r, "x")
	reading, err := s.Read(id)
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	if _, err := r.Create(0); !errors.Is(err, ErrClosed) && !errors.Is(err, ErrTooMuch) {
		t.Errorf("created after the end: %v", err)
	}
	r.Close()
	for what, err := range map[string]error{"read": second(s.Read(id)), "taken": second(s.Take(id)), "forgotten": s.Forget(id)} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%s after the end: %v", what, err)
		}
	}
	if b, err := io.ReadAll(reading); err != nil || string(b) != "hello" {
		t.Errorf("%q, %v", b, err)
	}
	reading.Close()
	if !s.idle() {
		t.Error("room is not given back")
	}
}

// One run at the default ceilings fits into the spool, with all that goes in and comes
// out, and so does one at the highest that there can be.
func TestOneRunFits(t *testing.T) {
	if MaxFiles < 256+2 || MaxLeft < 256 || MaxBytes < 256<<20+2*MaxFileBytes || MaxLeftBytes < 256<<20 {
		t.Error("a run at the default ceilings does not fit")
	}
	if MaxFiles < 1023 || MaxLeft < 1023 {
		t.Error("as many files as a ceiling can allow do not fit")
	}
}

// Where a run has to wait for room its owner is told how much, and can make it.
func TestOnScarce(t *testing.T) {
	s, _ := open(t)
	s.bound(limits{files: 3, fileBytes: 100, total: 250, left: 4, leftBytes: 100})
	r := reserve(t, s, 2, 60)
	id := leave(t, r, strings.Repeat("x", 60))
	r.Close()
	asked := ""
	s.OnScarce(func(files, bytes int64) {
		asked += fmt.Sprintln(files, bytes, s.Scarce())
		if err := s.Forget(id); err != nil {
			t.Error(err)
		}
	})
	reserve(t, s, 3, 40).Close()
	if asked != "" || s.Scarce() {
		t.Errorf("asked for %s where there was room", asked)
	}
	reserve(t, s, 1, 70).Close()
	if asked != "1 70 true\n" || s.Scarce() || !s.idle() {
		t.Errorf("asked for %q", asked)
	}
}

func TestRenew(t *testing.T) {
	s, c := open(t)
	r := reserve(t, s, 2, 60)
	a, b := leave(t, r, "a"), leave(t, r, "b")
	r.Close()
	c.add(Forget - 1)
	s.Renew(a)
	s.Renew("nobody's")
	c.add(Forget - 1)
	if read(t, s, a) != "a" {
		t.Error("another content")
	}
	if _, err := s.Read(b); !errors.Is(err, ErrNotFound) {
		t.Errorf("one that was not renewed: %v", err)
	}
	c.add(1)
	if _, err := s.Read(a); !errors.Is(err, ErrNotFound) {
		t.Errorf("after its time: %v", err)
	}
}

// Package oom tells which processes the kernel has killed for want of memory,
// from the only place that names them: its log, as /dev/kmsg gives it (see
// Documentation/ABI/testing/dev-kmsg). How many there were a cgroup's counters
// tell better. The package prevents and kills nothing.
package oom

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/pybox/pybox/agent/boottime"
)

// Scope is what was out of memory.
type Scope string

const (
	// Memcg is one cgroup: a box reached its own limit.
	Memcg Scope = "memcg"
	// Guest is the whole guest.
	Guest Scope = "guest"
)

// Kill is one process that the kernel killed.
type Kill struct {
	// Seq is the sequence number of the log's record, which only grows.
	Seq uint64
	// At is CLOCK_BOOTTIME when the record was read, which is a little later than
	// the kill. The kernel's own time stamp is from another clock.
	At time.Duration
	// PID is the process's id as the guest sees it; where its main thread had
	// ended already, that of another of its threads.
	PID int
	// Scope is what was out of memory.
	Scope Scope
	// Memcg is the cgroup of the process, below the cgroup root, where the kernel
	// told: it does for the first victim of an event, and not for every event
	// when there are many.
	Memcg string
}

// maxKills is how many kills are kept: the last ones.
const maxKills = 256

// maxRecord bounds one record, in bytes: twice what the kernel gives at most
// (PRINTK_MESSAGE_MAX).
const maxRecord = 4096

// source gives the records of a log.
type source interface {
	// next reads the next record into b without waiting: syscall.EAGAIN says that
	// there is none yet, syscall.EPIPE that some were overwritten unread.
	next(b []byte) (int, error)
	// wait waits until there may be a record, or fails with the cause of ctx.
	wait(ctx context.Context) error
	close() error
}

// Log follows the kernel's log. Methods are safe for concurrent use.
type Log struct {
	src  source
	now  boottime.Clock
	log  *slog.Logger
	done chan struct{} // closed when nobody follows any more

	reading sync.Mutex // held while records are read
	buf     []byte

	mu      sync.Mutex
	kills   []Kill
	last    uint64 // sequence number of the last record
	any     bool   // whether there was one
	lost    uint64
	err     error
	context struct { // of the last event
		pid   int
		memcg string
	}
	wake chan struct{} // closed at the next kill; nil when nobody waits
}

// newLog follows src until ctx is done.
func newLog(ctx context.Context, src source, now boottime.Clock, log *slog.Logger) *Log {
	l := &Log{src: src, now: now, log: log, done: make(chan struct{}), buf: make([]byte, maxRecord)}
	go l.follow(ctx)
	return l
}

// follow reads records as they come, so that the kernel's ring never runs over.
func (l *Log) follow(ctx context.Context) {
	defer close(l.done)
	err := l.drain()
	for err == nil {
		if err = l.src.wait(ctx); err == nil {
			err = l.drain()
		}
	}
	if ctx.Err() == nil {
		l.log.Error("the kernel's log cannot be read any more: whom the kernel kills for want of memory is not known from now on", "error", err)
	}
	l.reading.Lock()
	defer l.reading.Unlock()
	l.fail(errors.Join(err, l.src.close()))
}

func (l *Log) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = err
}

// drain reads all there is.
func (l *Log) drain() error {
	l.reading.Lock()
	defer l.reading.Unlock()
	if err := l.failed(); err != nil {
		return err
	}
	for {
		n, err := l.src.next(l.buf)
		switch {
		case errors.Is(err, syscall.EAGAIN):
			return nil
		case errors.Is(err, syscall.EPIPE), errors.Is(err, syscall.EINTR):
			// The next read goes on with the oldest record that is left; the
			// numbers of the records tell how many are lost.
		case err != nil:
			return fmt.Errorf("read the kernel's log: %w", err)
		default:
			l.record(l.buf[:n])
		}
	}
}

func (l *Log) failed() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// record takes one record.
func (l *Log) record(b []byte) {
	r, err := parseRecord(b)
	if err != nil {
		l.log.Warn("a record of the kernel's log was passed over", "error", err)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.any && r.seq > l.last+1 {
		l.lost += r.seq - l.last - 1
	}
	l.last, l.any = r.seq, true
	if r.facility != 0 {
		return // somebody else wrote it
	}
	if pid, memcg, ok := parseContext(r.message); ok {
		l.context.pid, l.context.memcg = pid, memcg
		return
	}
	pid, scope, ok := parseKill(r.message)
	if !ok {
		return
	}
	k := Kill{Seq: r.seq, At: l.now(), PID: pid, Scope: scope}
	if l.context.pid == pid {
		k.Memcg = l.context.memcg
	}
	l.context.pid = 0
	if len(l.kills) == maxKills {
		l.kills = slices.Delete(l.kills, 0, 1)
	}
	l.kills = append(l.kills, k)
	if l.wake != nil {
		close(l.wake)
		l.wake = nil
	}
}

// Sync reads everything that was in the log when it was called. It waits for
// nothing but another reading, and fails when the log cannot be read any more.
//
// A kill is logged just after it has happened: where a counter tells of one that
// Kills does not have yet, use Await.
func (l *Log) Sync(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	return l.drain()
}

// Kills returns the kills that were read at since or later, of the last 256, in
// the order of the log. What happened at since or later is among them.
func (l *Log) Kills(since time.Duration) []Kill {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.since(since)
}

func (l *Log) since(at time.Duration) []Kill {
	i := slices.IndexFunc(l.kills, func(k Kill) bool { return k.At >= at })
	if i < 0 {
		return nil
	}
	return slices.Clone(l.kills[i:])
}

// Await returns the first kill since that time which matches, as soon as it is in
// the log. It fails with the cause of ctx when that is done first, and when the
// log cannot be read any more.
func (l *Log) Await(ctx context.Context, since time.Duration, match func(Kill) bool) (Kill, error) {
	if err := l.Sync(ctx); err != nil {
		return Kill{}, err
	}
	for {
		kills, wake := l.killsOrWake(since)
		if i := slices.IndexFunc(kills, match); i >= 0 {
			return kills[i], nil
		}
		select {
		case <-wake:
		case <-l.done:
			return Kill{}, l.failed()
		case <-ctx.Done():
			return Kill{}, context.Cause(ctx)
		}
	}
}

func (l *Log) killsOrWake(since time.Duration) ([]Kill, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.wake == nil {
		l.wake = make(chan struct{})
	}
	return l.since(since), l.wake
}

// Lost returns how many records were overwritten before they were read, since the
// start. A kill may have been among them.
func (l *Log) Lost() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lost
}

// Done is closed when the log is not followed any more.
func (l *Log) Done() <-chan struct{} { return l.done }

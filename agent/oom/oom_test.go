package oom

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

const patience = 20 * time.Second

// ring is a kernel's log in which a test writes.
type ring struct {
	mu      sync.Mutex
	records [][]byte
	errs    []error // each comes once before the next record
	more    chan struct{}
	closed  bool
}

func newRing() *ring { return &ring{more: make(chan struct{}, 1)} }

func (r *ring) put(records ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range records {
		r.records = append(r.records, []byte(s))
	}
}

// signal wakes the follower, as the kernel does.
func (r *ring) signal() {
	select {
	case r.more <- struct{}{}:
	default:
	}
}

func (r *ring) fail(errs ...error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.errs = append(r.errs, errs...)
}

func (r *ring) next(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.errs) > 0 {
		err := r.errs[0]
		r.errs = r.errs[1:]
		return 0, err
	}
	if len(r.records) == 0 {
		return 0, syscall.EAGAIN
	}
	n := copy(b, r.records[0])
	r.records = r.records[1:]
	return n, nil
}

func (r *ring) wait(ctx context.Context) error {
	select {
	case <-r.more:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (r *ring) close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	return nil
}

func follow(t *testing.T, r *ring) (*Log, *atomic.Int64) {
	t.Helper()
	now := new(atomic.Int64)
	ctx, cancel := context.WithCancel(context.Background())
	l := newLog(ctx, r, func() time.Duration { return time.Duration(now.Load()) }, slog.New(slog.NewTextHandler(io.Discard, nil)))
	t.Cleanup(func() {
		cancel()
		select {
		case <-l.Done():
		case <-time.After(patience):
			t.Error("it goes on after its context")
		}
	})
	return l, now
}

func kill(seq, pid int, comm string) string {
	return fmt.Sprintf("3,%d,%d,-;Memory cgroup out of memory: Killed process %d (%s) total-vm:262144kB, anon-rss:130000kB, "+
		"file-rss:4096kB, shmem-rss:0kB, UID:101000 pgtables:400kB oom_score_adj:0\n", seq, 1000*seq, pid, comm)
}

func event(seq, pid int, memcg, comm string) string {
	return fmt.Sprintf("6,%d,%d,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=%s,task_memcg=%s,task=%s,pid=%d,uid=101000\n",
		seq, 1000*seq, memcg, memcg, comm, pid)
}

func TestKills(t *testing.T) {
	r := newRing()
	l, now := follow(t, r)
	now.Store(10)
	r.put("6,1,100,-;Linux version 6.12\n",
		"5,2,200,-,caller=T1;a record with more fields\n SUBSYSTEM=mem\n DEVICE=+x\n",
		event(3, 71, "/pybox/boxes/a", "python3"), kill(4, 71, "python3"), kill(5, 72, "python3"))
	if err := l.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	now.Store(20)
	r.put("3,6,300,-;Out of memory: Killed process 73 (python3) total-vm:1kB\n",
		"3,7,300,-;Out of memory (oom_kill_allocating_task): Killed process 74 (x) total-vm:1kB\n")
	if err := l.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := []Kill{{4, 10, 71, Memcg, "/pybox/boxes/a"}, {5, 10, 72, Memcg, ""}, {6, 20, 73, Guest, ""}, {7, 20, 74, Guest, ""}}
	if got := l.Kills(0); !slices.Equal(got, want) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
	if got := l.Kills(11); !slices.Equal(got, want[2:]) {
		t.Errorf("since 11: %+v", got)
	}
	if got := l.Kills(21); got != nil {
		t.Errorf("since 21: %+v", got)
	}
	if l.Lost() != 0 {
		t.Errorf("lost %d", l.Lost())
	}
}

// The name of a process is whatever the program wants.
func TestHostileNames(t *testing.T) {
	for _, comm := range []string{"", ")", "x) total-vm:1", `a\x0ab`, ",pid=1,uid=0", "task=,pid=9,uid=", "Out of memory: ",
		"(((((((((((((((", "oom-kill:constr", strings.Repeat("é", 7)} {
		r := newRing()
		l, _ := follow(t, r)
		r.put(event(1, 71, "/pybox/boxes/a", comm), kill(2, 71, comm))
		if err := l.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got, want := l.Kills(0), []Kill{{2, 0, 71, Memcg, "/pybox/boxes/a"}}; !slices.Equal(got, want) {
			t.Errorf("%q: %+v, want %+v", comm, got, want)
		}
	}
}

// Nothing else is taken for a kill.
func TestOtherRecords(t *testing.T) {
	const message = ";Memory cgroup out of memory: Killed process 5 (x) total-vm:1kB\n"
	r := newRing()
	l, _ := follow(t, r)
	r.put(
		"11,1,1,-"+message, // facility 1: a program of the guest wrote it
		"4294967299,2,1,-"+message,
		"3,-3,1,-"+message, "3,+3,1,-"+message, "3,03,1,-"+message, "x,4,1,-"+message, "3,5,1"+message, "3"+message,
		message[1:], "", ";", ",,,;",
		"3,6,1,-; Memory cgroup out of memory: Killed process 5 (x)\n",
		"3,7,1,-;x[1]: Memory cgroup out of memory: Killed process 5 (x)\n",
		"3,8,1,-;Memory cgroup out of memory: Killed process -5 (x)\n",
		"3,9,1,-;Memory cgroup out of memory: Killed process 0 (x)\n",
		"3,10,1,-;Memory cgroup out of memory: Killed process 4294967296 (x)\n",
		"3,11,1,-;Memory cgroup out of memory: Killed process 5\n",
		"3,12,1,-;hello\n Memory cgroup out of memory: Killed process 5 (x)\n",
		"3,13,1,-;Memory cgroup out of memory and no killable processes...\n",
		"6,14,1,-;oom_reaper: reaped process 5 (x), now anon-rss:0kB\n",
		"6,15,1,-;Tasks in /pybox/boxes/a are going to be killed due to memory.oom.group set\n",
	)
	if err := l.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := l.Kills(0); got != nil {
		t.Errorf("%+v", got)
	}
}

// The cgroup of one process is not another's.
func TestContextOfAnotherProcess(t *testing.T) {
	r := newRing()
	l, _ := follow(t, r)
	r.put(event(1, 71, "/pybox/boxes/a", "x"), kill(2, 72, "x"), kill(3, 71, "x"))
	if err := l.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, k := range l.Kills(0) {
		if k.Memcg != "" {
			t.Errorf("%+v", k)
		}
	}
}

func TestLost(t *testing.T) {
	r := newRing()
	l, _ := follow(t, r)
	r.put("6,40,1,-;the log begins before anybody reads it\n", kill(41, 71, "x"))
	if err := l.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if l.Lost() != 0 {
		t.Errorf("lost %d at the start", l.Lost())
	}
	r.fail(syscall.EINTR, syscall.EPIPE)
	r.put(kill(50, 72, "x"))
	if err := l.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if l.Lost() != 8 || len(l.Kills(0)) != 2 {
		t.Errorf("lost %d, kills %+v", l.Lost(), l.Kills(0))
	}
}

func TestKeepsTheLast(t *testing.T) {
	r := newRing()
	l, _ := follow(t, r)
	for i := range 3 * maxKills {
		r.put(kill(i, i+1, "x"))
	}
	if err := l.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := l.Kills(0)
	if len(got) != maxKills || got[0].PID != 2*maxKills+1 || got[maxKills-1].PID != 3*maxKills {
		t.Errorf("%d kills, from %+v", len(got), got[0])
	}
}

func TestAwait(t *testing.T) {
	r := newRing()
	l, _ := follow(t, r)
	is := func(pid int) func(Kill) bool { return func(k Kill) bool { return k.PID == pid } }
	got := make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	go func() {
		k, err := l.Await(ctx, 0, is(73))
		if err == nil && k.PID != 73 {
			err = fmt.Errorf("got %+v", k)
		}
		got <- err
	}()
	for pid := 71; pid <= 73; pid++ {
		r.put(kill(pid, pid, "x"))
		r.signal()
	}
	if err := <-got; err != nil {
		t.Error(err)
	}
	cause := errors.New("enough")
	over, stop := context.WithCancelCause(t.Context())
	stop(cause)
	if _, err := l.Await(over, 0, is(71)); !errors.Is(err, cause) {
		t.Errorf("%v", err)
	}
	if err := l.Sync(over); !errors.Is(err, cause) {
		t.Errorf("%v", err)
	}
	short, stop2 := context.WithTimeout(t.Context(), time.Millisecond)
	defer stop2()
	if _, err := l.Await(short, 0, is(99)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
}

// A log that cannot be read is no log without kills.
func TestBrokenLog(t *testing.T) {
	r := newRing()
	l, _ := follow(t, r)
	r.put(kill(1, 71, "x"))
	if err := l.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.fail(syscall.EIO)
	r.signal()
	select {
	case <-l.Done():
	case <-time.After(patience):
		t.Fatal("it goes on")
	}
	if err := l.Sync(t.Context()); !errors.Is(err, syscall.EIO) {
		t.Errorf("sync: %v", err)
	}
	if _, err := l.Await(t.Context(), 0, func(Kill) bool { return false }); !errors.Is(err, syscall.EIO) {
		t.Errorf("await: %v", err)
	}
	if !r.closed || len(l.Kills(0)) != 1 {
		t.Errorf("closed %v, kills %+v", r.closed, l.Kills(0))
	}
}

func FuzzRecord(f *testing.F) {
	for _, s := range []string{kill(1, 71, "x"), event(1, 71, "/pybox/boxes/a", "x"), "6,1,100,-;x\n K=V\n", "3,1,1,-;Out of memory: Killed process 1 ("} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := parseRecord(b)
		if err != nil {
			return
		}
		if strings.Contains(r.message, "\n") {
			t.Errorf("a message of several lines: %q", r.message)
		}
		if pid, scope, ok := parseKill(r.message); ok && (pid < 1 || scope == "" || !strings.Contains(r.message, fmt.Sprintf("Killed process %d (", pid))) {
			t.Errorf("%d, %q out of %q", pid, scope, r.message)
		}
		if pid, memcg, ok := parseContext(r.message); ok && (pid < 1 || memcg[0] != '/' || strings.Contains(memcg, ",")) {
			t.Errorf("%d, %q out of %q", pid, memcg, r.message)
		}
	})
}

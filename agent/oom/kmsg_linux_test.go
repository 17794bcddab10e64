package oom

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pybox/pybox/agent/boottime"
)

func open(t *testing.T, path string) (*Log, context.CancelFunc) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l, err := Open(ctx, path, boottime.Now, slog.New(slog.NewTextHandler(io.Discard, nil)))
	if errors.Is(err, os.ErrPermission) || errors.Is(err, os.ErrNotExist) {
		t.Skipf("SKIPPED: the kernel's log cannot be read here: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		select {
		case <-l.Done():
		case <-time.After(patience):
			t.Error("it goes on after its context")
		}
	})
	return l, cancel
}

// The running kernel's log is followed: what is written is read, by Sync at once
// and without it when the kernel tells, and a program's words are no kernel's.
func TestKernelLog(t *testing.T) {
	l, _ := open(t, "/dev/kmsg")
	if err := l.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	last := func() uint64 {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.last
	}
	before, kills := last(), len(l.Kills(0))
	if before == 0 {
		t.Error("no record was read")
	}
	w, err := os.OpenFile("/dev/kmsg", os.O_WRONLY, 0)
	if err != nil {
		t.Skipf("SKIPPED: the kernel's log cannot be written here: %v", err)
	}
	defer w.Close()
	const message = "<3>Memory cgroup out of memory: Killed process 1 (pybox-test)\n"
	if _, err := w.WriteString(message); err != nil {
		t.Fatal(err)
	}
	if err := l.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if last() == before {
		t.Error("what was written before a sync was not read by it")
	}
	before = last()
	if _, err := w.WriteString(message); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(patience); last() == before; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("a record that was written is never read")
		}
	}
	if got := l.Kills(0); len(got) != kills {
		t.Errorf("a program's words are a kill: %+v", got)
	}
}

// A pipe stands in for the device where records are the test's: each write is one
// read, as long as it is read before the next.
func TestPoller(t *testing.T) {
	fifo := t.TempDir() + "/log"
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	w, err := os.OpenFile(fifo, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	l, cancel := open(t, fifo)
	for pid := 71; pid < 75; pid++ {
		if _, err := w.WriteString(kill(pid, pid, "x")); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithTimeout(t.Context(), patience)
		if _, err := l.Await(ctx, 0, func(k Kill) bool { return k.PID == pid }); err != nil {
			t.Fatal(err)
		}
		stop()
	}
	cancel()
	select {
	case <-l.Done():
	case <-time.After(patience):
		t.Fatal("it goes on after its context")
	}
	if err := l.Sync(t.Context()); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end: %v", err)
	}
}

func TestOpenRefuses(t *testing.T) {
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	if _, err := Open(t.Context(), t.TempDir()+"/none", boottime.Now, log); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
	if _, err := Open(t.Context(), "/dev/null", boottime.Now, log); err == nil || !strings.Contains(err.Error(), "wait for") {
		t.Errorf("a file that cannot be waited for: %v", err)
	}
}

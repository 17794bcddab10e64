package engine

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// bound is how long any wait of these tests may take.
const bound = 30 * time.Second

// TestMain makes the test's binary the shim too.
func TestMain(m *testing.M) {
	switch filepath.Base(os.Args[0]) {
	case ShimName:
		os.Exit(ShimMain())
	}
	os.Exit(m.Run())
}

func boundedBy(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// options are those of an engine without a runtime.
func options(t *testing.T) Options {
	dir := t.TempDir()
	return Options{
		Root: filepath.Join(dir, "root"), State: filepath.Join(dir, "state"), Crun: "/bin/false", Exe: "/proc/self/exe",
		Log: slog.New(slog.DiscardHandler), // the shim may outlive a test by a moment
	}
}

func start(t *testing.T, o Options) *Engine {
	t.Helper()
	e, err := Start(boundedBy(t, bound), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), bound)
		defer cancel()
		if err := e.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return e
}

func waitFor(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(bound):
		t.Fatalf("%s: not so after %v", what, bound)
	}
}

func spec() *specs.Spec { return &specs.Spec{Version: specs.Version, Hostname: "box"} }

// absent makes sure that nothing of id is left.
func absent(t *testing.T, e *Engine, id string) {
	t.Helper()
	ctx := boundedBy(t, bound)
	if container, task, err := e.Presence(ctx, id); container || task || err != nil {
		t.Errorf("%s: container %v, task %v, %v", id, container, task, err)
	}
	if _, err := e.StoredSpec(ctx, id); !errors.Is(err, ErrNotFound) {
		t.Errorf("%s has a specification: %v", id, err)
	}
	if _, err := e.RuntimeState(id); !errors.Is(err, ErrNotFound) {
		t.Errorf("%s has a state: %v", id, err)
	}
	if _, err := os.Lstat(e.o.bundle(id)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s has a bundle: %v", id, err)
	}
}

// TestFailingRuntime: a runtime that makes nothing leaves nothing.
func TestFailingRuntime(t *testing.T) {
	e := start(t, options(t))
	for range 2 { // the id is free again
		task, err := e.Create(boundedBy(t, bound), "one", spec(), map[string]string{"a": "b"})
		if err == nil || task != nil || errors.Is(err, ErrLost) {
			t.Fatalf("made by nobody: %v, %v", task, err)
		}
		if !strings.Contains(err.Error(), "OCI runtime create failed") {
			t.Errorf("the error does not say who failed: %v", err)
		}
		absent(t, e, "one")
	}
	for _, id := range []string{"", "..", "a/b", strings.Repeat("x", 200)} {
		if _, err := e.Create(boundedBy(t, bound), id, spec(), nil); err == nil {
			t.Errorf("the id %q passes", id)
		}
		if _, err := e.RuntimeState(id); err == nil || errors.Is(err, ErrNotFound) {
			t.Errorf("the id %q is looked for: %v", id, err)
		}
	}
}

// TestCutShort: wherever a creation is when its caller gives up, nothing is left.
func TestCutShort(t *testing.T) {
	e := start(t, options(t))
	for i := range 40 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*100*time.Microsecond)
		task, err := e.Create(ctx, "one", spec(), nil)
		cancel()
		if err == nil || task != nil || errors.Is(err, ErrExists) || errors.Is(err, ErrLost) {
			t.Fatalf("made by nobody: %v, %v", task, err)
		}
		absent(t, e, "one")
	}
}

// TestShimKilled: the loss of the shim is seen, and another one takes its place.
func TestShimKilled(t *testing.T) {
	e := start(t, options(t))
	pid, lost := e.ShimPID(), e.Lost()
	select {
	case <-lost:
		t.Fatal("lost at once")
	default:
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the shim is lost", lost)
	ctx := boundedBy(t, bound)
	if _, _, err := e.Presence(ctx, "one"); !errors.Is(err, ErrLost) {
		t.Errorf("presence: %v", err)
	}
	if _, err := e.Create(ctx, "one", spec(), nil); !errors.Is(err, ErrLost) {
		t.Errorf("create: %v", err)
	}
	if err := e.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	if e.ShimPID() == pid || e.Lost() == lost {
		t.Error("the shim is the same")
	}
	absent(t, e, "one")
}

// TestRestartRemoves: what is recorded goes, what is not ours stays.
func TestRestartRemoves(t *testing.T) {
	o := options(t)
	e := start(t, o)
	ctx := boundedBy(t, bound)
	record := func(id string, labels map[string]string) {
		t.Helper()
		c, err := newRecord(id, spec(), labels)
		if err != nil {
			t.Fatal(err)
		}
		if labels == nil {
			delete(c.Labels, OwnerLabel)
		}
		nctx, cancel := bounded(ctx, bound)
		defer cancel()
		if _, err := e.server.containers.Create(nctx, c); err != nil {
			t.Fatal(err)
		}
		for _, dir := range []string{o.bundle(id), o.crunState(id)} {
			if err := os.MkdirAll(dir, 0o700); err != nil {
				t.Fatal(err)
			}
		}
	}
	record("ours", map[string]string{"run": "1"})
	record("foreign", nil)
	if err := os.MkdirAll(o.crunState("unknown"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := e.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	absent(t, e, "ours")
	if container, _, err := e.Presence(ctx, "foreign"); err != nil || !container {
		t.Errorf("a record without our label: %v, %v", container, err)
	}
	for _, dir := range []string{o.bundle("foreign"), o.crunState("foreign"), o.crunState("unknown")} {
		if _, err := os.Lstat(dir); err != nil {
			t.Error(err)
		}
	}
}

// TestShimStopped: a shim that hangs is found out by the first question.
func TestShimStopped(t *testing.T) {
	s, err := startShim(boundedBy(t, bound), prepared(t), newRecorder().limitedLog)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.stop(context.Background()) })
	if err := unix.Kill(s.pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	// It may answer once more before the signal gets to it.
	for deadline := time.Now().Add(bound); !s.isLost() && time.Now().Before(deadline); {
		s.probe(boundedBy(t, 200*time.Millisecond))
	}
	waitFor(t, "the shim is lost", s.lost)
	waitFor(t, "the shim is dead", s.ended)
	if err := s.lostError(); !errors.Is(err, ErrLost) || !strings.Contains(err.Error(), "hangs") {
		t.Errorf("the cause is %v", err)
	}
}

// TestShimEndsWithConnection: an agent that ends takes the shim along.
func TestShimEndsWithConnection(t *testing.T) {
	s, err := startShim(boundedBy(t, bound), prepared(t), newRecorder().limitedLog)
	if err != nil {
		t.Fatal(err)
	}
	for _, polite := range []unix.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP} {
		if err := unix.Kill(s.pid, polite); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.ping(boundedBy(t, bound)); err != nil {
		t.Fatalf("a signal ended it: %v", err)
	}
	if err := s.conn.Close(); err != nil { // as the kernel does at the agent's end
		t.Fatal(err)
	}
	waitFor(t, "the shim ends", s.ended)
}

// prepared are options whose folders exist.
func prepared(t *testing.T) Options {
	t.Helper()
	o := options(t)
	if err := os.MkdirAll(o.State, 0o700); err != nil {
		t.Fatal(err)
	}
	return o
}

// TestNoShim: a program that is no shim is told from one that is slow.
func TestNoShim(t *testing.T) {
	o := prepared(t)
	o.Exe = "/bin/true"
	s, err := startShim(boundedBy(t, bound), o, newRecorder().limitedLog)
	if s != nil || !errors.Is(err, ErrLost) {
		t.Errorf("%v, %v; want ErrLost", s, err)
	}
	o.Exe = filepath.Join(t.TempDir(), "none")
	if s, err := startShim(boundedBy(t, bound), o, newRecorder().limitedLog); s != nil || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v, %v; want that there is none", s, err)
	}
	o.Exe = script(t, "exec sleep 60")
	began := time.Now()
	if s, err = startShim(boundedBy(t, 200*time.Millisecond), o, newRecorder().limitedLog); s != nil || err == nil {
		t.Errorf("%v, %v; want a failure", s, err)
	}
	if took := time.Since(began); took > bound/2 {
		t.Errorf("a silent shim is waited for %v", took)
	}
	if _, err := Start(boundedBy(t, bound), endingShim(t)); err == nil {
		t.Error("an engine without a shim")
	}
}

// endingShim are options with a shim that ends.
func endingShim(t *testing.T) Options {
	o := options(t)
	o.Exe = "/bin/true"
	return o
}

// script makes a shell script.
func script(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestShimLogs: what the shim prints arrives in the log.
func TestShimLogs(t *testing.T) {
	o := prepared(t)
	o.Exe = script(t, "echo a word >&2")
	r := newRecorder()
	if _, err := startShim(boundedBy(t, bound), o, r.limitedLog); err == nil {
		t.Fatal("that was no shim")
	}
	for end := time.Now().Add(bound); ; time.Sleep(time.Millisecond) {
		r.mu.Lock()
		spent := r.left < logBurst
		r.mu.Unlock()
		if spent {
			return
		}
		if time.Now().After(end) {
			t.Fatal("nothing was logged")
		}
	}
}

func TestCgroupOf(t *testing.T) {
	for path, want := range map[string]string{
		"/pybox/boxes/one": "pybox/boxes/one", "": "", "/": "", "/a/../b": "", "/a/b/c/d": "", "system.slice:x:y": "",
	} {
		if got := cgroupOf(&specs.Spec{Linux: &specs.Linux{CgroupsPath: path}}); got != want {
			t.Errorf("%q gives %q, want %q", path, got, want)
		}
	}
	if got := cgroupOf(&specs.Spec{}); got != "" {
		t.Errorf("no cgroup gives %q", got)
	}
}

// TestBundleWrittenWhileRemoved: the shim may write the exit status, as one new
// file through a temporary one, while the bundle is removed.
func TestBundleWrittenWhileRemoved(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "bundle")
	for range 2000 {
		if err := writeBundle(dir, []byte("{}")); err != nil {
			t.Fatal(err)
		}
		wrote := make(chan struct{})
		go func() {
			defer close(wrote)
			temporary := filepath.Join(dir, "123")
			if os.WriteFile(temporary, []byte("0"), 0o600) == nil {
				os.Rename(temporary, filepath.Join(dir, "exit-status"))
			}
		}()
		if err := removeBundle(dir); err != nil {
			t.Fatal(err)
		}
		<-wrote
		if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("the folder is there again: %v", err)
		}
	}
}

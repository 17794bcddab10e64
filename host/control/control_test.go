package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pybox/pybox/guest/bundle"
	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/config"
	"github.com/pybox/pybox/host/daemon"
	"github.com/pybox/pybox/host/daemon/daemontest"
	"github.com/pybox/pybox/host/home"
	"github.com/pybox/pybox/vm/vmtest"
)

// TestMain lets this binary be the daemon's command: one whose VM is a fake.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "daemon" {
		os.Exit(testDaemon(os.Args[2:]))
	}
	os.Exit(m.Run())
}

// testDaemon is a daemon over a fake machine. Its words change what it does.
func testDaemon(words []string) int {
	word := strings.Join(words, " ")
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	time.AfterFunc(2*time.Minute, func() { os.Exit(99) }) // should a test forget it
	switch word {
	case "bad":
		fmt.Fprintln(os.Stderr, "pybox: the configuration is invalid: line 3")
		return 1
	case "hang":
		select {}
	}
	h, err := home.Open(os.Getenv("PYBOX_HOME"))
	if err != nil {
		return 98
	}
	a := &daemontest.Agent{}
	o := daemon.Options{
		Home: h, Config: config.Default(), Driver: &vmtest.Fake{Guest: a.Program}, Version: "test",
		Bundle: func() (*bundle.Bundle, error) { return bundle.Open(h.Path("testbundle")) },
	}
	err = daemon.Run(ctx, o)
	if errors.Is(err, home.ErrLocked) {
		return LockedExit
	}
	if err != nil {
		return 1
	}
	return 0
}

func newController(t *testing.T, words ...string) *Controller {
	t.Helper()
	h, err := home.Open(filepath.Join(t.TempDir(), "home with space"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(h.Path("testbundle"), 0o700); err != nil {
		t.Fatal(err)
	}
	daemontest.NewBundle(t, h.Path("testbundle"))
	c := &Controller{Home: h, Command: append([]string{os.Args[0], "daemon"}, words...), Version: "test"}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if _, err := c.Stop(ctx, api.StopRequest{Force: true}); err != nil {
			t.Errorf("clean-up: %v", err)
		}
	})
	return c
}

func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func TestStartStatusStop(t *testing.T) {
	c := newController(t)
	ctx := bounded(t)
	if s, err := c.Status(ctx); err != nil || s.State != api.StateStopped || s.LastEnd != nil {
		t.Errorf("before: %+v, %v", s, err)
	}
	if e, err := c.Stop(ctx, api.StopRequest{}); e != nil || err != nil {
		t.Errorf("stopping a stopped VM: %v, %v", e, err)
	}
	s, err := c.Start(ctx, nil)
	if err != nil || s.State != api.StateRunning || s.Daemon.PID == os.Getpid() {
		t.Fatalf("Start: %+v, %v", s, err)
	}
	again, err := c.Start(ctx, nil)
	if err != nil || again.Daemon.PID != s.Daemon.PID {
		t.Errorf("a second start: pid %d, %v; want the same daemon, %d", again.Daemon.PID, err, s.Daemon.PID)
	}
	e, err := c.Stop(ctx, api.StopRequest{})
	if err != nil || e == nil || e.By != "client" {
		t.Errorf("Stop: %+v, %v", e, err)
	}
	if s, err := c.Status(ctx); err != nil || s.State != api.StateStopped || s.LastEnd == nil || s.LastEnd.By != "client" {
		t.Errorf("after: %+v, %v", s, err)
	}
}

func TestClientsRace(t *testing.T) {
	c := newController(t)
	ctx := bounded(t)
	pids := make(chan int, 12)
	var wg sync.WaitGroup
	for range 12 {
		wg.Go(func() {
			s, err := c.Start(ctx, nil)
			if err != nil {
				t.Error(err)
			}
			pids <- s.Daemon.PID
		})
	}
	wg.Wait()
	close(pids)
	first := <-pids
	for pid := range pids {
		if pid != first {
			t.Errorf("two daemons: %d and %d", first, pid)
		}
	}
	// Starts and stops in any order end without an error, and with one state.
	for i := range 12 {
		wg.Go(func() {
			if i%2 == 0 {
				if _, err := c.Stop(ctx, api.StopRequest{}); err != nil {
					t.Errorf("Stop: %v", err)
				}
				return
			}
			if _, err := c.Start(ctx, nil); err != nil {
				t.Errorf("Start: %v", err)
			}
		})
	}
	wg.Wait()
}

func TestRecoversFromAKilledDaemon(t *testing.T) {
	c := newController(t)
	ctx := bounded(t)
	s, err := c.Start(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(s.Daemon.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := c.Home.WaitUnlocked(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(c.Home.Socket()); err != nil {
		t.Fatalf("no stale socket to recover from: %v", err)
	}
	if s, err := c.Status(ctx); err != nil || s.State != api.StateStopped || s.LastEnd == nil || !strings.Contains(s.LastEnd.Reason, "without a record") {
		t.Errorf("status over a stale socket: %+v, %v", s, err)
	}
	again, err := c.Start(ctx, nil)
	if err != nil || again.Daemon.PID == s.Daemon.PID {
		t.Errorf("start over a stale socket: %+v, %v", again, err)
	}
}

// TestLastEnd: that a daemon left no word is said where the place for that is empty,
// or has an earlier one's, and not where it cannot be read.
func TestLastEnd(t *testing.T) {
	begun := time.Now().Add(-time.Hour)
	mine := func(at time.Time) string {
		return fmt.Sprintf(`{"at":%q,"pid":%d,"reason":"told"}`, at.Format(time.RFC3339Nano), 1)
	}
	for name, c := range map[string]struct {
		daemon bool // one was there that is gone
		record string
		say    string // "": there is no end
		fails  bool
	}{
		"nothing ever":            {},
		"a word":                  {record: mine(begun), say: "told"},
		"rubbish":                 {record: "{", fails: true},
		"no word of a daemon":     {daemon: true, say: "without a record"},
		"an earlier one's word":   {daemon: true, record: mine(begun.Add(-time.Hour)), say: "without a record"},
		"its word":                {daemon: true, record: mine(begun.Add(time.Minute)), say: "told"},
		"rubbish of a daemon":     {daemon: true, record: "{", fails: true},
		"half a word of a daemon": {daemon: true, record: mine(begun.Add(time.Minute))[:60], fails: true},
		"of another form":         {daemon: true, record: `{"pid":"none"}`, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			h, err := home.Open(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			if c.daemon {
				if err := h.SetDaemon("1", begun, ""); err != nil {
					t.Fatal(err)
				}
				d, err := h.Daemon()
				if err != nil {
					t.Fatal(err)
				}
				d.PID = 1 << 22 // more than there can be
				if err := h.WriteJSON(h.Path("daemon.json"), d); err != nil {
					t.Fatal(err)
				}
			}
			if c.record != "" {
				if err := os.WriteFile(h.LastEnd(), []byte(c.record), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			e, err := LastEnd(h)
			if (err != nil) != c.fails || (e != nil) != (c.say != "") || e != nil && !strings.Contains(e.Reason, c.say) {
				t.Errorf("got %+v, %v; want %q, an error: %v", e, err, c.say, c.fails)
			}
		})
	}
}

func TestDaemonThatCannotStart(t *testing.T) {
	c := newController(t, "bad")
	if _, err := c.Start(bounded(t), nil); err == nil || err.Error() != "the daemon did not start: the configuration is invalid: line 3" {
		t.Errorf("got %v", err)
	}
	c = newController(t)
	os.Remove(c.Home.Path("testbundle", "manifest.json"))
	_, err := c.Start(bounded(t), nil)
	var p *api.Problem
	if !errors.As(err, &p) || p.Type != api.ProblemStart || !strings.Contains(p.Detail, "bundle") {
		t.Errorf("without a bundle: %v, want the daemon's own problem", err)
	}
}

// TestDaemonThatDoesNotAnswer holds the lock and the socket and says nothing.
func TestDaemonThatDoesNotAnswer(t *testing.T) {
	c := newController(t)
	ctx := bounded(t)
	s, err := c.Start(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	syscall.Kill(s.Daemon.PID, syscall.SIGSTOP)
	_, err = c.Status(ctx)
	for err == nil && ctx.Err() == nil { // its threads stop one after the other
		_, err = c.Status(ctx)
	}
	if err == nil || !strings.Contains(err.Error(), "vm stop --force") {
		t.Errorf("status: %v, want advice to force", err)
	}
	if _, err := c.Start(ctx, nil); err == nil || !strings.Contains(err.Error(), "vm stop --force") {
		t.Errorf("start: %v, want advice to force", err)
	}
	if _, err := c.Stop(ctx, api.StopRequest{Force: true}); err != nil {
		t.Errorf("forced stop: %v", err)
	}
	if s, err := c.Status(ctx); err != nil || s.State != api.StateStopped {
		t.Errorf("after: %+v, %v", s, err)
	}
}

func TestSocketRemoved(t *testing.T) {
	c := newController(t)
	ctx := bounded(t)
	s, err := c.Start(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(c.Home.Socket()); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("pid %d", s.Daemon.PID)
	if _, err := c.Status(ctx); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "--force") {
		t.Errorf("status: %v", err)
	}
	if _, err := c.Stop(ctx, api.StopRequest{}); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("stop: %v", err)
	}
	if _, err := c.Stop(ctx, api.StopRequest{Force: true}); err != nil {
		t.Errorf("forced stop: %v", err)
	}
}

// TestLockRemoved: without its lock file a directory still has one daemon.
func TestLockRemoved(t *testing.T) {
	c := newController(t)
	ctx := bounded(t)
	if _, err := c.Start(ctx, nil); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(c.Home.Path("lock")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.spawn(ctx); !errors.Is(err, home.ErrLocked) {
		t.Errorf("a second daemon: %v, want ErrLocked", err)
	}
	if _, err := c.Client().Stop(ctx, api.StopRequest{}); err != nil {
		t.Errorf("the first one: %v", err)
	}
}

func TestForceNeverKillsAStranger(t *testing.T) {
	c := newController(t)
	// The record names a living process that is not the daemon: this one.
	d := home.Daemon{PID: os.Getpid(), StartTime: "1", Socket: c.Home.Socket()}
	if err := c.Home.WriteJSON(c.Home.Path("daemon.json"), d); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Stop(bounded(t), api.StopRequest{Force: true}); err != nil { // we would not come back
		t.Error(err)
	}
	l, err := c.Home.Lock() // an owner that never said who it is
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Stop(bounded(t), api.StopRequest{Force: true}); err == nil || !strings.Contains(err.Error(), "fuser") {
		t.Errorf("an unknown owner: %v", err)
	}
	l.Unlock()
}

// TestStrangeAnswers is a server that is not a daemon of ours.
func TestStrangeAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		h   http.HandlerFunc
		say string
	}{
		"not JSON":     {func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("<html>")) }, "not what this version expects"},
		"500":          {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "oops\x1b[2J", 500) }, `"oops\x1b[2J\n"`},
		"500, no type": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500); w.Write([]byte("{}")) }, "500"},
		"hangs up":     {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "hung up"},
		"other problem": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(400)
			json.NewEncoder(w).Encode(api.Problem{Type: "x", Title: "no"})
		}, "no"},
	} {
		t.Run(name, func(t *testing.T) {
			sock := filepath.Join(t.TempDir(), "s")
			l, err := net.Listen("unix", sock)
			if err != nil {
				t.Fatal(err)
			}
			srv := &http.Server{Handler: c.h}
			go srv.Serve(l)
			defer srv.Close()
			if _, err := api.NewClient(sock).Status(bounded(t)); err == nil || !strings.Contains(err.Error(), c.say) {
				t.Errorf("got %v, want an error that says %q", err, c.say)
			}
		})
	}
}

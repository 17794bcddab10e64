package control

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pybox/pybox/host/api"
)

func TestRestartIdle(t *testing.T) {
	c := newController(t)
	ctx := bounded(t)
	granted := 0
	grant := func() { granted++ }
	if s, err := c.RestartIdle(ctx, grant, nil); err != nil || s.State != api.StateStopped {
		t.Errorf("without a VM: %+v, %v; want a status of a stopped one", s, err)
	}
	before, err := c.Start(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}

	started := make(chan struct{})
	run, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		text := "wait"
		_, _ = c.Client().Run(run, api.RunRequest{Program: api.Source{Text: &text}}, func(e api.Event) error {
			if e.Event == api.EventStarted {
				close(started)
			}
			return nil
		})
	}()
	<-started
	if _, err := c.RestartIdle(ctx, grant, nil); !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), "a run") {
		t.Errorf("while a run is in progress: %v, want ErrInUse that says so", err)
	}
	if s, err := c.Status(ctx); err != nil || s.Daemon.PID != before.Daemon.PID || s.Runs.Active != 1 {
		t.Errorf("the VM that is in use: %+v, %v; want it as it was", s, err)
	}
	cancel()
	<-ended
	bad := errors.New("config.toml is wrong")
	c.Startable = func() error { return bad }
	if _, err := c.RestartIdle(ctx, grant, nil); !errors.Is(err, ErrNotStartable) || !errors.Is(err, bad) {
		t.Errorf("when no other would start: %v", err)
	}
	if s, err := c.Status(ctx); err != nil || s.State != api.StateRunning || s.Daemon.PID != before.Daemon.PID {
		t.Errorf("the VM in whose place no other would start: %+v, %v; want it as it was", s, err)
	}
	c.Startable = func() error { return nil }
	if granted != 0 {
		t.Errorf("%d restarts were granted before there was one", granted)
	}

	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		after, err := c.RestartIdle(ctx, grant, nil)
		if errors.Is(err, ErrInUse) && time.Now().Before(deadline) {
			continue // the daemon has yet to see that the run has ended
		}
		if err != nil || after.State != api.StateRunning || after.Daemon.PID == before.Daemon.PID {
			t.Errorf("a restart of an idle VM: %+v, %v; want another daemon than %d", after, err, before.Daemon.PID)
		}
		if granted != 1 {
			t.Errorf("granted %d times", granted)
		}
		return
	}
}

func TestRestartIdleOfAnOlderDaemon(t *testing.T) {
	err := asInUse(&api.Problem{Type: api.ProblemBadRequest, Detail: "unknown field"})
	if !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), "another release") {
		t.Errorf("got %v", err)
	}
	if err := asInUse(errors.New("else")); errors.Is(err, ErrInUse) {
		t.Errorf("any error is one: %v", err)
	}
}

package engine

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestUnblockStart has a writer do what "crun start" does while the process that it
// starts lives, ends, and has ended before.
func TestUnblockStart(t *testing.T) {
	for _, when := range []string{"before", "meanwhile"} {
		t.Run(when, func(t *testing.T) {
			state := t.TempDir()
			fifo := filepath.Join(state, startFIFO)
			if err := unix.Mkfifo(fifo, 0o600); err != nil {
				t.Fatal(err)
			}
			c := exec.Command("sleep", "600")
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			end := func() { _ = c.Process.Kill(); _ = c.Wait() }
			defer end()
			if when == "before" {
				end()
			}
			defer unblockStart(c.Process.Pid, state)()
			wrote := make(chan error, 1)
			go func() {
				f, err := os.OpenFile(fifo, os.O_WRONLY, 0)
				if err == nil {
					_, err = f.Write([]byte{0})
					f.Close()
				}
				wrote <- err
			}()
			if when == "meanwhile" {
				select {
				case err := <-wrote:
					t.Fatalf("somebody read what is for a process that lives: %v", err)
				case <-time.After(100 * time.Millisecond):
				}
				end()
			}
			select {
			case err := <-wrote:
				if err != nil {
					t.Error(err)
				}
			case <-time.After(10 * time.Second):
				t.Fatal("the writer waits for ever")
			}
		})
	}
	t.Run("it lives", func(t *testing.T) {
		over := unblockStart(os.Getpid(), t.TempDir())
		over()
	})
}

// startFixture is crun's folder of the container run-1 that was created.
func startFixture(t *testing.T, config string) (root, fifo string) {
	t.Helper()
	root = t.TempDir()
	state := filepath.Join(root, "run-1")
	fifo = filepath.Join(state, startFIFO)
	if err := errors.Join(os.Mkdir(state, 0o700), os.WriteFile(filepath.Join(state, "config.json"), []byte(config), 0o600), unix.Mkfifo(fifo, 0o600)); err != nil {
		t.Fatal(err)
	}
	return root, fifo
}

func TestStartWithoutAProcess(t *testing.T) {
	root, fifo := startFixture(t, crunConfig)
	f := &fakeMonitor{}
	m := monitor{f, deleter{t.TempDir()}}
	c := exec.Command("/usr/bin/crun", "--root", root, "--log", "/x", "start", "run-1")
	ended, err := m.StartLocked(c)
	if err != nil || f.started != 0 {
		t.Fatalf("%v, %d processes", err, f.started)
	}
	select {
	case <-ended:
		t.Fatal("it did not wait for the container's process")
	case <-time.After(100 * time.Millisecond):
	}
	told, err := os.ReadFile(fifo) // up to the end of who writes
	if err != nil || !bytes.Equal(told, []byte{0}) {
		t.Errorf("the process reads %q, %v", told, err)
	}
	if status, err := m.Wait(c, ended); status != 0 || err != nil {
		t.Errorf("%d, %v", status, err)
	}
	if !gone(t, fifo) {
		t.Error("the name of the FIFO is there still")
	}
	// Nobody is started twice.
	if _, err := m.StartLocked(c); err == nil || f.started != 1 {
		t.Errorf("the second time: %v, %d processes", err, f.started)
	}
}

func TestStartLeavesTheRestToCrun(t *testing.T) {
	for name, c := range map[string]struct {
		config string
		args   []string
		before func(fifo string) error
	}{
		"hooks":         {config: strings.Replace(crunConfig, "{", `{"hooks":{"poststart":[{"path":"/bin/true"}]},`, 1)},
		"broken config": {config: `{"hooks":`},
		"no FIFO":       {before: os.Remove},
		"a file": {before: func(fifo string) error {
			return errors.Join(os.Remove(fifo), os.WriteFile(fifo, nil, 0o600))
		}},
		"another": {args: []string{"start", "run-3"}},
		"a path":  {args: []string{"start", "x/../run-1"}},
		"options": {args: []string{"start", "--x", "run-1"}},
	} {
		t.Run(name, func(t *testing.T) {
			if c.config == "" {
				c.config = crunConfig
			}
			if c.args == nil {
				c.args = []string{"start", "run-1"}
			}
			root, fifo := startFixture(t, c.config)
			if c.before != nil {
				if err := c.before(fifo); err != nil {
					t.Fatal(err)
				}
			}
			f := &fakeMonitor{}
			m := monitor{f, deleter{t.TempDir()}}
			if _, err := m.StartLocked(exec.Command("/usr/bin/crun", append([]string{"--root", root}, c.args...)...)); err == nil || f.started != 1 {
				t.Errorf("%v, %d processes", err, f.started)
			}
		})
	}
}

package engine

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	runc "github.com/containerd/go-runc"
)

// fakeMonitor counts the processes that are started.
type fakeMonitor struct {
	runc.ProcessMonitor
	started int
}

func (f *fakeMonitor) StartLocked(*exec.Cmd) (chan runc.Exit, error) {
	f.started++
	return nil, errors.New("no process here")
}

// deleteFixture is crun's folder of the container run-1, and its cgroup.
func deleteFixture(t *testing.T, status string) (root, cgroups string, d monitor, f *fakeMonitor) {
	t.Helper()
	root, cgroups = t.TempDir(), t.TempDir()
	state := filepath.Join(root, "run-1")
	for _, dir := range []string{state, filepath.Join(cgroups, "pybox/boxes/run-1"), filepath.Join(root, "run-2")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{"status": status, "config.json": crunConfig, "exec.fifo": ""} {
		if err := os.WriteFile(filepath.Join(state, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f = &fakeMonitor{}
	return root, cgroups, monitor{f, deleter{cgroups}}, f
}

func gone(t *testing.T, path string) bool {
	t.Helper()
	_, err := os.Lstat(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return err != nil
}

func TestDeleteWithoutAProcess(t *testing.T) {
	root, cgroups, m, f := deleteFixture(t, crunStatus)
	c := exec.Command("/usr/bin/crun", "--root", root, "--log", "/x", "delete", "run-1")
	ended, err := m.StartLocked(c)
	if err != nil || f.started != 0 {
		t.Fatalf("%v, %d processes", err, f.started)
	}
	if status, err := m.Wait(c, ended); status != 0 || err != nil {
		t.Errorf("%d, %v", status, err)
	}
	if !gone(t, filepath.Join(root, "run-1")) || !gone(t, filepath.Join(cgroups, "pybox/boxes/run-1")) {
		t.Error("something is left")
	}
	if gone(t, filepath.Join(root, "run-2")) || gone(t, filepath.Join(cgroups, "pybox/boxes")) {
		t.Error("more than that is gone")
	}
	// What is gone already is not ours to judge: crun says that it does not exist.
	if _, err := m.StartLocked(c); err == nil || f.started != 1 {
		t.Errorf("the second time: %v, %d processes", err, f.started)
	}
}

func TestDeleteLeavesTheRestToCrun(t *testing.T) {
	for name, c := range map[string]struct {
		status string
		args   []string
		before func(root, cgroups string) error
	}{
		"forced":        {args: []string{"delete", "--force", "run-1"}},
		"create":        {args: []string{"create", "run-1"}},
		"a path":        {args: []string{"delete", "../run-1"}},
		"a dot":         {args: []string{"delete", "."}},
		"another":       {args: []string{"delete", "run-3"}},
		"busy cgroup":   {before: func(_, cgroups string) error { return os.Mkdir(filepath.Join(cgroups, "pybox/boxes/run-1/x"), 0o700) }},
		"other cgroup":  {status: strings.Replace(crunStatus, "boxes/run-1", "boxes/run-2", 1)},
		"cgroup above":  {status: strings.Replace(crunStatus, "/pybox/boxes/run-1", "/../run-1", 1)},
		"broken status": {status: "{"},
		"no status":     {before: func(root, _ string) error { return os.Remove(filepath.Join(root, "run-1/status")) }},
		"a link": {before: func(root, _ string) error {
			return errors.Join(os.Rename(filepath.Join(root, "run-1"), filepath.Join(root, "..", "elsewhere")), os.Symlink("../elsewhere", filepath.Join(root, "run-1")))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			if c.status == "" {
				c.status = crunStatus
			}
			if c.args == nil {
				c.args = []string{"delete", "run-1"}
			}
			root, cgroups, m, f := deleteFixture(t, c.status)
			if c.before != nil {
				if err := c.before(root, cgroups); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := m.StartLocked(exec.Command("/usr/bin/crun", append([]string{"--root", root}, c.args...)...)); err == nil || f.started != 1 {
				t.Errorf("%v, %d processes", err, f.started)
			}
			if gone(t, filepath.Join(root, "run-1")) || gone(t, filepath.Join(cgroups, "pybox/boxes/run-1")) {
				t.Error("something was removed")
			}
		})
	}
}

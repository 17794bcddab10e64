//go:build linux && pyboxtest

package agent

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/pybox/pybox/agent/cgroup"
	"github.com/pybox/pybox/agent/initd"
)

// seekLimit bounds the search for an interpreter.
const seekLimit = time.Minute

func init() {
	// An interpreter that never gets ready, and is killed.
	tampers["kill-interpreter"] = tamper{spec: func(s *specs.Spec) {
		s.Process.Args = []string{s.Process.Args[0], "-S", "-c", "while True: pass"}
		dir := filepath.Join(cgroupDir, s.Linux.CgroupsPath)
		go func() {
			err := killInterpreter(dir)
			pending.take(func(*tamper) error { return err })
		}()
	}}
	// An interpreter that needs more memory than any box has.
	tampers["hungry-interpreter"] = tamper{spec: func(s *specs.Spec) {
		s.Process.Args = []string{s.Process.Args[0], "-S", "-c", "all = []\nwhile True: all.append(b'x' * (1 << 20))"}
	}}
	// A box with another limit than the policy's.
	tampers["more-processes"] = tamper{spec: func(s *specs.Spec) {
		pids := *s.Linux.Resources.Pids.Limit + 1
		s.Linux.Resources.Pids.Limit = &pids
	}}
}

// killInterpreter waits for a process with -S among its arguments in the cgroup,
// and kills it.
func killInterpreter(dir string) error {
	for end := time.Now().Add(seekLimit); time.Now().Before(end); time.Sleep(time.Millisecond) {
		procs, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		for _, pid := range strings.Fields(string(procs)) {
			args, _ := os.ReadFile(filepath.Join("/proc", pid, "cmdline"))
			if !strings.Contains(string(args), "python3\x00-S\x00") {
				continue
			}
			n, err := strconv.Atoi(pid)
			if err != nil {
				return err
			}
			return unix.Kill(n, unix.SIGKILL)
		}
	}
	return errors.New("no interpreter came")
}

// setCgroup writes "value" to "file" of the cgroup of the box "name".
func setCgroup(r *http.Request) error {
	q := r.URL.Query()
	name := q.Get("name")
	if err := cgroup.CheckPath(name); err != nil {
		return err
	}
	d, err := cgroup.Open(filepath.Join(initd.BoxesCgroup, name))
	if err != nil {
		return fmt.Errorf("the box %s: %w", name, err)
	}
	defer d.Close()
	return d.Set(q.Get("file"), q.Get("value"))
}

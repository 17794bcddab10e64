//go:build linux && pyboxtest

package agent

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pybox/pybox/agent/api"
	"github.com/pybox/pybox/agent/box"
	"github.com/pybox/pybox/agent/control"
)

// want compares got with what the request wants.
func want(r *http.Request, got string, err error) error {
	if err != nil {
		return err
	}
	if want := r.URL.Query().Get("want"); got != want {
		return fmt.Errorf("it is %q, want %q", got, want)
	}
	return nil
}

// requests are what a test can ask for by name, beside those of handleTests; files
// of suites add theirs. The answer is for the test.
var requests = map[string]func(*box.Manager, *http.Request) (string, error){}

// handleTests adds what end-to-end tests need to break the guest from within.
func handleTests(s *api.Server, pid1 *control.Client, boxes *box.Manager) {
	handle := func(what string, f func(*http.Request) error) {
		s.Handle(api.TestPath+what, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if err := f(r); err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
			}
		}))
	}
	handleBare(s)
	pending.boxes = boxes
	for what, f := range requests {
		s.Handle(api.TestPath+what, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			answer, err := f(boxes, r)
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			_, _ = io.WriteString(w, answer)
		}))
	}
	// The next box is interfered with: see tampers.
	handle("tamper", pending.ask)
	// A setting of the cgroup "name" is changed.
	handle("set-cgroup", setCgroup)
	// The shim of containerd is killed.
	handle("kill-shim", func(*http.Request) error {
		pid := boxes.Status().ShimPID
		if pid <= 0 {
			return errors.New("there is no shim")
		}
		return unix.Kill(pid, unix.SIGKILL)
	})
	handle("crash-init", func(*http.Request) error { return pid1.Crash() })
	// The agent stops until the box "until" is dead.
	handle("hang-agent", func(r *http.Request) error {
		if err := startResumer(r.URL.Query().Get("until")); err != nil {
			return err
		}
		if err := unix.Kill(os.Getpid(), unix.SIGSTOP); err != nil {
			return err
		}
		<-r.Context().Done() // this thread may be the last to stop: it must not answer
		return r.Context().Err()
	})
	handle("kill-agent", func(*http.Request) error { return unix.Kill(os.Getpid(), unix.SIGKILL) })
	// A cgroup with a process that sleeps, and a timer on it.
	handle("arm", func(r *http.Request) error {
		ms, err := strconv.Atoi(r.URL.Query().Get("ms"))
		if err != nil {
			return err
		}
		name := r.URL.Query().Get("name")
		if err := startSleeper(name); err != nil {
			return err
		}
		return pid1.Arm(name, name, time.Duration(ms)*time.Millisecond)
	})
	// Whether the cgroup "name" has a live process is "want".
	handle("populated", func(r *http.Request) error {
		populated, err := boxPopulated(r.URL.Query().Get("name"))
		return want(r, strconv.FormatBool(populated), err)
	})
	// The sysctl "name" is "want".
	handle("sysctl", func(r *http.Request) error {
		name := strings.ReplaceAll(r.URL.Query().Get("name"), ".", "/")
		b, err := readBounded(os.DirFS("/proc/sys"), name, 4096)
		return want(r, strings.Join(strings.Fields(string(b)), " "), err)
	})
}

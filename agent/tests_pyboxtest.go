//go:build linux && pyboxtest

package agent

import (
	"net/http"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pybox/pybox/agent/api"
	"github.com/pybox/pybox/agent/control"
)

// handleTests adds what end-to-end tests need to break the guest from within.
func handleTests(s *api.Server, pid1 *control.Client) {
	handle := func(what string, f func(*http.Request) error) {
		s.Handle(api.TestPath+what, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if err := f(r); err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
			}
		}))
	}
	handle("crash-init", func(*http.Request) error { return pid1.Crash() })
	handle("hang-agent", func(*http.Request) error { return unix.Kill(os.Getpid(), unix.SIGSTOP) })
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
}

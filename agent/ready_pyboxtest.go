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

	"golang.org/x/sys/unix"

	"github.com/pybox/pybox/agent/box"
	"github.com/pybox/pybox/agent/oci"
)

func init() {
	// Of a box that waits for a run: the name of its cgroup, which is the box's id, the
	// file "file" of that, and the end of all its processes.
	requests["waiting-name"] = func(*box.Manager, *http.Request) (string, error) {
		dir, err := waitingBox()
		return filepath.Base(dir), err
	}
	requests["waiting-file"] = func(_ *box.Manager, r *http.Request) (string, error) {
		dir, err := waitingBox()
		if err != nil {
			return "", err
		}
		b, err := os.ReadFile(filepath.Join(dir, filepath.Base(r.URL.Query().Get("file"))))
		return strings.TrimSpace(string(b)), err
	}
	// Of its first process: another limit of open files, and another score.
	requests["limit-waiting"] = func(*box.Manager, *http.Request) (string, error) {
		pid, err := waitingPID()
		if err != nil {
			return "", err
		}
		return "", unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1000, Max: 1000}, nil)
	}
	requests["score-waiting"] = func(*box.Manager, *http.Request) (string, error) {
		pid, err := waitingPID()
		if err != nil {
			return "", err
		}
		return "", os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), []byte("-998"), 0)
	}
	requests["kill-waiting"] = func(*box.Manager, *http.Request) (string, error) {
		dir, err := waitingBox()
		if err != nil {
			return "", err
		}
		return "", os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0)
	}
}

// waitingBox is the cgroup of a box that was made ahead; there must be one.
func waitingBox() (string, error) {
	found, err := filepath.Glob(filepath.Join(cgroupDir, oci.CgroupParent, "ready.*"))
	if err == nil && len(found) == 0 {
		err = errors.New("no box was made ahead")
	}
	if err != nil {
		return "", err
	}
	return found[0], nil
}

// waitingPID is the only process of such a box.
func waitingPID() (int, error) {
	dir, err := waitingBox()
	if err != nil {
		return 0, err
	}
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(b)))
}

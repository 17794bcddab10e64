//go:build linux && pyboxtest

package agent

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/pybox/pybox/agent/box"
	"github.com/pybox/pybox/agent/oci"
)

func init() {
	// Of a box that waits for a run: the name of its cgroup, which is the box's id, the
	// file "file" of that, and the end of its first process.
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

//go:build linux && pyboxtest

package agent

import (
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/pybox/pybox/agent/box"
	"github.com/pybox/pybox/agent/oci"
)

func init() {
	requests["waiting-memory"] = func(*box.Manager, *http.Request) (string, error) { return readWaiting("memory.current") }
	requests["waiting-processes"] = func(*box.Manager, *http.Request) (string, error) { return readWaiting("cgroup.procs") }
}

// readWaiting reads a file of the cgroup of a box that waits for a run; there must be
// one.
func readWaiting(name string) (string, error) {
	found, err := filepath.Glob(filepath.Join(cgroupDir, oci.CgroupParent, "ready-*", name))
	if err != nil {
		return "", err
	}
	for _, path := range found {
		b, err := os.ReadFile(path)
		if !errors.Is(err, fs.ErrNotExist) { // it has gone meanwhile
			return strings.TrimSpace(string(b)), err
		}
	}
	return "", errors.New("no box waits")
}

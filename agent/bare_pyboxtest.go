//go:build linux && pyboxtest

package agent

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/pybox/pybox/agent/api"
	"github.com/pybox/pybox/agent/images"
)

// handleBare answers how long `python3 -I -S -c pass` takes in this guest without
// a box, or `python3 -c` with the query's code: a process in the image's root, and
// nothing else. It is what the cost of a box is compared with. The image must be
// mounted, which the first run does.
func handleBare(s *api.Server) {
	s.Handle(api.TestPath+"bare-python", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		took, err := barePython(r.URL.Query().Get("image"), r.URL.Query().Get("code"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		fmt.Fprint(w, took.Nanoseconds())
	}))
}

func barePython(image, code string) (time.Duration, error) {
	if err := images.CheckSerial(image); err != nil {
		return 0, err
	}
	root := filepath.Join(stateDir, "images", image)
	if _, err := os.Stat(filepath.Join(root, "usr/bin/python3")); err != nil {
		return 0, err
	}
	args := []string{"-I", "-S", "-c", "pass"}
	if code != "" {
		args = []string{"-c", code}
	}
	cmd := exec.Command("/usr/bin/python3", args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
	cmd.Dir, cmd.Env = "/", []string{"LANG=C.UTF-8"}
	began := time.Now()
	err := cmd.Run()
	return time.Since(began), err
}

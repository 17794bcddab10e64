//go:build linux && pyboxtest

package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/pybox/pybox/agent/box"
	"github.com/pybox/pybox/agent/oci"
)

func init() {
	// The CPU time of this guest since it booted, told apart, in milliseconds: what the
	// bench divides by runs. "boxes" is what the kernel counts for the cgroup that all
	// boxes are in, those that are gone too; "crun" is what children of the shim and the
	// agent took, less that; "other" is the rest of all, which the kernel counts by its clock's
	// ticks.
	requests["cpu-times"] = func(m *box.Manager, _ *http.Request) (string, error) {
		t, err := cpuTimes(m.Status().ShimPID)
		if err != nil {
			return "", err
		}
		b, err := json.Marshal(t)
		return string(b), err
	}
}

// tickMS is how long a tick of user space's clock is, USER_HZ being 100 (proc(5)).
const tickMS = 10

func cpuTimes(shim int) (map[string]float64, error) {
	if shim <= 0 {
		return nil, errors.New("there is no shim")
	}
	t := map[string]float64{}
	for name, pid := range map[string]int{"agent": os.Getpid(), "shim": shim, "init": 1} {
		own, children, err := processTimes(pid)
		if err != nil {
			return nil, err
		}
		t[name] = own
		if name != "init" {
			t["crun"] += children
		}
	}
	boxes, err := cgroupTime(oci.CgroupParent)
	if err != nil {
		return nil, err
	}
	t["boxes"], t["crun"] = boxes, max(t["crun"]-boxes, 0)
	all, err := allTime()
	if err != nil {
		return nil, err
	}
	t["other"] = max(all-t["agent"]-t["shim"]-t["init"]-t["crun"]-t["boxes"], 0)
	return t, nil
}

// processTimes are the CPU times of a process, and of those children that it has waited
// for (proc_pid_stat(5)).
func processTimes(pid int) (own, children float64, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, err
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	v, err := numbers(strings.Fields(rest), 11, 4) // utime, stime, cutime, cstime
	if err != nil {
		return 0, 0, fmt.Errorf("process %d: %w", pid, err)
	}
	return tickMS * (v[0] + v[1]), tickMS * (v[2] + v[3]), nil
}

// cgroupTime is usage_usec of a cgroup, in milliseconds.
func cgroupTime(name string) (float64, error) {
	b, err := os.ReadFile(filepath.Join(cgroupDir, name, "cpu.stat"))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if text, ok := strings.CutPrefix(line, "usage_usec "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
			return v / 1000, err
		}
	}
	return 0, fmt.Errorf("cgroup %s: no usage_usec", name)
}

// allTime is all that was not idle (proc_stat(5)).
func allTime() (float64, error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	line, _, _ := strings.Cut(string(b), "\n")
	v, err := numbers(strings.Fields(line), 1, 8)
	if err != nil {
		return 0, err
	}
	return tickMS * (v[0] + v[1] + v[2] + v[5] + v[6] + v[7]), nil // without idle and iowait
}

// numbers are n of the fields, from the one at from.
func numbers(fields []string, from, n int) ([]float64, error) {
	if len(fields) < from+n {
		return nil, fmt.Errorf("%d fields: %w", len(fields), strconv.ErrSyntax)
	}
	var all []float64
	for _, f := range fields[from : from+n] {
		v, err := strconv.ParseFloat(f, 64)
		if err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	return all, nil
}

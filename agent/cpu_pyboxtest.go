//go:build linux && pyboxtest

package agent

import (
	"bytes"
	"encoding/json"
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
	// The processor time that was used since the guest's start, by whom, as JSON:
	// microseconds of the agent, the shim, the boxes (from the moment on that their
	// cgroup has the process), crun (what the shim's children took beside that), and the
	// whole guest, in and out of the kernel. All but the boxes' is counted in ticks.
	requests["cpu"] = func(boxes *box.Manager, _ *http.Request) (string, error) {
		used, err := cpuUsed(boxes.Status().ShimPID)
		if err != nil {
			return "", err
		}
		b, err := json.Marshal(used)
		return string(b), err
	}
	// The timer slack of the agent and of the shim, in nanoseconds.
	requests["slack"] = func(boxes *box.Manager, _ *http.Request) (string, error) {
		var all []string
		for _, pid := range []int{os.Getpid(), boxes.Status().ShimPID} {
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/timerslack_ns", pid))
			if err != nil {
				return "", err
			}
			all = append(all, strings.TrimSpace(string(b)))
		}
		return strings.Join(all, " "), nil
	}
}

// userHz is the unit of times in /proc, USER_HZ: a second has so many.
const userHz = 100

func cpuUsed(shim int) (map[string]int64, error) {
	agent, _, err := processTimes(strconv.Itoa(os.Getpid()))
	if err != nil {
		return nil, err
	}
	own, children, err := processTimes(strconv.Itoa(shim))
	if err != nil {
		return nil, err
	}
	var inBoxes int64
	b, err := os.ReadFile(filepath.Join(cgroupDir, oci.CgroupParent, "cpu.stat"))
	if err != nil {
		return nil, err
	}
	if _, err := fmt.Sscanf(string(b), "usage_usec %d", &inBoxes); err != nil {
		return nil, fmt.Errorf("cpu.stat: %w", err)
	}
	all, err := guestTimes()
	return map[string]int64{
		"agent_usec": agent, "shim_usec": own, "crun_usec": max(0, children-inBoxes), "boxes_usec": inBoxes, "guest_usec": all,
	}, err
}

// processTimes gives the processor times of a process, and of its children that it has
// waited for: proc_pid_stat(5).
func processTimes(pid string) (own, children int64, err error) {
	b, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
	if err != nil {
		return 0, 0, err
	}
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(fields) < 15 {
		return 0, 0, fmt.Errorf("the times of process %s are not there", pid)
	}
	var t [4]int64
	for i := range t {
		if t[i], err = strconv.ParseInt(fields[11+i], 10, 64); err != nil {
			return 0, 0, err
		}
	}
	const tick = 1e6 / userHz
	return (t[0] + t[1]) * tick, (t[2] + t[3]) * tick, nil
}

// guestTimes gives what all processors together were busy: proc_stat(5).
func guestTimes() (busy int64, err error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	var t [7]int64 // user, nice, system, idle, iowait, irq, softirq
	if _, err := fmt.Sscanf(string(b), "cpu %d %d %d %d %d %d %d", &t[0], &t[1], &t[2], &t[3], &t[4], &t[5], &t[6]); err != nil {
		return 0, fmt.Errorf("/proc/stat: %w", err)
	}
	return (t[0] + t[1] + t[2] + t[5] + t[6]) * (1e6 / userHz), nil
}

//go:build linux && pyboxtest

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pybox/pybox/agent/box"
	"github.com/pybox/pybox/agent/syscalls"
)

const (
	// countTick is how often is looked whether as many boxes wait as are to. It is long,
	// for looking costs the agent system calls.
	countTick = 500 * time.Millisecond
	// countWait is how long is looked.
	countWait = time.Minute
)

// counting is what counts system calls, nil while nothing does.
var counting struct {
	sync.Mutex
	now *syscalls.Counting
}

func init() {
	// The system calls of the agent and of the shim are counted from the answer on.
	requests["syscalls-begin"] = func(boxes *box.Manager, _ *http.Request) (string, error) {
		counting.Lock()
		defer counting.Unlock()
		if counting.now != nil {
			return "", errors.New("they are counted already")
		}
		shim := boxes.Status().ShimPID
		if shim <= 0 {
			return "", errors.New("there is no shim")
		}
		var err error
		counting.now, err = syscalls.Begin(map[string]int{"agent": os.Getpid(), "shim": shim})
		return "", err
	}
	// And no longer, once "ready" boxes wait for a run and none is being made. The answer
	// is the syscalls.Counts, as JSON.
	requests["syscalls-end"] = func(boxes *box.Manager, r *http.Request) (string, error) {
		counting.Lock()
		defer counting.Unlock()
		if counting.now == nil {
			return "", errors.New("they are not counted")
		}
		want, err := strconv.Atoi(r.URL.Query().Get("ready"))
		if err != nil {
			return "", err
		}
		late := untilWaiting(r.Context(), boxes, want)
		counts, err := counting.now.End()
		counting.now = nil
		if err := errors.Join(late, err); err != nil {
			return "", err
		}
		b, err := json.Marshal(counts)
		return string(b), err
	}
	// Who traces the agent and the shim: their ids, 0 for nobody.
	requests["traced-by"] = func(boxes *box.Manager, _ *http.Request) (string, error) {
		var all []string
		for _, pid := range []int{os.Getpid(), boxes.Status().ShimPID} {
			who, err := tracers(pid)
			if err != nil {
				return "", err
			}
			all = append(all, who...)
		}
		return strings.Join(all, " "), nil
	}
}

// untilWaiting waits until so many boxes wait for a run and none is being made.
func untilWaiting(ctx context.Context, boxes *box.Manager, want int) error {
	ctx, cancel := context.WithTimeout(ctx, countWait)
	defer cancel()
	tick := time.NewTicker(countTick)
	defer tick.Stop()
	for {
		ready, making := boxes.Waiting()
		if ready == want && making == 0 {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%d boxes wait and %d are being made, want %d: %w", ready, making, want, ctx.Err())
		}
	}
}

// tracers gives who traces each thread of a process.
func tracers(pid int) ([]string, error) {
	tasks := fmt.Sprintf("/proc/%d/task", pid)
	entries, err := os.ReadDir(tasks)
	if err != nil {
		return nil, err
	}
	var all []string
	for _, e := range entries {
		b, err := os.ReadFile(tasks + "/" + e.Name() + "/status")
		if errors.Is(err, os.ErrNotExist) { // it has ended
			continue
		}
		if err != nil {
			return nil, err
		}
		_, rest, _ := strings.Cut(string(b), "TracerPid:")
		line, _, _ := strings.Cut(rest, "\n")
		all = append(all, strings.TrimSpace(line))
	}
	return all, nil
}

package engine

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	runc "github.com/containerd/go-runc"
	"golang.org/x/sys/unix"
)

// What crun is started with is crun's alone: neither a thread of ours nor what is started
// otherwise has it.
func TestAsCrun(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	child := func() string {
		out, err := exec.Command("cat", "/proc/self/personality").Output()
		if err != nil {
			t.Fatal(err)
		}
		slack, err := exec.Command("cat", "/proc/self/timerslack_ns").Output()
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(strings.TrimSpace(string(out)), " ", strings.TrimSpace(string(slack)))
	}
	// As in the shim, whose threads are made with the agent's slack.
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, 1_000_000, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Prctl(unix.PR_SET_TIMERSLACK, 0, 0, 0, 0) }()
	if got := child(); got != "00000000 1000000" {
		t.Skipf("SKIPPED, this process has no random addresses itself: %s", got)
	}
	var got string
	_, err := asCrun(func() (chan runc.Exit, error) { got = child(); return nil, nil })
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS) {
		t.Skipf("SKIPPED, a container's filter forbids it here: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if got != "00040000 50000" {
		t.Errorf("as crun: %s", got)
	}
	if got := child(); got != "00000000 1000000" {
		t.Errorf("afterwards: %s", got)
	}
	if _, err := asCrun(func() (chan runc.Exit, error) { return nil, os.ErrExist }); err != os.ErrExist {
		t.Errorf("%v, want the start's own error", err)
	}
}

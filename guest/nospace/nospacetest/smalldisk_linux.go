// Package nospacetest gives tests disks that are full soon.
package nospacetest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
)

// variable tells a test that it runs in namespaces of its own.
const variable = "NOSPACETEST_OWN_MOUNTS"

// OwnMounts runs the calling test (no subtest) once more, in a process with a mount
// namespace of its own, and tells whether this is it. Where it returns false the
// caller returns: its other self has been judged. It needs no privileges where users
// may make namespaces, and skips elsewhere.
func OwnMounts(t *testing.T) bool {
	t.Helper()
	if os.Getenv(variable) == t.Name() {
		return true
	}
	c := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.count=1", "-test.v")
	c.Env = append(os.Environ(), variable+"="+t.Name())
	c.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	out, err := c.CombinedOutput()
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EINVAL) {
		t.Skipf("no user namespaces here (%v): a full disk is not tried", err)
	}
	if err != nil {
		t.Fatalf("in its own namespaces: %v\n%s", err, out)
	}
	return false
}

// Disk is a new folder with a disk of so many bytes, for a test that has mounts of its
// own. It is the test's user's alone.
func Disk(t *testing.T, bytes int) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=0700", bytes)); err != nil {
		t.Fatalf("mount a small disk: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	return dir
}

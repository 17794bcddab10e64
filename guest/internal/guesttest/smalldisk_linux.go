package guesttest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
)

// smallDiskVariable tells a test that it runs in namespaces of its own.
const smallDiskVariable = "GUESTTEST_SMALL_DISK"

// SmallDisk runs the calling test (no subtest) once more, in a process with a mount
// namespace of its own, and gives it there a folder on a disk of so many bytes.
// Where it returns false the caller returns: its other self has been judged. It
// needs no privileges where users may make namespaces, and skips elsewhere.
func SmallDisk(t *testing.T, bytes int) (dir string, here bool) {
	t.Helper()
	if os.Getenv(smallDiskVariable) == t.Name() {
		dir := t.TempDir()
		if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", bytes)); err != nil {
			t.Fatalf("mount a small disk: %v", err)
		}
		t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
		return dir, true
	}
	c := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.count=1", "-test.v")
	c.Env = append(os.Environ(), smallDiskVariable+"="+t.Name())
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
	return "", false
}

//go:build linux

package main

import (
	"os"
	"strings"
	"testing"

	"github.com/pybox/pybox/host/receipt"
)

// TestE2ECloudKernel: a bundle with Debian's ready-made kernel runs programs as one
// with our own does, their seal and their end included, and status and receipt say
// which it was.
func TestE2ECloudKernel(t *testing.T) {
	p := newPerson(t, "")
	dir := os.Getenv("PYBOX_TEST_CLOUD_BUNDLE")
	if dir == "" {
		t.Fatal("PYBOX_E2E=1 needs PYBOX_TEST_CLOUD_BUNDLE, what 'make cloudbundle' makes")
	}
	p.install(dir)
	p.must("vm", "start")
	if out := p.must("vm", "status"); !strings.Contains(out, "Debian's cloud kernel (general purpose)") {
		t.Errorf("status does not name the kernel:\n%s", out)
	}
	if out := p.must("vm", "start", "-v"); !strings.Contains(out, "modules") {
		t.Errorf("the stages of the start do not name the modules:\n%s", out)
	}
	r := p.exec(p.program("inside.py", `
import errno, io, os, socket, ctypes
print(os.listdir("/"), 6*7)
try:
    socket.socket(socket.AF_VSOCK)
except OSError as e:
    print("vsock", errno.errorcode[e.errno])
libc = ctypes.CDLL(None, use_errno=True)
print("io_uring", libc.syscall(425, 1, None), errno.errorcode[ctypes.get_errno()])
print("modules", open("/proc/sys/kernel/modules_disabled").read().strip(), open("/proc/sys/kernel/io_uring_disabled").read().strip())
`))
	if r.code != 0 || !strings.Contains(r.out, "42\n") {
		t.Fatalf("%+v", r)
	}
	for _, want := range []string{"vsock EPERM", "io_uring -1 EPERM", "modules 1 2"} {
		if !strings.Contains(r.out, want) {
			t.Errorf("the program does not print %q:\n%s", want, r.out)
		}
	}
	if v := r.receipt.Observed.VM; v.KernelKind != "debian-cloud" || !strings.Contains(v.KernelRelease, "-cloud-") {
		t.Errorf("the receipt says the kernel was %s, %s", v.KernelKind, v.KernelRelease)
	}
	if !r.receipt.Observed.Engine.SettingsChecked || !r.receipt.Observed.Kernel.Final {
		t.Errorf("settings checked %v, counters final %v", r.receipt.Observed.Engine.SettingsChecked, r.receipt.Observed.Kernel.Final)
	}
	if !strings.Contains(r.err, "Debian's cloud kernel: general purpose") {
		t.Errorf("the receipt's text does not name the kernel:\n%s", r.err)
	}
	p.expectEnding(r.receipt, receipt.HowExited, receipt.ByProgram, "")
	p.expectRemoved(r.receipt)
	late := p.exec("--timeout", "1", p.program("late.py", "while True: pass"))
	p.expectEnding(late.receipt, receipt.HowDeadline, receipt.ByAgent, "")
	hungry := p.exec("--memory", "64MiB", p.program("hungry.py", "bytearray(10**9)"))
	p.expectEnding(hungry.receipt, receipt.HowMemory, receipt.ByKernelOOM, "")
}

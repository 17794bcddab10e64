//go:build linux

package main

import (
	"os"
	"strings"
	"testing"

	"github.com/pybox/pybox/guest/bundle"
	"github.com/pybox/pybox/host/receipt"
	"github.com/pybox/pybox/vm"
	"github.com/pybox/pybox/vm/vmtest"
)

// foreignBundle is a bundle of the architecture that this host has not.
func foreignBundle(t *testing.T, variable string) *bundle.Bundle {
	t.Helper()
	vmtest.Bundle(t) // skips where no machine is asked for
	dir := os.Getenv(variable)
	if dir == "" {
		t.Skipf("set %s to a bundle for another architecture ('make testbundle cloudbundle ARCH=arm64' makes them)", variable)
	}
	b, err := bundle.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if b.Manifest.Arch == vm.HostArch() {
		t.Fatalf("%s is for this host's own architecture", dir)
	}
	return b
}

// sealed tries the doors that are told apart by numbers and structures of the
// architecture. Each line is a door and what came of it.
const sealed = `
import ctypes, errno, os, socket
libc = ctypes.CDLL(None, use_errno=True)
def door(name, f):
    try:
        r = f()
        print(name, "open" if r is None or r >= 0 else errno.errorcode[ctypes.get_errno()])
    except OSError as e:
        print(name, errno.errorcode[e.errno])
def call(name, *args):
    def f():
        ctypes.set_errno(0)
        return libc.syscall(*args)
    door(name, f)
amd64 = os.uname().machine == "x86_64"
door("vsock", lambda: socket.socket(40, socket.SOCK_STREAM).close())
door("alg", lambda: socket.socket(38, socket.SOCK_SEQPACKET).close())
door("packet", lambda: socket.socket(17, socket.SOCK_RAW).close())
door("network", lambda: socket.create_connection(("192.0.2.1", 80), 1).close())
door("root", lambda: open("/etc/x", "w").close())
door("proc", lambda: open("/proc/sys/kernel/hostname", "w").close())
door("setuid", lambda: os.setuid(0))
call("mount", 165 if amd64 else 40, b"x", b"/tmp", b"tmpfs", 0, None)
call("unshare", 272 if amd64 else 97, 0x10000000)
call("keyctl", 250 if amd64 else 219, 0, 0, 0, 0, 0)
call("bpf", 321 if amd64 else 280, 0, None, 0)
call("perf", 298 if amd64 else 241, None, 0, -1, -1, 0)
call("io_uring", 425, 1, None)
call("userfaultfd", 323 if amd64 else 282, 0)
call("kexec", 246 if amd64 else 104, 0, 0, None, 0)
call("chroot", 161 if amd64 else 51, b"/tmp")
call("getpid", 39 if amd64 else 172)
`

// startForeign boots a bundle of another architecture.
func startForeign(t *testing.T, b *bundle.Bundle) *person {
	t.Helper()
	p := newPerson(t, "")
	p.install(b.Dir())
	p.config("[vm]\nstart_timeout = \"3m\"\n")
	p.must("vm", "start")
	if s := p.status(); s.VM.Arch != b.Manifest.Arch || s.VM.Acceleration != "tcg" || s.VM.Bundle != b.ID() {
		t.Fatalf("the VM: %+v", s.VM)
	}
	return p
}

// runsForeign runs a program that names its machine.
func (p *person) runsForeign(b *bundle.Bundle) {
	p.t.Helper()
	machine := map[string]string{vm.ArchAMD64: "x86_64", vm.ArchARM64: "aarch64"}[b.Manifest.Arch]
	r := p.exec(p.program("hello.py", "import os, sys\nprint(6*7, os.uname().machine)\nsys.exit(3)\n"))
	if r.code != 3 || r.out != "42 "+machine+"\n" {
		p.t.Errorf("exit %d, stdout %q, stderr %q", r.code, r.out, r.err)
	}
	o := r.receipt.Observed
	if o.VM.GuestArch != b.Manifest.Arch || o.VM.KernelKind != b.Manifest.Kernel.Kind || !o.Engine.SettingsChecked || !o.Kernel.Final {
		p.t.Errorf("observed %+v", o)
	}
	p.expectRemoved(r.receipt)
}

// TestE2EForeignCloudKernel: and so it does with Debian's kernel.
func TestE2EForeignCloudKernel(t *testing.T) {
	b := foreignBundle(t, "PYBOX_TEST_FOREIGN_CLOUD_BUNDLE")
	startForeign(t, b).runsForeign(b)
}

// TestE2EForeignGuest: a guest of another architecture is emulated, as its bundle
// says, and does what a guest has to.
func TestE2EForeignGuest(t *testing.T) {
	b := foreignBundle(t, "PYBOX_TEST_FOREIGN_BUNDLE")
	p := startForeign(t, b)
	t.Run("run", func(t *testing.T) { p.in(t).runsForeign(b) })
	t.Run("seal", func(t *testing.T) {
		r := p.in(t).exec(p.program("seal.py", sealed))
		want := strings.Fields(`vsock EPERM alg EPERM packet EPERM network ENETUNREACH root EROFS proc EROFS setuid EPERM
			mount EPERM unshare EPERM keyctl EPERM bpf EPERM perf EPERM io_uring EPERM userfaultfd EPERM kexec EPERM chroot EPERM getpid open`)
		got := strings.Fields(r.out)
		if r.code != 0 || strings.Join(got, " ") != strings.Join(want, " ") {
			t.Errorf("exit %d\n got %v\nwant %v\n%s", r.code, got, want, r.err)
		}
	})
	t.Run("deadline", func(t *testing.T) {
		r := p.in(t).exec("--timeout", "3", p.program("loop.py", "print('alive', flush=True)\nwhile True: pass\n"))
		if r.code != 124 || r.out != "alive\n" {
			t.Errorf("exit %d, stdout %q, stderr %q", r.code, r.out, r.err)
		}
		p.in(t).expectEnding(r.receipt, receipt.HowDeadline, receipt.ByAgent, "3s were over")
		p.in(t).expectRemoved(r.receipt)
	})
	t.Run("memory", func(t *testing.T) {
		r := p.in(t).exec("--memory", "64MiB", p.program("big.py", "print('alive', flush=True)\nb = bytearray(256 << 20)\nprint('never')\n"))
		if r.code != 137 || r.out != "alive\n" || r.receipt.Observed.Kernel.OOMKill == nil || *r.receipt.Observed.Kernel.OOMKill == 0 {
			t.Errorf("exit %d, stdout %q, kernel %+v", r.code, r.out, r.receipt.Observed.Kernel)
		}
		p.in(t).expectEnding(r.receipt, receipt.HowMemory, receipt.ByKernelOOM, "")
	})
}

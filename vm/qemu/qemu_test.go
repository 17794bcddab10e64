//go:build linux

package qemu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pybox/pybox/vm"
)

func TestCommandLine(t *testing.T) {
	c := vm.Config{
		Name: "box", Arch: vm.ArchAMD64, CPUs: 2, MemoryBytes: 512 << 20, Kernel: "/k", Initramfs: "/i",
		KernelArgs: []string{"quiet", "panic=-1"},
		Disks:      []vm.Disk{{Path: "/r", Serial: "root"}, {Path: "/s", Serial: "img-0123456789abcdef"}},
	}
	want := `-name box -no-user-config -nodefaults -no-reboot -display none ` +
		`-sandbox on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny ` +
		`-machine q35,usb=off,sata=off,smbus=off,i8042=off,vmport=off,accel=tcg,memory-backend=mem,dump-guest-core=off ` +
		`-cpu max,-erms,-fsrm,-la57 -smp 2 -m 512M -object memory-backend-memfd,id=mem,size=512M,share=on,seal=on -rtc base=utc ` +
		`-chardev socket,id=qmp,fd=4 -mon chardev=qmp,mode=control ` +
		`-chardev socket,id=console,fd=5 -serial chardev:console ` +
		`-chardev socket,id=vsock,fd=3 -device vhost-user-vsock-pci-non-transitional,chardev=vsock ` +
		`-object rng-builtin,id=rng -device virtio-rng-pci-non-transitional,rng=rng ` +
		`-kernel /proc/self/fd/6 -initrd /proc/self/fd/7 ` +
		`-add-fd fd=8,set=1 -blockdev driver=raw,node-name=disk0,read-only=on,file.driver=file,file.filename=/dev/fdset/1,file.locking=off -device virtio-blk-pci-non-transitional,drive=disk0,serial=root ` +
		`-add-fd fd=9,set=2 -blockdev driver=raw,node-name=disk1,read-only=on,file.driver=file,file.filename=/dev/fdset/2,file.locking=off -device virtio-blk-pci-non-transitional,drive=disk1,serial=img-0123456789abcdef ` +
		`-append console=ttyS0 quiet panic=-1 -extra`
	if got := strings.Join(commandLine(c, accelTCG, []string{"-extra"}), " "); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	c.Arch = vm.ArchARM64
	got := strings.Join(commandLine(c, accelTCG, nil), " ")
	for _, s := range []string{"-machine virt,accel=tcg", "-cpu max,pauth-impdef=on", "console=ttyAMA0"} {
		if !strings.Contains(got, s) {
			t.Errorf("arm64 lacks %q: %s", s, got)
		}
	}
	if got := strings.Join(commandLine(c, accelKVM, nil), " "); !strings.Contains(got, "-cpu host ") {
		t.Errorf("kvm without the host's CPU: %s", got)
	}
}

func TestEndsAreToldApart(t *testing.T) {
	for word, want := range map[string]error{"poweroff": nil, "reset": vm.ErrGuestReset, "crash": vm.ErrVMM} {
		t.Run(word, func(t *testing.T) {
			m, err := start(t, fakeDriver(t, word, Options{Accel: "tcg"}), testConfig(t))
			if err != nil {
				t.Fatal(err)
			}
			got := waitEnd(t, m)
			if !errors.Is(got, want) || want == nil && got != nil {
				t.Errorf("got %v, want %v", got, want)
			}
			if word == "crash" && (!strings.Contains(got.Error(), "out of luck") || !strings.Contains(got.Error(), "exit status 139")) {
				t.Errorf("the crash lacks what QEMU said: %v", got)
			}
		})
	}
}

func TestKilledFromOutside(t *testing.T) {
	m, err := start(t, fakeDriver(t, "run", Options{Accel: "tcg"}), testConfig(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(m.Facts().PID, 0); err != nil {
		t.Fatalf("it does not run: %v", err)
	}
	syscall.Kill(m.Facts().PID, syscall.SIGKILL)
	if err := waitEnd(t, m); !errors.Is(err, vm.ErrVMM) || !strings.Contains(err.Error(), "killed") {
		t.Errorf("got %v, want ErrVMM that says killed", err)
	}
}

func TestStartFailures(t *testing.T) {
	for word, say := range map[string]string{
		"refuse":       "refused to start: qemu: -frob: invalid[31m option",
		"silent-exit":  "ended before it was ready",
		"rubbish":      "ended before it was ready",
		"endless-line": "ended before it was ready",
	} {
		t.Run(word, func(t *testing.T) {
			m, err := start(t, fakeDriver(t, word, Options{Accel: "tcg"}), testConfig(t))
			if m != nil || !errors.Is(err, vm.ErrHost) || !strings.Contains(err.Error(), say) {
				t.Errorf("got %v, want ErrHost that says %q", err, say)
			}
		})
	}
	t.Run("mute", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		if _, err := fakeDriver(t, "mute", Options{Accel: "tcg"}).Start(ctx, testConfig(t)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want context.DeadlineExceeded", err)
		}
		expectNoChildren(t)
	})
	t.Run("no QEMU", func(t *testing.T) {
		_, err := New(Options{Binary: "/nonexistent/qemu"}).Start(t.Context(), testConfig(t))
		if !errors.Is(err, vm.ErrHost) || !strings.Contains(err.Error(), "apt-get install") {
			t.Errorf("got %v, want ErrHost that says what to install", err)
		}
	})
	t.Run("gzip kernel", func(t *testing.T) {
		c := testConfig(t)
		os.WriteFile(c.Kernel, []byte{0x1f, 0x8b, 8, 0}, 0o644)
		if _, err := fakeDriver(t, "run", Options{}).Start(t.Context(), c); !errors.Is(err, vm.ErrConfig) || !strings.Contains(err.Error(), "gunzip") {
			t.Errorf("got %v, want ErrConfig that says gunzip", err)
		}
	})
	t.Run("missing disk", func(t *testing.T) {
		c := testConfig(t)
		c.Disks = []vm.Disk{{Path: filepath.Join(t.TempDir(), "none"), Serial: "root"}}
		if _, err := fakeDriver(t, "run", Options{Accel: "tcg"}).Start(t.Context(), c); !errors.Is(err, vm.ErrConfig) || !errors.Is(err, os.ErrNotExist) {
			t.Errorf("got %v, want ErrConfig and os.ErrNotExist", err)
		}
	})
	t.Run("disk is a FIFO", func(t *testing.T) {
		c := testConfig(t)
		p := filepath.Join(t.TempDir(), "fifo")
		if err := syscall.Mkfifo(p, 0o644); err != nil {
			t.Fatal(err)
		}
		c.Disks = []vm.Disk{{Path: p, Serial: "root"}}
		if _, err := fakeDriver(t, "run", Options{Accel: "tcg"}).Start(t.Context(), c); !errors.Is(err, vm.ErrConfig) || !strings.Contains(err.Error(), "not a regular file") {
			t.Errorf("got %v, want ErrConfig that says it is not a regular file", err)
		}
	})
	t.Run("unknown acceleration", func(t *testing.T) {
		if _, err := New(Options{Accel: "warp"}).Start(t.Context(), testConfig(t)); !errors.Is(err, vm.ErrConfig) {
			t.Errorf("got %v, want ErrConfig", err)
		}
	})
}

// expectNoChildren fails when a process that this test started still runs.
func expectNoChildren(t *testing.T) {
	t.Helper()
	var ws syscall.WaitStatus
	if pid, err := syscall.Wait4(-1, &ws, syscall.WNOHANG, nil); err == nil && pid == 0 {
		t.Error("a child of this test still runs")
	}
}

// kvmDevice is a file that can be opened as /dev/kvm can.
func kvmDevice(t *testing.T) string {
	p := filepath.Join(t.TempDir(), "kvm")
	if err := os.WriteFile(p, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	os.Chmod(p, 0o666)
	return p
}

func TestKVMIsProbedByWhatItDoes(t *testing.T) {
	for _, c := range []struct{ word, accel, reason string }{
		{"run", "kvm", "the guest spoke"},
		{"kvm-lies", "tcg", "did not speak within"},
		{"kvm-dies", "tcg", "ended at once"},
		{"kvm-refuses", "tcg", "failed to initialize kvm"},
	} {
		t.Run(c.word, func(t *testing.T) {
			memory := filepath.Join(t.TempDir(), "accel.json")
			o := Options{KVMDevice: kvmDevice(t), AccelMemory: memory, ProbeTimeout: 2 * time.Second}
			if c.word == "run" { // the answer does not hang on the time, which a busy machine needs
				o.ProbeTimeout = time.Minute
			}
			d := fakeDriver(t, c.word, o)
			m, err := start(t, d, testConfig(t))
			if err != nil {
				t.Fatal(err)
			}
			if f := m.Facts(); f.Acceleration != c.accel || !strings.Contains(f.AccelerationReason, c.reason) {
				t.Errorf("got %q because %q, want %q because %q", f.Acceleration, f.AccelerationReason, c.accel, c.reason)
			}
			for deadline := time.Now().Add(20 * time.Second); c.accel == "tcg"; time.Sleep(5 * time.Millisecond) {
				if _, err := os.Stat(memory); err == nil { // written once its guest has spoken
					break
				}
				if time.Now().After(deadline) {
					t.Fatal("nothing was remembered")
				}
			}
			m.Kill()

			again, err := start(t, d, testConfig(t)) // must not probe
			if err != nil {
				t.Fatal(err)
			}
			if f := again.Facts(); f.Acceleration != c.accel || !strings.Contains(f.AccelerationReason, "remembered") {
				t.Errorf("second start: %q because %q, want %q, remembered", f.Acceleration, f.AccelerationReason, c.accel)
			}
			again.Kill()

			os.WriteFile(memory, []byte(`{"host_boot_id":"another boot","accel":"kvm"}`), 0o600)
			if _, ok := d.(*driver).recall(d.(*driver).o.Binary); ok {
				t.Error("the answer of another boot was believed")
			}
		})
	}
}

func TestProbeGivenUpRemembersNothing(t *testing.T) {
	memory := filepath.Join(t.TempDir(), "accel.json")
	d := fakeDriver(t, "kvm-lies", Options{KVMDevice: kvmDevice(t), AccelMemory: memory, ProbeTimeout: time.Minute})
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := d.Start(ctx, testConfig(t)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want context.DeadlineExceeded", err)
	}
	if _, err := os.Stat(memory); !os.IsNotExist(err) {
		t.Errorf("an answer that nobody got was remembered (%v)", err)
	}
	expectNoChildren(t)
}

// TestSilenceUnderBothIsNotRemembered: a guest that never speaks, such as a broken
// kernel, says nothing about KVM.
func TestSilenceUnderBothIsNotRemembered(t *testing.T) {
	memory := filepath.Join(t.TempDir(), "accel.json")
	d := fakeDriver(t, "quiet", Options{KVMDevice: kvmDevice(t), AccelMemory: memory, ProbeTimeout: 500 * time.Millisecond})
	m, err := start(t, d, testConfig(t))
	if err != nil {
		t.Fatal(err)
	}
	if f := m.Facts(); f.Acceleration != "tcg" {
		t.Fatalf("got %q", f.Acceleration)
	}
	m.Kill()
	if err := m.spoken(t.Context()); err == nil {
		t.Fatal("the fake spoke")
	}
	if _, err := os.Stat(memory); !os.IsNotExist(err) {
		t.Errorf("it was remembered (%v)", err)
	}
}

// TestDeviceDiesAlone: QEMU closes its end of the socket device and lives on.
func TestDeviceDiesAlone(t *testing.T) {
	m, err := start(t, fakeDriver(t, "cuts-vsock", Options{Accel: "tcg"}), testConfig(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := waitEnd(t, m); !errors.Is(err, vm.ErrVMM) || !strings.Contains(err.Error(), "socket device") {
		t.Errorf("got %v, want ErrVMM that names the socket device", err)
	}
	kvm := fakeDriver(t, "cuts-vsock", Options{KVMDevice: kvmDevice(t), ProbeTimeout: time.Minute})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if m, err := kvm.Start(ctx, testConfig(t)); err == nil {
		m.Kill()
	} else if ctx.Err() != nil {
		t.Errorf("a probe hung on it: %v", err)
	}
}

func TestPauseAfterTheStartsDeadline(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	m, err := fakeDriver(t, "run", Options{Accel: "tcg"}).Start(ctx, testConfig(t))
	cancel()
	if err != nil {
		t.Fatal(err)
	}
	defer m.Kill()
	p := m.(vm.Pauser)
	if err := p.Pause(t.Context()); err != nil {
		t.Errorf("Pause: %v", err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.Resume(over); !errors.Is(err, context.Canceled) {
		t.Errorf("Resume without time: %v", err)
	}
	if err := p.Resume(t.Context()); err != nil {
		t.Errorf("Resume after one that was given up: %v", err)
	}
}

func TestOutputIsLimited(t *testing.T) {
	out, err := output(t.Context(), "sh", "-c", "head -c 3000000 /dev/zero")
	if err != nil || len(out) != 1<<20 {
		t.Errorf("got %d bytes, %v; want 1 MiB", len(out), err)
	}
}

func TestRootsOwnKVMDevice(t *testing.T) {
	if !dropsPrivileges() {
		t.Skip("QEMU runs under our own id here")
	}
	dev := kvmDevice(t)
	for mode, usable := range map[os.FileMode]bool{0o600: false, 0o660: false, 0o666: true} {
		os.Chmod(dev, mode)
		why := New(Options{KVMDevice: dev}).(*driver).kvmUnusable(vm.HostArch())
		if (why == "") != usable || why != "" && !strings.Contains(why, "chgrp kvm") {
			t.Errorf("mode %o: %q", mode, why)
		}
	}
}

func TestKVMUnusable(t *testing.T) {
	for name, c := range map[string]struct {
		device, arch, say string
	}{
		"missing":      {"/nonexistent/kvm", vm.HostArch(), "has no"},
		"foreign arch": {"/dev/null", map[string]string{"amd64": "arm64", "arm64": "amd64"}[vm.HostArch()], "the guest is"},
	} {
		t.Run(name, func(t *testing.T) {
			auto := New(Options{KVMDevice: c.device}).(*driver)
			got, err := auto.decide(c.arch, "qemu")
			if err != nil || got.accel != "tcg" || got.probe || !strings.Contains(got.reason, c.say) {
				t.Errorf("auto: got %+v, %v; want tcg that says %q", got, err, c.say)
			}
			forced := New(Options{KVMDevice: c.device, Accel: "kvm"}).(*driver)
			if _, err := forced.decide(c.arch, "qemu"); !errors.Is(err, vm.ErrHost) || !strings.Contains(err.Error(), c.say) {
				t.Errorf("kvm asked for: got %v, want ErrHost that says %q", err, c.say)
			}
		})
	}
}

// TestDiesWithItsOwner starts this binary again as an owner, which starts a
// machine and is then killed without a chance to clean up.
func TestDiesWithItsOwner(t *testing.T) {
	if os.Getenv("QEMU_TEST_OWNER") != "" {
		own(t)
		return
	}
	owner := exec.Command(os.Args[0], "-test.run", "^TestDiesWithItsOwner$")
	owner.Env = append(os.Environ(), "QEMU_TEST_OWNER="+fakeBinary(t))
	out, err := owner.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	defer owner.Process.Kill()
	var pid int
	if _, err := fmt.Fscanf(out, "pid %d\n", &pid); err != nil {
		t.Fatal(err)
	}
	fd, err := openPidfd(pid)
	if err != nil {
		t.Fatalf("the machine's process is not alive: %v", err)
	}
	defer fd.Close()
	owner.Process.Kill()
	owner.Wait()
	if !fd.ended(30 * time.Second) {
		syscall.Kill(pid, syscall.SIGKILL)
		t.Error("QEMU outlived its owner")
	}
}

// own is the owner's life: it starts a machine and waits to be killed.
func own(t *testing.T) {
	d := New(Options{Accel: "tcg", Binary: os.Getenv("QEMU_TEST_OWNER"), ExtraArgs: []string{"-fake", "quiet"}})
	m, err := d.Start(t.Context(), testConfig(t))
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("pid %d\n", m.(*machine).Facts().PID)
	m.Wait()
}

func TestUnprivileged(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root has privileges to drop")
	}
	m, err := start(t, fakeDriver(t, "run", Options{Accel: "tcg"}), testConfig(t))
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", m.Facts().PID))
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("Uid:\t%d\t%d\t%d\t%d", vmmID, vmmID, vmmID, vmmID)
	if !strings.Contains(string(b), want) || !strings.Contains(string(b), "Groups:\t \n") {
		t.Errorf("QEMU runs with privileges; want %q and no groups:\n%s", want, b)
	}
	c := testConfig(t)
	os.Chmod(c.Kernel, 0o600)
	if _, err := start(t, fakeDriver(t, "run", Options{Accel: "tcg"}), c); !errors.Is(err, vm.ErrConfig) || !strings.Contains(err.Error(), "0644") {
		t.Errorf("a kernel that QEMU could not open: %v", err)
	}
}

func TestTail(t *testing.T) {
	tl := newTail(10)
	for _, s := range []string{"0123456789abc", "def\n", "g\x1b[2Jh"} {
		if n, err := tl.Write([]byte(s)); n != len(s) || err != nil {
			t.Errorf("Write %q: %d, %v", s, n, err)
		}
	}
	if got, want := tl.String(), "def g[2Jh"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

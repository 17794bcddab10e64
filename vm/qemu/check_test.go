//go:build linux

package qemu

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pybox/pybox/vm"
)

// scriptQEMU is a program that answers a check's questions with a shell script.
func scriptQEMU(t *testing.T, body string) string {
	t.Helper()
	p := filepath.Join(t.TempDir(), "qemu")
	if err := os.WriteFile(p, []byte("#!/bin/sh\n"+body), 0o755); err != nil {
		t.Fatal(err)
	}
	return p
}

const wholeQEMU = `case "$1" in
--version) echo "QEMU emulator version 9.9.9 (test)"; echo "Copyright";;
*) echo 'name "vhost-user-vsock-pci", bus PCI';;
esac`

// finding is the row id of a check, which must be there once.
func finding(t *testing.T, rows []vm.Finding, id string) vm.Finding {
	t.Helper()
	var got []vm.Finding
	for _, f := range rows {
		if f.ID == id {
			got = append(got, f)
		}
		if needs := !f.OK && !f.Unknown; f.Observed == "" || needs != (f.Fix != "") || !needs && f.Advice || f.OK && f.Unknown {
			t.Errorf("%+v: want what was observed, and a fix where there is a need for one alone", f)
		}
	}
	if len(got) != 1 {
		t.Fatalf("rows %+v: want one %s", rows, id)
	}
	return got[0]
}

func check(t *testing.T, o Options) []vm.Finding {
	t.Helper()
	return New(o).Check(t.Context())
}

func TestCheckBinary(t *testing.T) {
	for name, c := range map[string]struct {
		binary, id, say string
		ok              bool
	}{
		"whole":          {scriptQEMU(t, wholeQEMU), "qemu.binary", "(QEMU emulator version 9.9.9 (test))", true},
		"has the device": {scriptQEMU(t, wholeQEMU), "qemu.vsock", "has the device", true},
		"missing":        {"/nonexistent/qemu", "qemu.binary", "there is no program /nonexistent/qemu", false},
		"no program":     {testKernel(t), "qemu.binary", "no program that may be run", false},
		"fails":          {scriptQEMU(t, "exit 3"), "qemu.binary", "exit status 3", false},
		"fails to list":  {scriptQEMU(t, "exit 3"), "qemu.vsock", "does not say which devices", false},
		"lacks device":   {scriptQEMU(t, "echo QEMU"), "qemu.vsock", "lacks the device", false},
	} {
		t.Run(name, func(t *testing.T) {
			f := finding(t, check(t, Options{Binary: c.binary}), c.id)
			if f.OK != c.ok || f.Advice || f.Unknown || !strings.Contains(f.Observed, c.say) {
				t.Errorf("got %+v, want ok %v and %q", f, c.ok, c.say)
			}
		})
	}
}

// TestCheckOfProgramThatHangs: what was not found out in time is no fault. One
// question hangs at a time; the other is answered.
func TestCheckOfProgramThatHangs(t *testing.T) {
	for hangs, c := range map[string]struct{ body, answered string }{
		"qemu.binary": {`case "$1" in --version) exec sleep 60;; *) echo '"vhost-user-vsock-pci"';; esac`, "qemu.vsock"},
		"qemu.vsock":  {`case "$1" in --version) echo QEMU;; *) exec sleep 60;; esac`, "qemu.binary"},
	} {
		t.Run(hangs, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			began := time.Now()
			rows := New(Options{Binary: scriptQEMU(t, c.body)}).Check(ctx)
			if took := time.Since(began); took > 20*time.Second {
				t.Errorf("the check took %v, its context ended after 2 s", took)
			}
			if f := finding(t, rows, hangs); !f.Unknown || !strings.Contains(f.Observed, "did not end in time") {
				t.Errorf("got %+v, want that nothing is known", f)
			}
			if f := finding(t, rows, c.answered); !f.OK {
				t.Errorf("the other question was not answered: %+v", f)
			}
		})
	}
}

func TestCheckForOtherArchitecture(t *testing.T) {
	other := vm.ArchARM64
	if vm.HostArch() == other {
		other = vm.ArchAMD64
	}
	d := New(Options{KVMDevice: kvmDevice(t)}).(vm.ArchChecker)
	rows := d.CheckFor(t.Context(), other)
	if f := finding(t, rows, "qemu.kvm"); f.OK || !f.Advice || !strings.Contains(f.Observed, "the guest is "+other) {
		t.Errorf("got %+v, want advice about the architecture", f)
	}
	if f := finding(t, rows, "qemu.binary"); !strings.Contains(f.Observed+f.Fix, binaryFor(other)) {
		t.Errorf("got %+v, want %s", f, binaryFor(other))
	}
}

func TestCheckAcceleration(t *testing.T) {
	binary, device := scriptQEMU(t, wholeQEMU), kvmDevice(t)
	none := filepath.Join(t.TempDir(), "none")
	remembered := func(change func(*driver) choice) string {
		p := filepath.Join(t.TempDir(), "acceleration.json")
		d := New(Options{AccelMemory: p}).(*driver)
		d.remember(binary, change(d))
		return p
	}
	kvmSpoke := remembered(func(*driver) choice { return choice{accel: accelKVM, reason: "probed: the guest spoke"} })
	kvmMute := remembered(func(*driver) choice {
		return choice{accel: accelTCG, reason: "probed: a guest under KVM did not speak"}
	})
	rubbish := testKernel(t)
	otherBinary := filepath.Join(t.TempDir(), "other.json")
	New(Options{AccelMemory: otherBinary}).(*driver).remember("/other/qemu", choice{accel: accelKVM})
	oldBoot := filepath.Join(t.TempDir(), "old.json")
	if err := os.WriteFile(oldBoot, []byte(`{"host_boot_id":"old","binary":"","accel":"kvm","reason":""}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		o          Options
		ok, advice bool
		say        string
	}{
		"not probed":        {Options{KVMDevice: device, AccelMemory: none}, true, false, "not probed yet"},
		"of another boot":   {Options{KVMDevice: device, AccelMemory: oldBoot}, true, false, "earlier boot"},
		"of another QEMU":   {Options{KVMDevice: device, AccelMemory: otherBinary}, true, false, "another QEMU"},
		"rubbish":           {Options{KVMDevice: device, AccelMemory: rubbish}, true, false, "cannot be read"},
		"KVM, as probed":    {Options{KVMDevice: device, AccelMemory: kvmSpoke}, true, false, "KVM, as probed at 2"},
		"not KVM":           {Options{KVMDevice: device, AccelMemory: kvmMute}, false, true, "emulation (TCG), as probed at 2"},
		"no device":         {Options{KVMDevice: none}, true, false, "emulation (TCG): this host has no"},
		"TCG asked for":     {Options{KVMDevice: device, Accel: accelTCG}, true, false, "emulation (TCG): asked for"},
		"KVM asked for":     {Options{KVMDevice: device, Accel: accelKVM}, true, false, "KVM: asked for"},
		"KVM asked in vain": {Options{KVMDevice: none, Accel: accelKVM}, false, false, "cannot be used"},
	} {
		t.Run(name, func(t *testing.T) {
			c.o.Binary = binary
			f := finding(t, check(t, c.o), "qemu.acceleration")
			if f.OK != c.ok || f.Advice != c.advice || !strings.Contains(f.Observed, c.say) {
				t.Errorf("got %+v, want ok %v, advice %v and %q", f, c.ok, c.advice, c.say)
			}
		})
	}
	for _, p := range []string{none, filepath.Join(filepath.Dir(none), "acceleration.json")} {
		if _, err := os.Lstat(p); err == nil {
			t.Errorf("the check made %s", p)
		}
	}
}

func TestCheckKVM(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none")
	for accel, want := range map[string]vm.Finding{
		AccelAuto: {Advice: true, Observed: "emulation is used", Fix: "firmware"},
		accelTCG:  {OK: true, Observed: "this host has no"},
		accelKVM:  {Observed: "this host has no", Fix: "PYBOX_ACCEL=auto"},
	} {
		f := finding(t, check(t, Options{Binary: scriptQEMU(t, wholeQEMU), KVMDevice: none, Accel: accel}), "qemu.kvm")
		if f.OK != want.OK || f.Advice != want.Advice || !strings.Contains(f.Observed, want.Observed) || !strings.Contains(f.Fix, want.Fix) {
			t.Errorf("%s: got %+v, want something like %+v", accel, f, want)
		}
	}
}

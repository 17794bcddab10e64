//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pybox/pybox/guest/bundle"
	"github.com/pybox/pybox/guest/erofs"
	"github.com/pybox/pybox/guest/tree"
	"github.com/pybox/pybox/kernel/config"
	"github.com/pybox/pybox/vm"
	"github.com/pybox/pybox/vm/qemu"
)

// bootTime bounds a boot with all checks, many times what emulation takes.
const bootTime = wholeTime + time.Minute

// subject is the kernel under test.
type subject struct {
	kernel, initramfs, arch string
	args                    []string
	// weaker are the checks that must fail, and no others.
	weaker map[string]bool
}

// endToEnd returns the kernel to boot: that of the bundle in $PYBOX_TEST_BUNDLE,
// or of the folder $PYBOX_TEST_KERNEL that mkkernel printed, for the host's
// architecture.
func endToEnd(t *testing.T) subject {
	t.Helper()
	if os.Getenv("PYBOX_E2E") != "1" {
		t.Skip("end-to-end: set PYBOX_E2E=1")
	}
	if dir := os.Getenv("PYBOX_TEST_KERNEL"); dir != "" {
		return subject{kernel: filepath.Join(dir, "kernel"), arch: vm.HostArch(),
			args: []string{"root=/dev/vda", "rootfstype=erofs", "ro", "init=/sbin/init", "quiet"}}
	}
	dir := os.Getenv("PYBOX_TEST_BUNDLE")
	if dir == "" {
		t.Fatal("PYBOX_E2E=1 but no kernel: set PYBOX_TEST_BUNDLE to a bundle, or PYBOX_TEST_KERNEL to what mkkernel build printed")
	}
	return ofBundle(t, dir)
}

// ofBundle returns the kernel of the bundle in dir.
func ofBundle(t *testing.T, dir string) subject {
	t.Helper()
	b, err := bundle.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	m := b.Manifest
	s := subject{kernel: b.Path(m.Kernel.File), arch: m.Arch, args: m.KernelArgs}
	if m.Initramfs != nil {
		s.initramfs = b.Path(*m.Initramfs)
	}
	if m.Kernel.Kind == bundle.KernelDebianCloud {
		s.weaker = cloudWeaker(m.Arch)
	}
	return s
}

// writeImage makes an erofs image of files and returns its path.
func writeImage(t *testing.T, name string, files map[string][]byte) string {
	t.Helper()
	tr := tree.New(tree.DefaultLimits)
	for path, data := range files {
		attr := tree.Attr{Mode: 0o755}
		if data == nil {
			if err := tr.Mkdir(path, attr); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if dir := filepath.Dir(path); dir != "." {
			if err := tr.Mkdir(dir, attr); err != nil {
				t.Fatal(err)
			}
		}
		if err := tr.WriteFile(path, data, attr); err != nil {
			t.Fatal(err)
		}
	}
	out, err := os.Create(filepath.Join(t.TempDir(), name))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(erofs.Write(out, tr), out.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Name()
}

// disks builds this program for the guest and the two images that it wants.
func disks(t *testing.T, arch string) []vm.Disk {
	t.Helper()
	program := filepath.Join(t.TempDir(), "init")
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", program, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build guestcheck: %v\n%s", err, out)
	}
	binary, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	root := writeImage(t, "root.erofs", map[string][]byte{
		"proc": nil, "sys": nil, "dev": nil, "tmp": nil, "mnt": nil, "sbin/init": binary,
	})
	image := writeImage(t, "image.erofs", map[string][]byte{"hello": []byte(helloText + "\n")})
	return []vm.Disk{{Path: root, Serial: rootSerial}, {Path: image, Serial: imageSerial}}
}

// console collects what the guest prints.
type console struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (c *console) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.buf.Write(p)
}

func (c *console) lines() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Split(strings.ReplaceAll(c.buf.String(), "\r", ""), "\n")
}

// boot runs a machine to its end and returns its console and why it ended.
func boot(t *testing.T, s subject, cpus int, mode string, disks []vm.Disk) ([]string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bootTime)
	defer cancel()
	args := slices.Clone(s.args)
	for _, a := range append(config.BootArgs(), "PYBOX_GUESTCHECK="+mode) {
		if !slices.Contains(args, a) {
			args = append(args, a)
		}
	}
	out := &console{}
	started := time.Now()
	m, err := qemu.New(qemu.Options{}).Start(ctx, vm.Config{
		Name: "guestcheck", Arch: s.arch, CPUs: cpus, MemoryBytes: 512 << 20,
		Kernel: s.kernel, Initramfs: s.initramfs, KernelArgs: args, Disks: disks, Console: out,
	})
	if err != nil {
		t.Fatal(err)
	}
	stop := context.AfterFunc(ctx, func() { _ = m.Kill() })
	err = m.Wait()
	if !stop() {
		t.Fatalf("the machine did not end within %v; its console:\n%s", bootTime, strings.Join(out.lines(), "\n"))
	}
	if r, ok := m.(vm.Reporter); ok {
		f := r.Facts()
		t.Logf("%s, %s, %d CPUs: first output after %v, ended after %v", f.VMM, f.Acceleration, cpus,
			f.FirstOutput.Sub(f.Started).Round(time.Millisecond), time.Since(started).Round(time.Millisecond))
	}
	return out.lines(), err
}

// TestE2EKernelInGuest boots the kernel and holds it to every check. That the
// machine ends by powering off is one more.
func TestE2EKernelInGuest(t *testing.T) {
	s := endToEnd(t)
	disks := disks(t, s.arch)
	for _, cpus := range []int{1, 2} {
		t.Run(strconv.Itoa(cpus)+" CPU", func(t *testing.T) {
			lines, err := boot(t, s, cpus, "all", disks)
			if err != nil {
				t.Errorf("the machine ended with %v, want a power-off", err)
			}
			judge(t, s, lines)
		})
	}
}

// TestE2ECloudKernelInGuest holds Debian's ready-made kernel to the same checks, but
// for those in which it is known to be weaker.
func TestE2ECloudKernelInGuest(t *testing.T) {
	if os.Getenv("PYBOX_E2E") != "1" {
		t.Skip("end-to-end: set PYBOX_E2E=1")
	}
	for name, variable := range map[string]string{
		"own architecture": "PYBOX_TEST_CLOUD_BUNDLE", "foreign architecture": "PYBOX_TEST_FOREIGN_CLOUD_BUNDLE",
	} {
		t.Run(name, func(t *testing.T) {
			dir := os.Getenv(variable)
			if dir == "" {
				t.Skipf("set %s to what 'make cloudbundle' made", variable)
			}
			s := ofBundle(t, dir)
			lines, err := boot(t, s, 2, "all", disks(t, s.arch))
			if err != nil {
				t.Errorf("the machine ended with %v, want a power-off", err)
			}
			judge(t, s, lines)
		})
	}
}

// judge wants an answer to each check, FAIL for those in which the kernel is known to
// be weaker and for no other, and a summary that says the same.
func judge(t *testing.T, s subject, lines []string) {
	t.Helper()
	answers, passed, failed, summary := map[string]bool{}, 0, map[string]bool{}, ""
	for _, l := range lines {
		word, rest, _ := strings.Cut(l, " ")
		name, _, _ := strings.Cut(rest, ": ")
		switch word {
		case "PASS":
			answers[rest] = true
			passed++
		case "NOTE":
			answers[name] = true
			t.Log(l)
		case "FAIL":
			answers[name], failed[name] = true, true
			if !s.weaker[name] {
				t.Error(l)
			}
		case "SUMMARY":
			summary = rest
		}
	}
	for name := range s.weaker {
		if !failed[name] {
			t.Errorf("the check %q did not fail: the kernel is better than is written down", name)
		}
	}
	if want := fmt.Sprintf("passed=%d failed=%d", passed, len(failed)); summary != want {
		t.Errorf("the summary is %q, want %q; the console:\n%s", summary, want, strings.Join(lines, "\n"))
	}
	if s.arch != vm.HostArch() {
		return // checks lists those of this architecture
	}
	for _, c := range checks() {
		// A name may itself hold ": ", behind which a note's detail begins.
		short, _, _ := strings.Cut(c.name, ": ")
		if !answers[c.name] && !answers[short] {
			t.Errorf("no answer to the check %q", c.name)
		}
	}
}

// TestE2EPanicResets: a kernel that panics ends the machine at once, and the driver
// can tell that from a power-off.
func TestE2EPanicResets(t *testing.T) {
	s := endToEnd(t)
	lines, err := boot(t, s, 1, "panic", disks(t, s.arch))
	if !errors.Is(err, vm.ErrGuestReset) {
		t.Errorf("the machine ended with %v, want %v", err, vm.ErrGuestReset)
	}
	if text := strings.Join(lines, "\n"); !strings.Contains(text, "Kernel panic - not syncing: Attempted to kill init!") {
		t.Errorf("the console does not tell of the panic:\n%s", text)
	}
}

//go:build linux

package main

import (
	"compress/gzip"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/pybox/pybox/kernel/config"
)

func configChecks() []check {
	return []check{{"configuration equals the fragments", runningConfig}}
}

// runningConfig compares what runs with what was asked for.
func runningConfig() error {
	f, err := os.Open("/proc/config.gz")
	if err != nil {
		return err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return err
	}
	got, err := config.Parse("/proc/config.gz", z)
	if err != nil {
		return err
	}
	requests, err := config.For(runtime.GOARCH)
	if err != nil {
		return err
	}
	var all error
	for _, m := range config.Unhonoured(requests, got) {
		all = errors.Join(all, errors.New(m.String()))
	}
	return all
}

func protectionChecks() []check {
	list := []check{
		{"processor mitigations", mitigations},
		{"lockdown is confidentiality", func() error {
			return wantFile("/sys/kernel/security/lockdown", "none integrity [confidentiality]")
		}},
		{"security modules", securityModules},
		{"no module can be loaded", modulesForbidden},
		{"address space randomisation of the kernel", kaslr},
		{"writing through /proc/self/mem keeps protection", procMemNoForce},
	}
	for _, s := range []struct{ name, want string }{
		{"kernel.unprivileged_bpf_disabled", "2"},
		{"kernel.dmesg_restrict", "1"},
		{"kernel.yama.ptrace_scope", "1"},
		{"kernel.unprivileged_userns_clone", "0"},
		{"kernel.kptr_restrict", "2"},
		{"kernel.randomize_va_space", "2"},
		{"kernel.panic", "-1"},
		{"kernel.panic_on_oops", "1"},
		{"vm.mmap_min_addr", "65536"},
		{"dev.tty.legacy_tiocsti", "0"},
		{"dev.tty.ldisc_autoload", "0"},
	} {
		path := "/proc/sys/" + strings.ReplaceAll(s.name, ".", "/")
		list = append(list, check{"sysctl " + s.name, func() error { return wantFile(path, s.want) }})
	}
	return list
}

const vulnerabilities = "/sys/devices/system/cpu/vulnerabilities/*"

// mitigations reads what the kernel says of each processor fault. "Vulnerable"
// is our fault, unless the machine's processor lacks the microcode that a
// mitigation needs: that is its host's.
func mitigations() error {
	files, err := filepath.Glob(vulnerabilities)
	if err != nil {
		return err
	}
	if len(files) < 10 {
		return fmt.Errorf("the kernel tells of %d processor faults, want at least 10", len(files))
	}
	var ours, hosts []string
	for _, f := range files {
		text, err := read(f)
		switch {
		case err != nil:
			return err
		case !strings.HasPrefix(text, "Vulnerable"):
		case strings.Contains(text, "microcode"):
			hosts = append(hosts, filepath.Base(f)+": "+text)
		default:
			ours = append(ours, filepath.Base(f)+": "+text)
		}
	}
	switch {
	case len(ours) > 0:
		return errors.New(strings.Join(ours, "; "))
	case len(hosts) > 0:
		return note("the host's processor is open: %s", strings.Join(hosts, "; "))
	}
	return nil
}

// securityModules wants those that are asked for, and beside them those that a kernel
// always has where it has them at all: they take no place in "lsm=".
func securityModules() error {
	text, err := read("/sys/kernel/security/lsm")
	if err != nil {
		return err
	}
	got := strings.Split(text, ",")
	for _, want := range []string{"landlock", "lockdown", "yama"} {
		if !slices.Contains(got, want) {
			return fmt.Errorf("%s is not among %s", want, text)
		}
	}
	return onlyThese("/sys/kernel/security/lsm", got, "landlock", "lockdown", "yama", "capability", "ima", "evm")
}

// modulesForbidden passes where the kernel cannot load any, and where it was told to
// load no more, which cannot be taken back.
func modulesForbidden() error {
	const file = "/proc/sys/kernel/modules_disabled"
	if absentFile(file) == nil {
		return nil
	}
	if err := wantFile(file, "1"); err != nil {
		return err
	}
	return wantErr(write(file, "0"), unix.EINVAL)
}

// procMemNoForce writes to a read-only page of its own.
func procMemNoForce() error {
	page, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	defer unix.Munmap(page)
	f, err := os.OpenFile("/proc/self/mem", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteAt([]byte("x"), addressOf(page))
	return wantErr(err, unix.EIO)
}

// kernelLog is the whole kernel log.
func kernelLog() (string, error) {
	size, err := unix.Klogctl(unix.SYSLOG_ACTION_SIZE_BUFFER, nil)
	if err != nil {
		return "", err
	}
	b := make([]byte, size)
	n, err := unix.Klogctl(unix.SYSLOG_ACTION_READ_ALL, b)
	if err != nil {
		return "", err
	}
	return string(b[:n]), nil
}

var trouble = regexp.MustCompile(`WARNING:|BUG:|Oops|Call Trace|Call trace:|UBSAN|soft lockup|rcu_.*stall|general protection`)

// kernelLogClean looks for complaints in the kernel's log. The kills that the
// checks provoke are none: they are logged as "Memory cgroup out of memory".
func kernelLogClean() error {
	log, err := kernelLog()
	if err != nil {
		return err
	}
	for line := range strings.Lines(log) {
		// An out-of-memory kill prints its call trace without a fault.
		if strings.Contains(line, "Call Trace") || strings.Contains(line, "Call trace:") {
			if strings.Contains(log, "oom-killer") {
				continue
			}
		}
		if trouble.MatchString(line) {
			return errors.New(strings.TrimSpace(line))
		}
	}
	return nil
}

func notTainted() error { return wantFile("/proc/sys/kernel/tainted", "0") }

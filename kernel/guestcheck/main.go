//go:build linux

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Deadlines. Under emulation on a busy host a check may take a second.
const (
	wholeTime = 4 * time.Minute
	childTime = 30 * time.Second
)

// check is one question. nil is a pass.
type check struct {
	name string
	run  func() error
}

// errNote, wrapped, makes a check's answer a note rather than a fault.
var errNote = errors.New("note")

func note(format string, a ...any) error {
	return fmt.Errorf("%w%s", errNote, fmt.Sprintf(format, a...))
}

func main() {
	if name, ok := strings.CutPrefix(os.Args[0], childPrefix); ok {
		os.Exit(runChild(name, os.Args[1:]))
	}
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "guestcheck: this is a test's init: it powers its machine off, so it runs as PID 1 only")
		os.Exit(2)
	}
	if os.Getenv("PYBOX_GUESTCHECK") == "panic" {
		os.Exit(3) // the kernel panics: "Attempted to kill init!"
	}
	asInit(os.Stdout)
}

// asInit runs everything and powers off, whatever happens.
func asInit(w io.Writer) {
	defer powerOff()
	// Kernel lines (of provoked kills) must not land inside ours. A panic still
	// speaks.
	_, _ = unix.Klogctl(unix.SYSLOG_ACTION_CONSOLE_OFF, nil)
	time.AfterFunc(wholeTime, func() {
		fmt.Fprintf(w, "FAIL whole run: not done after %v\n", wholeTime)
		powerOff()
	})
	started := uptime()
	if err := mounts(); err != nil {
		fmt.Fprintf(w, "FAIL mounts: %v\nSUMMARY passed=0 failed=1\n", err)
		return
	}
	facts(w, started)
	passed, failed := 0, 0
	for _, c := range checks() {
		err := guarded(c.run)
		switch {
		case err == nil:
			passed++
			fmt.Fprintf(w, "PASS %s\n", c.name)
		case errors.Is(err, errNote):
			fmt.Fprintf(w, "NOTE %s: %s\n", c.name, strings.TrimPrefix(oneLine(err), errNote.Error()))
		default:
			failed++
			fmt.Fprintf(w, "FAIL %s: %s\n", c.name, oneLine(err))
		}
	}
	fmt.Fprintf(w, "SUMMARY passed=%d failed=%d\n", passed, failed)
}

// guarded turns a panic into a failure: init must live to power off.
func guarded(fn func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v: %s", p, debug.Stack())
		}
	}()
	return fn()
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", " | ") }

// powerOff does not return. It waits until the console has taken everything.
func powerOff() {
	_ = unix.IoctlSetInt(int(os.Stdout.Fd()), unix.TCSBRK, 1) // tcdrain(3)
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART)
	select {}
}

// checks lists all, in the order in which they run. Those that use control
// groups come in the order that groups need.
func checks() []check {
	var all []check
	for _, group := range [][]check{
		configChecks(), protectionChecks(), absenceChecks(), archChecks(), deviceChecks(),
		fileSystemChecks(), cgroupChecks(), namespaceChecks(), sandboxChecks(), socketChecks(),
		{{"kernel log is clean", kernelLogClean}, {"kernel is not tainted", notTainted}},
	} {
		all = append(all, group...)
	}
	return all
}

// mounts makes what a guest's init makes. devtmpfs comes from the kernel where
// the root is a block device; from an initial RAM file system it does not.
func mounts() error {
	for _, m := range []struct{ source, dir, fs, data string }{
		{"proc", "/proc", "proc", ""},
		{"sysfs", "/sys", "sysfs", ""},
		{"tmpfs", "/tmp", "tmpfs", "size=64m,mode=1777"},
		{"cgroup2", cgroupRoot, "cgroup2", "nsdelegate,memory_recursiveprot"},
		{"securityfs", "/sys/kernel/security", "securityfs", ""},
	} {
		if err := unix.Mount(m.source, m.dir, m.fs, 0, m.data); err != nil {
			return fmt.Errorf("%s on %s: %w", m.fs, m.dir, err)
		}
	}
	if _, err := os.Stat("/dev/null"); err != nil {
		if err := unix.Mount("devtmpfs", "/dev", "devtmpfs", 0, ""); err != nil {
			return fmt.Errorf("devtmpfs on /dev: %w", err)
		}
	}
	for _, m := range []struct{ dir, fs, data string }{
		{"/dev/pts", "devpts", "newinstance,ptmxmode=0666,mode=0620"},
		{"/dev/shm", "tmpfs", "size=16m"},
		{"/dev/mqueue", "mqueue", ""},
	} {
		if err := os.MkdirAll(m.dir, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.fs, m.dir, m.fs, 0, m.data); err != nil {
			return fmt.Errorf("%s on %s: %w", m.fs, m.dir, err)
		}
	}
	return nil
}

// uptime is the time since the kernel began to count.
func uptime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

// facts prints figures for people and for the test.
func facts(w io.Writer, started time.Duration) {
	var u unix.Utsname
	_ = unix.Uname(&u)
	fmt.Fprintf(w, "NOTE kernel: %s %s\n", unix.ByteSliceToString(u.Release[:]), unix.ByteSliceToString(u.Version[:]))
	fmt.Fprintf(w, "NOTE init started: %d ms after the kernel's clock\n", started.Milliseconds())
	total, free, available := memInfo("MemTotal"), memInfo("MemFree"), memInfo("MemAvailable")
	fmt.Fprintf(w, "NOTE memory: total %d kB, free %d kB, available %d kB, in use %d kB\n", total, free, available, total-available)
	files := []string{"/proc/cmdline", "/sys/devices/system/clocksource/clocksource0/current_clocksource"}
	faults, _ := filepath.Glob(vulnerabilities)
	for _, f := range append(files, faults...) {
		fmt.Fprintf(w, "NOTE %s: %s\n", f, readOr(f))
	}
}

package readback

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// The parsers read what the running kernel writes.
func TestRunningKernel(t *testing.T) {
	for file, parse := range map[string]func([]byte) error{
		"status":       func(b []byte) error { _, err := parseStatus(b); return err },
		"limits":       func(b []byte) error { _, err := parseLimits(b); return err },
		"uid_map":      func(b []byte) error { _, err := parseIDMap(b); return err },
		"mountinfo":    func(b []byte) error { _, err := parseMounts(b); return err },
		"net/dev":      func(b []byte) error { _, err := parseInterfaces(b); return err },
		"net/route":    func(b []byte) error { _, err := parseRoutes(b); return err },
		"net/fib_trie": func(b []byte) error { _, err := parseForwarding(b); return err },
	} {
		b, err := os.ReadFile("/proc/self/" + file)
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		if err := parse(b); err != nil {
			t.Errorf("%s: %v\n%s", file, err, b)
		}
	}
	if b, err := os.ReadFile("/proc/self/net/ipv6_route"); err == nil {
		if _, err := parseRoutes6(b); err != nil {
			t.Errorf("net/ipv6_route: %v\n%s", err, b)
		}
	}
	b, err := os.ReadFile("/proc/self/limits")
	if err != nil {
		t.Fatal(err)
	}
	limits, err := parseLimits(b)
	if err != nil || len(limits) != len(limitNames) {
		t.Errorf("%d of %d limits, %v: %q", len(limits), len(limitNames), err, limits)
	}
	s := reader{Subject: Subject{Proc: os.DirFS("/proc"), PID: os.Getpid()}, ctx: t.Context()}
	if _, err := s.namespace("thread-self", "net"); err != nil {
		t.Error(err)
	}
	args, err := s.strings("cmdline")
	if err != nil || strings.Join(args, "\x00") != strings.Join(os.Args, "\x00") {
		t.Errorf("%q, %v", args, err)
	}
}

// The open files of another process are told as they are; where one's own are
// read, the reading is one of them.
func TestOpenFilesOfAnotherProcess(t *testing.T) {
	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Skipf("SKIPPED: no cat(1): %v", err)
	}
	defer func() {
		_ = in.Close()
		_ = cmd.Wait()
	}()
	var st syscall.Stat_t
	if err := syscall.Fstat(int(in.(*os.File).Fd()), &st); err != nil {
		t.Fatal(err)
	}
	r := reader{Subject: Subject{Proc: os.DirFS("/proc"), PID: cmd.Process.Pid}, ctx: t.Context()}
	open, err := r.openFiles()
	if want := []string{fmt.Sprintf("0 pipe:[%d]", st.Ino), "1 /dev/null", "2 /dev/null"}; err != nil || len(open) < 3 || !slices.Equal(open[:3], want) { // more may be inherited
		t.Errorf("%q, %v, want %q", open, err, want)
	}
	r.PID = 1 << 30
	if open, err := r.openFiles(); !absent(err) {
		t.Errorf("of no process: %q, %v", open, err)
	}
}

func TestHostNameOfAnotherNamespace(t *testing.T) {
	// A process with a namespace and a name of its own, until its input ends.
	cmd := exec.Command("unshare", "--uts", "sh", "-c", "hostname pybox-test || exit 1; echo; read _")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Skipf("SKIPPED: no unshare(1): %v", err)
	}
	defer func() {
		_ = in.Close()
		_ = cmd.Wait()
	}()
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Skipf("SKIPPED: no new UTS namespace (it takes root): %v", err)
	}
	before := nodename(t)
	own, err := os.Readlink("/proc/self/ns/uts")
	if err != nil {
		t.Fatal(err)
	}
	name, err := HostName(cmd.Process.Pid)
	if err != nil || name != "pybox-test" {
		t.Errorf("%q, %v", name, err)
	}
	// No thread that goes on is in the other namespace.
	for range 200 {
		// The child dies with the thread that made it: that must not end.
		if name, err := HostName(cmd.Process.Pid); err != nil || name != "pybox-test" {
			t.Fatalf("%q, %v", name, err)
		}
		// /proc/self is the first thread.
		if link, err := os.Readlink("/proc/self/ns/uts"); err != nil || link != own {
			t.Fatalf("this process is in %s, not %s: %v", link, own, err)
		}
		if got := nodename(t); got != before {
			t.Fatalf("this process is called %q now, not %q", got, before)
		}
		if link, err := os.Readlink("/proc/thread-self/ns/uts"); err != nil || link != own {
			t.Fatalf("this thread is in %s, not %s: %v", link, own, err)
		}
	}
	if _, err := HostName(1 << 30); err == nil || !strings.Contains(err.Error(), strconv.Itoa(1<<30)) {
		t.Errorf("of no process: %v", err)
	}
}

func nodename(t *testing.T) string {
	t.Helper()
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		t.Fatal(err)
	}
	return unix.ByteSliceToString(u.Nodename[:])
}

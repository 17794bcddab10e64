package initd

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// roleEnv makes a child of the test binary play a part.
const roleEnv = "PYBOX_TEST_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(roleEnv) {
	case "":
		os.Exit(m.Run())
	case "reaper":
		playReaper()
	case "stay up":
		playStayUp()
	}
}

func play(role string, args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), roleEnv+"="+role)
	return cmd
}

// playReaper adopts orphans as PID 1 does and prints how each child ended, with
// the one that it started marked.
func playReaper() {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	// 20 grandchildren are orphaned; half of them end before their parent.
	script := `for i in 1 2 3 4 5 6 7 8 9 10; do (exit $i) & (sleep 0.2; exit 7) & done; kill -9 $$`
	pid, err := syscall.ForkExec("/bin/sh", []string{"sh", "-c", script}, &syscall.ProcAttr{Files: []uintptr{0, 1, 2}})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	reap(func(p int, s syscall.WaitStatus) { fmt.Println(p == pid, s.Signaled(), s.ExitStatus()) })
	children, _ := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/children", os.Getpid()))
	fmt.Printf("left: %q\n", children)
	os.Exit(0)
}

func TestReaperReapsEveryOrphan(t *testing.T) {
	out, err := play("reaper").Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	text := string(out)
	if strings.Count(text, "true true -1\n") != 1 {
		t.Errorf("the child itself is not there once:\n%s", text)
	}
	if n := strings.Count(text, "false false 7\n"); n < 10 {
		t.Errorf("%d of 10 late orphans were reaped:\n%s", n, text)
	}
	if !strings.HasSuffix(text, "left: \"\"\n") {
		t.Errorf("children are left:\n%s", text)
	}
}

// playStayUp is deaf as PID 1 is, and echoes lines to show that it lives.
func playStayUp() {
	stayUp()
	fmt.Println("ready")
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		fmt.Println(in.Text())
	}
	// What it starts must not inherit the deafness.
	out, err := exec.Command("/bin/sh", "-c", "grep SigIgn /proc/self/status; kill -TERM $$; echo survived").CombinedOutput()
	fmt.Printf("child: %q %v\n", out, err)
	os.Exit(0)
}

// No signal that Go handles ends PID 1: shown on an ordinary process, which has
// not even the kernel's protection of a PID 1.
func TestSignalsDoNotEndPID1(t *testing.T) {
	cmd := play("stay up")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	watchdog := time.AfterFunc(30*time.Second, func() { _ = cmd.Process.Kill() })
	defer watchdog.Stop()
	out := bufio.NewReader(stdout)
	expect := func(want string) {
		t.Helper()
		line, err := out.ReadString('\n')
		if err != nil || line != want+"\n" {
			t.Fatalf("it says %q (%v), want %q", line, err, want)
		}
	}
	expect("ready")
	for sig := syscall.Signal(1); sig <= 64; sig++ {
		if sig == syscall.SIGKILL || sig == syscall.SIGSTOP || sig >= 32 && sig <= 34 {
			// Go handles none of these, so the kernel keeps them from PID 1.
			continue
		}
		if err := cmd.Process.Signal(sig); err != nil {
			t.Fatalf("signal %d: %v", int(sig), err)
		}
		want := "after " + strconv.Itoa(int(sig))
		if _, err := fmt.Fprintln(in, want); err != nil {
			t.Fatalf("after signal %d (%v): %v", int(sig), sig, err)
		}
		expect(want)
	}
	_ = in.Close()
	rest, _ := io.ReadAll(out)
	// 32 and 33 are the C library's own; whoever started the tests may have
	// them ignored, and that is inherited.
	_, mask, _ := strings.Cut(string(rest), `SigIgn:\t`)
	ignored, err := strconv.ParseUint(mask[:min(16, len(mask))], 16, 64)
	if err != nil || ignored&^(3<<31) != 0 || bytes.Contains(rest, []byte("survived")) {
		t.Errorf("a child is deaf too: %s (%v)", rest, err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

func TestCheckRoot(t *testing.T) {
	root := t.TempDir()
	var st unix.Stat_t
	if err := unix.Stat(root, &st); err != nil {
		t.Fatal(err)
	}
	for serial, want := range map[string]string{
		"root": "", "root\n": "", "root\x00\x00": "",
		"img-0123456789abcdef": `"img-0123456789abcdef", want "root"`,
		"":                     `"", want "root"`,
		"rootkit":              `"rootkit", want "root"`,
		"none":                 "is on no disk with a serial number",
	} {
		sys := t.TempDir()
		dir := filepath.Join(sys, "dev/block", fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev)))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if serial != "none" {
			if err := os.WriteFile(filepath.Join(dir, "serial"), []byte(serial), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		switch err := checkRoot(root, sys); {
		case want == "" && err != nil:
			t.Errorf("%q: %v", serial, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%q: %v, want %q", serial, err, want)
		}
	}
}

// A sysctl that this kernel lacks is passed over, one that cannot be set is
// told.
func TestWriteSysctls(t *testing.T) {
	root := t.TempDir()
	if errs := writeSysctls(root); len(errs) != 0 {
		t.Errorf("a kernel without any: %v", errs)
	}
	if err := os.MkdirAll(filepath.Join(root, "kernel/printk"), 0o755); err != nil { // no file
		t.Fatal(err)
	}
	dmesg := filepath.Join(root, "kernel/dmesg_restrict")
	if err := os.WriteFile(dmesg, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	errs := writeSysctls(root)
	if len(errs) != 1 || !strings.Contains(errs[0].Error(), "kernel.printk") {
		t.Errorf("errors %v, want one of kernel.printk", errs)
	}
	if b, err := os.ReadFile(dmesg); err != nil || string(b) != "1" {
		t.Errorf("dmesg_restrict is %q, %v", b, err)
	}
}

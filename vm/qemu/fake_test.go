//go:build linux

package qemu

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pybox/pybox/vm"
)

// TestMain lets this binary stand in for QEMU: it is started with QEMU's command
// line and descriptors, and does what its last argument says.
func TestMain(m *testing.M) {
	if i := slices.Index(os.Args, "-fake"); i > 0 {
		os.Exit(fakeQEMU(os.Args, os.Args[i+1]))
	}
	os.Exit(m.Run())
}

const greeting = `{"QMP": {"version": {"qemu": {"micro": 9, "minor": 8, "major": 7}}, "capabilities": []}}` + "\n"

func fakeQEMU(args []string, word string) int {
	time.AfterFunc(time.Minute, func() { os.Exit(99) }) // should a test forget it
	file := os.NewFile(fdQMP, "qmp")
	con := os.NewFile(fdConsole, "console")
	kvm := strings.Contains(strings.Join(args, " "), "accel=kvm")
	switch word {
	case "refuse":
		fmt.Fprintln(os.Stderr, "qemu: -frob: invalid\x1b[31m option")
		return 1
	case "silent-exit":
		return 0
	case "kvm-refuses":
		if kvm {
			fmt.Fprintln(os.Stderr, "failed to initialize kvm: Operation not permitted")
			return 1
		}
	case "rubbish":
		io.WriteString(file, "hello, who is there?\n")
	case "endless-line":
		file.Write([]byte(strings.Repeat("x", 1<<20)))
	case "mute":
		select {}
	}
	io.WriteString(file, greeting)
	c, err := net.FileConn(file)
	if err != nil {
		return 98
	}
	lines := bufio.NewScanner(c)
	for lines.Scan() {
		var req struct {
			Execute string `json:"execute"`
			ID      uint64 `json:"id"`
		}
		if json.Unmarshal(lines.Bytes(), &req) != nil {
			return 97
		}
		fmt.Fprintf(c, `{"return": {}, "id": %d}`+"\n", req.ID)
		if req.Execute == "qmp_capabilities" {
			if code, exit := behave(word, kvm, c, con); exit {
				return code
			}
		}
	}
	return 0
}

// behave is what the fake does once it runs.
func behave(word string, kvm bool, qmp io.Writer, con io.Writer) (code int, exit bool) {
	switch word {
	case "kvm-lies":
		if kvm {
			return 0, false // runs, and never speaks
		}
	case "kvm-dies":
		if kvm {
			return 1, true
		}
	case "poweroff":
		io.WriteString(qmp, `{"event": "SHUTDOWN", "data": {"guest": true, "reason": "guest-shutdown"}, "timestamp": {}}`+"\n")
		return 0, true
	case "reset":
		io.WriteString(qmp, `{"event": "SHUTDOWN", "data": {"guest": true, "reason": "guest-reset"}}`+"\n")
		return 0, true
	case "crash":
		fmt.Fprintln(os.Stderr, "qemu: fatal: out of luck")
		return 139, true
	case "quiet":
		return 0, false
	case "cuts-vsock":
		os.NewFile(fdVsock, "vsock").Close()
		return 0, false
	}
	io.WriteString(con, "first words\n")
	return 0, false
}

// fakeBinary is this test binary where an unprivileged QEMU may execute it.
func fakeBinary(t *testing.T) string {
	t.Helper()
	dir := openDir(t)
	b, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	p := filepath.Join(dir, "qemu")
	if err := os.WriteFile(p, b, 0o755); err != nil {
		t.Fatal(err)
	}
	return p
}

// openDir is a folder that other users can enter.
func openDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for d := dir; d != filepath.Clean(os.TempDir()) && d != "/"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			break
		}
	}
	return dir
}

// testKernel is a file that looks like a kernel.
func testKernel(t *testing.T) string {
	t.Helper()
	b := make([]byte, 4096)
	b[0x1fe], b[0x1ff] = 0x55, 0xaa
	copy(b[0x202:], "HdrS")
	copy(b[56:], "ARM\x64")
	p := filepath.Join(t.TempDir(), "kernel")
	if err := os.WriteFile(p, b, 0o644); err != nil {
		t.Fatal(err)
	}
	return p
}

func testConfig(t *testing.T) vm.Config {
	return vm.Config{Name: "t", Arch: vm.HostArch(), CPUs: 1, MemoryBytes: vm.MinMemoryBytes, Kernel: testKernel(t)}
}

// fakeDriver runs the fake in place of QEMU.
func fakeDriver(t *testing.T, word string, o Options) vm.Driver {
	t.Helper()
	o.Binary, o.ExtraArgs = fakeBinary(t), []string{"-fake", word}
	return New(o)
}

func start(t *testing.T, d vm.Driver, c vm.Config) (*machine, error) {
	t.Helper()
	m, err := d.Start(t.Context(), c)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { m.Kill() })
	return m.(*machine), nil
}

// waitEnd is Wait with a bound.
func waitEnd(t *testing.T, m vm.Machine) error {
	t.Helper()
	c := make(chan error, 1)
	go func() { c <- m.Wait() }()
	select {
	case err := <-c:
		return err
	case <-time.After(30 * time.Second):
		t.Fatal("the machine did not end")
		return errors.New("unreachable")
	}
}

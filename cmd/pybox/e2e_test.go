//go:build linux

package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pybox/pybox/guest/bundle"
	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/vm/vmtest"
	"golang.org/x/sys/unix"
)

// person is somebody at a terminal with a PyBox of their own.
type person struct {
	t    *testing.T
	exe  string
	home string
	env  []string
	uid  uint32 // 0: whoever runs the test
}

// newPerson has the test bundle installed in home, "" for a folder of their own.
func newPerson(t *testing.T, home string) *person {
	t.Helper()
	b := vmtest.Bundle(t)
	if home == "" {
		home = filepath.Join(t.TempDir(), "home")
	}
	p := &person{t: t, exe: os.Getenv("PYBOX_TEST_COMMAND"), home: home}
	if p.exe == "" {
		t.Fatal("PYBOX_E2E=1 needs PYBOX_TEST_COMMAND, the pybox to test ('make build' makes one)")
	}
	if err := os.MkdirAll(home, 0o700); err != nil {
		t.Fatal(err)
	}
	p.install(b.Dir())
	p.config("") // the defaults of the tests
	t.Cleanup(func() {
		if t.Failed() {
			for _, f := range []string{"daemon.log", "console.log"} {
				data, _ := os.ReadFile(filepath.Join(home, f))
				t.Logf("%s:\n%s", f, data[max(0, len(data)-4000):])
			}
		}
		p.run("vm", "stop", "--force")
		p.expectNothingRuns()
	})
	return p
}

func (p *person) install(dir string) {
	p.t.Helper()
	if _, err := bundle.Install(p.t.Context(), p.home, dir); err != nil {
		p.t.Fatal(err)
	}
}

type outcome struct {
	out, err string
	code     int
}

func (p *person) command(args ...string) *exec.Cmd {
	cmd := exec.Command(p.exe, args...)
	cmd.Env = append(append(os.Environ(), "PYBOX_HOME="+p.home), p.env...)
	if p.uid != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: p.uid, Gid: p.uid}}
	}
	return cmd
}

// run runs pybox to its end.
func (p *person) run(args ...string) outcome {
	p.t.Helper()
	var out, errs bytes.Buffer
	cmd := p.command(args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	timer := time.AfterFunc(3*time.Minute, func() { cmd.Process.Kill() })
	defer timer.Stop()
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		p.t.Fatal(err)
	}
	return outcome{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
}

// must is run for what has to succeed.
func (p *person) must(args ...string) string {
	p.t.Helper()
	o := p.run(args...)
	if o.code != 0 {
		p.t.Fatalf("pybox %s: exit %d\n%s%s", strings.Join(args, " "), o.code, o.out, o.err)
	}
	return o.out
}

// fails is run for what has to fail with a code and words on stderr.
func (p *person) fails(code int, say []string, args ...string) {
	p.t.Helper()
	o := p.run(args...)
	if o.code != code {
		p.t.Errorf("pybox %s: exit %d, want %d", strings.Join(args, " "), o.code, code)
	}
	for _, s := range say {
		if !strings.Contains(o.err, s) {
			p.t.Errorf("pybox %s does not say %q:\n%s", strings.Join(args, " "), s, o.err)
		}
	}
	if o.out != "" {
		p.t.Errorf("pybox %s: a failure printed on stdout: %q", strings.Join(args, " "), o.out)
	}
}

func (p *person) status() api.Status {
	p.t.Helper()
	var s api.Status
	if err := json.Unmarshal([]byte(p.must("vm", "status", "--json")), &s); err != nil {
		p.t.Fatal(err)
	}
	return s
}

// expectNothingRuns looks for QEMUs that were started for this home: none may be
// left. They hold its bundle's files open.
func (p *person) expectNothingRuns() {
	p.t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for {
		left := p.qemus()
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			p.t.Errorf("still running: %v", left)
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (p *person) qemus() (pids []int) {
	dirs, _ := filepath.Glob("/proc/[0-9]*/fd")
	for _, d := range dirs {
		exe, _ := os.Readlink(filepath.Join(filepath.Dir(d), "exe"))
		if !strings.Contains(exe, "qemu-system") {
			continue
		}
		fds, _ := os.ReadDir(d)
		for _, f := range fds {
			if l, _ := os.Readlink(filepath.Join(d, f.Name())); strings.HasPrefix(l, p.home+"/") {
				pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(d)))
				pids = append(pids, pid)
				break
			}
		}
	}
	return pids
}

func TestE2EVMLife(t *testing.T) {
	p := newPerson(t, filepath.Join(t.TempDir(), "a home with spaces"))
	if out := p.must("vm", "status"); !strings.Contains(out, "stopped; 'pybox vm start' starts it") {
		t.Errorf("status before: %s", out)
	}
	p.config("[ready]\nstdlib = 1\n")
	out := p.must("vm", "start", "-v")
	for _, s := range []string{"The VM is running", "bundle verified", "agent answered", "guest, since its kernel started"} {
		if !strings.Contains(out, s) {
			t.Errorf("start does not say %q:\n%s", s, out)
		}
	}
	p.expectSteps()
	s := p.status()
	if s.State != api.StateRunning || s.VM.Driver != "qemu" || s.VM.FirstOutput.IsZero() || !s.Guest.Answering ||
		s.Guest.Boxes != 0 || s.VM.KernelKind != "own" || !strings.HasPrefix(s.Guest.KernelRelease, "6.12.") {
		t.Errorf("status: %+v\nvm %+v\nguest %+v", s, s.VM, s.Guest)
	}
	if used := s.Guest.MemoryUsedBytes; used <= 0 || used > 120<<20 {
		t.Errorf("the guest uses %d MiB of memory, want at most 120", used>>20)
	}
	if rss := s.Daemon.RSSBytes; rss <= 0 || rss > 64<<20 {
		t.Errorf("the daemon uses %d MiB of memory, want at most 64", rss>>20)
	}
	if c := s.Guest.Clock; c == nil || c.BoundMS > 5000 {
		t.Errorf("clock: %+v", c)
	}
	if got := p.qemus(); len(got) != 1 || got[0] != s.VM.PID {
		t.Errorf("QEMUs %v, want %d alone", got, s.VM.PID)
	}
	if out := p.must("vm", "console"); !strings.Contains(out, "pybox: init up") {
		t.Errorf("console: %q", out)
	}
	if out := p.must("vm", "logs"); !strings.Contains(out, "vm ready") {
		t.Errorf("logs: %q", out)
	}
	if again := p.must("vm", "start"); !strings.Contains(again, "The VM is running") || p.status().Guest.BootID != s.Guest.BootID {
		t.Errorf("a second start is not the same VM: %s", again)
	}
	p.fails(3, []string{"another PyBox daemon owns this directory", fmt.Sprint(s.Daemon.PID)}, "daemon")
	p.config("[vm]\ncpus = 0\n")
	p.fails(1, []string{"left as it is", "cpus"}, "vm", "restart")
	if r := p.status(); r.Guest.BootID != s.Guest.BootID {
		t.Error("a restart that cannot be cost the VM")
	}
	p.config("")
	p.must("vm", "restart", "-v") // which waits for no box where none is wanted
	if r := p.status(); r.Guest.BootID == s.Guest.BootID || r.State != api.StateRunning {
		t.Errorf("restart: boot id %s before and %s after", s.Guest.BootID, r.Guest.BootID)
	}
	if out := p.must("vm", "stop"); out != "The VM is stopped.\n" {
		t.Errorf("stop: %q", out)
	}
	p.expectNothingRuns()
	if end := p.status().LastEnd; end == nil || end.By != "client" {
		t.Errorf("last end: %+v", end)
	}
	if out := p.must("vm", "stop"); out != "The VM was not running.\n" {
		t.Errorf("stop again: %q", out)
	}
}

// expectSteps holds the steps of a start to their order, those too that end after it, and
// to the whole: what is between two is the work of a third.
func (p *person) expectSteps() {
	p.t.Helper()
	var s api.Status
	p.eventually("a first ready box", func() bool {
		s = p.status()
		return s.Guest != nil && len(s.Guest.Ready) == 1 && s.Guest.Ready[0].FirstMS != nil
	})
	for source, want := range map[string]string{
		"host":  "bundle verified, machine started, first guest output, agent answered, boxes asked for, clock set",
		"guest": "kernel, init, agent, listening, hello",
	} {
		var names []string
		var last, sum float64
		for _, st := range s.Stages {
			if st.Source != source {
				continue
			}
			if st.MS < 0 || st.AtMS < last {
				p.t.Errorf("%s took %.0f ms up to %.0f, after one that ended at %.0f", st.Name, st.MS, st.AtMS, last)
			}
			if last = st.AtMS; len(names) < strings.Count(want, ", ")+1 {
				names = append(names, st.Name)
				if sum += st.MS; sum < last-1 || sum > last+1 {
					p.t.Errorf("up to %s the steps take %.0f ms, and end at %.0f", st.Name, sum, last)
				}
			}
		}
		if got := strings.Join(names, ", "); got != want {
			p.t.Errorf("steps of the %s: %s; want %s", source, got, want)
		}
	}
	out := p.must("vm", "status", "-v")
	for _, line := range []string{"containerd and its shim", "read ahead: stdlib", "box ready: stdlib", "A first box of stdlib was ready"} {
		if !strings.Contains(out, line) {
			p.t.Errorf("status does not say %q:\n%s", line, out)
		}
	}
	p.t.Logf("%s", out[strings.Index(out, "Start, step by step"):])
}

func TestE2EDaemonKilled(t *testing.T) {
	p := newPerson(t, filepath.Join(t.TempDir(), strings.Repeat("long", 25))) // too long for a socket
	p.must("vm", "start")
	s := p.status()
	if !strings.HasPrefix(s.Daemon.Socket, "/tmp/pybox-") {
		t.Errorf("socket %q of a long home, want one below /tmp", s.Daemon.Socket)
	}
	if got := p.qemus(); len(got) != 1 {
		t.Fatalf("QEMUs %v, want one", got)
	}
	syscall.Kill(s.Daemon.PID, syscall.SIGKILL)
	p.expectNothingRuns()
	if st := p.status(); st.State != api.StateStopped {
		t.Errorf("status after the kill: %+v", st)
	}
	p.must("vm", "start")
	if r := p.status(); r.State != api.StateRunning || r.Guest.BootID == s.Guest.BootID {
		t.Errorf("after the recovery: %+v", r)
	}
}

func TestE2EMonitorKilled(t *testing.T) {
	p := newPerson(t, "")
	p.must("vm", "start")
	s := p.status()
	syscall.Kill(s.VM.PID, syscall.SIGKILL)
	p.waitStopped()
	if end := p.status().LastEnd; end == nil || end.By != "vmm" || !strings.Contains(end.Reason, "killed") || !end.Started {
		t.Errorf("last end: %+v", end)
	}
	p.must("vm", "start")
}

func TestE2EDaemonTerminated(t *testing.T) {
	p := newPerson(t, "")
	p.must("vm", "start")
	syscall.Kill(p.status().Daemon.PID, syscall.SIGTERM)
	p.waitStopped()
	if end := p.status().LastEnd; end == nil || end.By != "signal" || end.Problem != nil {
		t.Errorf("last end: %+v", end)
	}
}

func TestE2EMonitorFrozen(t *testing.T) {
	p := newPerson(t, "")
	p.must("vm", "start")
	s := p.status()
	syscall.Kill(s.VM.PID, syscall.SIGSTOP)
	began := time.Now()
	f := p.status()
	if f.State != api.StateRunning || f.Guest.Answering || f.Guest.BootID != s.Guest.BootID {
		t.Errorf("status of a frozen guest: %+v, guest %+v", f, f.Guest)
	}
	if took := time.Since(began); took > 10*time.Second { // a second, ten times wider
		t.Errorf("the status took %v", took)
	}
	if out := p.must("vm", "status"); !strings.Contains(out, "NOT ANSWERING") {
		t.Errorf("status: %s", out)
	}
	syscall.Kill(s.VM.PID, syscall.SIGCONT)
	deadline := time.Now().Add(30 * time.Second)
	for !p.status().Guest.Answering { // silence alone kills nothing
		if time.Now().After(deadline) {
			t.Fatal("the guest did not come back")
		}
	}
	syscall.Kill(s.VM.PID, syscall.SIGSTOP)
	p.must("vm", "stop", "--timeout", "200ms")
	p.expectNothingRuns()
}

func (p *person) waitStopped() {
	p.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); p.status().State != api.StateStopped; {
		if time.Now().After(deadline) {
			p.t.Fatal("the daemon still runs")
		}
	}
}

func TestE2EClientsRace(t *testing.T) {
	p := newPerson(t, "")
	done := make(chan outcome, 6)
	for range 6 {
		go func() { done <- p.run("vm", "start") }()
	}
	for range 6 {
		if o := <-done; o.code != 0 {
			t.Errorf("start: exit %d: %s", o.code, o.err)
		}
	}
	if got := p.qemus(); len(got) != 1 {
		t.Errorf("QEMUs %v, want one", got)
	}
	// A client that is killed while it waits leaves the start to the daemon.
	p.must("vm", "stop")
	cmd := p.command("vm", "start")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(30 * time.Second); p.status().State == api.StateStopped; {
		if time.Now().After(deadline) {
			t.Fatal("no daemon came up")
		}
	}
	cmd.Process.Kill()
	cmd.Wait()
	p.must("vm", "start")
}

func TestE2EDamagedBundle(t *testing.T) {
	p := newPerson(t, "")
	b, err := bundle.Current(p.home)
	if err != nil {
		t.Fatal(err)
	}
	files := []string{filepath.Join(b.Dir(), bundle.ManifestName)}
	for _, f := range b.Manifest.Files() {
		files = append(files, b.Path(f))
	}
	for _, f := range files {
		flip(t, f)
		p.fails(1, []string{"damaged", filepath.Base(f), "Next"}, "vm", "start")
		flip(t, f)
	}
	p.must("vm", "start") // the same bundle, whole again
	p.installWith(nil, append(mustRead(t, b.Path(b.Manifest.Root)), make([]byte, 4096)...))
	if o := p.run("vm", "status"); o.code != 0 || !strings.Contains(o.err, "'pybox vm restart' boots it") {
		t.Errorf("a newer bundle is not mentioned: %+v", o)
	}
}

func mustRead(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// flip inverts one bit in the middle of a file.
func flip(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	st, _ := f.Stat()
	var b [1]byte
	f.ReadAt(b[:], st.Size()/2)
	b[0] ^= 4
	if _, err := f.WriteAt(b[:], st.Size()/2); err != nil {
		t.Fatal(err)
	}
}

// installWith installs a bundle whose kernel or root is another file.
func (p *person) installWith(kernel, root []byte) {
	p.t.Helper()
	b := vmtest.Bundle(p.t)
	dir := p.t.TempDir()
	m := b.Manifest
	put := func(f *bundle.File, data []byte) {
		if data == nil {
			var err error
			if data, err = os.ReadFile(b.Path(*f)); err != nil {
				p.t.Fatal(err)
			}
		}
		sum := sha256.Sum256(data)
		f.SHA256, f.Bytes = hex.EncodeToString(sum[:]), int64(len(data))
		if err := os.WriteFile(filepath.Join(dir, f.File), data, 0o644); err != nil {
			p.t.Fatal(err)
		}
	}
	put(&m.Kernel.File, kernel)
	put(&m.Root, root)
	m.Images = slices.Clone(m.Images)
	for i := range m.Images {
		put(&m.Images[i].File, nil)
	}
	enc, err := m.Encode()
	if err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, bundle.ManifestName), enc, 0o644); err != nil {
		p.t.Fatal(err)
	}
	p.install(dir)
}

// config writes the config.toml; a VM that a test forgets stops soon. No box is made
// ahead where text does not ask for it: most tests are of how one is made.
func (p *person) config(text string) {
	p.t.Helper()
	if text == "" {
		text = "[vm]\nidle_stop = \"5m\"\n"
	}
	if !strings.Contains(text, "[ready]") {
		text = strings.TrimRight(text, "\n") + "\n[ready]\nstdlib = 0\n"
	}
	if err := os.WriteFile(filepath.Join(p.home, "config.toml"), []byte(text), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

func TestE2EWrongGuests(t *testing.T) {
	p := newPerson(t, "")
	p.config("[vm]\nstart_timeout = \"8s\"\n")

	t.Run("gzip kernel", func(t *testing.T) {
		p.installWith([]byte("\x1f\x8b\x08\x00 compressed"), nil)
		p.fails(1, []string{"gzip-compressed", "gunzip"}, "vm", "start")
	})
	t.Run("kernel that never speaks", func(t *testing.T) {
		// A boot header whose entry point, offset 0x200, jumps to itself
		// (Documentation/arch/x86/boot.rst).
		k := make([]byte, 1<<20)
		k[0x1f1], k[0x1fe], k[0x1ff] = 4, 0x55, 0xaa
		copy(k[0x200:], "\xeb\xfeHdrS\x0f\x02")
		p.installWith(k, nil)
		p.fails(1, []string{"was not ready within 8s", "was running; it has been stopped", "never spoke", "the guest wrote nothing"}, "vm", "start")
	})
	p.config("[vm]\nstart_timeout = \"60s\"\n") // what follows ends by itself, however slow this host is
	t.Run("rubbish as root", func(t *testing.T) {
		p.installWith(nil, bytes.Repeat([]byte("no file system "), 4096))
		p.fails(1, []string{"Kernel panic", "the guest reset itself"}, "vm", "start")
	})
	t.Run("init that sleeps", func(t *testing.T) {
		cfg := vmtest.RealConfigFor(t, "unused", "github.com/pybox/pybox/cmd/pybox/testdata/sleeper")
		p.installWith(nil, mustRead(t, cfg.Disks[0].Path))
		p.config("[vm]\nstart_timeout = \"20s\"\n") // time for the kernel, on a busy machine
		p.fails(1, []string{"was not ready within 20s", "its agent does not answer", "| sleeper: awake"}, "vm", "start")
	})
	p.expectNothingRuns()
}

func TestE2EHostFaults(t *testing.T) {
	p := newPerson(t, "")
	t.Run("no QEMU", func(t *testing.T) {
		q := *p
		q.env = []string{"PYBOX_QEMU=/nonexistent/qemu"}
		q.fails(1, []string{"is not installed", "apt-get install qemu-system"}, "vm", "start")
	})
	t.Run("KVM asked for", func(t *testing.T) {
		if unix.Access("/dev/kvm", unix.R_OK|unix.W_OK) == nil {
			t.Skip("this host has KVM")
		}
		q := *p
		q.env = []string{"PYBOX_ACCEL=kvm"}
		q.fails(1, []string{`"kvm" was asked for`, "/dev/kvm"}, "vm", "start")
	})
	t.Run("bad config", func(t *testing.T) {
		p.config("[vm]\nmemroy = \"1GiB\"\n")
		p.fails(1, []string{"config.toml", "line 2", `unknown key "vm.memroy"`, "correct it"}, "vm", "start")
		p.config("")
	})
	t.Run("no bundle", func(t *testing.T) {
		q := *p
		q.home = t.TempDir()
		os.Chmod(q.home, 0o700)
		q.fails(1, []string{"no guest bundle", "Next"}, "vm", "start")
	})
	t.Run("home that others can write", func(t *testing.T) {
		q := *p
		q.home = t.TempDir()
		os.Chmod(q.home, 0o777)
		q.fails(1, []string{"not safe", "chmod 700"}, "vm", "start")
	})
	t.Run("no room", func(t *testing.T) { testNoRoom(t, p) })
	t.Run("usage", func(t *testing.T) {
		p.fails(2, []string{"--help"}, "vm", "frobnicate")
		p.fails(2, []string{"--help"}, "vm", "start", "--wat")
		p.fails(2, []string{"not a duration"}, "vm", "stop", "--timeout", "soon")
		p.fails(2, []string{"between 1ms and 1m0s"}, "vm", "stop", "--timeout", "1h")
		p.fails(2, []string{"--help"}, "vm", "start", "now")
	})
	p.must("vm", "start") // and nothing of it did harm
}

// testNoRoom starts a VM whose home is a full file system.
func testNoRoom(t *testing.T, p *person) {
	q := *p
	q.home = t.TempDir()
	size := int64(16 << 20) // beside the bundle
	for _, f := range vmtest.Bundle(t).Manifest.Files() {
		size += f.Bytes
	}
	if err := unix.Mount("small", q.home, "tmpfs", 0, fmt.Sprintf("size=%d,mode=0700", size)); err != nil {
		t.Skipf("a small file system needs root: %v", err)
	}
	defer unix.Unmount(q.home, unix.MNT_DETACH)
	q.install(vmtest.Bundle(t).Dir())
	f, err := os.Create(filepath.Join(q.home, "ballast"))
	if err != nil {
		t.Fatal(err)
	}
	io.Copy(f, zeros{}) // until there is no room
	f.Close()
	q.fails(1, []string{"no space left on device"}, "vm", "start")
	os.Remove(f.Name())
	q.must("vm", "start")
	q.must("vm", "stop")
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

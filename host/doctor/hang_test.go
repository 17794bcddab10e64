package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/pybox/pybox/guest/bundle"
	"github.com/pybox/pybox/host/config"
	"github.com/pybox/pybox/vm"
)

// TestSilentDaemon: a socket that accepts and never answers is a row, not a wait.
func TestSilentDaemon(t *testing.T) {
	p := newPatient(t)
	p.o.Limit = 300 * time.Millisecond
	p.own()
	l := p.listen()
	conns := make(chan net.Conn, 100)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conns <- c // held open, and nothing is ever said
		}
	}()
	began := time.Now()
	r := p.look()
	if took, most := time.Since(began), 10*(p.o.Limit+grace); took > most {
		t.Errorf("took %v, want less than %v", took, most)
	}
	if row := rowOf(t, r, "vm.answer"); row.Verdict != Failed || !strings.Contains(row.Observed, "does not answer within 300ms") ||
		!strings.Contains(row.Next, "vm stop --force") {
		t.Errorf("got %+v", row)
	}
	for _, id := range []string{"vm.guest", "vm.clock"} {
		if row := rowOf(t, r, id); row.Verdict != Unknown {
			t.Errorf("got %+v, want nothing known", row)
		}
	}
	if row := rowOf(t, r, "versions"); !strings.Contains(row.Observed, "daemon 1.2.3") {
		t.Errorf("the record's version is not told: %+v", row)
	}
	if len(conns) == 0 {
		t.Error("nobody asked")
	}
}

// TestFileThatNeverOpens: opening a FIFO hangs as a file on a server that is away does.
func TestFileThatNeverOpens(t *testing.T) {
	p := newPatient(t)
	p.o.Limit = 300 * time.Millisecond
	fifo := p.home.Path("daemon.json")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // lets those go who wait in open(2)
		if f, err := os.OpenFile(fifo, os.O_RDWR, 0); err == nil {
			f.Close()
		}
	})
	began := time.Now()
	r := p.look()
	if took, most := time.Since(began), 10*(p.o.Limit+grace); took > most {
		t.Errorf("took %v, want less than %v", took, most)
	}
	if row := rowOf(t, r, "daemon.owner"); row.Verdict != Unknown {
		t.Errorf("got %+v", row)
	}
	if row := rowOf(t, r, "home.dir"); row.Verdict != OK {
		t.Errorf("a row that does not need the file: %+v", row)
	}
}

func TestCheckThatHangsIsLeftBehind(t *testing.T) {
	stuck := make(chan struct{})
	defer close(stuck)
	rows := runAll(t.Context(), []check{
		{"a", "A", func(context.Context) []Row { <-stuck; return nil }},
		one("b", "B", func(_ context.Context, r *Row) { r.ok("here") }),
	}, 50*time.Millisecond)
	if len(rows) != 2 || rows[0].ID != "a" || rows[0].Verdict != Unknown || rows[1].Verdict != OK {
		t.Errorf("got %+v", rows)
	}
}

func TestHashingThatTakesTooLong(t *testing.T) {
	p := newPatient(t)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	b, err := bundle.Current(p.home.Dir())
	if err != nil {
		t.Fatal(err)
	}
	e := &exam{o: p.options(), bundle: find(func() (*bundle.Bundle, error) { return b, nil })}
	<-e.bundle.done
	var r Row
	e.bundleIntact(over, &r)
	if r.Verdict != Unknown || !strings.Contains(r.Observed, "0 B of") || !strings.Contains(r.Observed, "no fault so far") {
		t.Errorf("got %+v", r)
	}
	var n atomic.Int64
	if err := b.VerifyCounting(over, &n); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestDriverIsAskedForTheBundlesArchitecture(t *testing.T) {
	p := newPatient(t)
	p.reinstall(func(m *bundle.Manifest) { m.Arch = otherArch() })
	p.look()
	if p.arch != otherArch() {
		t.Errorf("asked for %q, want %q", p.arch, otherArch())
	}
}

// TestDriverIsAskedInTime: what says how to ask it may hang, and then takes the
// driver's time with it no more than its verdict.
func TestDriverIsAskedInTime(t *testing.T) {
	stuck := make(chan struct{})
	defer close(stuck)
	p := newPatient(t)
	p.o.Limit = 400 * time.Millisecond
	p.rows = []vm.Finding{{ID: "fake.need", OK: true, Observed: "there"}, {ID: "fake.other", Observed: "not there", Fix: "get it"}}
	e := &exam{o: p.options(), home: p.home}
	e.config = find(func() (config.Config, error) { return config.Default(), nil })
	e.bundle = find(func() (*bundle.Bundle, error) { <-stuck; return nil, errors.New("never") })
	p.left = errors.New("not asked")
	rows := e.driver(t.Context())
	if p.left != nil {
		t.Errorf("the driver's time: %v", p.left)
	}
	if len(rows) != 2 || rows[0].Verdict != OK || rows[1].Verdict != Unknown || rows[1].Next != "" {
		t.Errorf("got %+v, want that nothing is wrong with a host whose bundle hangs", rows)
	}
	e.config = find(func() (config.Config, error) { <-stuck; return config.Config{}, nil })
	if rows := e.driver(t.Context()); len(rows) != 1 || rows[0].ID != "driver" || rows[0].Verdict != Unknown {
		t.Errorf("got %+v", rows)
	}
}

// TestConsoleIsCarried: what the guest wrote goes along as it is, for who shows it to
// escape, but not without end.
func TestConsoleIsCarried(t *testing.T) {
	p := newPatient(t)
	p.write("last-end.json", `{"at":"2026-01-02T03:04:05Z","reason":"x","problem":{"detail":"d","console_tail":[`+
		strings.Repeat(`"\u001b[2J",`, 500)+`"end"]}}`)
	row := rowOf(t, p.look(), "vm.last")
	if row.Verdict != Failed || len(row.Untrusted) != maxTail || row.Untrusted[0] != "\x1b[2J" {
		t.Errorf("got %+v", row)
	}
}

func TestThisHost(t *testing.T) {
	h, err := thisHost()
	if err != nil || h.OS == "" || h.Name == "" || h.CPU == "" || h.Arch != vm.HostArch() {
		t.Errorf("got %+v, %v", h, err)
	}
	free, err := room(filepath.Join(t.TempDir(), "not", "there"))
	if err != nil || free <= 0 {
		t.Errorf("room: %d, %v", free, err)
	}
}

// TestAnotherUser looks at a directory of root's as somebody else.
func TestAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to be another user")
	}
	p := newPatient(t)
	exe := ownCopy(t)
	cmd := exec.Command(exe)
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), asUser+"="+p.home.Dir())
	const nobody = 65534
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	for dir := filepath.Dir(p.home.Dir()); dir != filepath.Clean(os.TempDir()); dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, mode := range map[string]os.FileMode{"closed": 0o700, "open": 0o755} {
		p.chmod("", mode)
		again := *cmd
		out, err := again.Output()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var r Report
		if err := json.Unmarshal(out, &r); err != nil {
			t.Fatal(err)
		}
		checkForm(t, r)
		if row := rowOf(t, r, "home.dir"); row.Verdict != Failed || !strings.Contains(row.Observed, "belongs to user 0, not to you (65534)") {
			t.Errorf("%s: got %+v", name, row)
		}
		if name == "open" {
			continue
		}
		for _, id := range []string{"home.config", "home.receipts", "bundle.installed", "bundle.intact", "images.own", "daemon.owner", "daemon.socket", "vm.answer", "vm.last"} {
			if row := rowOf(t, r, id); row.Verdict != Unknown {
				t.Errorf("%s: a directory that may not be looked into: %+v", name, row)
			}
		}
	}
}

// ownCopy is this test where every user may run it.
func ownCopy(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "doctor")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	data, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	p := filepath.Join(dir, "doctor.test")
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(p, data, 0o755)); err != nil {
		t.Fatal(err)
	}
	return p
}

// TestDocumentExplainsEveryID: docs/doctor.md has each row.
func TestDocumentExplainsEveryID(t *testing.T) {
	page, err := os.ReadFile("../../docs/doctor.md")
	if err != nil {
		t.Fatal(err)
	}
	ids := slices.Concat(IDs(), []string{"qemu.binary", "qemu.vsock", "qemu.kvm", "qemu.acceleration",
		"vz.macos", "vz.hardware", "vz.translated", "vz.entitlement", "vz.build"})
	for _, id := range ids {
		if !strings.Contains(string(page), "| `"+id+"` |") {
			t.Errorf("doctor.md does not explain %s", id)
		}
	}
}

package vzcore

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pybox/pybox/vm"
)

// waitBound is how long a test waits for what must happen.
const waitBound = 30 * time.Second

// scripted is a framework that does what a test says. It stands in for
// Virtualization.framework with all its freedoms: not to call back, to call back
// late, to report states in any order.
type scripted struct {
	host     Host
	limits   Limits
	validate func(Spec) error
	make     func(Spec, SerialPort) (VirtualMachine, error)
}

func (f *scripted) Host() (Host, error) { return f.host, nil }
func (f *scripted) Limits() Limits      { return f.limits }

func (f *scripted) Validate(s Spec) error {
	if f.validate == nil {
		return nil
	}
	return f.validate(s)
}

func (f *scripted) New(s Spec, p SerialPort) (VirtualMachine, error) {
	if err := f.Validate(s); err != nil {
		return nil, err
	}
	return f.make(s, p)
}

// aMac is one on which all is well.
func aMac() *scripted {
	return &scripted{
		host: Host{MacOS: "15.1", Hypervisor: true, Executable: os.Args[0]},
		limits: Limits{
			MinCPUs: 1, MaxCPUs: 8, MinMemoryBytes: 4 << 20, MaxMemoryBytes: 16 << 30,
		},
	}
}

// puppet is a machine whose every answer a test gives. A nil function answers at
// once and well.
type puppet struct {
	start, stop, pause, resume func() error
	connect                    func(port uint32) (net.Conn, error)

	port   SerialPort
	hold   bool        // the framework has the port's files for itself, as held
	held   *SerialPort // nil before the machine is made
	states chan State

	mu       sync.Mutex
	state    State
	released bool
	early    bool // it was released in a state that is not terminal
}

// take has the port that a machine is made with.
func (p *puppet) take(t *testing.T, port SerialPort) {
	p.port = port
	if !p.hold {
		return
	}
	p.held = &SerialPort{Input: duplicate(t, port.Input), Output: duplicate(t, port.Output)}
}

func duplicate(t *testing.T, f *os.File) *os.File {
	t.Helper()
	raw, err := f.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var d int
	var failed error
	if err := errors.Join(raw.Control(func(fd uintptr) { d, failed = syscall.Dup(int(fd)) }), failed); err != nil {
		t.Fatal(err)
	}
	n := os.NewFile(uintptr(d), f.Name())
	t.Cleanup(func() { n.Close() })
	return n
}

func newPuppet() *puppet { return &puppet{states: make(chan State, 64)} }

// turn changes the machine's state, as the framework reports it.
func (p *puppet) turn(s State) {
	p.mu.Lock()
	p.state = s
	p.mu.Unlock()
	p.states <- s
}

func (p *puppet) do(f func() error, to State) error {
	if f != nil {
		return f()
	}
	p.turn(to)
	return nil
}

func (p *puppet) Start() error  { return p.do(p.start, StateRunning) }
func (p *puppet) Stop() error   { return p.do(p.stop, StateStopped) }
func (p *puppet) Pause() error  { return p.do(p.pause, StatePaused) }
func (p *puppet) Resume() error { return p.do(p.resume, StateRunning) }

func (p *puppet) State() State {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state
}

func (p *puppet) NextState(done <-chan struct{}) (State, bool) {
	select {
	case s := <-p.states:
		return s, true
	case <-done:
		return 0, false
	}
}

func (p *puppet) Connect(port uint32) (net.Conn, error) {
	if p.connect == nil {
		return nil, reset
	}
	return p.connect(port)
}

func (p *puppet) Release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.released, p.early = true, !p.state.terminal()
}

func (p *puppet) isReleased() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.released
}

// reset is what the framework says of a port that nobody listens on: 54 is ECONNRESET
// in sys/errno.h of macOS. Tests have the numbers, not the names that they test.
var reset = &Error{Domain: DomainPOSIX, Code: 54, Text: "Connection reset by peer"}

// pipeConn is a connection that remembers its closing.
type pipeConn struct {
	net.Conn
	far    net.Conn
	closed chan struct{}
	once   sync.Once
}

func newPipeConn() *pipeConn {
	a, b := net.Pipe()
	return &pipeConn{Conn: a, far: b, closed: make(chan struct{})}
}

func (c *pipeConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// CloseWrite is what must not show through the driver's connections.
func (c *pipeConn) CloseWrite() error { return errors.New("half close is not for protocols") }

// quick is a timing for tests of what happens when the framework does not answer.
var quick = timing{retry: time.Millisecond, patience: 20 * time.Millisecond, kill: 300 * time.Millisecond, drain: 50 * time.Millisecond, settle: 20 * time.Millisecond}

// testDriver is the driver over fw, by its own clock.
func testDriver(t *testing.T, fw Framework, tm timing) *driver {
	d := New(fw, Options{}).(*driver)
	d.t = tm
	return d
}

// over is the driver of a Mac on which every machine is p.
func over(t *testing.T, p *puppet, tm timing) *driver {
	fw := aMac()
	fw.make = func(_ Spec, port SerialPort) (VirtualMachine, error) {
		p.take(t, port)
		return p, nil
	}
	return testDriver(t, fw, tm)
}

// startPuppet starts a machine that is p.
func startPuppet(t *testing.T, p *puppet, tm timing) *machine {
	t.Helper()
	m, err := over(t, p, tm).Start(t.Context(), testConfig(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Kill() }) // some tests make it fail
	return m.(*machine)
}

// testConfig is a machine that the driver takes.
func testConfig(t *testing.T) vm.Config {
	t.Helper()
	return vm.Config{
		Name: "t", Arch: vm.HostArch(), CPUs: 2, MemoryBytes: 256 << 20, Kernel: testKernel(t),
		KernelArgs: []string{"quiet", "panic=-1"},
		Disks: []vm.Disk{
			{Path: writeFile(t, "root.erofs", make([]byte, 4096)), Serial: "root"},
			{Path: writeFile(t, "img.erofs", make([]byte, 512)), Serial: "img-0123456789abcdef"},
		},
	}
}

func writeFile(t *testing.T, name string, data []byte) string {
	t.Helper()
	p := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(p, data, 0o644); err != nil {
		t.Fatal(err)
	}
	return p
}

// testKernel is a file that looks like a kernel of either architecture.
func testKernel(t *testing.T) string {
	b := make([]byte, 4096)
	b[0x1fe], b[0x1ff] = 0x55, 0xaa
	copy(b[0x202:], "HdrS")
	if vm.HostArch() == vm.ArchARM64 {
		b = make([]byte, 4096)
		copy(b[56:], "ARM\x64")
	}
	return writeFile(t, "kernel", b)
}

// soon fails the test when c does not deliver, or close, within the bound.
func soon[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(waitBound):
		t.Fatalf("%s: did not happen", what)
		panic("unreachable")
	}
}

// async runs f beside the test.
func async[T any](f func() T) <-chan T {
	c := make(chan T, 1)
	go func() { c <- f() }()
	return c
}

// waitEnd is Wait with a bound.
func waitEnd(t *testing.T, m vm.Machine) error {
	t.Helper()
	return soon(t, "the machine's end", async(m.Wait))
}

// until polls for something that nothing tells of.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(waitBound); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("%s: did not happen", what)
		}
	}
}

func short(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// oneLine checks what a person gets to read.
func oneLine(t *testing.T, err error, want ...string) {
	t.Helper()
	if strings.ContainsAny(err.Error(), "\n\r") {
		t.Errorf("%q is more than one line", err)
	}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q does not say %q", err, w)
		}
	}
}

var _ io.Writer = writerFunc(nil)

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

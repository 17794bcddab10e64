//go:build linux

// Package boxtest boots the test bundle in a real machine and runs programs in
// real boxes, for the end-to-end tests of several packages. It speaks the agent's
// protocol directly and adds nothing to it: what it returns is what the guest
// said. It is no way to use PyBox.
package boxtest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/pybox/pybox/agent/api"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/guest/bundle"
	"github.com/pybox/pybox/vm"
	"github.com/pybox/pybox/vm/qemu"
	"github.com/pybox/pybox/vm/vmtest"
)

// Bound is how long any one wait may take: many times what emulation needs.
const Bound = 2 * time.Minute

// Guest is a machine whose agent has said hello.
type Guest struct {
	Machine vm.Machine
	Client  *api.Client
	Hello   *agentv1.HelloResponse
	Console *vmtest.Console
	// Image is the serial of the image "stdlib".
	Image  string
	Bundle *bundle.Bundle
	ids    atomic.Int64
}

// Config is a machine with 2 CPUs that boots the bundle b, its images attached.
func Config(b *bundle.Bundle, memory int64) vm.Config {
	m := b.Manifest
	c := vm.Config{
		Name: "box-test", Arch: m.Arch, CPUs: 2, MemoryBytes: memory,
		Kernel: b.Path(m.Kernel.File), KernelArgs: m.KernelArgs,
		Disks: []vm.Disk{{Path: b.Path(m.Root), Serial: "root"}},
	}
	if m.Initramfs != nil {
		c.Initramfs = b.Path(*m.Initramfs)
	}
	for _, i := range m.Images {
		c.Disks = append(c.Disks, vm.Disk{Path: b.Path(i.File), Serial: i.Serial})
	}
	return c
}

// Start boots the test bundle with memory bytes and 2 CPUs; the test ends it. It
// skips the test where end-to-end tests are not asked for.
func Start(t *testing.T, memory int64) *Guest {
	t.Helper()
	b := vmtest.Bundle(t)
	h := vmtest.Harness{Driver: qemu.New(qemu.Options{Logger: vmtest.Logger(t)}), Config: Config(b, memory)}
	ctx, cancel := context.WithTimeout(t.Context(), Bound)
	defer cancel()
	g, err := start(ctx, t, h, b)
	if errors.Is(err, errStalled) {
		t.Logf("started again: %v", err)
		g, err = start(ctx, t, h, b)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Client.Close() })
	return g
}

// errStalled is the emulator's fault; a daemon starts another machine too.
var errStalled = errors.New("a processor of the machine stands still")

func start(ctx context.Context, t *testing.T, h vmtest.Harness, b *bundle.Bundle) (*Guest, error) {
	t.Helper()
	m, console := h.Start(t)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			if strings.Contains(console.String(), vm.StallMark) {
				cancel(errStalled)
			}
		}
	}()
	g, err := Attach(ctx, b, m)
	if err == nil {
		g.Console = console
		return g, nil
	}
	if cause := context.Cause(ctx); cause != nil {
		err = fmt.Errorf("%w (%w)", cause, err)
	}
	return nil, errors.Join(err, m.Kill())
}

// Attach says hello to the agent of the machine m, which boots b, as soon as it
// listens. Close the Client in the end.
func Attach(ctx context.Context, b *bundle.Bundle, m vm.Machine) (*Guest, error) {
	images := b.Manifest.Images
	at := slices.IndexFunc(images, func(i bundle.Image) bool { return i.Name == "stdlib" })
	if at < 0 {
		return nil, errors.New("the bundle has no image \"stdlib\"")
	}
	g := &Guest{Machine: m, Image: images[at].Serial, Bundle: b}
	tick := time.NewTicker(15 * time.Millisecond)
	defer tick.Stop()
	for {
		err := g.connect(ctx)
		if err == nil || !errors.Is(err, vm.ErrRefused) {
			return g, err
		}
		<-tick.C
	}
}

func (g *Guest) connect(ctx context.Context) error {
	conn, err := g.Machine.Dial(ctx, api.AgentPort)
	if err != nil {
		return err
	}
	if g.Client, err = api.NewClient(ctx, conn); err != nil {
		return err
	}
	h, err := g.Client.Hello(ctx, connect.NewRequest(&agentv1.HelloRequest{ProtocolVersion: api.ProtocolVersion, HostVersion: "test"}))
	if err != nil {
		_ = g.Client.Close()
		return err
	}
	g.Hello = h.Msg
	return nil
}

// Context ends after Bound, and with the test.
func (g *Guest) Context(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), Bound)
	t.Cleanup(cancel)
	return ctx
}

// Records reads what PID 1 has recorded.
func (g *Guest) Records(t *testing.T) *api.Records {
	t.Helper()
	conn, err := g.Machine.Dial(g.Context(t), api.RecordsPort)
	if err != nil {
		t.Fatal(err)
	}
	r, err := api.ReadRecords(g.Context(t), conn)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Status asks the agent for its readings.
func (g *Guest) Status(t *testing.T) *agentv1.StatusResponse {
	t.Helper()
	s, err := g.ReadStatus(g.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// ReadStatus is Status for others than tests.
func (g *Guest) ReadStatus(ctx context.Context) (*agentv1.StatusResponse, error) {
	r, err := g.Client.Status(ctx, connect.NewRequest(&agentv1.StatusRequest{}))
	if err != nil {
		return nil, err
	}
	return r.Msg, nil
}

// Until polls the agent's readings until ok, and fails the test after Bound.
func (g *Guest) Until(t *testing.T, what string, ok func(*agentv1.StatusResponse) bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(Bound); ; <-tick.C {
		s := g.Status(t)
		if ok(s) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s did not come: %v", what, s)
		}
	}
}

// Idle waits until the guest has no run, no box and nobody who waits for room.
func (g *Guest) Idle(t *testing.T) {
	t.Helper()
	g.Until(t, "an idle guest", func(s *agentv1.StatusResponse) bool {
		return s.GetBoxes() == 0 && s.GetCgroups() == 0 && s.GetWaiting() == 0
	})
}

// SetReady has so many boxes kept ready for runs as p is one, and takes back what was
// asked for before; 0: none.
func (g *Guest) SetReady(t *testing.T, n uint32, p Program) {
	t.Helper()
	if err := g.AskReady(g.Context(t), n, p); err != nil {
		t.Fatal(err)
	}
}

// AskReady is SetReady for others than tests.
func (g *Guest) AskReady(ctx context.Context, n uint32, p Program) error {
	r := &agentv1.SetReadyRequest{}
	if n > 0 {
		s := g.RunStart(&p)
		r.Ready = []*agentv1.Ready{{
			Image: s.GetImage(), Count: n, Limits: s.GetLimits(), Env: s.GetEnv(), OutputBytes: s.GetStdoutBytes() + s.GetStderrBytes(),
			Imports: p.Imports,
		}}
	}
	_, err := g.Client.SetReady(ctx, connect.NewRequest(r))
	return err
}

// AwaitReady waits until so many boxes of each kind that is to be ready are.
func (g *Guest) AwaitReady(t *testing.T, n uint32) {
	t.Helper()
	if err := g.UntilReady(g.Context(t), n); err != nil {
		t.Fatal(err)
	}
}

// UntilReady is AwaitReady for others than tests.
func (g *Guest) UntilReady(ctx context.Context, n uint32) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		s, err := g.ReadStatus(ctx)
		if err != nil {
			return err
		}
		enough := true
		for _, r := range s.GetReady() {
			if r.GetTrouble() != "" {
				return fmt.Errorf("no box is made ready: %v", r)
			}
			enough = enough && r.GetReady() >= n
		}
		if enough {
			return nil
		}
		<-tick.C
	}
}

// Program is what to run.
type Program struct {
	// Source is the Python text; Name its file, main.py by default.
	Source, Name string
	Args, Env    []string
	// Files are further ones, by name. Inputs go after them, in their order.
	Files  map[string]string
	Inputs []Input
	// MaxFiles and MaxFilesBytes bound the files beside the program, and what comes
	// back; 0 stands for 1,024 and 1 GiB, negative numbers for none.
	MaxFiles, MaxFilesBytes int64
	// Uncollected asks for no files back.
	Uncollected bool
	// Stdin is standard input; nil: empty.
	Stdin []byte
	// The limits; zero values stand for 128 MiB, 32 processes, 1 CPU, 20 s, and
	// 1 MiB of each output, negative ones for none of it.
	Memory, PIDs, MilliCPU int64
	Timeout                time.Duration
	Stdout, Stderr         int64
	QueueWait              time.Duration
	// Imports are what boxes that are kept ready for it import: see Guest.AskReady.
	Imports []string
	// Eager sends the files before the run is admitted.
	Eager bool
	// ID names the run; a number by default.
	ID string
	// On is called for every event but output, in order, while the run goes on.
	On func(*agentv1.RunEvent)
	// OnOutput is called for every piece of output.
	OnOutput func(stream uint32, data []byte)
	// OnLeft, where it is set, gets the pieces of what comes back, instead of the
	// outcome.
	OnLeft func(data []byte)
	// Upload, where it is set, sends what follows the start instead: the files,
	// the go and standard input. It is called once, beside the events.
	Upload func(send func(*agentv1.RunRequest) error) error
}

// Input is a file or a folder of the working folder.
type Input struct {
	Name, Text         string
	Executable, Folder bool
}

// Left is a file or a folder that came back.
type Left struct {
	*agentv1.LeftFile
	// Data is its content; nil where OnLeft got it.
	Data []byte
	// Bytes is how many came.
	Bytes int64
}

// Outcome is what came of a run.
type Outcome struct {
	ID             string
	Stdout, Stderr []byte
	Events         []*agentv1.RunEvent // all but output and the bytes of files
	Left           []*Left
	Record         *agentv1.RunRecord
	// Exited is the event of that name, nil when there was none.
	Exited *agentv1.Exited
	// Took is from the request to the record, on the host's clock.
	Took time.Duration
}

// Status is the main process's wait status.
func (o *Outcome) Status() syscall.WaitStatus {
	return syscall.WaitStatus(o.Record.GetExit().GetRawStatus())
}

// Code is the exit code of a program that exited by itself, -1 of any other.
func (o *Outcome) Code() int {
	if !o.Record.GetExit().GetKnown() || !o.Status().Exited() {
		return -1
	}
	return o.Status().ExitStatus()
}

// String tells the essence, for failures.
func (o *Outcome) String() string {
	r := o.Record
	return fmt.Sprintf("%s by %s %s, exit %v, evidence %q, unknown %v, stdout %.2000q, stderr %.2000q",
		r.GetEnding().GetHow(), r.GetEnding().GetBy(), r.GetEnding().GetReason(), r.GetExit(), r.GetEnding().GetEvidence(), r.GetUnknown(), o.Stdout, o.Stderr)
}

// Run runs p and fails the test when the guest gives no record, or one that does
// not agree with what came.
func (g *Guest) Run(t *testing.T, p Program) *Outcome {
	t.Helper()
	o, err := g.Try(g.Context(t), p)
	if err != nil {
		t.Fatalf("run: %v", err)
	}
	if err := o.check(); err != nil {
		t.Fatalf("%v: %v", err, o)
	}
	return o
}

// File gives what came back under that name; nil: nothing.
func (o *Outcome) File(name string) *Left {
	for _, f := range o.Left {
		if f.GetName() == name {
			return f
		}
	}
	return nil
}

// takeData adds a piece to the file that came last.
func (o *Outcome) takeData(b []byte, p Program) error {
	if len(o.Left) == 0 {
		return errors.New("bytes of no file came")
	}
	f := o.Left[len(o.Left)-1]
	f.Bytes += int64(len(b))
	if p.OnLeft != nil {
		p.OnLeft(b)
	} else {
		f.Data = append(f.Data, b...)
	}
	return nil
}

// checkLeft holds the record to the files that came. Only the last may be cut, and only
// in an account that is not complete.
func (o *Outcome) checkLeft() error {
	said := o.Record.GetLeft().GetFiles()
	if len(said) != len(o.Left) {
		return fmt.Errorf("%d files came back, the record says %d", len(o.Left), len(said))
	}
	for i, f := range o.Left {
		cut := i == len(said)-1 && !o.Record.GetLeft().GetComplete() && f.Bytes < f.GetBytes()
		if !proto.Equal(f.LeftFile, said[i]) || f.Bytes != f.GetBytes() && !cut {
			return fmt.Errorf("file %d is %v with %d bytes, the record says %v", i, f.LeftFile, f.Bytes, said[i])
		}
	}
	return nil
}

// check holds the record to what came beside it.
func (o *Outcome) check() error {
	if err := o.checkLeft(); err != nil {
		return err
	}
	for _, s := range []struct {
		name string
		got  []byte
		said *agentv1.Printed
	}{{"stdout", o.Stdout, o.Record.GetStdout()}, {"stderr", o.Stderr, o.Record.GetStderr()}} {
		if int64(len(s.got)) != s.said.GetKeptBytes() {
			return fmt.Errorf("%d bytes of %s came, the record says %d", len(s.got), s.name, s.said.GetKeptBytes())
		}
		if sum := sha256.Sum256(s.got); s.said.GetBytes() == s.said.GetKeptBytes() && s.said.GetSha256() != nil && !bytes.Equal(sum[:], s.said.GetSha256()) {
			return fmt.Errorf("what came of %s has another SHA-256 than the record says", s.name)
		}
	}
	return nil
}

// NewID is an id that no other run of this guest has.
func (g *Guest) NewID() string { return fmt.Sprintf("test-%d", g.ids.Add(1)) }

// RunStart gives the start of p, and p its defaults.
func (g *Guest) RunStart(p *Program) *agentv1.RunStart {
	def := func(v *int64, d int64) {
		if *v == 0 {
			*v = d
		}
	}
	def(&p.Memory, 128<<20)
	def(&p.PIDs, 32)
	def(&p.MilliCPU, 1000)
	def((*int64)(&p.Timeout), int64(20*time.Second))
	def((*int64)(&p.QueueWait), int64(Bound))
	def(&p.Stdout, 1<<20)
	def(&p.Stderr, 1<<20)
	def(&p.MaxFiles, api.MaxLeft)
	def(&p.MaxFilesBytes, 1<<30)
	stdout, stderr := max(p.Stdout, 0), max(p.Stderr, 0)
	if p.Name == "" {
		p.Name = "main.py"
	}
	if p.ID == "" {
		p.ID = g.NewID()
	}
	return &agentv1.RunStart{
		Id: p.ID, Image: g.Image, Program: p.Name, Args: p.Args, Env: p.Env,
		Limits:    &agentv1.Limits{MemoryBytes: p.Memory, Pids: p.PIDs, MilliCpu: p.MilliCPU, WorkBytes: p.Memory, WorkFiles: 16384},
		TimeoutNs: int64(p.Timeout), StdoutBytes: stdout, StderrBytes: stderr, QueueWaitNs: int64(p.QueueWait),
		Files: max(p.MaxFiles, 0), FilesBytes: max(p.MaxFilesBytes, 0), Collect: !p.Uncollected,
	}
}

// Try runs p. An error means that no record came; the outcome then has what did.
func (g *Guest) Try(ctx context.Context, p Program) (*Outcome, error) {
	began := time.Now()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s := g.Client.Run(ctx)
	o := &Outcome{}
	start := g.RunStart(&p)
	o.ID = p.ID
	if err := s.Send(&agentv1.RunRequest{Part: &agentv1.RunRequest_Start{Start: start}}); err != nil {
		_, err = s.Receive() // the true reason
		return o, err
	}
	var sent chan error
	if p.Eager {
		sent = make(chan error, 1)
		go func() { sent <- upload(s, p) }()
	}
	for {
		e, err := s.Receive()
		if err != nil {
			return o, err
		}
		switch {
		case e.GetOutput() != nil:
			if e.GetOutput().GetStream() == 1 {
				o.Stdout = append(o.Stdout, e.GetOutput().GetData()...)
			} else {
				o.Stderr = append(o.Stderr, e.GetOutput().GetData()...)
			}
			if p.OnOutput != nil {
				p.OnOutput(e.GetOutput().GetStream(), e.GetOutput().GetData())
			}
			continue
		case e.GetLeftFile() != nil:
			o.Left = append(o.Left, &Left{LeftFile: e.GetLeftFile()})
		case e.GetLeftData() != nil:
			if err := o.takeData(e.GetLeftData(), p); err != nil {
				return o, err
			}
			continue
		case e.GetAdmitted() != nil && sent == nil:
			sent = make(chan error, 1)
			go func() {
				if p.Upload != nil {
					sent <- p.Upload(s.Send)
				} else {
					sent <- upload(s, p)
				}
			}()
		case e.GetExited() != nil:
			o.Exited = e.GetExited()
		case e.GetRecord() != nil:
			o.Record, o.Took = e.GetRecord(), time.Since(began)
		}
		o.Events = append(o.Events, e)
		if p.On != nil {
			p.On(e)
		}
		if o.Record != nil && o.Record.GetCleanup().GetStatus() == api.CleanupRemoved || e.GetCleanup() != nil {
			_ = s.CloseRequest()
			return o, nil
		}
	}
}

// maxPart is how much of a file goes at a time.
const maxPart = api.MaxDataPiece

func upload(s *connect.BidiStreamForClient[agentv1.RunRequest, agentv1.RunEvent], p Program) error {
	files := []Input{{Name: p.Name, Text: p.Source}}
	for name, text := range p.Files {
		files = append(files, Input{Name: name, Text: text})
	}
	for _, f := range append(files, p.Inputs...) {
		if err := s.Send(&agentv1.RunRequest{Part: &agentv1.RunRequest_File{File: &agentv1.RunFile{
			Name: f.Name, Bytes: int64(len(f.Text)), Executable: f.Executable, Folder: f.Folder,
		}}}); err != nil {
			return err
		}
		for b := f.Text; len(b) > 0; {
			n := min(len(b), maxPart)
			if err := s.Send(&agentv1.RunRequest{Part: &agentv1.RunRequest_Data{Data: []byte(b[:n])}}); err != nil {
				return err
			}
			b = b[n:]
		}
	}
	if err := s.Send(&agentv1.RunRequest{Part: &agentv1.RunRequest_Go{Go: &agentv1.RunGo{Stdin: p.Stdin != nil}}}); err != nil {
		return err
	}
	for b := p.Stdin; len(b) > 0; {
		n := min(len(b), maxPart)
		if err := s.Send(&agentv1.RunRequest{Part: &agentv1.RunRequest_Stdin{Stdin: b[:n]}}); err != nil {
			return err
		}
		b = b[n:]
	}
	if p.Stdin != nil {
		return s.Send(&agentv1.RunRequest{Part: &agentv1.RunRequest_Stdin{}})
	}
	return nil
}

// Cancel asks the agent to kill a run.
func (g *Guest) Cancel(t *testing.T, id string) {
	t.Helper()
	if _, err := g.Client.CancelRun(g.Context(t), connect.NewRequest(&agentv1.CancelRunRequest{Id: id})); err != nil {
		t.Error(err)
	}
}

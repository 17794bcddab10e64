//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/receipt"
	"github.com/pybox/pybox/host/receipt/receipttest"
)

// patience bounds the wait for anything that has to come, on a busy machine that
// emulates the guest.
const patience = time.Minute

// ran is a 'pybox exec' and the receipt that was kept of it.
type ran struct {
	outcome
	receipt *receipt.Receipt
}

// in is the same person in a test of its own.
func (p *person) in(t *testing.T) *person {
	q := *p
	q.t = t
	return &q
}

// program writes a program and gives its path.
func (p *person) program(name, text string) string {
	p.t.Helper()
	path := filepath.Join(p.t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		p.t.Fatal(err)
	}
	return path
}

// exec runs 'pybox exec', with time enough for an emulated guest unless args say
// otherwise. One receipt has to be kept of it.
func (p *person) exec(args ...string) ran {
	p.t.Helper()
	before := p.keptIDs()
	o := p.run(append([]string{"exec", "--timeout", "30"}, args...)...)
	r := p.newReceipt(before)
	if r == nil {
		p.t.Fatalf("pybox exec %q: no receipt is kept; exit %d, stdout %.1000q, stderr %.4000q", args, o.code, o.out, o.err)
	}
	return ran{o, r}
}

// keptIDs are the ids of the kept receipts.
func (p *person) keptIDs() map[string]bool {
	ids := map[string]bool{}
	for id := range p.keptFiles() {
		ids[id] = true
	}
	return ids
}

// keptFiles are the files of the kept receipts by id.
func (p *person) keptFiles() map[string]string {
	files := map[string]string{}
	paths, _ := filepath.Glob(filepath.Join(p.home, "receipts", "*.json"))
	for _, f := range paths {
		_, id, _ := strings.Cut(strings.TrimSuffix(filepath.Base(f), ".json"), "-")
		files[id] = f
	}
	return files
}

// newReceipt is the one receipt that was kept since before, nil when there is none.
func (p *person) newReceipt(before map[string]bool) (r *receipt.Receipt) {
	p.t.Helper()
	for id := range p.keptFiles() {
		if before[id] {
			continue
		}
		if r != nil {
			p.t.Errorf("two receipts were kept: %s, %s", id, r.Run.ID)
		}
		r = p.kept(id)
	}
	return r
}

// kept reads a kept receipt and holds it to the schema.
func (p *person) kept(id string) *receipt.Receipt {
	p.t.Helper()
	f, ok := p.keptFiles()[id]
	if !ok {
		p.t.Fatalf("no receipt of run %s is kept", id)
	}
	return readReceipt(p.t, mustRead(p.t, f))
}

// readReceipt reads a receipt, with or without output, and holds it to the schema.
func readReceipt(t *testing.T, b []byte) *receipt.Receipt {
	t.Helper()
	if err := receipttest.Validate(b); err != nil {
		t.Errorf("%v\nin %s", err, b)
	}
	r := new(receipt.Receipt)
	if err := json.Unmarshal(b, r); err != nil {
		t.Fatalf("%v in %s", err, b)
	}
	if err := receipttest.Unlisted(r); err != nil {
		t.Errorf("%v\nin %s", err, b)
	}
	return r
}

// eventually waits until ok says so.
func (p *person) eventually(what string, ok func() bool) {
	p.t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			p.t.Fatalf("within %v this did not come: %s", patience, what)
		}
	}
}

// expectIdle waits until the VM has no run and no box any more.
func (p *person) expectIdle() {
	p.t.Helper()
	p.eventually("a VM without runs and boxes", func() bool {
		s := p.status()
		return s.Runs != nil && s.Runs.Active == 0 && s.Guest != nil && s.Guest.Answering && s.Guest.Boxes == 0
	})
}

// running tells how many runs are in progress.
func (p *person) running() int {
	p.t.Helper()
	s := p.status()
	if s.State != api.StateRunning || s.Runs == nil {
		return 0
	}
	return s.Runs.Active
}

// session is a command that goes on while the test does.
type session struct {
	t        *testing.T
	cmd      *exec.Cmd
	out, err *stream
	done     chan struct{} // closed when the process and its output have ended
}

// start starts a command; change may be nil.
func (p *person) start(change func(*exec.Cmd), args ...string) *session {
	p.t.Helper()
	s := &session{t: p.t, cmd: p.command(args...), out: newStream(), err: newStream(), done: make(chan struct{})}
	s.cmd.Stdout, s.cmd.Stderr = s.out, s.err
	if change != nil {
		change(s.cmd)
	}
	if err := s.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	go func() {
		defer close(s.done)
		_ = s.cmd.Wait() // its ProcessState tells
	}()
	p.t.Cleanup(func() {
		_ = s.cmd.Process.Kill()
		<-s.done
	})
	return s
}

// signal sends a signal to the command alone.
func (s *session) signal(sig syscall.Signal) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Fatal(err)
	}
}

// alive tells whether the command goes on.
func (s *session) alive() bool {
	select {
	case <-s.done:
		return false
	default:
		return true
	}
}

// wait waits for the end of the command.
func (s *session) wait() outcome {
	s.t.Helper()
	select {
	case <-s.done:
	case <-time.After(patience):
		s.t.Fatalf("the command does not end; stdout %.2000q, stderr %.2000q", s.out, s.err)
	}
	return outcome{s.out.String(), s.err.String(), s.cmd.ProcessState.ExitCode()}
}

// see waits until text has come on one of the streams.
func (s *session) see(from *stream, text string) {
	s.t.Helper()
	if err := from.await(text); err != nil {
		s.t.Fatalf("%v; stdout %.2000q, stderr %.2000q", err, s.out, s.err)
	}
}

// stream collects what is written to it.
type stream struct {
	mu   sync.Mutex
	b    bytes.Buffer
	more chan struct{}
}

func newStream() *stream { return &stream{more: make(chan struct{}, 1)} }

// Write implements io.Writer.
func (s *stream) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case s.more <- struct{}{}:
	default:
	}
	return s.b.Write(p)
}

func (s *stream) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// await waits until the stream has text in it. One caller at a time.
func (s *stream) await(text string) error {
	late := time.After(patience)
	for !strings.Contains(s.String(), text) {
		select {
		case <-s.more:
		case <-late:
			return errors.New("there was no " + text)
		}
	}
	return nil
}

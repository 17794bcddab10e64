// Package runs carries out runs in one VM for the daemon: it decides the limits,
// drives the run through package guestrun, composes the receipt and keeps it. It
// knows nothing of HTTP, and nothing of how the VM came to be.
package runs

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	agentapi "github.com/pybox/pybox/agent/api"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/agent/oci"
	"github.com/pybox/pybox/guest/bundle"
	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/guestrun"
	"github.com/pybox/pybox/host/policy"
	"github.com/pybox/pybox/host/receipt"
	"github.com/pybox/pybox/host/spool"
)

var (
	// ErrImage: the VM has no image of that name.
	ErrImage = errors.New("no such image")
	// ErrExists: a run with that id is in progress, or its receipt is kept.
	ErrExists = errors.New("the id is in use")
	// ErrBusy: there was no room in the VM in time.
	ErrBusy = errors.New("there was no room in time")
	// ErrClosed: the VM is stopping and takes no more runs.
	ErrClosed = errors.New("the VM is stopping")
)

const (
	// workFiles bounds the files and folders of a working folder: as many as
	// /tmp of a box can have. Each takes about 1 KiB of the box's memory.
	workFiles = oci.TmpFiles
	// idBytes is the length of an id that the service chooses, in bytes of two
	// digits each; idTries bounds the search for one that is free.
	idBytes, idTries = 4, 100
	// maxBacklog bounds the output that waits for all sinks of a service, in bytes:
	// above it those that lag most get no more.
	maxBacklog = 128 << 20
)

// Keeper stores receipts durably; *receipts.Store is the real one. Its methods are
// called concurrently.
type Keeper interface {
	// Put stores a receipt, or replaces the one with its id. It must not change
	// it, nor keep it.
	Put(r *receipt.Receipt) error
	// Has tells whether a receipt with that id is kept.
	Has(id string) bool
}

// Options are what a Service is made of.
type Options struct {
	Guest guestrun.Guest
	// VM tells what is known of the machine at the moment, for receipts. Versions
	// are those of what makes boxes.
	VM       func() receipt.VM
	Versions map[string]string
	Images   []bundle.Image
	Policy   *policy.Policy
	// Before is called before the guest is asked for a run, on behalf of which ctx
	// is; nil does nothing. It delays the run.
	Before func(ctx context.Context)
	// Usual is called when Ready would give something else than before, because runs
	// ask for other limits than they did. It must not block. nil does nothing.
	Usual func()
	// QueueWait is how long a run may wait for room.
	QueueWait time.Duration
	Keep      Keeper
	// Files keeps what comes back, for the clients that ask for it; nil: none may.
	Files *spool.Spool
	// Log gets a line for each run, and what went wrong; nil discards it.
	Log *slog.Logger
	// Now is the host's wall clock; nil is time.Now.
	Now func() time.Time
}

// Service runs programs in one VM. It is safe for concurrent use.
type Service struct {
	o Options
	// work counts the runs whose receipts are not kept yet, and the removals whose
	// confirmation is waited for. It grows under mu while the service is open, or
	// while it is not zero.
	work sync.WaitGroup

	mu     sync.Mutex
	closed bool
	active map[string]*Run
	lent   map[*Run]struct{} // those whose sinks are in use

	usual usual

	backlog    atomic.Int64 // bytes of output that wait for them
	maxBacklog int64        // maxBacklog; tests have a smaller one
}

// New makes a Service.
func New(o Options) *Service {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Service{o: o, active: map[string]*Run{}, lent: map[*Run]struct{}{}, maxBacklog: maxBacklog}
}

// File is a file of a request. Open gives its content, once; Bytes is its size.
type File struct {
	Name  string
	Bytes int64
	Open  func() (io.ReadCloser, error)
	// Executable and Folder are for inputs; of a folder the name alone counts.
	Executable, Folder bool
}

// Request is a run as its client asks for it.
type Request struct {
	ID      string // empty: the service chooses one
	Image   string // empty: api.DefaultImage
	Program File   // its name is api.DefaultProgram when empty
	Args    []string
	Env     []string
	Stdin   *File // nil: empty
	// Inputs lie in the working folder beside the program, in any order.
	Inputs []File
	// Collect keeps what the program leaves there.
	Collect bool
	Ask     policy.Ask
	// Watch asks for the events of stages, settings and samples too.
	Watch bool
}

// Begin checks a request, decides its limits and takes its id, which is free again
// once Do has returned without a receipt. The error matches agent/api.ErrRequest,
// policy.ErrInvalid, policy.ErrCeiling, ErrImage, ErrExists or ErrClosed.
func (s *Service) Begin(r Request) (*Run, error) {
	began, at := time.Now(), s.o.Now()
	run, err := s.plan(r)
	if err != nil {
		return nil, err
	}
	run.began, run.at = began, at
	run.ctx, run.stop = context.WithCancelCause(context.Background())
	if r.ID != "" {
		err = s.claim(run, r.ID)
	} else {
		err = s.claimAny(run)
	}
	if err != nil {
		run.stop(nil)
		return nil, err
	}
	return run, nil
}

// limitsOf are the limits of a box.
func limitsOf(l policy.Limits) *agentv1.Limits {
	return &agentv1.Limits{
		MemoryBytes: l.MemoryBytes, Pids: l.PIDs, MilliCpu: l.MilliCPU, WorkBytes: l.MemoryBytes, WorkFiles: workFiles,
	}
}

// plan makes the run that r asks for.
func (s *Service) plan(r Request) (*Run, error) {
	r.Image, r.Program.Name = cmp.Or(r.Image, api.DefaultImage), cmp.Or(r.Program.Name, api.DefaultProgram)
	if r.ID != "" {
		if err := agentapi.CheckRunID(r.ID); err != nil {
			return nil, err
		}
	}
	r.Inputs = sortInputs(r.Inputs)
	if err := checkFiles(r); err != nil {
		return nil, err
	}
	image, err := s.image(r.Image)
	if err != nil {
		return nil, err
	}
	l, err := s.o.Policy.Resolve(r.Image, r.Ask)
	if err != nil {
		return nil, err
	}
	if err := checkInputs(r, l); err != nil {
		return nil, err
	}
	start := &agentv1.RunStart{
		Id: cmp.Or(r.ID, "none-yet"), Image: image.Serial, Program: r.Program.Name, Args: r.Args, Env: r.Env,
		Limits: limitsOf(l), TimeoutNs: int64(l.Timeout), StdoutBytes: l.OutputBytes, StderrBytes: l.OutputBytes, QueueWaitNs: int64(s.o.QueueWait),
		Files: l.Files, FilesBytes: l.FilesBytes, Collect: r.Collect && s.o.Files != nil,
	}
	if err := agentapi.CheckRunStart(start); err != nil {
		return nil, err
	}
	return &Run{s: s, request: r, image: image, limits: l, start: start, out: newOutbox(&s.backlog)}, nil
}

// checkFiles holds the program and the standard input to their bounds.
func checkFiles(r Request) error {
	if err := agentapi.CheckProgramName(r.Program.Name); err != nil {
		return err
	}
	if err := checkSize("the program", r.Program.Bytes, api.MaxProgramBytes); err != nil || r.Stdin == nil {
		return err
	}
	return checkSize("the standard input", r.Stdin.Bytes, api.MaxStdinBytes)
}

func checkSize(what string, n, most int64) error {
	if n < 0 || n > most {
		return fmt.Errorf("%w: %s has %d bytes, want 0 to %d", agentapi.ErrRequest, what, n, most)
	}
	return nil
}

// image finds an image of the VM by its name.
func (s *Service) image(name string) (bundle.Image, error) {
	names := make([]string, 0, len(s.o.Images))
	for _, i := range s.o.Images {
		if i.Name == name {
			return i, nil
		}
		names = append(names, i.Name)
	}
	slices.Sort(names)
	return bundle.Image{}, fmt.Errorf("%w: \"%s\"; the VM has %s", ErrImage, agentapi.Text(name, 80), cmp.Or(strings.Join(names, ", "), "none"))
}

// claimAny takes an id of the service's choice for the run.
func (s *Service) claimAny(run *Run) error {
	var err error
	for range idTries {
		var b [idBytes]byte
		rand.Read(b[:]) // never fails
		if err = s.claim(run, hex.EncodeToString(b[:])); !errors.Is(err, ErrExists) {
			return err
		}
	}
	return err
}

// claim takes an id for the run, which is among the active ones then.
func (s *Service) claim(run *Run, id string) error {
	run.start.Id = id
	if err := s.enter(run); err != nil {
		return err
	}
	// A receipt is kept before its run gives the id back.
	if s.o.Keep.Has(id) {
		s.leave(run)
		return fmt.Errorf("%w: there is a receipt of the run %s", ErrExists, id)
	}
	return nil
}

func (s *Service) enter(run *Run) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	if s.active[run.ID()] != nil {
		return fmt.Errorf("%w: the run %s is in progress", ErrExists, run.ID())
	}
	s.active[run.ID()] = run
	s.work.Add(1)
	return nil
}

func (s *Service) leave(run *Run) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.active, run.ID())
	s.work.Done()
}

// lend notes that the sink of a run is in use and may lag, or with nil that it is not.
func (s *Service) lend(run *Run, lags func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if run.lags = lags; lags == nil {
		delete(s.lent, run)
		return
	}
	s.lent[run] = struct{}{}
}

// relieve tells the sink that lags most of it where too much waits for all of them.
func (s *Service) relieve() {
	if s.backlog.Load() <= s.maxBacklog {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var last *Run
	var most int64
	for r := range s.lent {
		if n := r.out.waits(); n > most {
			last, most = r, n
		}
	}
	if last != nil {
		last.lags()
	}
}

// Cancel cancels a run in progress and tells whether there was one. The cause is
// put among the evidence of its ending.
func (s *Service) Cancel(id string, cause error) bool {
	s.mu.Lock()
	run := s.active[id]
	s.mu.Unlock()
	if run == nil {
		return false
	}
	run.cancel(cause, receipt.ByClient)
	return true
}

// Active lists the runs in progress, oldest first: those whose receipts are not
// kept yet.
func (s *Service) Active() []api.ActiveRun {
	runs := s.inProgress()
	slices.SortFunc(runs, func(a, b *Run) int {
		return cmp.Or(a.began.Compare(b.began), strings.Compare(a.ID(), b.ID()))
	})
	list := make([]api.ActiveRun, 0, len(runs))
	for _, r := range runs {
		list = append(list, api.ActiveRun{
			ID: r.ID(), Image: r.image.Name, Program: r.start.GetProgram(), StartedAt: receipt.UTC(r.at), State: r.state(),
		})
	}
	return list
}

func (s *Service) inProgress() []*Run {
	s.mu.Lock()
	defer s.mu.Unlock()
	runs := make([]*Run, 0, len(s.active))
	for _, r := range s.active {
		runs = append(runs, r)
	}
	return runs
}

// closing is the cause of Close. It matches ErrClosed too.
type closing struct{ error }

// Unwrap gives what it matches.
func (c closing) Unwrap() []error { return []error{c.error, ErrClosed} }

// Close takes no more runs, cancels those in progress and waits until their
// receipts are kept, removals that are confirmed later included, or ctx ends. What
// a sink has not taken yet is not waited for. The receipts say that the host ended
// their runs, and the cause.
func (s *Service) Close(ctx context.Context, cause error) error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	if cause == nil {
		cause = ErrClosed
	}
	for _, r := range s.inProgress() {
		r.cancel(closing{cause}, receipt.ByHost)
	}
	kept := make(chan struct{})
	go func() {
		defer close(kept)
		s.work.Wait()
	}()
	select {
	case <-kept:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%d runs are in progress, and removals of others not confirmed: %w", len(s.inProgress()), context.Cause(ctx))
	}
}

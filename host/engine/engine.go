// Package engine runs programs for the parts of PyBox that are no terminal, the
// MCP server and the repair loop: it starts the VM when there is none, has the
// daemon run the program, gathers the output within bounds, and gives what the
// program left. It decides no limits, composes no receipt, shows nothing, and
// knows no protocol but the daemon's.
package engine

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/policy"
	"github.com/pybox/pybox/host/receipt"
)

// tries bounds the attempts at a run: each finds a daemon that others are just
// stopping, at worst.
const tries = 10

// Daemon is what is asked of the daemon; *api.Client is the real one.
type Daemon interface {
	Run(ctx context.Context, r api.RunRequest, on func(api.Event) error) (*api.Outcome, error)
	StoreFile(ctx context.Context, r io.Reader) (api.StoredFile, error)
	File(ctx context.Context, id string) (io.ReadCloser, error)
	ForgetFile(ctx context.Context, id string) error
}

// Host is this machine's PyBox; the one that execute.NewHost makes is the real one.
// Its methods are safe for concurrent use.
type Host interface {
	Daemon
	// Start makes sure that a VM is ready; progress is called while it starts.
	Start(ctx context.Context, progress func(api.Status)) error
	// Policy is the owner's, for a VM that is started now, and Images are the
	// names of that VM's images: none when they are not known.
	Policy() (*policy.Policy, error)
	Images() []string
}

// Engine runs programs on a Host. It is safe for concurrent use.
type Engine struct {
	host    Host
	noStart bool
}

// Options are how an Engine works.
type Options struct {
	// NoStart refuses to start a VM: a run without one ends with ErrNoVM.
	NoStart bool
}

// ErrNoVM: there is no VM, and Options.NoStart keeps it so.
var ErrNoVM = errors.New("the VM is not running: 'pybox vm start' starts it")

// New makes an Engine.
func New(h Host, o Options) *Engine { return &Engine{h, o.NoStart} }

// File is a file that goes into a box. Its name is a relative path with "/"
// between its parts.
type File struct {
	Name string
	Data []byte
	// Executable lets the program execute an input, as far as the box allows that.
	// Folder makes a folder of an input, which has no data then.
	Executable, Folder bool
}

// Job asks for one run of a program.
type Job struct {
	// Image is api.DefaultImage when empty.
	Image string
	// Program is its text, and its file name in the box: api.DefaultProgram when
	// that is empty.
	Program File
	Args    []string
	// Env is added to the environment of the box, as NAME=value.
	Env []string
	// Stdin is the program's standard input.
	Stdin []byte
	// Inputs are put into the working folder beside the program.
	Inputs []File
	// Collect keeps what the program leaves: see Result.Left.
	Collect bool
	Limits  api.Limits
}

// Step is how far a run has come, for those who show progress.
type Step struct {
	// Status is set while the VM starts, Event when something happened in the run:
	// that of api.Client.Run, output included. It must not be kept.
	Status *api.Status
	Event  *api.Event
}

// Result is a run that came to its end.
type Result struct {
	// Receipt is without output. Its Program.Files with an id in File came back
	// and can be read with Engine.Open until Engine.Forget. Never nil.
	Receipt *receipt.Receipt
	// NotKept is why the daemon could not store the receipt; empty: it did.
	NotKept string
	// Stdout and Stderr are what was kept of the output, at most
	// Limits.OutputBytes each.
	Stdout, Stderr []byte
}

// Policy is the owner's, and Images are the names of the images that a VM has which
// is started now.
func (e *Engine) Policy() (*policy.Policy, error) { return e.host.Policy() }

// Images are the names of the images that a VM has which is started now: none when
// they are not known.
func (e *Engine) Images() []string { return e.host.Images() }

// Run runs a program. on, which may be nil, is called in order from the goroutine
// of Run and must not block for long; the end of ctx cancels the run. Errors: a
// *api.Problem when there was no run (also when the VM did not start), ErrNoVM,
// api.ErrHungUp when the daemon went away in the middle, api.ErrStream, the cause of
// ctx. That a program failed is no error: the receipt tells.
func (e *Engine) Run(ctx context.Context, j Job, on func(Step)) (*Result, error) {
	if on == nil {
		on = func(Step) {}
	}
	var err error
	for range tries {
		a := attempt{daemon: e.host, job: j, on: on}
		var out *Result
		if out, err = a.run(ctx); err == nil || a.accepted || ctx.Err() != nil || !noVM(err) {
			return out, err
		}
		if e.noStart {
			return nil, fmt.Errorf("%w (%w)", ErrNoVM, err)
		}
		if err := e.host.Start(ctx, func(s api.Status) { on(Step{Status: &s}) }); err != nil {
			return nil, err
		}
	}
	return nil, err
}

// noVM tells whether there was no VM to run anything, or one on its way out.
func noVM(err error) bool {
	var p *api.Problem
	return errors.Is(err, api.ErrNoDaemon) || errors.Is(err, api.ErrHungUp) || errors.As(err, &p) && p.Type == api.ProblemStopping
}

// Open reads a file that a run left, by the id that its receipt has; the caller
// closes it. The bytes are untrusted; the receipt has their number and digest.
func (e *Engine) Open(ctx context.Context, id string) (io.ReadCloser, error) {
	return e.host.File(ctx, id)
}

// Forget gives up all files that came back from a run and have not been forgotten.
// It is best effort: the daemon forgets them by itself after ten minutes.
func (e *Engine) Forget(ctx context.Context, r *Result) {
	for _, f := range r.Receipt.Program.Files {
		if f.File != "" && ctx.Err() == nil {
			_ = e.host.ForgetFile(ctx, f.File) // it was, or will be
		}
	}
}

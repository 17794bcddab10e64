// Package execute is what 'pybox exec' does: it checks what a person asks for,
// starts the VM when there is none, has the daemon run the program, passes the
// output on as it comes, and shows the receipt. It decides no limits and composes
// no receipt, but for a run whose daemon was lost: then it says what it knows.
package execute

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/images"
	"github.com/pybox/pybox/host/policy"
	"github.com/pybox/pybox/host/receipt"
)

const (
	// exitPipe is what a shell shows of a command that nobody reads from any more.
	exitPipe = 128 + int(syscall.SIGPIPE)
	// receiptWait bounds the wait for the receipt of a run that was given up, which
	// is longer than what the daemon waits for the guest's record of it.
	receiptWait = 20 * time.Second
	// cancelWait bounds the daemon's answer to a cancellation.
	cancelWait = 5 * time.Second
	// closePatience is how long a terminal may take for the last words.
	closePatience = 200 * time.Millisecond
)

// Command is what a person asks for, as it stands on the command line; what is
// empty was not given.
type Command struct {
	// File is the program's file, "-" for standard input; Args are its arguments.
	File string
	Args []string
	// Image names the image of the box.
	Image string
	// Timeout, Memory, CPUs, PIDs and MaxOutput are limits as package units reads
	// them.
	Timeout, Memory, CPUs, PIDs, MaxOutput, MaxFiles, MaxFilesBytes string
	// Stdin is the file of the program's standard input, "-" for our own.
	Stdin string
	// Env are NAME=value, or NAME for the value that it has here.
	Env []string
	// Inputs are what is put into the working folder beside the program, each
	// PATH[=NAME] as package inputs reads it.
	Inputs []string
	// Output is the folder that what the program leaves goes to, OutputTar the archive;
	// at most one of them is given.
	Output, OutputTar string
	// Receipt is where to write the receipt too.
	Receipt string
	// JSON prints the record, with the output in it, instead of the output.
	JSON bool
	// Quiet shows neither receipt nor progress.
	Quiet bool
	// NoStart refuses to start a VM.
	NoStart bool
	// Watch shows the steps of the run.
	Watch bool
}

// World is where a command runs.
type World struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Terminal       Terminal
	LookupEnv      func(string) (string, bool)
	// Signals gets those that interrupt a command. The first gives the run up,
	// the second leaves at once.
	Signals <-chan os.Signal
	Host    Host
}

// Daemon is what is asked of the daemon; *api.Client is the real one.
type Daemon interface {
	Run(ctx context.Context, r api.RunRequest, on func(api.Event) error) (*api.Outcome, error)
	StoreFile(ctx context.Context, r io.Reader) (api.StoredFile, error)
	File(ctx context.Context, id string) (io.ReadCloser, error)
	ForgetFile(ctx context.Context, id string) error
	CancelRun(ctx context.Context, id string) error
	Status(ctx context.Context) (api.Status, error)
}

// Host is this machine's PyBox. Its methods are safe for concurrent use.
type Host interface {
	Daemon
	// Start makes sure that a VM is ready; progress is called while it starts.
	Start(ctx context.Context, progress func(api.Status)) error
	// RestartIdle restarts a VM that nothing uses, and calls granted when it is
	// certain to; the error matches control.ErrInUse when something does, and it goes
	// on, as it does when another could not be started.
	RestartIdle(ctx context.Context, granted func(), progress func(api.Status)) error
	// Policy is the owner's, for a VM that is started now, and Images are the
	// names of that VM's images: none when they are not known.
	Policy() (*policy.Policy, error)
	Images() []string
	// Stored tells of the image of one's own with that name, which a VM that is
	// started now would have: its digest is "" when there is none.
	Stored(image string) images.Summary
	// DaemonGone remembers the daemon that runs now; the function that it gives
	// tells whether that has ended since, and its VM with it.
	DaemonGone() func() bool
	// Receipt gives a kept receipt, nil when there is none; Keep stores one. Its
	// error is a sentence about the receipt.
	Receipt(id string) *receipt.Receipt
	Keep(r *receipt.Receipt) error
}

// errInterrupted: somebody interrupted this command.
var errInterrupted = errors.New("interrupted")

// Run carries the command out and gives its exit code. Everything that there is to
// say has been written then. It leaves goroutines behind when it was told to leave
// at once: the process ends after it.
func (c Command) Run(ctx context.Context, w World) int {
	x := newExecution(ctx, c, w)
	go func() {
		defer close(x.done)
		x.code = x.carryOut()
	}()
	code := x.attend()
	x.display.close(closePatience) // before what ends now can speak of it
	x.cancel(errInterrupted)
	return code
}

// phase is how far a command has come.
type phase int

const (
	preparing  phase = iota // nothing was asked of anyone
	starting                // the VM starts
	asking                  // the run was not accepted yet
	running                 // it was
	delivering              // it has ended, and what it left is fetched
	publishing              // all of that is here, and is moved to its place
)

// execution is a Command that is carried out.
type execution struct {
	Command
	World
	// ctx is that of the run's connection.
	ctx     context.Context
	cancel  context.CancelCauseFunc
	display *display
	watch   *watcher // nil: the steps are not shown

	// done is closed when code is set, fetched when everything that the program left is
	// where it goes.
	done, fetched chan struct{}
	code          int

	mu          sync.Mutex
	phase       phase
	id          string // of the accepted run
	interrupted bool
	ended       *api.Outcome // nil: there is no receipt yet

	// What follows belongs to carryOut.
	job     job
	target  *target // nil: the receipt is not asked for
	checked bool    // against what a new VM would have
	told    bool    // that the VM is being started
	brought bool    // the VM was restarted for the image
	// elsewhere tells that the daemon, which lives, keeps the run's own receipt.
	elsewhere bool
	seen      seen
	// delivered is what became of what the program left; nil: nothing had to.
	delivered *delivery
}

func newExecution(ctx context.Context, c Command, w World) *execution {
	x := &execution{Command: c, World: w, done: make(chan struct{}), fetched: make(chan struct{})}
	x.ctx, x.cancel = context.WithCancelCause(ctx)
	x.display = newDisplay(w.Stdout, w.Stderr, w.Terminal, !c.Quiet && !c.JSON)
	if c.Watch {
		x.watch = &watcher{width: w.Terminal.columns, color: w.Terminal.Color}
	}
	return x
}

func (x *execution) enter(p phase) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.phase = p
}

func (x *execution) accepted(id string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.phase, x.id = running, id
}

// runID is the id of the accepted run; empty: it was not accepted yet.
func (x *execution) runID() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.id
}

// has takes what there is to conclude with.
func (x *execution) has(out *api.Outcome) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.ended = out
}

func (x *execution) isDelivering() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.phase >= delivering
}

func (x *execution) isPublishing() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.phase == publishing
}

func (x *execution) wasInterrupted() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.interrupted
}

// attend waits for the end, and sees to it when it has to come sooner.
func (x *execution) attend() int {
	var late <-chan time.Time
	failed, fetched, held := x.display.failed, x.fetched, false
	for {
		select {
		case <-x.done:
			return x.code
		case <-x.Signals:
			if x.wasInterrupted() {
				if x.isPublishing() {
					continue // it takes a moment, and late is its bound
				}
				return receipt.ExitCancelled
			}
			if x.interrupt() {
				return receipt.ExitCancelled
			}
			late = time.After(receiptWait)
		case <-failed:
			failed = nil
			if x.broken() {
				return exitPipe
			}
			if late == nil && !x.isDelivering() {
				late = time.After(receiptWait)
			}
		case <-fetched:
			if fetched = nil; held {
				late = time.After(receiptWait)
			}
		case <-late:
			if fetched == nil || !x.isDelivering() || x.wasInterrupted() {
				return x.tooLate()
			}
			late, held = nil, true // the run has ended by itself: what it left still comes
		}
	}
}

// interrupt acts on the first signal and tells whether to leave at once.
func (x *execution) interrupt() bool {
	x.mu.Lock()
	x.interrupted = true
	p := x.phase
	x.mu.Unlock()
	switch p {
	case preparing:
		return true
	case starting:
		x.display.line("pybox: interrupted; a start of the VM that has begun goes on: 'pybox vm status' tells")
		return true
	}
	if x.Terminal.Err && !x.Quiet {
		x.display.line("pybox: cancelling; Ctrl-C again leaves at once")
	}
	x.giveUp(errInterrupted)
	return false
}

// broken acts on a standard output that failed and tells whether to leave at once,
// as one does when nobody reads any more and nothing else is to be written.
func (x *execution) broken() bool {
	switch {
	case errors.Is(x.display.failure, syscall.EPIPE) && x.Receipt == "" && !x.delivers():
		return true
	case !x.isDelivering(): // else it has nothing to do with what is fetched
		x.giveUp(x.display.failure)
	}
	return false
}

// giveUp cancels the run, or the fetching of what it left. Its receipt still comes,
// but for a run that was not accepted.
func (x *execution) giveUp(why error) {
	id := x.runID()
	if id == "" || x.isDelivering() {
		x.cancel(why)
		return
	}
	go func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(x.ctx), cancelWait)
		defer cancel()
		err := x.Host.CancelRun(ctx, id)
		var p *api.Problem
		if err != nil && !(errors.As(err, &p) && p.Type == api.ProblemNotFound) {
			x.cancel(why) // the end of the connection says the same
		}
	}()
}

// tooLate is for a run that was given up and that this command is not done with.
func (x *execution) tooLate() int {
	pipe := isPipe(x.outFailure())
	if x.wasInterrupted() || !pipe || x.delivers() || x.Receipt != "" {
		x.display.lastly(closePatience, x.undone())
	}
	switch {
	case x.wasInterrupted():
		return receipt.ExitCancelled
	case pipe:
		return exitPipe
	}
	return receipt.ExitFailed
}

// undone says what this command has not come to.
func (x *execution) undone() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	shows := "'pybox receipt show " + x.id + "' shows it"
	switch {
	case x.id == "":
		return fmt.Sprintf("pybox: given up; the run had not been accepted, and the command did not end within %v", receiptWait)
	case x.ended == nil:
		return fmt.Sprintf("pybox: the run was given up, and its receipt did not come within %v: %s once there is one", receiptWait, shows)
	}
	if x.elsewhere { // set before ended was
		return "pybox: the connection to the daemon has ended, and what is to be written here was not taken: " + shows + " once the run has ended"
	}
	s := "pybox: the run has ended, but what is to be written here was not taken: "
	if x.ended.NotKept != "" {
		s += x.ended.NotKept
	} else {
		s += "its receipt is kept: " + shows
	}
	if x.target != nil && !x.target.replace { // written in its turn
		s += "; " + x.Receipt + " may lack it"
	}
	if x.delivers() {
		s += "; what the program left may not be in " + cmp.Or(x.Output, x.OutputTar)
	}
	return s
}

func isPipe(err error) bool { return errors.Is(err, syscall.EPIPE) }

// carryOut does everything in order and gives the exit code.
func (x *execution) carryOut() int {
	if err := x.prepare(); err != nil {
		return x.explain(err)
	}
	defer x.job.close()
	out, err := x.run()
	x.display.wait("", time.Time{})
	if err != nil {
		if out, err = x.recover(err); err != nil {
			return x.explain(err)
		}
	}
	x.has(out)
	x.deliver(out.Receipt)
	close(x.fetched)
	code := x.conclude(out)
	x.hintReplaced(out)
	return code
}

// refusal is what a person is told when there was no run, with its exit code.
type refusal struct {
	error
	code int
}

// Unwrap gives the cause.
func (r *refusal) Unwrap() error { return r.error }

// refuse is a refusal of what cannot be done as it was asked for.
func refuse(format string, a ...any) error {
	return &refusal{fmt.Errorf(format, a...), receipt.ExitFailed}
}

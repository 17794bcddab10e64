// Package guestrun drives one run in the guest from the host: it sends the
// program and its files, passes on what happens, and says how the run ended even
// when the guest no longer can. It is the host's part of the deadline: the agent
// ends a program at its time limit, PID 1 of the guest a second later if the agent
// has not, and this package asks PID 1 for its own record after two, and ends the
// whole machine after five in which the guest gave no sign of life.
//
// Nothing that comes from the guest is believed beyond what package api has
// checked: what breaks the protocol or contradicts itself ends the machine. It
// knows nothing of receipts, limits of policy or ways in which a client asks.
package guestrun

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"time"

	"connectrpc.com/connect"

	"github.com/pybox/pybox/agent/api"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
)

// The host's rings, counted from when the program's time began for the host.
const (
	// AskAfter is how long after the end of the program's time PID 1 is asked,
	// when nothing says that the run has ended.
	AskAfter = 2 * time.Second
	// KillAfter is how long after it the machine is killed, when the guest has
	// given no sign of life since it was asked.
	KillAfter = 5 * time.Second
	// GiveUpAfter is how long after it the machine is killed although the agent
	// answers: it does not end the run that it should have ended.
	GiveUpAfter = 20 * time.Second
)

const (
	// CancelWait is how long a cancelled run may take to give its record. The
	// agent allows itself 13 s for it: to hear how the main process ended, to see
	// the box empty, to read the rest of the output, to remove the box.
	CancelWait = 15 * time.Second
	// CancelMost bounds it where output comes meanwhile, of which there may be much
	// on its way before the record: CancelWait is from the last piece on then.
	CancelMost = 2 * time.Minute
	// CompletionWait is how long the completion of a cleanup is waited for.
	CompletionWait = time.Minute
	// DefaultSilence is the default of Options.Silence.
	DefaultSilence = time.Minute
	// ReadWait bounds the wait for a piece of a file of the request. The agent
	// waits twice as long.
	ReadWait = 30 * time.Second
	// KeepWait bounds the wait for a piece of what comes back to be kept. The agent
	// waits twice as long.
	KeepWait = 30 * time.Second
	// LeftWait is how long after the end of the program the files may come that it
	// left. Half of it is for keeping them: where that takes longer nothing more is
	// kept.
	LeftWait = 10 * time.Minute
	// askTimeout bounds one question to the guest, askEvery is the pause
	// after the first, which doubles up to askSeldom.
	askTimeout = 2 * time.Second
	askEvery   = 250 * time.Millisecond
	askSeldom  = time.Second
	// lossWait bounds the search for the cause of a loss.
	lossWait = 5 * time.Second
)

// clockJump is how far the host's wall clock may go apart from its monotonic one
// during a run before that is worth a word: the host slept, or its clock was set.
const clockJump = 100 * time.Millisecond

// Errors, to be tested with errors.Is.
var (
	// ErrFiles: a file of the request could not be read, or had another size
	// than it said.
	ErrFiles = errors.New("the run's files could not be sent")
	// ErrNotTaken: the agent did not take the run, and made no box for it. The
	// agent's code is there with connect.CodeOf.
	ErrNotTaken = errors.New("the guest did not take the run")
)

// Guest is what a run needs of the guest. *Machine is the real one. All methods
// are safe for concurrent use.
type Guest interface {
	// Run, CancelRun and Status are the calls of the agent; see api.Client.
	Run(ctx context.Context) *connect.BidiStreamForClient[agentv1.RunRequest, agentv1.RunEvent]
	CancelRun(context.Context, *connect.Request[agentv1.CancelRunRequest]) (*connect.Response[agentv1.CancelRunResponse], error)
	Status(context.Context, *connect.Request[agentv1.StatusRequest]) (*connect.Response[agentv1.StatusResponse], error)
	// Bulk connects to the agent's port for the bytes of large files, bounded by ctx.
	Bulk(ctx context.Context) (net.Conn, error)
	// Records gives what PID 1 has recorded, bounded by ctx. It may be an
	// earlier reading once that has the end of the agent, which is the last
	// thing that PID 1 has to say.
	Records(ctx context.Context) (*api.Records, error)
	// Wait waits for the end of the machine and gives its cause as
	// vm.Machine.Wait does, nil for a guest that powered itself off; when ctx
	// ends before, it gives the cause of that.
	Wait(ctx context.Context) error
	// Kill ends the machine, which is no longer trusted, at once. The reason
	// is for people.
	Kill(reason string) error
}

// Request is one run.
type Request struct {
	// Start says what to run and in which limits.
	Start *agentv1.RunStart
	// Files go into the working folder in this order; one of them is the
	// program of Start.
	Files []File
	// Stdin is the program's standard input; nil: it has none. It is read in
	// pieces while the program runs. A Read that is in progress when Run
	// returns goes on, and what it brings is dropped.
	Stdin io.Reader
	// Keep is called for each file and folder that comes back, in order, with its
	// Name, Bytes, Executable and Folder, and gives what takes the bytes of a file.
	// It is called on another goroutine, as are the methods of what it gives, and all
	// of that may block: the guest waits meanwhile. Where it takes more than KeepWait
	// nothing more is kept; the call goes on then, and what it gives is discarded.
	// An error of it is Left.Err. nil: nothing is kept.
	Keep func(Left) (Kept, error)
}

// File is a file of the working folder, or a folder in it.
type File struct {
	// Name is its path as api.CheckFileName wants it.
	Name string
	// Bytes is its size, which Open's content must have.
	Bytes int64
	// Executable lets its owner execute it.
	Executable bool
	// Folder makes it a folder; Bytes, Executable and Open are not used.
	Folder bool
	// Open gives its content, once. It may block, as reading the content may:
	// where a piece of up to 1 MiB takes more than ReadWait the run is given up.
	Open func() (io.ReadCloser, error)
}

// Options are how a run is watched. The zero value is ready.
type Options struct {
	// Silence bounds how long the guest may say nothing about a run while the
	// program's own time does not run: while the box is made, and while it is
	// removed; 0 means DefaultSilence. In the queue the wait for room that the
	// request allows comes on top.
	Silence time.Duration
	// Log gets what is of use when something went wrong; nil discards it.
	Log *slog.Logger
	// Wall is the host's wall clock; nil means time.Now.
	Wall func() time.Time
}

// Result is what the host knows of a run.
type Result struct {
	// Ending is how the run ended: as the guest's record says or, where there
	// is none, as the host found. Never nil.
	Ending *agentv1.Ending
	// Record is the guest's; nil when it gave none.
	Record *agentv1.RunRecord
	// Exited is the guest's earlier word on the end of the program, if it came.
	Exited *agentv1.Exited
	// Stdout and Stderr are what came of the program's output.
	Stdout, Stderr Received
	// Inputs are the files as they were sent, as far as they were sent whole.
	Inputs []Input
	// Left is what came back of the working folder, in order. Those that were kept
	// are the caller's now, whatever error Run gives beside the Result.
	Left []Left
	// Records are PID 1's own, where they were asked for and tell something
	// about this run.
	Records *api.Records
	// GuestLost tells that the machine is lost: it was killed since the guest
	// did not end the run as it should, or it has ended or is about to. Who
	// owns the machine ends it where it does not go by itself.
	GuestLost bool
	// Times are when the host learnt of things.
	Times Times
	// Unknown lists what the host could not know, beside what Record lists.
	Unknown []Unknown
	// Cleanup is not nil when Record says that the removal of the box is not
	// confirmed yet. It gives the completion if that comes within
	// CompletionWait, and is closed then.
	Cleanup <-chan *agentv1.Cleanup
}

// Received is the part of an output stream that the guest kept and sent.
type Received struct {
	Bytes  int64
	SHA256 [sha256.Size]byte
	// Complete tells that everything came that the record says was kept.
	Complete bool
}

// Input is a file or a folder that was sent. A folder has no digest.
type Input struct {
	Name   string
	Folder bool
	Bytes  int64
	SHA256 [sha256.Size]byte
}

// Times are moments of a run as the host saw them, with the monotonic reading of
// the host's clock; zero: it did not come to it.
type Times struct {
	// Sent is when the run was begun; Ended when Run had its verdict.
	Sent, Admitted, Started, Exited, Ended time.Time
}

// Unknown is a fact that could not be established, and why.
type Unknown struct {
	Fact, Why string
}

// checkRequest holds r to what the agent takes.
func checkRequest(r Request) error {
	if err := api.CheckRunStart(r.Start); err != nil {
		return err
	}
	if len(r.Files) > api.MaxInputs {
		return fmt.Errorf("%w: %d files, want at most %d", api.ErrRequest, len(r.Files), api.MaxInputs)
	}
	names := make(map[string]bool, len(r.Files))
	program := false
	for _, f := range r.Files {
		if err := api.CheckRunFile(f.message()); err != nil {
			return err
		}
		if names[f.Name] {
			return fmt.Errorf("%w: two files have the name %q", api.ErrRequest, f.Name)
		}
		names[f.Name] = true
		program = program || f.Name == r.Start.GetProgram() && !f.Folder
	}
	if !program {
		return fmt.Errorf("%w: the program %q is not among the files", api.ErrRequest, r.Start.GetProgram())
	}
	return nil
}

// message is how f begins on the wire.
func (f File) message() *agentv1.RunFile {
	if f.Folder {
		return &agentv1.RunFile{Name: f.Name, Folder: true}
	}
	return &agentv1.RunFile{Name: f.Name, Bytes: f.Bytes, Executable: f.Executable}
}

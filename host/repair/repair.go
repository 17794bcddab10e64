// Package repair is what 'pybox repair' does: it checks what a person asks for, has
// the loop repair the program with a model that the person chose, shows how that goes,
// and writes what works where it belongs. The model gets the program, its output and
// what PyBox observed, and gives code for the next box; it reads and writes nothing
// here. The rounds are those of package loop.
package repair

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/engine"
	"github.com/pybox/pybox/host/repair/history"
	"github.com/pybox/pybox/host/repair/loop"
	"github.com/pybox/pybox/host/repair/provider"
	"github.com/pybox/pybox/host/repair/wire"
	"github.com/pybox/pybox/host/show"
)

// Exit codes of the command.
const (
	ExitDone        = 0   // the program works: repaired, or as it was
	ExitFailed      = 1   // it does not, or something went wrong
	ExitUsage       = 2   // the command cannot be understood, or asks for what cannot be
	ExitInterrupted = 130 // somebody gave it up
)

// Defaults of what a person does not say.
const (
	DefaultRounds = 5
	DefaultBudget = 60 * time.Second
	DefaultTokens = 200_000
)

// modelsWait bounds the question which models there are.
const modelsWait = 15 * time.Second

const (
	// endPatience is how long a command that was given up may take to end.
	endPatience = 20 * time.Second
	// maxError bounds an error that is shown, in bytes.
	maxError = 4 << 10
)

// Command is what a person asks for, as it stands on the command line; what is empty
// was not given.
type Command struct {
	// File is the program's file, "-" for standard input; Args are its arguments.
	File string
	Args []string
	// Goal is what the program is for; Expect is what it must print, and Check a
	// program that judges it.
	Goal, Expect, Check string
	// Rounds bounds the answers of the model. Budget is the time of the whole,
	// ModelBudget and RunBudget are parts of it, as package units reads them, and Tokens
	// bounds questions and answers together.
	Rounds                         int
	Budget, ModelBudget, RunBudget string
	Tokens                         int64
	// Provider, BaseURL and Model choose who is asked.
	Provider, BaseURL, Model string
	// Image, Timeout, Memory, CPUs and PIDs are those of each run.
	Image, Timeout, Memory, CPUs, PIDs string
	// Inputs are what is put beside the program, each PATH[=NAME], Env is NAME=value or
	// NAME for the value that it has here, and Stdin the file of its standard input, "-"
	// for our own.
	Inputs, Env []string
	Stdin       string
	// Output is the file for the program that works, History one for the record.
	Output, History string
	// JSON prints the record instead of the program.
	JSON bool
	// Quiet shows no progress; NoStart refuses to start a VM.
	Quiet, NoStart bool
}

// World is where a command runs.
type World struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// OutTerminal and ErrTerminal tell which of them are terminals; one that is dumb
	// cannot erase a line.
	OutTerminal, ErrTerminal, Dumb bool
	LookupEnv                      func(string) (string, bool)
	// Host is this machine's PyBox, Home its state directory.
	Host engine.Host
	Home string
	// Wire are the limits of what a provider sends.
	Wire wire.Limits
}

// usageError marks what a person has to say otherwise.
type usageError struct{ err error }

func (u usageError) Error() string { return u.err.Error() }
func (u usageError) Unwrap() error { return u.err }

func refuse(format string, a ...any) error { return usageError{fmt.Errorf(format, a...)} }

// result is what came of a command.
type result struct {
	code int
	err  error
}

// errInterrupted: somebody gave the command up, and it did not end by itself.
var errInterrupted = errors.New("interrupted")

// Run carries the command out and gives its exit code. The end of ctx interrupts it.
// What is read before anything is asked may never come, as from a pipe: nobody waits for
// that then.
func (c Command) Run(ctx context.Context, w World) int {
	prepared, done := make(chan struct{}), make(chan result, 1)
	go func() {
		code, err := c.run(ctx, w, func() { close(prepared) })
		done <- result{code, err}
	}()
	r := attend(ctx, prepared, done)
	if r.err == nil {
		return r.code
	}
	var usage usageError
	switch {
	case ctx.Err() != nil:
		fmt.Fprintln(w.Stderr, "pybox: interrupted")
		return ExitInterrupted
	case errors.As(r.err, &usage):
		fmt.Fprintf(w.Stderr, "pybox: %s; see 'pybox repair --help'\n", show.Escape(r.err.Error(), maxError))
		return ExitUsage
	}
	fmt.Fprintf(w.Stderr, "pybox: %s\n", show.Escape(r.err.Error(), maxError))
	return ExitFailed
}

// attend waits for what comes of a command. Once that is prepared, it heeds ctx by
// itself, and has a while to write down what there is.
func attend(ctx context.Context, prepared <-chan struct{}, done <-chan result) result {
	select {
	case r := <-done:
		return r
	case <-prepared:
	case <-ctx.Done():
		select {
		case <-prepared:
		default:
			return result{err: errInterrupted}
		}
	}
	select {
	case r := <-done:
		return r
	case <-ctx.Done():
	}
	t := time.NewTimer(endPatience)
	defer t.Stop()
	select {
	case r := <-done:
		return r
	case <-t.C:
		return result{err: errInterrupted}
	}
}

// run carries the command out, and says when it is prepared.
func (c Command) run(ctx context.Context, w World, prepared func()) (int, error) {
	j, err := c.prepare(ctx, w)
	if err == nil {
		err = context.Cause(ctx) // nobody may be waiting any more
	}
	if err != nil {
		return 0, err
	}
	prepared()
	client := j.provider.Client(w.Wire)
	if j.settings.ModelName == "" {
		ctx, cancel := context.WithTimeout(ctx, modelsWait)
		defer cancel()
		if j.settings.ModelName, err = provider.ModelOf(ctx, client); errors.Is(err, provider.ErrUsage) {
			err = usageError{err}
		}
		if err != nil {
			return 0, err
		}
	}
	d := newDisplay(w, c.Quiet)
	defer d.close()
	d.begin(j)
	asked := history.Model{Provider: j.provider.Name, Server: j.provider.Server(), Name: j.settings.ModelName}
	k := keeper{stateDir: w.Home}
	events := d.events()
	events.Record = func(h *history.History) {
		soFar := *h
		soFar.Model = asked
		_ = k.keep(&soFar) // the end tells when it cannot be
	}
	l := loop.Loop{Runner: engine.New(telling{w.Host}, engine.Options{NoStart: c.NoStart}), Client: client, Events: events}
	h := l.Run(ctx, j.settings)
	h.Model = asked
	return c.conclude(w, j, d, &k, h), nil
}

// telling is a host that says at once when a VM starts, before that has anything to
// say by itself: no budget pays for the start.
type telling struct{ engine.Host }

// Start implements engine.Host.
func (t telling) Start(ctx context.Context, progress func(api.Status)) error {
	progress(api.Status{State: api.StateStarting})
	return t.Host.Start(ctx, progress)
}

// conclude writes what came of it to where it belongs, and gives the exit code.
func (c Command) conclude(w World, j *job, d *display, k *keeper, h *history.History) int {
	var errs []error
	fixed := j.settings.Job.Program.Data
	if h.OK {
		fixed = []byte(h.Rounds[len(h.Rounds)-1].Program.Text)
	}
	if h.OK && j.output != nil {
		if err := j.output.write(fixed); err == nil {
			h.Output = j.output.path
		} else if c.JSON {
			errs = append(errs, fmt.Errorf("--output: %w", err))
		} else {
			errs = append(errs, fmt.Errorf("--output: %w; the program is printed instead", err))
		}
	}
	if err := k.keep(h); err != nil {
		errs = append(errs, fmt.Errorf("keeping the history: %w", err))
	}
	if j.history != nil {
		if err := writeHistory(j.history, h); err != nil {
			errs = append(errs, fmt.Errorf("--history: %w", err))
		}
	}
	d.end(h, string(j.settings.Job.Program.Data), string(fixed), k.path)
	if err := c.print(w, h, fixed); err != nil {
		errs = append(errs, fmt.Errorf("writing the output: %w", err))
	}
	code := exitCode(h)
	for _, err := range errs {
		fmt.Fprintf(w.Stderr, "pybox: %s\n", show.Escape(err.Error(), maxError))
		code = max(code, ExitFailed)
	}
	return code
}

// print writes the record or the program to standard output.
func (c Command) print(w World, h *history.History, fixed []byte) error {
	switch {
	case c.JSON:
		b, err := show.JSON(h)
		if err != nil {
			return err
		}
		_, err = w.Stdout.Write(b)
		return err
	case !h.OK || h.Output != "":
		return nil
	case w.OutTerminal:
		fixed = []byte(shown(string(fixed)))
	}
	_, err := w.Stdout.Write(fixed)
	return err
}

func exitCode(h *history.History) int {
	switch {
	case h.OK:
		return ExitDone
	case h.End.By == history.EndInterrupted:
		return ExitInterrupted
	}
	return ExitFailed
}

package engine

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"time"
	"unicode/utf8"

	agentapi "github.com/pybox/pybox/agent/api"
	"github.com/pybox/pybox/host/api"
)

const (
	// maxText is what goes into a request as text, in bytes; more goes as base64.
	maxText = 64 << 10
	// maxInputs bounds what all inputs inside a request have together; what is
	// beyond it is stored first.
	maxInputs = 1 << 20
	// forgetWait bounds the giving up of what was stored for a run that never was.
	forgetWait = 5 * time.Second
)

// attempt asks for a run once.
type attempt struct {
	daemon   Daemon
	job      Job
	on       func(Step)
	accepted bool
	stored   []string // ids of what was stored for it
	inline   int      // bytes of inputs inside the request
	streams  [2]bytes.Buffer
}

func (a *attempt) run(ctx context.Context) (*Result, error) {
	r, err := a.request(ctx)
	if err != nil {
		a.forget(ctx)
		return nil, err
	}
	out, err := a.daemon.Run(ctx, r, a.event)
	if err != nil {
		if !a.accepted {
			a.forget(ctx)
		}
		return nil, err
	}
	return &Result{Receipt: out.Receipt, NotKept: out.NotKept, Stdout: a.streams[0].Bytes(), Stderr: a.streams[1].Bytes()}, nil
}

// request composes the request, and stores what is too large for it.
func (a *attempt) request(ctx context.Context) (api.RunRequest, error) {
	j := a.job
	r := api.RunRequest{Image: j.Image, Args: j.Args, Env: j.Env, Collect: j.Collect, Limits: j.Limits}
	var err error
	if r.Program, err = a.source(ctx, j.Program, len(j.Program.Data) > api.MaxInline); err != nil {
		return r, fmt.Errorf("sending the program: %w", err)
	}
	if len(j.Stdin) > 0 {
		s, err := a.source(ctx, File{Data: j.Stdin}, len(j.Stdin) > api.MaxInline)
		if err != nil {
			return r, fmt.Errorf("sending the standard input: %w", err)
		}
		r.Stdin = &s
	}
	for _, f := range j.Inputs {
		if f.Folder {
			r.Inputs = append(r.Inputs, api.InputFile{Source: api.Source{Name: f.Name}, Folder: true})
			continue
		}
		a.inline += len(f.Data)
		s, err := a.source(ctx, f, a.inline > maxInputs)
		if err != nil {
			return r, fmt.Errorf("sending the input %q: %w", f.Name, err)
		}
		r.Inputs = append(r.Inputs, api.InputFile{Source: s, Executable: f.Executable})
	}
	return r, nil
}

// source gives a content to the daemon: inside the request, or stored before.
func (a *attempt) source(ctx context.Context, f File, store bool) (api.Source, error) {
	s := api.Source{Name: f.Name}
	switch {
	case store:
		stored, err := a.daemon.StoreFile(ctx, bytes.NewReader(f.Data))
		if err != nil {
			return s, err
		}
		a.stored = append(a.stored, stored.File)
		s.File = stored.File
	case asText(f.Data):
		t := string(f.Data)
		s.Text = &t
	default:
		b := base64.StdEncoding.EncodeToString(f.Data)
		s.Base64 = &b
	}
	return s, nil
}

// asText tells what goes as text: not what JSON makes longer than base64 is, of which a
// byte can become six. Many such contents together would be more than a request may have.
func asText(b []byte) bool {
	if len(b) > maxText || !utf8.Valid(b) {
		return false
	}
	text, err := json.Marshal(string(b))
	return err == nil && len(text) <= len(`""`)+base64.StdEncoding.EncodedLen(len(b))
}

// event takes an event of the run.
func (a *attempt) event(e api.Event) error {
	switch e.Event {
	case api.EventAccepted:
		a.accepted = true
	case api.EventOutput:
		if err := a.output(e); err != nil {
			return err
		}
	}
	a.on(Step{Event: &e})
	return nil
}

// output keeps a piece of the program's output. That a run keeps no more than its
// limit is the daemon's affair; this bounds what a daemon of another kind can do.
func (a *attempt) output(e api.Event) error {
	b, err := e.Output()
	if err != nil {
		return err
	}
	s := &a.streams[0]
	if e.Stream == "stderr" {
		s = &a.streams[1]
	}
	if s.Len()+len(b) > agentapi.MaxOutputBytes {
		return fmt.Errorf("%w: more output came than any run keeps", api.ErrStream)
	}
	s.Write(b)
	return nil
}

// forget gives up what was stored for a run that never was.
func (a *attempt) forget(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), forgetWait)
	defer cancel()
	for _, id := range a.stored {
		_ = a.daemon.ForgetFile(ctx, id) // it is used, or the daemon forgets it by itself
	}
}

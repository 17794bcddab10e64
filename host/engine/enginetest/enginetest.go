// Package enginetest is a host for tests of what runs programs through package engine:
// it boots nothing, and its runs do what a test says. It keeps no rules of the daemon's
// but those that it names.
package enginetest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"sync"

	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/config"
	"github.com/pybox/pybox/host/policy"
	"github.com/pybox/pybox/host/receipt"
)

// Host is an engine.Host. Its fields are set before its first use; its methods are safe
// for concurrent use.
type Host struct {
	// Program is what a run does; nil: it ends at once with exit code 0.
	Program func(context.Context, *Run) error
	// Down: there is no VM until Start is called, which ends with StartErr.
	Down     bool
	StartErr error
	// PolicyErr is the error of Policy; Config is what the policy is made of, the
	// defaults when nil.
	PolicyErr error
	Config    *config.Config
	// ImageNames are those of Images.
	ImageNames []string

	mu     sync.Mutex
	up     bool
	starts int
	ids    int
	stored map[string][]byte
	active int
	most   int
}

// Run is a run in progress.
type Run struct {
	// Request is what was asked for; contents that were stored are in it as text or
	// base64 no more: Stored has them.
	Request api.RunRequest
	// Stored are the stored contents that the request named, by their ids.
	Stored map[string][]byte
	// Receipt is what the run ends with; Program may change it. It says that the
	// program ended by itself with exit code 0.
	Receipt *receipt.Receipt

	host *Host
	on   func(api.Event) error
}

// Event sends an event to the client.
func (r *Run) Event(e api.Event) error { return r.on(e) }

// Print has the program print text on "stdout" or "stderr", and all of it kept.
func (r *Run) Print(stream, text string) error {
	s := &r.Receipt.Program.Stdout
	if stream == "stderr" {
		s = &r.Receipt.Program.Stderr
	}
	n := s.KeptBytes + int64(len(text))
	s.Bytes, s.KeptBytes = &n, n
	e := api.Event{Event: api.EventOutput, Stream: stream, Text: &text}
	return r.on(e)
}

// Exit has the program end with an exit code.
func (r *Run) Exit(code int) { r.Receipt.Observed.Engine.Exit = &receipt.Exit{Code: &code} }

// Leave has the program leave a file, which comes back where the client wants it.
func (r *Run) Leave(name string, content []byte) {
	f := receipt.File{Name: name, Bytes: int64(len(content)), Reason: receipt.FileNotAsked}
	if r.Request.Collect {
		sum := sha256.Sum256(content)
		digest := hex.EncodeToString(sum[:])
		f.SHA256, f.Returned, f.Reason, f.File = &digest, true, "", r.host.put(content)
	}
	r.Receipt.Program.Files = append(r.Receipt.Program.Files, f)
}

func (h *Host) put(b []byte) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stored == nil {
		h.stored = map[string][]byte{}
	}
	h.ids++
	id := fmt.Sprintf("%032x", h.ids)
	h.stored[id] = b
	return id
}

// Starts is how often a VM was started, Most how many runs there were at a time at
// most, Active how many there are now, and Files how many stored files nobody has
// forgotten or used.
func (h *Host) Starts() int { return h.read(&h.starts) }

// Most is told with Starts.
func (h *Host) Most() int { return h.read(&h.most) }

// Active is told with Starts.
func (h *Host) Active() int { return h.read(&h.active) }

// Files is told with Starts.
func (h *Host) Files() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.stored)
}

func (h *Host) read(n *int) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return *n
}

// begin makes a run of a request.
func (h *Host) begin(req api.RunRequest, on func(api.Event) error) (*Run, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.Down && !h.up {
		return nil, api.ErrNoDaemon
	}
	r := &Run{Request: req, Stored: map[string][]byte{}, host: h, on: on}
	take := func(s api.Source) {
		if s.File != "" {
			r.Stored[s.File] = h.stored[s.File]
			delete(h.stored, s.File)
		}
	}
	take(req.Program)
	if req.Stdin != nil {
		take(*req.Stdin)
	}
	for _, i := range req.Inputs {
		take(i.Source)
	}
	h.ids++
	r.Receipt = receiptOf(fmt.Sprintf("%08x", h.ids), req)
	h.active++
	h.most = max(h.most, h.active)
	return r, nil
}

// receiptOf is that of a program that ends by itself with exit code 0.
func receiptOf(id string, req api.RunRequest) *receipt.Receipt {
	image, ms, code, none := req.Image, 1.5, 0, int64(0)
	if image == "" {
		image = api.DefaultImage
	}
	r := &receipt.Receipt{
		Schema: receipt.Schema,
		Run:    receipt.Run{ID: id, GuestElapsedMS: &ms},
		Configured: receipt.Configured{
			Image: receipt.Image{Name: image}, Network: "none",
		},
		Ending:  receipt.Ending{How: receipt.HowExited, By: receipt.ByProgram},
		Cleanup: receipt.Cleanup{Status: receipt.CleanupRemoved},
	}
	r.Observed.Engine.Exit = &receipt.Exit{Code: &code}
	r.Program.Stdout, r.Program.Stderr = receipt.Stream{Bytes: &none, Complete: true}, receipt.Stream{Bytes: &none, Complete: true}
	l := &r.Configured.Limits
	if req.Limits.TimeoutMS != nil {
		l.TimeoutMS = *req.Limits.TimeoutMS
	}
	if req.Limits.MemoryBytes != nil {
		l.MemoryBytes = *req.Limits.MemoryBytes
	}
	if req.Limits.OutputBytes != nil {
		l.StdoutBytes, l.StderrBytes = *req.Limits.OutputBytes, *req.Limits.OutputBytes
	}
	return r
}

// Run implements engine.Daemon.
func (h *Host) Run(ctx context.Context, req api.RunRequest, on func(api.Event) error) (*api.Outcome, error) {
	r, err := h.begin(req, on)
	if err != nil {
		return nil, err
	}
	defer func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.active--
	}()
	if err := on(api.Event{Event: api.EventAccepted, ID: r.Receipt.Run.ID}); err != nil {
		return nil, err
	}
	if h.Program != nil {
		if err := h.Program(ctx, r); err != nil {
			return nil, err
		}
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return &api.Outcome{Receipt: r.Receipt}, nil
}

// StoreFile implements engine.Daemon.
func (h *Host) StoreFile(_ context.Context, r io.Reader) (api.StoredFile, error) {
	h.mu.Lock()
	down := h.Down && !h.up
	h.mu.Unlock()
	if down {
		return api.StoredFile{}, api.ErrNoDaemon
	}
	b, err := io.ReadAll(r)
	if err != nil {
		return api.StoredFile{}, err
	}
	return api.StoredFile{File: h.put(b), Bytes: int64(len(b))}, nil
}

// File implements engine.Daemon.
func (h *Host) File(_ context.Context, id string) (io.ReadCloser, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	b, ok := h.stored[id]
	if !ok {
		return nil, noFile()
	}
	return io.NopCloser(bytes.NewReader(b)), nil
}

// ForgetFile implements engine.Daemon.
func (h *Host) ForgetFile(_ context.Context, id string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, ok := h.stored[id]; !ok {
		return noFile()
	}
	delete(h.stored, id)
	return nil
}

func noFile() error {
	return &api.Problem{Type: api.ProblemFile, Title: "no such file", Status: 404}
}

// Start implements engine.Host.
func (h *Host) Start(_ context.Context, progress func(api.Status)) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.starts++
	progress(api.Status{State: api.StateStarting})
	h.up = h.StartErr == nil
	return h.StartErr
}

// Policy implements engine.Host.
func (h *Host) Policy() (*policy.Policy, error) {
	if h.PolicyErr != nil {
		return nil, h.PolicyErr
	}
	c := config.Default()
	c.VM.CPUs = 2
	if h.Config != nil {
		c = *h.Config
	}
	return policy.New(c), nil
}

// Images implements engine.Host.
func (h *Host) Images() []string { return h.ImageNames }

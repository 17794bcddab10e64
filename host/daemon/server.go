package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"time"

	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/recall"
	"github.com/pybox/pybox/host/reply"
	"github.com/pybox/pybox/host/spool"
)

const (
	maxRequestBody = 64 << 10
	// bodyStall and bodyWait bound how slowly a small body may come.
	bodyStall = 5 * time.Second
	bodyWait  = 10 * time.Second
	// discardBody bounds what is read of a body that is too large.
	discardBody = 16 << 20
	// discardStray bounds what is read of the body of a request that is no part of the API.
	discardStray = 64 << 10
)

// problems turns the mux's own plain-text refusals (404, 405) into problem details.
// Paths that are not clean, which the mux would redirect, are refused like unknown
// ones.
func problems(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h, pattern := mux.Handler(r)
		known, clean := pattern != "", path.Clean(r.URL.Path) == r.URL.Path
		if known && clean {
			mux.ServeHTTP(w, r)
			return
		}
		probe := &statusOnly{header: http.Header{}}
		if !known {
			h.ServeHTTP(probe, r) // the mux's own
		}
		if probe.code < 400 {
			probe.code = http.StatusNotFound
		}
		if allow := probe.header.Get("Allow"); allow != "" {
			w.Header().Set("Allow", allow)
		}
		// Else a client that is still sending a small body finds the connection closed, and
		// not why.
		reply.Discard(w, r, discardStray)
		reply.Problem(w, &api.Problem{Type: api.ProblemNotFound, Title: http.StatusText(probe.code), Status: probe.code,
			Detail: fmt.Sprintf("%s %.100q is not part of this API", r.Method, r.URL.Path)})
	})
}

type statusOnly struct {
	header http.Header
	code   int
}

func (s *statusOnly) Header() http.Header         { return s.header }
func (s *statusOnly) Write(b []byte) (int, error) { return len(b), nil }
func (s *statusOnly) WriteHeader(code int)        { s.code = code }

func (d *Daemon) serveStatus(w http.ResponseWriter, r *http.Request) {
	reply.JSON(w, d.status(r.Context()))
}

func (d *Daemon) serveStart(w http.ResponseWriter, r *http.Request) {
	if err := readJSON(w, r, &struct{}{}); err != nil {
		reply.Problem(w, err)
		return
	}
	d.touch()
	select {
	case <-d.ready:
	case <-r.Context().Done():
		return
	}
	// After a failed start the record comes a moment later.
	s := d.status(r.Context())
	if s.State == api.StateRunning {
		reply.JSON(w, s)
		return
	}
	select {
	case <-d.done:
	case <-r.Context().Done():
		return
	}
	reply.Problem(w, d.startProblem())
}

// startProblem is for a client that wanted a VM and finds it ended.
func (d *Daemon) startProblem() *api.Problem {
	d.mu.Lock()
	defer d.mu.Unlock()
	if p := d.end.Problem; p != nil && !d.end.Started {
		c := *p
		c.Status = http.StatusBadGateway
		return &c
	}
	return stopping(d.end.Reason)
}

func (d *Daemon) serveStop(w http.ResponseWriter, r *http.Request) {
	var req api.StopRequest
	if err := readJSON(w, r, &req); err != nil {
		reply.Problem(w, err)
		return
	}
	timeout := time.Duration(req.TimeoutMS) * time.Millisecond
	if req.TimeoutMS < 0 || req.TimeoutMS > api.MaxStopTimeout.Milliseconds() {
		reply.Problem(w, reply.BadRequest("timeout_ms: %d is not between 0 and %d", req.TimeoutMS, api.MaxStopTimeout.Milliseconds()))
		return
	}
	if timeout == 0 {
		timeout = stopDefault
	}
	if req.IfIdle {
		if p := d.closeIfIdle(); p != nil {
			reply.Problem(w, p)
			return
		}
	}
	select {
	case d.stop <- stopOrder{by: "client", reason: "stopped by a client", timeout: timeout, force: req.Force}:
	default: // it is being stopped already
	}
	select {
	case <-d.done:
		d.mu.Lock()
		end := *d.end
		d.mu.Unlock()
		reply.JSON(w, end)
	case <-r.Context().Done():
	}
}

// closeIfIdle makes a VM that nothing uses one that is stopping, so that no run begins
// any more, or says what uses it.
func (d *Daemon) closeIfIdle() *api.Problem {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.state == api.StateStopping {
		return nil // whoever has it stopped
	}
	if why := d.useLocked(); why != "" {
		return &api.Problem{Type: api.ProblemInUse, Title: "the VM is in use", Status: http.StatusConflict,
			Detail: "the VM is in use: " + why, Next: "try again when that has ended"}
	}
	d.closeLocked()
	return nil
}

// closeIfIdleFor does so to one that nothing has used for so long, and gives 0 then, else
// how long that takes at least.
func (d *Daemon) closeIfIdleFor(limit time.Duration) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.state == api.StateStopping {
		return 0
	}
	if left := limit - d.o.Now().Sub(d.usedLocked()); left > 0 {
		return left
	}
	d.closeLocked()
	return 0
}

func (d *Daemon) closeLocked() {
	d.state, d.since = api.StateStopping, d.o.Now()
	d.log.Info("vm state", "state", d.state)
}

// useLocked says what would be lost if the VM and this daemon ended now, "" when nothing
// would. A client that stores a file, and one that takes what its run gave, is served
// by the daemon alone, and would lose it all the same.
func (d *Daemon) useLocked() string {
	switch {
	case d.state != api.StateRunning:
		return "it is starting"
	case d.users > 0:
		return "a run, a shell or the storing of a file is in progress"
	case d.runs.Delivering():
		return "a client has yet to take all that its run gave"
	}
	switch forRuns, forClients := d.files.Waiting(); {
	case forClients == 1:
		return fmt.Sprintf("a file that a run left waits for its client, which it does for %v at most", spool.Forget)
	case forClients > 0:
		return fmt.Sprintf("%d files that runs left wait for their clients, which they do for %v at most", forClients, spool.Forget)
	case forRuns == 1:
		return fmt.Sprintf("a stored file waits for its run, which it does for %v at most", spool.Forget)
	case forRuns > 0:
		return fmt.Sprintf("%d stored files wait for their runs, which they do for %v at most", forRuns, spool.Forget)
	}
	if n := d.runs.Untaken(); n > 0 {
		return fmt.Sprintf("what %d runs gave waits for the clients that chose their ids, which it does for %v at most", n, recall.Keep)
	}
	return ""
}

// status never waits for the guest longer than guestAnswer.
func (d *Daemon) status(ctx context.Context) api.Status {
	d.mu.Lock()
	s := api.Status{
		State: d.state, Version: d.o.Version, Since: d.since,
		Stages:  append([]api.Stage(nil), d.stages...),
		Daemon:  api.Daemon{PID: os.Getpid(), Socket: d.o.Home.Socket(), Home: d.o.Home.Dir(), Listen: d.tcp, RSSBytes: ownMemory()},
		LastEnd: d.lastEnd,
	}
	inst, used := d.inst, d.usedLocked()
	d.mu.Unlock()
	if inst == nil {
		return s
	}
	info := inst.info
	info.Facts = factsOf(inst.machine)
	if limit := time.Duration(d.o.Config.VM.IdleStop); limit > 0 && s.State == api.StateRunning {
		info.IdleStopAt = used.Add(limit)
	}
	s.VM = &info
	s.Guest = inst.status(ctx)
	s.Runs = countRuns(inst.runs.Active())
	s.Stages = append(s.Stages, inst.guestStages()...)
	return s
}

// readJSON reads a small body; an empty one leaves v as it is.
func readJSON(w http.ResponseWriter, r *http.Request, v any) *api.Problem {
	data, err := io.ReadAll(reply.Body(w, r, maxRequestBody, bodyStall, bodyWait))
	var big *http.MaxBytesError
	switch {
	case errors.As(err, &big):
		reply.Discard(w, r, discardBody)
		return reply.TooLarge(big.Limit, "")
	case errors.Is(err, reply.ErrSlow):
		return reply.ErrSlow
	case err != nil:
		return reply.BadRequest("the body did not come whole: %v", err)
	case len(data) == 0:
		return nil
	}
	if p := reply.Strict(data); p != nil {
		return p
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	err = dec.Decode(v)
	if err == nil && dec.More() {
		err = errors.New("more than one value")
	}
	if err != nil {
		return reply.BadRequest("the body is not the JSON that %s takes: %v", r.URL.Path, err)
	}
	return nil
}

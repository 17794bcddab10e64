package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"time"

	"github.com/pybox/pybox/host/api"
)

const (
	maxRequestBody   = 64 << 10
	maxRequestHeader = 16 << 10
)

// server is the HTTP side. Slow clients are cut off by its timeouts; an answer
// that waits for the VM is bounded by the start's and the stop's own deadlines.
func (d *Daemon) server() *http.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+api.PathStatus, d.serveStatus)
	mux.HandleFunc("POST "+api.PathVMStart, d.serveStart)
	mux.HandleFunc("POST "+api.PathVMStop, d.serveStop)
	return &http.Server{
		Handler:           problems(mux),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    maxRequestHeader,
		ErrorLog:          slog.NewLogLogger(d.log.Handler(), slog.LevelDebug),
	}
}

// problems turns the mux's own plain-text refusals (404, 405) into problem details.
func problems(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h, pattern := mux.Handler(r)
		if pattern != "" {
			mux.ServeHTTP(w, r)
			return
		}
		probe := &statusOnly{header: http.Header{}}
		h.ServeHTTP(probe, r)
		if probe.code < 400 { // the mux would redirect to a cleaned path: nothing is there either
			probe.code = http.StatusNotFound
		}
		if allow := probe.header.Get("Allow"); allow != "" {
			w.Header().Set("Allow", allow)
		}
		refuse(w, &api.Problem{Type: api.ProblemNotFound, Title: http.StatusText(probe.code), Status: probe.code,
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
	answer(w, d.status(r.Context()))
}

func (d *Daemon) serveStart(w http.ResponseWriter, r *http.Request) {
	if err := readJSON(w, r, &struct{}{}); err != nil {
		refuse(w, err)
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
		answer(w, s)
		return
	}
	select {
	case <-d.done:
	case <-r.Context().Done():
		return
	}
	refuse(w, d.startProblem())
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
	return &api.Problem{Type: api.ProblemStopping, Title: "the VM is stopping", Status: http.StatusConflict,
		Detail: "the VM is stopping: " + d.end.Reason, Next: "start it again"}
}

func (d *Daemon) serveStop(w http.ResponseWriter, r *http.Request) {
	var req api.StopRequest
	if err := readJSON(w, r, &req); err != nil {
		refuse(w, err)
		return
	}
	timeout := time.Duration(req.TimeoutMS) * time.Millisecond
	if req.TimeoutMS < 0 || req.TimeoutMS > api.MaxStopTimeout.Milliseconds() {
		refuse(w, badRequest("timeout_ms: %d is not between 0 and %d", req.TimeoutMS, api.MaxStopTimeout.Milliseconds()))
		return
	}
	if timeout == 0 {
		timeout = stopDefault
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
		answer(w, end)
	case <-r.Context().Done():
	}
}

// status never waits for the guest longer than guestAnswer.
func (d *Daemon) status(ctx context.Context) api.Status {
	d.mu.Lock()
	s := api.Status{
		State: d.state, Version: d.o.Version, Since: d.since,
		Stages:  append([]api.Stage(nil), d.stages...),
		Daemon:  api.Daemon{PID: os.Getpid(), Socket: d.o.Home.Socket(), Home: d.o.Home.Dir(), RSSBytes: ownMemory()},
		LastEnd: d.lastEnd,
	}
	inst, used := d.inst, d.lastUse
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
	s.Stages = append(s.Stages, guestStages(inst)...)
	return s
}

// guestStages are the boot's steps by the guest's own clock.
func guestStages(i *instance) []api.Stage {
	var out []api.Stage
	last := 0.0
	for _, st := range i.hello.Stages {
		at := ms(time.Duration(st.EndedAtNs))
		out = append(out, api.Stage{Name: st.Name, MS: at - last, AtMS: at, Source: "guest"})
		last = at
	}
	return out
}

func badRequest(format string, a ...any) *api.Problem {
	return &api.Problem{Type: api.ProblemBadRequest, Title: "bad request", Status: http.StatusBadRequest, Detail: fmt.Sprintf(format, a...)}
}

// readJSON reads a small body; an empty one leaves v as it is.
func readJSON(w http.ResponseWriter, r *http.Request, v any) *api.Problem {
	dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxRequestBody))
	dec.DisallowUnknownFields()
	err := dec.Decode(v)
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err == nil && dec.More() {
		err = errors.New("more than one value")
	}
	var big *http.MaxBytesError
	if errors.As(err, &big) {
		p := badRequest("the body is larger than %d bytes", big.Limit)
		p.Status = http.StatusRequestEntityTooLarge
		return p
	}
	if err != nil {
		return badRequest("the body is not the JSON that %s takes: %v", r.URL.Path, err)
	}
	return nil
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(v) // a client that is gone is no fault of ours
}

func refuse(w http.ResponseWriter, p *api.Problem) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(p.Status)
	json.NewEncoder(w).Encode(p)
}

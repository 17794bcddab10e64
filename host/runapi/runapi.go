// Package runapi is the part of the daemon's HTTP API that is about runs: it reads
// requests strictly and within bounds, hands them to the service that runs programs,
// and writes what happens to clients that may be slow, silent or gone. It runs
// nothing itself and knows nothing of the VM.
package runapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	agentapi "github.com/pybox/pybox/agent/api"
	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/policy"
	"github.com/pybox/pybox/host/recall"
	"github.com/pybox/pybox/host/receipt"
	"github.com/pybox/pybox/host/receipts"
	"github.com/pybox/pybox/host/reply"
	"github.com/pybox/pybox/host/runs"
	"github.com/pybox/pybox/host/spool"
)

const (
	// maxBody bounds the JSON of a run.
	maxBody = 8 << 20
	// bodyStall is how long a client may send nothing, bodyWait how long the JSON
	// of a run may take, and fileWait a stored file, in and out.
	bodyStall = 10 * time.Second
	bodyWait  = time.Minute
	fileWait  = 10 * time.Minute
	// requestMemory bounds the requests that are in memory at a time: those that
	// come in, and the programs and inputs of runs that go on.
	requestMemory = 64 << 20
	// smallBody is the largest request that does not wait behind larger ones:
	// smallMemory is for those alone.
	smallBody   = 64 << 10
	smallMemory = 8 << 20
	// outputMemory bounds the output that is kept for clients who want it in one
	// piece with the receipt.
	outputMemory = 64 << 20
	// deliverWait is how long a client may take for the rest of its answer once its
	// run has ended.
	deliverWait = 5 * time.Minute
	// defaultList and maxList are how many receipts a list has.
	defaultList = 20
	maxList     = 1000
)

// Run is a run that was accepted; *runs.Run is the real one.
type Run interface {
	ID() string
	Limits() policy.Limits
	Elapsed() time.Duration
	Do(ctx context.Context, sink runs.Sink) (*receipt.Receipt, error, error)
}

// Service runs programs, as *runs.Service does. From makes one of that.
type Service interface {
	Begin(runs.Request) (Run, error)
	Cancel(id string, cause error) bool
	Active() []api.ActiveRun
}

// From makes a Service of the real one.
func From(s *runs.Service) Service { return service{s} }

type service struct{ *runs.Service }

func (s service) Begin(r runs.Request) (Run, error) {
	run, err := s.Service.Begin(r)
	if err != nil {
		return nil, err // not a Run that holds nil
	}
	return run, nil
}

// VM is the daemon's side of runs.
type VM interface {
	// Runs waits until the VM is ready and gives what runs programs in it. An
	// error is an *api.Problem with its status, or that of ctx.
	Runs(ctx context.Context) (Service, error)
	// Now gives the same without waiting; nil: there is none, or none any more.
	Now() Service
	// Images waits as Runs does and gives the images of the VM.
	Images(ctx context.Context) ([]api.Image, error)
	// Use says that a run begins to use the VM; the function that it gives, that
	// it does so no more.
	Use() func()
}

// Receipts are those that are kept.
type Receipts interface {
	List(limit int) ([]api.ReceiptSummary, error)
	// Get gives one of them; the error matches receipts.ErrNotFound where there is
	// none with that id.
	Get(id string) (*receipt.Receipt, error)
}

// Options are what a Handler is made of.
type Options struct {
	VM       VM
	Files    *spool.Spool
	Receipts Receipts
	// Wait is how long a client that wants output and receipt in one piece waits
	// for memory, and a request for that of its body.
	Wait time.Duration
	Log  *slog.Logger
	// Now is the host's wall clock; nil is time.Now.
	Now func() time.Time
}

// times are bodyStall and so on; tests have shorter ones.
type times struct{ stall, body, file, deliver time.Duration }

// Handler answers. It is safe for concurrent use.
type Handler struct {
	o        Options
	times    times
	requests *semaphore.Weighted
	small    *semaphore.Weighted
	outputs  *semaphore.Weighted
	records  *recall.Store

	mu      sync.Mutex
	hurry   time.Duration // 0: there is none
	writers map[*reply.Writer]struct{}
	waiting map[string]context.CancelCauseFunc // runs that wait for memory, by their ids
}

// New makes a Handler.
func New(o Options) *Handler {
	if o.Now == nil {
		o.Now = time.Now
	}
	h := &Handler{
		o: o, times: times{bodyStall, bodyWait, fileWait, deliverWait},
		requests: semaphore.NewWeighted(requestMemory), small: semaphore.NewWeighted(smallMemory), outputs: semaphore.NewWeighted(outputMemory),
		writers: map[*reply.Writer]struct{}{}, waiting: map[string]context.CancelCauseFunc{},
	}
	h.records = recall.New(o.Now, h.forgetFiles)
	if o.Files != nil { // a test has none
		o.Files.OnScarce(h.records.Relieve)
	}
	return h
}

// Sweep forgets what is remembered of runs and whose time is over, so that memory is not
// kept for what nobody asks for.
func (h *Handler) Sweep() { h.records.Sweep() }

// Untaken is how many runs have ended that are remembered and whose receipts no client has
// had yet.
func (h *Handler) Untaken() int { return h.records.Untaken() }

// Routes are the handlers by their patterns, as http.ServeMux takes them.
func (h *Handler) Routes() map[string]http.HandlerFunc {
	return map[string]http.HandlerFunc{
		"POST " + api.PathRuns:    h.postRun,
		"GET " + api.PathRuns:     h.getRuns,
		"DELETE " + api.PathRun:   h.deleteRun,
		"POST " + api.PathFiles:   h.postFile,
		"GET " + api.PathFile:     h.getFile,
		"DELETE " + api.PathFile:  h.deleteFile,
		"GET " + api.PathImages:   h.getImages,
		"GET " + api.PathReceipts: h.getReceipts,
		"GET " + api.PathReceipt:  h.getReceipt,
	}
}

// Hurry gives the clients of runs no longer than wait for each piece of what they
// are told: the daemon is about to end, and one that does not read must not keep it.
func (h *Handler) Hurry(wait time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.hurry = wait
	for w := range h.writers {
		w.Hurry(wait)
	}
	for _, cancel := range h.waiting {
		cancel(runs.ErrClosed)
	}
}

// writer makes the Writer of a run. It is Hurry's too until release is called.
func (h *Handler) writer(w http.ResponseWriter) (out *reply.Writer, release func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	out = reply.NewWriter(w)
	if h.hurry > 0 {
		out.Hurry(h.hurry)
	}
	h.writers[out] = struct{}{}
	return out, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.writers, out)
	}
}

// Delivering tells whether the answer of a run, or a file that one left, is on its way
// to a client. A run that goes on counts; there is no moment between the two.
func (h *Handler) Delivering() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.writers) > 0
}

func (h *Handler) getRuns(w http.ResponseWriter, r *http.Request) {
	list := api.Runs{Runs: []api.ActiveRun{}}
	if s := h.o.VM.Now(); s != nil {
		list.Runs = append(list.Runs, s.Active()...)
	}
	reply.JSON(w, list)
}

func (h *Handler) deleteRun(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	if h.cancelWaiting(id) {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	if s := h.o.VM.Now(); s != nil && s.Cancel(id, errDeleted) {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	reply.Problem(w, &api.Problem{Type: api.ProblemNotFound, Title: "no such run", Status: http.StatusNotFound,
		Detail: fmt.Sprintf("no run with the id %.40q is in progress", id)})
}

func (h *Handler) cancelWaiting(id string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	cancel := h.waiting[id]
	if cancel != nil {
		cancel(errDeleted)
	}
	return cancel != nil
}

func (h *Handler) getImages(w http.ResponseWriter, r *http.Request) {
	images, err := h.o.VM.Images(r.Context())
	if err != nil {
		h.refuse(w, r, err)
		return
	}
	reply.JSON(w, api.Images{Images: append([]api.Image{}, images...)})
}

func (h *Handler) getReceipts(w http.ResponseWriter, r *http.Request) {
	limit, p := listLimit(r.URL.RawQuery)
	if p != nil {
		reply.Problem(w, p)
		return
	}
	list, err := h.o.Receipts.List(limit)
	if err != nil {
		h.refuse(w, r, fmt.Errorf("listing the receipts: %w", err))
		return
	}
	reply.JSON(w, api.Receipts{Receipts: append([]api.ReceiptSummary{}, list...)})
}

// listLimit reads the query of a list, which has at most one limit.
func listLimit(query string) (int, *api.Problem) {
	q, err := url.ParseQuery(query)
	if err != nil {
		return 0, reply.BadRequest("the query: %v", err)
	}
	for key := range q {
		if key != "limit" {
			return 0, reply.BadRequest("the query has an unknown %.40q: a list of receipts takes limit alone", key)
		}
	}
	given := q["limit"]
	if len(given) == 0 {
		return defaultList, nil
	}
	n, err := strconv.Atoi(given[0])
	if err != nil || len(given) > 1 || n < 1 || n > maxList {
		return 0, reply.BadRequest("limit: %.40q is not one number between 1 and %d", given[0], maxList)
	}
	return n, nil
}

func (h *Handler) getReceipt(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	missing := &api.Problem{Type: api.ProblemNotFound, Title: "no such receipt", Status: http.StatusNotFound,
		Detail: fmt.Sprintf("no receipt of a run %.40q is kept", id), Next: "'pybox receipt list' names those that are"}
	if agentapi.CheckRunID(id) != nil { // nobody else's file is asked for
		reply.Problem(w, missing)
		return
	}
	rec, err := h.o.Receipts.Get(id)
	switch {
	case err == nil:
		reply.JSON(w, rec)
	case errors.Is(err, receipts.ErrNotFound):
		reply.Problem(w, missing)
	default:
		h.refuse(w, r, err)
	}
}

package runapi

import (
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/recall"
	"github.com/pybox/pybox/host/receipt"
	"github.com/pybox/pybox/host/reply"
	"github.com/pybox/pybox/host/runs"
)

// discardBody bounds what is read of a request that is too large, or comes too much.
const discardBody = 64 << 20

// postRun runs a program.
func (h *Handler) postRun(w http.ResponseWriter, r *http.Request) {
	req, release, err := h.readRequest(w, r)
	free := sync.OnceFunc(release)
	defer free()
	if err != nil {
		h.discard(w, r, discardBody, err)
		h.refuse(w, r, err)
		return
	}
	if err := h.run(w, r, req, free); err != nil {
		h.refuse(w, r, err)
	}
}

// discard lets a client send what it still has of a body that err was found with.
func (h *Handler) discard(w http.ResponseWriter, r *http.Request, limit int64, err error) {
	if !errors.Is(err, reply.ErrSlow) { // that one had its time
		reply.Discard(w, r, limit)
	}
}

// readRequest reads the JSON of a run. Its memory is the request's until release is
// called: so long are the program and its input there.
func (h *Handler) readRequest(w http.ResponseWriter, r *http.Request) (_ api.RunRequest, release func(), _ error) {
	release = func() {}
	size, memory := r.ContentLength, h.requests
	if size > maxBody {
		return api.RunRequest{}, release, reply.TooLarge(maxBody, useFiles)
	}
	if 0 <= size && size <= smallBody {
		memory = h.small
	}
	if size < 0 {
		size = maxBody // it does not say
	}
	if err := h.acquire(r.Context(), memory, size, errRequests); err != nil {
		return api.RunRequest{}, release, err
	}
	release = func() { memory.Release(size) }
	body, err := io.ReadAll(reply.Body(w, r, maxBody, h.times.stall, h.times.body))
	var big *http.MaxBytesError
	switch {
	case errors.As(err, &big):
		return api.RunRequest{}, release, reply.TooLarge(maxBody, useFiles)
	case errors.Is(err, reply.ErrSlow):
		return api.RunRequest{}, release, err
	case err != nil:
		return api.RunRequest{}, release, reply.BadRequest("the body did not come whole: %v", err)
	}
	memory.Release(size - int64(len(body)))
	size = int64(len(body))
	req, p := decode(body)
	if p != nil {
		return req, release, p
	}
	return req, release, nil
}

// acquire waits for memory, for Options.Wait at most; then the error is none.
func (h *Handler) acquire(ctx context.Context, s *semaphore.Weighted, bytes int64, none error) error {
	if s.TryAcquire(bytes) {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, h.o.Wait, none)
	defer cancel()
	if s.Acquire(ctx, bytes) != nil {
		return context.Cause(ctx)
	}
	return nil
}

// run carries out a request. An error has not been told to the client. free gives the
// request's memory back.
func (h *Handler) run(w http.ResponseWriter, r *http.Request, req api.RunRequest, free func()) error {
	// Before the VM is asked for: one that is stopped because it is idle has no run
	// then that found it running.
	done := sync.OnceFunc(h.o.VM.Use())
	defer done()
	if req.ID != "" {
		return h.named(w, r, req, done, free)
	}
	return h.begin(w, r, req, nil, done)
}

// begin carries out a request for a new run, with a record that is begun with it, unless
// there is none. done is called when the run uses the VM no more.
func (h *Handler) begin(w http.ResponseWriter, r *http.Request, req api.RunRequest, rec *recall.Record, done func()) error {
	service, err := h.o.VM.Runs(r.Context())
	if err != nil {
		return err
	}
	c := newContents(h.o.Files, rec != nil)
	defer c.close()
	request, err := c.request(req)
	if err != nil {
		return err
	}
	run, err := service.Begin(request)
	if err != nil {
		return err
	}
	if rec != nil && !rec.Begin(digest(req, c.sums), c.used, run.Limits().OutputBytes) {
		rec = nil
	}
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(r.Context()))
	defer cancel(nil)
	named := req.ID != ""
	if !named {
		defer context.AfterFunc(r.Context(), func() { cancel(errGone) })()
	}
	out, release := h.writer(w)
	defer release()
	j := job{run: run, out: out, ctx: ctx, cancel: cancel, done: done, wait: h.times.deliver, record: rec, finish: h.finish}
	if wantsEvents(r.Header) {
		return h.streamed(j, &stream{w: w, out: out, client: r.Context(), named: named})
	}
	return h.recorded(j, &record{w: w, out: out, client: r.Context()})
}

// job is a run that was accepted.
type job struct {
	run    Run
	out    *reply.Writer
	ctx    context.Context
	cancel context.CancelCauseFunc
	done   func()         // it uses the VM no more
	wait   time.Duration  // deliverWait
	record *recall.Record // nil: there is none
	finish func(*recall.Record, recall.End)
}

// do carries the run out. When it has ended it uses the VM no more, and its client has
// deliverWait for what it has not taken yet; one that keeps too much waiting has none.
func (j job) do(event func(api.Event) error, output func(float64, int, []byte) error) (*receipt.Receipt, error, error) {
	return j.run.Do(j.ctx, runs.Sink{
		Event: event, Output: output, Heard: heard(j.record),
		Ended: func(rec *receipt.Receipt, notKept, err error) {
			j.finish(j.record, recall.End{Receipt: rec, NotKept: notKept, Err: err})
			j.done()
			j.out.Until(time.Now().Add(j.wait))
		},
		Lags: func() { j.out.Until(time.Now()) },
	})
}

// wantsEvents tells whether a client accepts events (RFC 9110, section 12.5.1). One
// that accepts anything gets the receipt.
func wantsEvents(header http.Header) bool {
	for _, line := range header.Values("Accept") {
		for part := range strings.SplitSeq(line, ",") {
			media, params, err := mime.ParseMediaType(part)
			if err != nil || media != api.MediaEvents {
				continue
			}
			if q, err := strconv.ParseFloat(params["q"], 64); err != nil || q > 0 { // there is none as a rule
				return true
			}
		}
	}
	return false
}

// streamed tells a client what happens as it happens.
func (h *Handler) streamed(j job, s *stream) error {
	rec, notKept, err := j.do(s.event, s.output)
	last := api.Event{MS: receipt.MS(j.run.Elapsed())}
	switch {
	case err == nil:
		last.Event, last.Receipt, last.NotKept = api.EventReceipt, rec, sentence(notKept)
	case s.open:
		last.Event, last.Problem = api.EventProblem, h.problem(err)
	default:
		return err
	}
	gone := s.gone != nil || s.client.Err() != nil
	s.event(last)
	if rec != nil {
		h.delivered(j, rec, !gone && !s.short)
	}
	return nil
}

// delivered takes whether the client of a run has its receipt. Of one that has not what the
// run left is given up, unless it is remembered for who asks again.
func (h *Handler) delivered(j job, rec *receipt.Receipt, is bool) {
	switch {
	case j.record == nil && !is:
		h.forget(rec)
	case j.record != nil && is:
		j.record.Delivered()
	}
}

// recorded gives a client the receipt with the output in it.
func (h *Handler) recorded(j job, rec *record) error {
	weight := min(2*j.run.Limits().OutputBytes, outputMemory)
	if err := h.outputRoom(j, weight); err != nil {
		j.cancel(err) // it was accepted: it is carried out all the same, to end at once
	} else {
		defer h.outputs.Release(weight)
	}
	r, notKept, err := j.do(func(api.Event) error { return nil }, rec.add)
	if err != nil {
		return err
	}
	gone := rec.client.Err() != nil
	err = rec.answer(r, notKept)
	h.delivered(j, r, !gone && err == nil)
	return nil
}

// outputRoom waits for memory for the output of a run, which can be cancelled
// meanwhile.
func (h *Handler) outputRoom(j job, weight int64) error {
	id := j.run.ID()
	h.mu.Lock()
	if h.hurry > 0 {
		h.mu.Unlock()
		return runs.ErrClosed
	}
	h.waiting[id] = j.cancel
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.waiting, id)
	}()
	return h.acquire(j.ctx, h.outputs, weight, errMemory)
}

// sentence is what an error says; empty: there is none.
func sentence(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

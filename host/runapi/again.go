package runapi

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	agentapi "github.com/pybox/pybox/agent/api"
	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/recall"
	"github.com/pybox/pybox/host/receipt"
	"github.com/pybox/pybox/host/reply"
)

// Replay is the header of an answer that tells of a run which an earlier request began.
const Replay = "PyBox-Replay"

// named carries out a request whose id its client chose: a new run, or, where the same was
// asked for before, that one again. An error has not been told to the client.
func (h *Handler) named(w http.ResponseWriter, r *http.Request, req api.RunRequest, done, free func()) error {
	if err := agentapi.CheckRunID(req.ID); err != nil {
		return err
	}
	rec, first, err := h.records.Enter(r.Context(), req.ID)
	if err != nil {
		return err
	}
	defer func() {
		rec.Release()
		if h.o.Files.Scarce() { // who waits from now on finds it by itself
			rec.GiveUp()
		}
	}()
	if first {
		defer rec.Drop() // no more than a clean-up once it has ended
		return h.begin(w, r, req, rec, done)
	}
	done() // the request that began it uses the VM
	if err := h.same(req, rec); err != nil {
		return err
	}
	free() // it may wait for long
	return h.again(w, r, req.ID, rec)
}

// same tells whether a request asks for the run that is remembered. The files that it uses up
// for that are those of the run then.
func (h *Handler) same(req api.RunRequest, rec *recall.Record) error {
	c := newContents(h.o.Files, true)
	defer c.close()
	c.before = rec.Files()
	if _, err := c.request(req); err != nil {
		return err
	}
	if err := rec.Check(digest(req, c.sums)); err != nil {
		return err
	}
	rec.Used(c.used)
	return nil
}

// again tells a client of a run that goes on, or has ended. That it hangs up changes nothing.
func (h *Handler) again(w http.ResponseWriter, r *http.Request, id string, rec *recall.Record) error {
	began := time.Now()
	w.Header().Set(Replay, "true")
	out, release := h.writer(w)
	defer release()
	defer h.bound(out, rec)()
	if wantsEvents(r.Header) {
		return h.follow(&stream{w: w, out: out, client: r.Context()}, rec, id, began)
	}
	end, streams, err := rec.Wait(r.Context())
	if err = cmp.Or(err, end.Err); err != nil {
		w.Header().Del(Replay)
		return err
	}
	a := record{w: w, out: out, client: r.Context(), streams: streams}
	if a.answer(end.Receipt, end.NotKept) == nil && r.Context().Err() == nil {
		rec.Delivered()
	}
	return nil
}

// bound gives the client of a replay deliverWait from the end of the run, or from now where
// that is over: as long as its first client has. It is called off by what it gives, which
// must be done before the answer ends.
func (h *Handler) bound(out *reply.Writer, rec *recall.Record) (off func()) {
	over, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-rec.Ended():
			out.Until(time.Now().Add(h.times.deliver))
		case <-over:
		}
	}()
	return func() {
		close(over)
		<-ended
	}
}

// follow tells what is remembered, and what goes on, as events whose times are those of
// this request.
func (h *Handler) follow(s *stream, rec *recall.Record, id string, began time.Time) error {
	ms := func() float64 { return receipt.MS(time.Since(began)) }
	err := s.event(api.Event{Event: api.EventAccepted, MS: ms(), ID: id, Replay: true})
	read := rec.Read()
	for err == nil {
		var p recall.Part
		if p, err = read.Next(s.client); err != nil {
			break
		}
		switch {
		case p.Exited != nil:
			e := *p.Exited
			e.MS = ms()
			err = s.event(e)
		case p.End != nil:
			s.event(h.last(*p.End, ms()))
			if p.End.Receipt != nil && s.gone == nil && s.client.Err() == nil {
				rec.Delivered()
			}
			return nil
		default:
			err = s.output(ms(), p.Stream, p.Output)
		}
	}
	return nil // the client is gone, and its answer has begun
}

// last is the event that ends a stream.
func (h *Handler) last(end recall.End, ms float64) api.Event {
	if end.Err != nil {
		return api.Event{Event: api.EventProblem, MS: ms, Problem: h.problem(end.Err)}
	}
	return api.Event{Event: api.EventReceipt, MS: ms, Receipt: end.Receipt, NotKept: sentence(end.NotKept)}
}

// heard passes on what happens in a run to its record; nil: there is none.
func heard(rec *recall.Record) func(api.Event, int, []byte) {
	if rec == nil {
		return nil
	}
	return func(e api.Event, stream int, b []byte) {
		switch {
		case stream > 0:
			rec.Output(stream, b)
		case e.Event == api.EventExited:
			rec.Exited(e)
		}
	}
}

// finish ends a record, if there is one, and gives the files that the run left the time
// that it has.
func (h *Handler) finish(rec *recall.Record, end recall.End) {
	if rec == nil {
		return
	}
	rec.Finish(end)
	if end.Receipt == nil {
		return
	}
	for _, f := range end.Receipt.Program.Files {
		if f.File != "" {
			h.o.Files.Renew(f.File)
		}
	}
}

// digest identifies what a request asks for: two that have the same contents have the same,
// whether those came as text, as base64 or as stored files, and so have two that leave out
// what the other has as the default. sums are the digests of the contents. What is watched
// makes no other run.
func digest(req api.RunRequest, sums map[string]string) recall.Digest {
	req.ID, req.Watch = "", false
	req.Image = cmp.Or(req.Image, api.DefaultImage)
	req.Program = api.Source{Name: cmp.Or(req.Program.Name, api.DefaultProgram), File: sums["program"]}
	if req.Stdin != nil {
		req.Stdin = &api.Source{File: sums["stdin"]}
	}
	inputs := make([]api.InputFile, 0, len(req.Inputs))
	for n, in := range req.Inputs {
		in.Source = api.Source{Name: in.Name, File: sums[inputName(n)]}
		inputs = append(inputs, in)
	}
	slices.SortStableFunc(inputs, func(a, b api.InputFile) int { return strings.Compare(a.Name, b.Name) })
	req.Inputs = inputs
	b, err := json.Marshal(req)
	if err != nil { // a number that is none, which no JSON has
		panic("runapi: a request that was decoded: " + err.Error())
	}
	return sha256.Sum256(b)
}

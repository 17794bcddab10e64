package runapi

import (
	"context"
	"errors"
	"net/http"

	agentapi "github.com/pybox/pybox/agent/api"
	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/guestrun"
	"github.com/pybox/pybox/host/policy"
	"github.com/pybox/pybox/host/recall"
	"github.com/pybox/pybox/host/reply"
	"github.com/pybox/pybox/host/runs"
	"github.com/pybox/pybox/host/spool"
)

// Causes of cancellations, which become evidence in receipts.
var (
	errGone    = errors.New("the client closed its connection")
	errDeleted = errors.New("a client asked for the run to be cancelled")
)

// errMemory: clients who want output in one piece with the receipt have all the
// memory that there is for that.
var errMemory = errors.New("no memory for the output was free in time")

// errRequests: too many large requests are there at once.
var errRequests = errors.New("no memory for the request was free in time")

// kinds are the problems of errors, the first that matches.
var kinds = []struct {
	err    error
	typ    string
	title  string
	status int
	next   string
}{
	{policy.ErrCeiling, api.ProblemCeiling, "above the ceiling", http.StatusForbidden, "ask for less, or raise [ceilings] in config.toml and run 'pybox vm restart'"},
	{policy.ErrInvalid, api.ProblemBadRequest, "bad request", http.StatusBadRequest, ""},
	{runs.ErrImage, api.ProblemImage, "no such image", http.StatusNotFound, "'pybox image list' lists those that there are; one that was made since the VM started is in it after 'pybox vm restart'"},
	{recall.ErrOther, api.ProblemExists, "the id is in use", http.StatusConflict, "choose another id, or ask for the same as before"},
	{runs.ErrExists, api.ProblemExists, "the id is in use", http.StatusConflict, "choose another id, or none"},
	{runs.ErrClosed, api.ProblemStopping, "the VM is stopping", http.StatusConflict, "start it again"},
	{spool.ErrNoRoom, api.ProblemBusy, "no room", http.StatusServiceUnavailable, "fetch what earlier runs left and DELETE " + api.PathFiles + "/ID, or try again when other runs have ended"},
	{runs.ErrBusy, api.ProblemBusy, "no room", http.StatusServiceUnavailable, "try again when other runs have ended"},
	{errMemory, api.ProblemBusy, "no room", http.StatusServiceUnavailable, "try again when other runs have ended, or accept " + api.MediaEvents},
	{errRequests, api.ProblemBusy, "no room", http.StatusServiceUnavailable, "try again when other runs have ended, or store large contents with POST " + api.PathFiles},
	{spool.ErrNotFound, api.ProblemFile, "no such file", http.StatusNotFound, "store it again with POST " + api.PathFiles},
	{spool.ErrTooMuch, api.ProblemBusy, "too much is stored", http.StatusTooManyRequests, "run the programs that the stored files are for, or wait until they are forgotten"},
	{spool.ErrFull, api.ProblemInternal, "the disk is full", http.StatusInsufficientStorage, "make room, then try again"},
	{spool.ErrClosed, api.ProblemStopping, "the VM is stopping", http.StatusConflict, "start it again"},
	{errDeleted, api.ProblemNotRun, "cancelled", http.StatusConflict, ""},
	{errGone, api.ProblemNotRun, "cancelled", http.StatusConflict, ""},
	{guestrun.ErrFiles, api.ProblemNotRun, "not run", http.StatusBadGateway, ""},
	{guestrun.ErrNotTaken, api.ProblemNotRun, "not run", http.StatusBadGateway, "look at 'pybox vm status' and 'pybox vm logs'"},
	{agentapi.ErrRequest, api.ProblemBadRequest, "bad request", http.StatusBadRequest, ""},
}

// problem is what a client is told of err.
func (h *Handler) problem(err error) *api.Problem {
	var p *api.Problem
	if errors.As(err, &p) {
		return p
	}
	for _, k := range kinds {
		if errors.Is(err, k.err) {
			return &api.Problem{Type: k.typ, Title: k.title, Status: k.status, Detail: err.Error(), Next: k.next}
		}
	}
	h.o.Log.Error("a request failed", "error", err)
	return &api.Problem{Type: api.ProblemInternal, Title: "PyBox failed", Status: http.StatusInternalServerError,
		Detail: err.Error(), Next: "look at 'pybox vm logs'"}
}

// refuse answers the problem of err, unless the client is gone.
func (h *Handler) refuse(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil && errors.Is(err, context.Cause(r.Context())) {
		return
	}
	reply.Problem(w, h.problem(err))
}

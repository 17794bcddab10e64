package box

import (
	"context"
	"errors"

	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/agent/bulk"
)

// Sentinels, to be tested with errors.Is. A run that fails with an error, and not
// with a record, made no box.
var (
	// ErrBusy: the run waited as long as it may for room.
	ErrBusy = errors.New("no room")
	// ErrExists: a run of that id is there.
	ErrExists = errors.New("a run of that id is there")
	// ErrNotFound: no run of that id is there.
	ErrNotFound = errors.New("no run of that id is there")
	// ErrEngine: what makes boxes does not work.
	ErrEngine = errors.New("the container engine does not work")
)

// Status is what a status tells of boxes.
type Status struct {
	Engine  string
	ShimPID int
	Images  []string
	Waiting int
	// Cgroups is the number of control groups below the parent of boxes.
	Cgroups int
	// Ready are the boxes that are made ahead.
	Ready []*agentv1.ReadyState
}

// Input is what a client sends after its start. Next gives io.EOF after the last
// part, and ends with ctx. The bytes of a file or of standard input in a part are
// valid until the next call. Bulk is the connection for the bytes of large files.
type Input interface {
	Next(ctx context.Context) (*agentv1.RunRequest, error)
	Bulk() *bulk.Line
}

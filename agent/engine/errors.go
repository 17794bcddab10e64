package engine

import "errors"

var (
	// ErrLost marks a failure because the shim has ended: see Engine.Lost.
	ErrLost = errors.New("the process that watches the boxes has ended")
	// ErrExists marks an id that is in use.
	ErrExists = errors.New("a container of this id exists")
	// ErrStore marks a failure because containerd's data base does not answer:
	// see Engine.Trouble.
	ErrStore = errors.New("containerd's records do not answer")
	// ErrNotFound marks an id that names nothing.
	ErrNotFound = errors.New("there is no container of this id")
)

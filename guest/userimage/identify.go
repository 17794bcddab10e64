package userimage

import (
	"context"

	"github.com/pybox/pybox/guest/pep508"
	"github.com/pybox/pybox/guest/pytag"
)

// Interpreter is what a lock file is read for and wheels are chosen for.
type Interpreter struct {
	Version     string // the full one, "3.13.5"
	Target      pytag.Target
	Environment pep508.Environment
}

// Identify tells which Python a base has. It verifies the base, as Build does once
// more. The error matches ErrBase.
func Identify(b Base, arch string) (Interpreter, error) {
	open, err := openBase(context.Background(), b, arch)
	if err != nil {
		return Interpreter{}, err
	}
	defer open.close()
	return Interpreter{Version: open.python, Target: open.target, Environment: open.env}, nil
}

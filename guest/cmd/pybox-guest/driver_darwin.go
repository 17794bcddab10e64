package main

import (
	"log/slog"
	"os"

	"github.com/pybox/pybox/vm"
	"github.com/pybox/pybox/vm/vz"
)

// newDriver starts machines with Virtualization.framework, which has nothing to
// remember.
func newDriver(_ string, log *slog.Logger) vm.Driver {
	return vz.New(vz.Options{Logger: log, Accel: os.Getenv("PYBOX_ACCEL")})
}

package main

import (
	"log/slog"

	"github.com/pybox/pybox/host/config"
	"github.com/pybox/pybox/host/home"
	"github.com/pybox/pybox/vm"
	"github.com/pybox/pybox/vm/vz"
)

// newDriver starts machines with Virtualization.framework.
func newDriver(_ *home.Home, c config.Config, log *slog.Logger) vm.Driver {
	return vz.New(vz.Options{Logger: log, Accel: c.VM.Accel})
}

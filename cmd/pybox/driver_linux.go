package main

import (
	"log/slog"
	"os"

	"github.com/pybox/pybox/host/config"
	"github.com/pybox/pybox/host/home"
	"github.com/pybox/pybox/vm"
	"github.com/pybox/pybox/vm/qemu"
)

func newDriver(h *home.Home, c config.Config, log *slog.Logger) vm.Driver {
	return qemu.New(qemu.Options{
		Logger: log, Accel: c.VM.Accel, AccelMemory: h.Path("acceleration.json"),
		Binary: os.Getenv("PYBOX_QEMU"),
	})
}

package main

import (
	"log/slog"
	"os"

	"github.com/pybox/pybox/vm"
	"github.com/pybox/pybox/vm/qemu"
)

// newDriver starts machines with QEMU. memory is a file that remembers how.
func newDriver(memory string, log *slog.Logger) vm.Driver {
	return qemu.New(qemu.Options{
		Logger: log, Accel: os.Getenv("PYBOX_ACCEL"), AccelMemory: memory, Binary: os.Getenv("PYBOX_QEMU"),
	})
}

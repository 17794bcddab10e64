//go:build linux

package qemu_test

import (
	"testing"

	"github.com/pybox/pybox/vm/qemu"
	"github.com/pybox/pybox/vm/vmtest"
)

// TestE2EConformance holds the driver to the contract with real machines.
func TestE2EConformance(t *testing.T) {
	b := vmtest.Bundle(t)
	vmtest.Run(t, vmtest.Harness{
		Driver: qemu.New(qemu.Options{Logger: vmtest.Logger(t)}),
		Config: vmtest.RealConfig(t, b.Path(b.Manifest.Kernel.File)),
	})
}

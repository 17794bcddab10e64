//go:build darwin && cgo

package vz_test

import (
	"testing"

	"github.com/pybox/pybox/vm/vmtest"
	"github.com/pybox/pybox/vm/vz"
)

// TestE2EConformance holds the driver to the contract with real machines. The test
// binary needs the entitlement: 'make e2e' signs it before it runs.
func TestE2EConformance(t *testing.T) {
	b := vmtest.Bundle(t)
	d := vz.New(vz.Options{Logger: vmtest.Logger(t)})
	for _, f := range d.Check(t.Context()) {
		if !f.OK && !f.Advice {
			t.Fatalf("%s: %s: %s", f.ID, f.Observed, f.Fix)
		}
	}
	c := vmtest.RealConfig(t, b.Path(b.Manifest.Kernel.File))
	if b.Manifest.Initramfs != nil { // its init finds the root and starts it
		c.Initramfs, c.KernelArgs = b.Path(*b.Manifest.Initramfs), b.Manifest.KernelArgs
	}
	vmtest.Run(t, vmtest.Harness{Driver: d, Config: c, RestartsGuest: true})
}

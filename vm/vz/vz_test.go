package vz

import (
	"errors"
	"strings"
	"testing"

	"github.com/pybox/pybox/vm"
)

// TestNew: what New returns on any system is a driver, and one that cannot start a
// machine says why and what to do.
func TestNew(t *testing.T) {
	d := New(Options{})
	if d.Name() != "vz" {
		t.Errorf("name %q", d.Name())
	}
	for _, f := range d.Check(t.Context()) {
		if !strings.HasPrefix(f.ID, "vz.") || f.Observed == "" || f.OK == (f.Fix != "") {
			t.Errorf("row %+v", f)
		}
	}
	c := vm.Config{Name: "t", Arch: vm.HostArch(), CPUs: 1, MemoryBytes: vm.MinMemoryBytes, Kernel: t.TempDir()}
	m, err := d.Start(t.Context(), c) // no kernel, where there is a framework
	if m != nil || !errors.Is(err, vm.ErrHost) && !errors.Is(err, vm.ErrConfig) {
		t.Errorf("got %v, %v", m, err)
	}
	c.CPUs = 0
	if m, err := d.Start(t.Context(), c); m != nil || !errors.Is(err, vm.ErrConfig) {
		t.Errorf("no CPUs: got %v, %v; want ErrConfig", m, err)
	}
}

//go:build !(darwin && cgo)

package vz

import (
	"context"
	"fmt"
	"runtime"

	"github.com/pybox/pybox/vm"
)

// New returns a driver that starts nothing and says why: this program was built
// without Virtualization.framework.
func New(Options) vm.Driver { return absent{} }

type absent struct{}

func (absent) what() (what, fix string) {
	if runtime.GOOS != "darwin" {
		return "Virtualization.framework exists on macOS alone; this is " + runtime.GOOS, "use the driver of this system"
	}
	return "this program was built without cgo and so without Virtualization.framework",
		"build it on a Mac with the Xcode command line tools ('xcode-select --install') and CGO_ENABLED=1: 'make build'"
}

// Name implements vm.Driver.
func (absent) Name() string { return "vz" }

// Check implements vm.Driver.
func (a absent) Check(context.Context) []vm.Finding {
	what, fix := a.what()
	return []vm.Finding{{ID: "vz.build", Observed: what, Fix: fix}}
}

// Start implements vm.Driver.
func (a absent) Start(_ context.Context, c vm.Config) (vm.Machine, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	what, fix := a.what()
	return nil, fmt.Errorf("%w: %s: %s", vm.ErrHost, what, fix)
}

//go:build !linux && !darwin

package main

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"

	"github.com/pybox/pybox/vm"
)

func newDriver(string, *slog.Logger) vm.Driver { return noDriver{} }

// noDriver stands where this system has no driver in this version.
type noDriver struct{}

func (noDriver) Name() string { return "none" }

func (noDriver) Check(context.Context) []vm.Finding { return nil }

func (noDriver) Start(context.Context, vm.Config) (vm.Machine, error) {
	return nil, fmt.Errorf("%w: this version of PyBox has no driver for %s", vm.ErrHost, runtime.GOOS)
}

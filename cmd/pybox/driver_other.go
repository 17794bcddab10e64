//go:build !linux && !darwin

package main

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"

	"github.com/pybox/pybox/host/config"
	"github.com/pybox/pybox/host/home"
	"github.com/pybox/pybox/vm"
)

func newDriver(*home.Home, config.Config, *slog.Logger) vm.Driver { return noDriver{} }

// noDriver stands where this system has no driver in this version.
type noDriver struct{}

func (noDriver) Name() string { return "none" }

func (noDriver) Check(context.Context) []vm.Finding {
	return []vm.Finding{{ID: "driver", Observed: "no driver for " + runtime.GOOS, Fix: "run PyBox on macOS or Linux"}}
}

func (noDriver) Start(context.Context, vm.Config) (vm.Machine, error) {
	return nil, fmt.Errorf("%w: this version of PyBox has no driver for %s", vm.ErrHost, runtime.GOOS)
}

//go:build darwin && cgo

// Package intest is right but for its test.
package intest

import "github.com/Code-Hex/vz/v3"

func state(m *vz.VirtualMachine) vz.VirtualMachineState { return m.State() }

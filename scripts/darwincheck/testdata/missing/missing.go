//go:build darwin && cgo

// Package missing lacks a return.
package missing

import "github.com/Code-Hex/vz/v3"

func state(m *vz.VirtualMachine) vz.VirtualMachineState {
	if m != nil {
		return m.State()
	}
}

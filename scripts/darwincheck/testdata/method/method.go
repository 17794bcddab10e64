//go:build darwin && cgo

// Package method calls what a machine of vz does not have.
package method

import "github.com/Code-Hex/vz/v3"

func reboot(m *vz.VirtualMachine) error {
	return m.Reboot()
}

//go:build darwin && cgo

// Package right calls vz as it is.
package right

import (
	"net"

	"github.com/Code-Hex/vz/v3"
)

// Dial has a call with a parameter of vz's own type and results that are used.
func Dial(m *vz.VirtualMachine, port uint32) (net.Conn, error) {
	conn, err := m.SocketDevices()[0].Connect(port)
	if err != nil {
		return nil, err
	}
	return conn, nil
}

func configuration(kernel string) (*vz.VirtualMachineConfiguration, error) {
	loader, err := vz.NewLinuxBootLoader(kernel, vz.WithCommandLine("console=hvc0"))
	if err != nil {
		return nil, err
	}
	return vz.NewVirtualMachineConfiguration(loader, 1, 512<<20)
}

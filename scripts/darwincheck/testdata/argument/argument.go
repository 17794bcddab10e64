//go:build darwin && cgo

// Package argument gives vz a command line where it takes options.
package argument

import "github.com/Code-Hex/vz/v3"

func loader(kernel string) (*vz.LinuxBootLoader, error) {
	return vz.NewLinuxBootLoader(kernel, "console=hvc0")
}

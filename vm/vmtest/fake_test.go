package vmtest

import (
	"testing"

	"github.com/pybox/pybox/vm"
)

func TestFakeKeepsTheContract(t *testing.T) {
	Run(t, Harness{Driver: &Fake{}, Config: vm.Config{
		Name: "fake", Arch: vm.HostArch(), CPUs: 1, MemoryBytes: vm.MinMemoryBytes, Kernel: "none",
	}})
}

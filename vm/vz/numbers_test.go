//go:build darwin && cgo

package vz

import (
	"github.com/Code-Hex/vz/v3"
	"github.com/pybox/pybox/vm/vz/vzcore"
)

// same is indexed with the difference of two constants: one that is not 0 does not
// compile. So scripts/darwincheck finds it, without a Mac.
var same [1]struct{}

// The module's states and error codes have vzcore's numbers.
var (
	_ = same[vz.VirtualMachineStateStopped-vz.VirtualMachineState(vzcore.StateStopped)]
	_ = same[vz.VirtualMachineStateRunning-vz.VirtualMachineState(vzcore.StateRunning)]
	_ = same[vz.VirtualMachineStatePaused-vz.VirtualMachineState(vzcore.StatePaused)]
	_ = same[vz.VirtualMachineStateError-vz.VirtualMachineState(vzcore.StateError)]
	_ = same[vz.VirtualMachineStateStarting-vz.VirtualMachineState(vzcore.StateStarting)]
	_ = same[vz.VirtualMachineStatePausing-vz.VirtualMachineState(vzcore.StatePausing)]
	_ = same[vz.VirtualMachineStateResuming-vz.VirtualMachineState(vzcore.StateResuming)]
	_ = same[vz.VirtualMachineStateStopping-vz.VirtualMachineState(vzcore.StateStopping)]

	_ = same[vz.ErrorInternal-vzcore.CodeInternal]
	_ = same[vz.ErrorInvalidVirtualMachineConfiguration-vzcore.CodeInvalidConfiguration]
	_ = same[vz.ErrorInvalidVirtualMachineState-vzcore.CodeInvalidState]
	_ = same[vz.ErrorInvalidVirtualMachineStateTransition-vzcore.CodeInvalidTransition]
	_ = same[vz.ErrorInvalidDiskImage-vzcore.CodeInvalidDiskImage]
	_ = same[vz.ErrorVirtualMachineLimitExceeded-vzcore.CodeLimitExceeded]
	_ = same[vz.ErrorOutOfDiskSpace-vzcore.CodeOutOfDiskSpace]
	_ = same[vz.ErrorNotSupported-vzcore.CodeNotSupported]
)

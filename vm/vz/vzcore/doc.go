// Package vzcore is the vm.Driver for Virtualization.framework without the
// framework: it holds every decision of the driver (which devices a machine has,
// what its limits are, what an error means, when a machine has ended, how a
// connection is waited for) behind the narrow seam of Framework and
// VirtualMachine. It is pure Go, so that those decisions are tested on any
// system with a scripted framework; package vz is the realisation on macOS.
//
// It is not a general front end to the framework: one boot loader (a Linux
// kernel), one guest architecture (the host's own) and only the devices that a
// PyBox guest has drivers for.
//
// # What the framework does that a driver must not trust
//
//   - A connect takes no context and need not ever call back; it may also call
//     back after its caller has gone. See machine.Dial.
//   - It answers "connection reset" (ECONNRESET) both while the guest's socket
//     driver is not up and when nobody listens on the port. Until one connection
//     has been accepted the driver takes it for the former, and waits.
//   - It says that a machine stopped, never why: a guest that powered itself off
//     and one that was stopped from outside look the same.
//   - A guest that resets itself is started again by the framework, which reports
//     nothing. The driver cannot tell, and so never answers vm.ErrGuestReset: what
//     stands on a machine sees its connections cut, and another boot id after it.
//   - Its connections cannot be closed by halves.
package vzcore

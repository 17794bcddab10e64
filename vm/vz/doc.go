// Package vz is the vm.Driver for macOS 13 and newer: it runs a guest in Apple's
// Virtualization.framework, through the module Code-Hex/vz. It holds no decision
// of its own: those are in package vzcore, which is tested on any system. What is
// here only puts vzcore's plain terms into calls of the module, and is built with
// cgo on macOS alone; elsewhere New returns a driver that says so.
//
// # Threads
//
// What the code relies on, by reading the module's source (v3.7.1):
//
//   - Each machine has a serial dispatch queue of its own, on which the framework
//     runs it and calls back. No run loop and no locked main thread is needed.
//   - Start, Stop, Pause and Resume enter the queue with dispatch_sync from the
//     calling goroutine's thread, then block that goroutine until the completion
//     handler has run. Connect enters with dispatch_async. So none of them may be
//     called from a callback, and none has a bound: vzcore calls each in a
//     goroutine that it does not wait for without one.
//   - State changes come by key-value observation on the queue and go into an
//     unbounded channel, so that a slow reader neither blocks the queue nor loses
//     one. The channel is never closed.
//   - A VirtioSocketDevice does not retain its object, and a connect's block does
//     not either: the machine must stay reachable until Connect has returned. A
//     connect that is never answered therefore keeps its machine for as long as
//     this process lives.
//   - Objects are released by finalizers, some time after Release. A report of the
//     state after that would hit a freed handle: vzcore awaits the last one, for 1 s.
//   - Each machine leaves its channels' goroutines and a handle behind for good: no
//     matter to a process that runs one machine, as PyBox's daemon does.
//   - The serial port is given bare descriptor numbers, which nobody duplicates
//     before the start: their files stay open until the machine has ended.
//   - newVirtioSocketConnection closes the descriptor of a connection after having
//     duplicated it, while the framework's object holds the same number still. If
//     it closes that too (see below), a descriptor that this process has opened in
//     between is hit: the driver cannot close that gap. PyBox's runs share one long
//     connection; a question to PID 1 and a shell session take one more each.
//
// # What has never run
//
// This package is type-checked against the real module, but has not been run on a
// Mac. Beliefs from documentation and from the experience of others, not facts:
//
//   - that a connect to a guest that does not listen answers ECONNRESET
//     (NSPOSIXErrorDomain 54) rather than nothing, which Apple's text says;
//   - that a guest which powers off by PSCI ends in StateStopped, and one that
//     resets is started again by the framework without any report;
//   - that connections end when their machine does (vzcore closes them anyway);
//   - that the framework closes the number of a connection a second time, at all;
//   - that a pipe with nothing in it will do for the serial port's input;
//   - that the framework opens disk images no later than the start completes;
//   - that validating a machine whose kernel is no kernel tells of the entitlement
//     and of the hardware, and looks no further;
//   - that the machine ends with this process, also when it is killed.
package vz

import "github.com/pybox/pybox/vm/vz/vzcore"

// Options are the driver's settings.
type Options = vzcore.Options

// Package vmtest holds the contract of package vm as tests: Run is the
// conformance suite that every driver passes, ServeGuest the guest program that
// it talks to (vmtest/guest is that program as PID 1), and Fake an in-process
// driver for tests of what stands on a machine. It is not part of the product.
package vmtest

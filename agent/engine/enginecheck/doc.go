//go:build linux

// Command enginecheck holds package engine, and the runtime that it drives, to
// their word in a real guest. It is the only program of a machine that boots from
// an image of its own: PID 1 makes the guest's root file system its own, starts
// itself again as the agent would be, and powers off when that has ended. The
// shim and the program in the boxes are this binary too.
//
// Its console has a line for each check: "PASS name", "FAIL name: reason" or
// "NOTE name: figures", and at last "SUMMARY passed=N failed=N". The test in this
// folder boots it and reads them.
package main

// Serial numbers of the disks, in their order.
const (
	ownSerial   = "root"
	guestSerial = "guest"
	imageSerial = "image"
)

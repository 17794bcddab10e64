//go:build linux

// Command guestcheck runs as PID 1 of a throw-away guest and asks its kernel
// what is there and what is not: what PyBox's boxes stand on, and what was left
// out of the kernel so that no box can reach it. It looks at behaviour where it
// can (a limit that kills, a system call that is refused) and compares the
// running configuration with the fragments.
//
// On its console it prints one line a check, "PASS name" or "FAIL name: detail",
// lines "NOTE name: detail" for what is worth knowing and is no fault, and at
// the end "SUMMARY passed=N failed=N". Then it powers the machine off.
//
// Its environment, which the kernel takes from its command line, chooses:
//
//	PYBOX_GUESTCHECK=all       (or unset) run every check
//	PYBOX_GUESTCHECK=panic     end at once, so that the kernel panics
//
// The rest of the command line has to hold config.BootArgs, whose effects are
// checked too. The disks that it wants: its own root as an erofs image with the serial
// "root", and a second erofs image with the serial "img-0123456789abcdef" that
// holds a file "hello".
package main

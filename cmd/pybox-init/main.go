// Command pybox-init is PID 1 of the guest. It is a program of its own, and not
// one of those in pybox-agent, because that one carries containerd: what containerd
// and its libraries prepare before main runs would delay every boot of the VM and
// stay in the memory of the process that must never fail.
package main

import (
	"fmt"
	"os"
)

// version is set by the linker (-X main.version=…).
var version = "dev"

func main() {
	if os.Getpid() == 1 {
		runInit()
		os.Exit(1) // the kernel panics, which ends the machine
	}
	if len(os.Args) == 2 && os.Args[1] == "--version" {
		fmt.Println("pybox-init", version)
		return
	}
	fmt.Fprintf(os.Stderr, "pybox-init %s is PID 1 of PyBox's guest: it does nothing when started by hand\n", version)
	os.Exit(2)
}

// Command pybox-agent is every program of the guest in one static binary, told
// apart by the name it is started under: "init" is PID 1, "pybox-agent" the
// agent that the host talks to.
package main

import (
	"fmt"
	"os"
	"path/filepath"
)

// version is set by the linker (-X main.version=…).
var version = "dev"

func main() {
	name := filepath.Base(os.Args[0])
	if os.Getpid() == 1 {
		name = "init" // whatever the kernel's command line called it
	}
	if os.Getpid() != 1 && len(os.Args) == 2 && os.Args[1] == "--version" {
		fmt.Println("pybox-agent", version)
		return
	}
	if program, ok := programs()[name]; ok {
		os.Exit(program())
	}
	fmt.Fprintf(os.Stderr, "pybox-agent %s is the guest's part of PyBox: it does nothing when started by hand\n", version)
	os.Exit(2)
}

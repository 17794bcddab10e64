// Command pybox-agent is the guest's programs but PID 1 in one static binary, told
// apart by the name it is started under: "pybox-agent" is the agent that the host
// talks to, "containerd-shim-pybox" the process that starts and watches the boxes
// for it. PID 1 is cmd/pybox-init.
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
	if len(os.Args) == 2 && os.Args[1] == "--version" {
		fmt.Println("pybox-agent", version)
		return
	}
	if program, ok := programs()[name]; ok {
		os.Exit(program())
	}
	fmt.Fprintf(os.Stderr, "pybox-agent %s is the guest's part of PyBox: it does nothing when started by hand\n", version)
	os.Exit(2)
}

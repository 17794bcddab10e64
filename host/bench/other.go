//go:build !linux

// Command bench measures what a VM costs; it runs on Linux hosts.
package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "bench: its figures compare QEMU's devices: run it on Linux")
	os.Exit(1)
}

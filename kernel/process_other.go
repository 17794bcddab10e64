//go:build unix && !linux

package kernel

import "os/exec"

// Kernels are built on Linux; elsewhere there is no such signal.
func dieTogether(*exec.Cmd) {}

func runOnOneThread(cmd *exec.Cmd) error { return cmd.Run() }

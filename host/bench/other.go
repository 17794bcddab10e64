//go:build !linux || !pyboxtest

package main

import (
	"context"
	"errors"
	"io"
)

// errElsewhere: what measures was not built in. Its figures compare QEMU's devices, and
// need what only test builds of the guest answer.
var errElsewhere = errors.New("this command measures on Linux, and built with the tag pyboxtest")

// doorCommand is no command here.
const doorCommand = "\x00"

func measure(context.Context, *options, string, io.Writer) error { return errElsewhere }

func runDaemon(context.Context, []string) error { return errElsewhere }

//go:build pyboxtest

package initd

import (
	"os"

	"github.com/pybox/pybox/agent/control"
)

// crash ends PID 1, at which the kernel panics: how tests see what a dead PID 1
// looks like from the host.
func crash() control.Reply {
	os.Exit(1)
	panic("unreachable")
}

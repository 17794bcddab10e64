//go:build linux && !pyboxtest

package agent

import (
	"time"

	"github.com/pybox/pybox/agent/api"
	"github.com/pybox/pybox/agent/box"
	"github.com/pybox/pybox/agent/control"
)

// prereadWait is how long a run waits until its image has been read ahead.
const prereadWait = 3 * time.Second

// handleTests adds nothing: only test builds answer requests that break the
// guest.
func handleTests(*api.Server, *control.Client, *box.Manager) {}

// testHooks has none.
func testHooks() box.Hooks { return box.Hooks{} }

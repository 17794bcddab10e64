//go:build !pyboxtest

package initd

import (
	"testing"

	"github.com/pybox/pybox/agent/control"
)

// Nobody can end PID 1 by asking for it.
func TestCrashIsForTestBuildsOnly(t *testing.T) {
	r := newRig(t, 0)
	if s := r.handle(control.Request{Op: control.OpCrash}).Status; s != control.StatusUnsupported {
		t.Errorf("crash: %v", s)
	}
}

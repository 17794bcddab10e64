//go:build linux

package main

import (
	"strings"
	"testing"

	"github.com/pybox/pybox/host/receipt"
)

// TestShellNotice: that the shell is open is told although no connection comes about,
// and that it may be where its opening was not answered.
func TestShellNotice(t *testing.T) {
	for does, say := range map[string]string{
		"opens":    "every receipt of this VM says so from now on",
		"hangs up": "the shell may have been opened all the same",
	} {
		t.Run(does, func(t *testing.T) {
			c := newCommander(t)
			c.env = append(c.env, "PYBOX_TEST_SHELL="+does)
			if code, out, errs := c.shell(`"$pybox" vm shell -- id`); code != receipt.ExitFailed || out != "" || !strings.Contains(errs, say) {
				t.Errorf("exit %d, %q, %q", code, out, errs)
			}
		})
	}
}

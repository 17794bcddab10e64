//go:build !pyboxtest

package initd

import "github.com/pybox/pybox/agent/control"

// crash is not there in a build that people use.
func crash() control.Reply { return control.Reply{Status: control.StatusUnsupported} }

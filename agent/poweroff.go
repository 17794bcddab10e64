package agent

import (
	"errors"
	"strings"
	"time"

	"github.com/pybox/pybox/agent/control"
)

// powerOffTimeout is how long PID 1 may take before the agent itself switches
// the guest off.
const powerOffTimeout = 3 * time.Second

// powerOff has PID 1 (ask is control.Client.PowerOff) kill every box and switch
// the guest off, or does the latter itself, by switchOff, when PID 1 has not
// within powerOffTimeout. It returns only when nothing helped.
func powerOff(ask func(reason string) error, switchOff func() error, reason string) error {
	late := time.After(powerOffTimeout)
	asked := make(chan error, 1) // the call has a longer deadline of its own
	go func() { asked <- ask(cleanReason(reason)) }()
	var err error
	select {
	case err = <-asked:
		if err == nil {
			<-late // the machine ends meanwhile
			err = errors.New("PID 1 did not switch the guest off")
		}
	case <-late:
		err = errors.New("PID 1 did not answer")
	}
	return errors.Join(err, switchOff())
}

// cleanReason holds the host's reason to the bounds of package control.
func cleanReason(reason string) string {
	reason = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, reason)
	return reason[:min(len(reason), control.MaxReason)]
}

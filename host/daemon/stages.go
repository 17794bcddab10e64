package daemon

import (
	"slices"
	"strings"
	"time"

	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/guest/bundle"
	"github.com/pybox/pybox/host/api"
)

// What the guest calls steps that end after its boot: the first hello, and that a box of
// an image is ready, whose serial is behind it. That an image was read ahead is named by
// its serial alone.
const (
	guestHello = "hello"
	guestReady = "ready-"
)

// guestStages are the steps of the start by the guest's own clock, as far as the last
// status told of them.
func (i *instance) guestStages() []api.Stage {
	i.mu.Lock()
	all := slices.Concat(i.hello.Stages, i.later)
	i.mu.Unlock()
	out := make([]api.Stage, 0, len(all))
	var last int64
	for _, s := range all {
		began := s.GetBeganAtNs()
		if began == 0 {
			began = last
		}
		last = s.GetEndedAtNs()
		out = append(out, api.Stage{
			Name: i.stageName(s.GetName()), Source: "guest",
			MS: ms(time.Duration(max(last-began, 0))), AtMS: ms(time.Duration(last)),
		})
	}
	return out
}

// stageName is a step's name for people, where the guest names an image by its serial.
func (i *instance) stageName(name string) string {
	serial, ready := strings.CutPrefix(name, guestReady)
	n := slices.IndexFunc(i.images, func(b bundle.Image) bool { return b.Serial == serial })
	switch {
	case n < 0:
		return name
	case ready:
		return "box ready: " + i.images[n].Name
	}
	return "read ahead: " + i.images[n].Name
}

// firstReady is when the first box of an image was ready, in milliseconds since the
// hello; nil: not yet. The lock is held.
func (i *instance) firstReady(serial string) *float64 {
	at := func(name string) int64 {
		n := slices.IndexFunc(i.later, func(s *agentv1.Stage) bool { return s.GetName() == name })
		if n < 0 {
			return -1
		}
		return i.later[n].GetEndedAtNs()
	}
	hello, first := at(guestHello), at(guestReady+serial)
	if hello < 0 || first < 0 {
		return nil
	}
	return new(ms(time.Duration(max(first-hello, 0))))
}

package main

import (
	"github.com/pybox/pybox/agent"
	"github.com/pybox/pybox/agent/engine"
	"github.com/pybox/pybox/agent/initd"
)

// programs are the guest's programs by name; each returns its exit code.
func programs() map[string]func() int {
	m := map[string]func() int{
		initd.AgentName: func() int { return agent.Main(version) },
		engine.ShimName: engine.ShimMain,
	}
	addTestPrograms(m)
	return m
}

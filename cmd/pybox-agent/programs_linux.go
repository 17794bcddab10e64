package main

import (
	"github.com/pybox/pybox/agent"
	"github.com/pybox/pybox/agent/initd"
)

// programs are the guest's programs by name; each returns its exit code.
func programs() map[string]func() int {
	m := map[string]func() int{
		initd.Name:      func() int { initd.Main(); return 1 },
		initd.AgentName: func() int { return agent.Main(version) },
	}
	addTestPrograms(m)
	return m
}

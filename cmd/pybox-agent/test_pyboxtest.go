//go:build linux && pyboxtest

package main

import (
	"time"

	"github.com/pybox/pybox/agent"
	"github.com/pybox/pybox/agent/syscalls"
)

func addTestPrograms(m map[string]func() int) {
	m[agent.Sleeper] = func() int {
		time.Sleep(time.Hour)
		return 0
	}
	m[agent.Resumer] = agent.Resume
	m[agent.Hog] = agent.Exhaust
	m[syscalls.Tracer] = syscalls.Main
}

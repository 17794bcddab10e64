//go:build linux && pyboxtest

package main

import (
	"time"

	"github.com/pybox/pybox/agent"
)

func addTestPrograms(m map[string]func() int) {
	m[agent.Sleeper] = func() int {
		time.Sleep(time.Hour)
		return 0
	}
	m[agent.Resumer] = agent.Resume
	m[agent.Hog] = agent.Exhaust
}

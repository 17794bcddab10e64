package box

import (
	"strings"
	"testing"
	"time"

	"github.com/pybox/pybox/agent/api"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/agent/oci"
)

// Whatever request the agent takes, a box can be specified for it: what cannot be
// is refused before anything is made.
func TestEveryRequestMakesABox(t *testing.T) {
	start := func(change func(*agentv1.RunStart)) *agentv1.RunStart {
		m := &agentv1.RunStart{
			Id: strings.Repeat("z", api.MaxRunID), Image: "img-0123456789abcdef", Program: "main.py", TimeoutNs: int64(time.Second),
			Limits: &agentv1.Limits{MemoryBytes: 128 << 20, Pids: 32, MilliCpu: 500, WorkBytes: 128 << 20, WorkFiles: 1000},
		}
		change(m)
		return m
	}
	for name, change := range map[string]func(*agentv1.RunStart){
		"least": func(m *agentv1.RunStart) {
			m.Limits = &agentv1.Limits{
				MemoryBytes: api.MinMemoryBytes, Pids: api.MinPIDs, MilliCpu: api.MinMilliCPU, WorkBytes: api.MinWorkBytes, WorkFiles: 1,
			}
		},
		"most": func(m *agentv1.RunStart) {
			m.Limits = &agentv1.Limits{
				MemoryBytes: api.MaxMemoryBytes, Pids: api.MaxPIDs, MilliCpu: api.MaxMilliCPU, WorkBytes: api.MaxMemoryBytes, WorkFiles: api.MaxWorkFiles,
			}
		},
		"one page more": func(m *agentv1.RunStart) { m.Limits.MemoryBytes += api.MemoryUnit },
		"long strings": func(m *agentv1.RunStart) {
			m.Args = []string{strings.Repeat("a", api.MaxArgBytes-1)}
			m.Env = []string{"A=" + strings.Repeat("a", api.MaxArgBytes-3)}
		},
		"many strings": func(m *agentv1.RunStart) {
			for i := range api.MaxArgs {
				m.Args = append(m.Args, "")
				m.Env = append(m.Env, strings.Repeat("A", i+1)+"=")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := start(change)
			if err := api.CheckRunStart(m); err != nil {
				t.Fatal(err)
			}
			limits := limitsOf(m.GetLimits())
			c := oci.Config{
				ID: m.GetId(), Slot: oci.MaxSlots - 1, ImageRoot: "/run/image", Work: "/run/work", Limits: limits,
				Args: append([]string{"/usr/bin/python3", m.GetProgram()}, m.GetArgs()...), Env: oci.Env(limits, m.GetEnv()),
			}
			if _, err := oci.Spec(c); err != nil {
				t.Error(err)
			}
		})
	}
}

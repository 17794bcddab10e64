//go:build linux && pyboxtest

package agent_test

import (
	"testing"

	"github.com/pybox/pybox/agent/api"
	"github.com/pybox/pybox/agent/boxtest"
)

func TestE2EReady(t *testing.T) {
	g := boxtest.Start(t, 1<<30)
	g.SetReady(t, 1, boxtest.Program{})
	g.AwaitReady(t, 1)
	o := g.Run(t, boxtest.Program{Name: "hello.py", Source: "import sys\nprint('hi', sys.argv, __file__)\n1/0\n", Args: []string{"a", "b"}})
	t.Logf("%v\n%v", o, o.Record.GetStages())
	if o.Record.GetBoxKind() != api.BoxReady {
		t.Errorf("kind %s", o.Record.GetBoxKind())
	}
}

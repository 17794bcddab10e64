package runs

import (
	"slices"
	"testing"

	agentapi "github.com/pybox/pybox/agent/api"
	"github.com/pybox/pybox/host/config"
	"github.com/pybox/pybox/host/policy"
)

// What is kept ready is for the runs that ask for nothing but their image.
func TestReady(t *testing.T) {
	c := config.Default()
	c.Ceilings.PIDs = 40 // below the default of data
	b := newBench(t, nil, func(o *Options) { o.Policy = policy.New(c) })
	r, err := b.Ready([]Ready{{Image: "stdlib", Count: 2}, {Image: "none", Count: 3}, {Image: "data", Count: 1, Imports: []string{"numpy"}}})
	if err != nil || len(r.GetReady()) != 2 {
		t.Fatalf("%v, %v", r, err)
	}
	for i, image := range []string{"stdlib", "data"} {
		run, err := b.Begin(Request{Image: image, Program: text("", source)})
		if err != nil {
			t.Fatal(err)
		}
		k, s := r.GetReady()[i], run.start
		if agentapi.ReadyKey(k.GetImage(), k.GetLimits(), k.GetEnv()) != agentapi.ReadyKey(s.GetImage(), s.GetLimits(), s.GetEnv()) {
			t.Errorf("%s: ready are %v, the run is %v", image, k, s)
		}
		if k.GetOutputBytes() != s.GetStdoutBytes()+s.GetStderrBytes() {
			t.Errorf("%s: room for %d bytes of output", image, k.GetOutputBytes())
		}
	}
	if r.GetReady()[0].GetCount() != 2 || !slices.Equal(r.GetReady()[1].GetImports(), []string{"numpy"}) {
		t.Errorf("%v", r)
	}
	if r, err := b.Ready([]Ready{{Image: "stdlib"}}); err != nil || len(r.GetReady()) != 0 {
		t.Errorf("none of an image: %v, %v", r, err)
	}
}

package runs

import (
	"slices"
	"testing"

	agentapi "github.com/pybox/pybox/agent/api"
	"github.com/pybox/pybox/host/config"
	"github.com/pybox/pybox/host/policy"
)

// Boxes are made ready for what the last two runs in a row asked for.
func TestReadyForWhatIsUsual(t *testing.T) {
	calls := 0
	b := newBench(t, nil, func(o *Options) { o.Usual = func() { calls++ } })
	memory := func() int64 {
		t.Helper()
		r, err := b.Ready([]Ready{{Image: "stdlib", Count: 1}, {Image: "data", Count: 1}})
		if err != nil || len(r.GetReady()) != 2 {
			t.Fatalf("%v, %v", r, err)
		}
		if got := r.GetReady()[1].GetLimits().GetMemoryBytes(); got != 512<<20 {
			t.Errorf("data: %d bytes of memory", got)
		}
		return r.GetReady()[0].GetLimits().GetMemoryBytes() >> 20
	}
	for i, step := range []struct {
		ask         int64 // MiB
		env         []string
		want        int64
		told        int
		description string
	}{
		{ask: 512, want: 128, description: "once is no habit"},
		{ask: 128, want: 128, description: "the default comes between"},
		{ask: 512, want: 128, description: "in turns"},
		{ask: 512, want: 512, told: 1, description: "twice in a row"},
		{ask: 512, want: 512, told: 1, description: "and again"},
		{ask: 128, want: 512, told: 1, description: "one that differs"},
		{ask: 128, env: []string{"A=1"}, want: 512, told: 1, description: "one with an environment does not count"},
		{ask: 128, want: 128, told: 2, description: "back to the default"},
	} {
		ask := policy.Ask{MemoryBytes: new(step.ask << 20)}
		if _, err := b.Begin(Request{Image: "stdlib", Program: text("", source), Env: step.env, Ask: ask}); err != nil {
			t.Fatal(err)
		}
		if got := memory(); got != step.want || calls != step.told {
			t.Errorf("step %d, %s: ready for %d MiB, told %d times; want %d, %d", i, step.description, got, calls, step.want, step.told)
		}
	}
}

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

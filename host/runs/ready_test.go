package runs

import (
	"fmt"
	"slices"
	"testing"

	agentapi "github.com/pybox/pybox/agent/api"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/config"
	"github.com/pybox/pybox/host/policy"
	"github.com/pybox/pybox/host/receipt"
)

// Boxes are made ready for what the last two runs in a row asked for that ended by
// themselves.
func TestReadyForWhatIsUsual(t *testing.T) {
	calls := 0
	b := newBench(t, func(s *script) {
		s.Begin()
		s.End(0)
	}, func(o *Options) { o.Usual = func() { calls++ } })
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
		ask  int64 // MiB
		env  []string
		want int64
		told int
		what string
	}{
		{ask: 512, want: 128, what: "once is no habit"},
		{ask: 128, want: 128, what: "the default comes between"},
		{ask: 512, want: 128, what: "in turns"},
		{ask: 512, want: 512, told: 1, what: "twice in a row"},
		{ask: 512, want: 512, told: 1, what: "and again"},
		{ask: 128, want: 512, told: 1, what: "one that differs"},
		{ask: 128, env: []string{"A=1"}, want: 512, told: 1, what: "one with an environment does not count"},
		{ask: 128, want: 128, told: 2, what: "back to the default"},
	} {
		run := b.begin(t, fmt.Sprintf("run-%d", i), func(r *Request) {
			r.Env, r.Ask = step.env, policy.Ask{MemoryBytes: new(step.ask << 20)}
		})
		b.do(t, run, Sink{Event: func(api.Event) error { return nil }, Output: func(float64, int, []byte) error { return nil }})
		if got := memory(); got != step.want || calls != step.told {
			t.Errorf("step %d, %s: ready for %d MiB, told %d times; want %d, %d", i, step.what, got, calls, step.want, step.told)
		}
	}
}

// Limits with which nothing ends by itself are nobody's habit, and too little memory to
// import anything in is none of boxes that do.
func TestReadyForWhatWorks(t *testing.T) {
	b := newBench(t, nil)
	small := &agentv1.RunStart{Image: "img-fedcba9876543210", Limits: &agentv1.Limits{MemoryBytes: 32 << 20}}
	memory := func(imports ...string) int64 {
		t.Helper()
		r, err := b.Ready([]Ready{{Image: "data", Count: 1, Imports: imports}})
		if err != nil {
			t.Fatal(err)
		}
		return r.GetReady()[0].GetLimits().GetMemoryBytes() >> 20
	}
	for _, how := range []string{receipt.HowMemory, receipt.HowRefused, receipt.HowVMLost, receipt.HowUnknown} {
		for range 2 {
			b.noteUsual(small, &receipt.Ending{How: how})
		}
		if got := memory(); got != 512 {
			t.Errorf("after two that ended as %s: %d MiB", how, got)
		}
	}
	small.Limits = limitsOf(policy.Limits{MemoryBytes: 32 << 20, MilliCPU: 1000, PIDs: 64})
	for range 2 {
		b.noteUsual(small, &receipt.Ending{How: receipt.HowExited})
	}
	if memory() != 32 || memory("numpy") != 512 {
		t.Errorf("%d MiB, and with imports %d", memory(), memory("numpy"))
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

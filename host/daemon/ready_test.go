package daemon

import (
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/daemon/daemontest"
)

func TestStatusTellsOfReadyBoxes(t *testing.T) {
	for _, n := range []int{1, 0} {
		o := options(t, &daemontest.Agent{})
		o.Config.Ready.Stdlib = n
		o.Config.Ready.Data = 2 // which this bundle has not
		r := run(t, o)
		r.start()
		s, err := r.client.Status(r.ctx())
		var want []api.ReadyBoxes
		if n > 0 {
			want = []api.ReadyBoxes{{Image: "stdlib", Wanted: n, Ready: n}}
		}
		if err != nil || !slices.Equal(s.Guest.Ready, want) {
			t.Errorf("got %+v, %v; want %+v", s.Guest.Ready, err, want)
		}
	}
}

// Two runs in a row that ask for other limits have the guest keep boxes with those, also
// where it does not take that the first time.
func TestReadyBoxesFollowTheRuns(t *testing.T) {
	var calls atomic.Int32
	a := &daemontest.Agent{Busy: func() bool { return calls.Add(1) == 2 }}
	r := run(t, options(t, a))
	r.start()
	memory := func() int64 {
		if k := a.ReadyAsked().GetReady(); len(k) == 1 {
			return k[0].GetLimits().GetMemoryBytes() >> 20
		}
		return 0
	}
	if memory() != 128 {
		t.Fatalf("at first boxes of %d MiB are asked for", memory())
	}
	for range 2 {
		if _, _, err := r.exec(api.RunRequest{Program: source("print hello"), Limits: api.Limits{MemoryBytes: new(int64(512 << 20))}}); err != nil {
			t.Fatal(err)
		}
	}
	ctx := r.ctx()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for memory() != 512 {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("boxes of %d MiB are asked for", memory())
		}
	}
}

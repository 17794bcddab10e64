package daemon

import (
	"slices"
	"testing"

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

package daemon

import (
	"context"
	"slices"
	"time"

	"connectrpc.com/connect"

	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/guest/bundle"
	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/runs"
)

// readyPatience bounds a call that has the guest keep other boxes ready.
const readyPatience = 10 * time.Second

// keepReady has the guest keep other boxes ready each time that runs ask for other
// limits than they did, until ctx ends.
func (d *Daemon) keepReady(ctx context.Context, i *instance) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-i.usual:
		}
		ask, cancel := context.WithTimeout(ctx, readyPatience)
		d.askReady(ask, i)
		cancel()
	}
}

// askReady has the guest keep boxes ready, as the configuration says. It waits for none
// of them, and without them every box is made when it is needed.
func (d *Daemon) askReady(ctx context.Context, i *instance) {
	c := d.o.Config.Ready
	r, err := i.runs.Ready([]runs.Ready{
		{Image: "stdlib", Count: c.Stdlib},
		{Image: "data", Count: c.Data, Imports: c.DataImport},
	})
	if err == nil && len(r.GetReady()) > 0 {
		_, err = i.client.SetReady(ctx, connect.NewRequest(r))
	}
	if err != nil {
		d.log.Warn("no boxes are kept ready", "error", err)
	}
}

// readyBoxes names the images of what the guest keeps ready. The lock is held.
func (i *instance) readyBoxes(states []*agentv1.ReadyState) []api.ReadyBoxes {
	var all []api.ReadyBoxes
	for _, s := range states {
		n := slices.IndexFunc(i.images, func(b bundle.Image) bool { return b.Serial == s.GetImage() })
		if n < 0 {
			continue // nothing that was asked for
		}
		all = append(all, api.ReadyBoxes{
			Image: i.images[n].Name, Wanted: int(s.GetWanted()), Ready: int(s.GetReady()), Making: int(s.GetMaking()), Trouble: s.GetTrouble(),
			FirstMS: i.firstReady(s.GetImage()),
		})
	}
	return all
}

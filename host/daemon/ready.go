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

const (
	// readyPatience bounds a call that has the guest keep other boxes ready, readyAgain
	// is the pause after one that failed.
	readyPatience = 10 * time.Second
	readyAgain    = time.Second
)

// askAgain has keepReady ask the guest for what is to be ready now. It does not block.
func (i *instance) askAgain() {
	select {
	case i.usual <- struct{}{}:
	default: // it is to ask already
	}
}

// keepReady has the guest keep other boxes ready each time that runs ask for other
// limits than they did, until ctx ends.
func (d *Daemon) keepReady(ctx context.Context, i *instance) {
	again := time.NewTimer(0)
	again.Stop()
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-i.usual:
		case <-again.C:
		}
		ask, cancel := context.WithTimeout(ctx, readyPatience)
		if !d.askReady(ask, i) {
			again.Reset(readyAgain)
		}
		cancel()
	}
}

// askReady has the guest keep boxes ready, as the configuration says. It waits for none
// of them, and without them every box is made when it is needed. It gives false where it
// may be worth to ask again.
func (d *Daemon) askReady(ctx context.Context, i *instance) bool {
	c := d.o.Config.Ready
	r, err := i.runs.Ready([]runs.Ready{
		{Image: "stdlib", Count: c.Stdlib},
		{Image: "data", Count: c.Data, Imports: c.DataImport},
	})
	if err != nil {
		d.log.Warn("no boxes are kept ready", "error", err)
		return true
	}
	if len(r.GetReady()) == 0 {
		return true
	}
	if _, err = i.client.SetReady(ctx, connect.NewRequest(r)); err != nil {
		d.log.Warn("the guest was not asked for ready boxes", "error", err)
	}
	return err == nil || connect.CodeOf(err) == connect.CodeInvalidArgument
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

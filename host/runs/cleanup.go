package runs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pybox/pybox/host/guestrun"
	"github.com/pybox/pybox/host/receipt"
)

const (
	// endWait is how long a receipt waits for the end of a machine that is lost.
	endWait = 5 * time.Second
	// sourceVM is the machine's own confirmation: Confirmation.Source.
	sourceVM = "vm"
)

// errNotEnded: a machine has not ended in time.
var errNotEnded = errors.New("the machine has not ended in time")

// settled are facts that a later confirmation settles, as the guest and package
// guestrun name them.
var settled = []string{"whether the box is gone", factRemoved, "whether the machine has ended", factRemoval}

const (
	// factRemoval is the removal where there is no record.
	factRemoval = "cleanup"
	// factRemoved is that of a cancelled run whose record was not waited for.
	factRemoved = "whether the box is removed"
)

// cleanup is what is known of the removal of the box when the run's end is known.
func (c *composer) cleanup() receipt.Cleanup {
	switch {
	case c.rec != nil:
		return cleanupOf(c.rec.GetCleanup())
	case c.noBox():
		return receipt.Cleanup{Status: receipt.CleanupNone, Confirmations: []receipt.Confirmation{}}
	case c.res.GuestLost && c.s.ended(endWait):
		return vmGone()
	case c.res.GuestLost:
		c.lack(factRemoval, fmt.Sprintf("the machine is lost and had not ended within %v", endWait))
	default:
		c.lack(factRemoval, c.boxWhy())
	}
	return receipt.Cleanup{Status: receipt.CleanupUnknown, Confirmations: []receipt.Confirmation{}}
}

// noBox tells whether it is established that no box was made: the guest answers, and
// has ended the run before there was room for it.
func (c *composer) noBox() bool {
	return c.rec == nil && !c.res.GuestLost && c.heard.admitted == nil && !c.listed[factRemoved]
}

// vmGone is the cleanup of a box whose VM has ended.
func vmGone() receipt.Cleanup {
	return receipt.Cleanup{Status: receipt.CleanupVMGone, Confirmations: []receipt.Confirmation{{Source: sourceVM, Gone: true}}}
}

// ended waits for the end of the machine, and tells whether it came in time.
func (s *Service) ended(wait time.Duration) bool {
	ctx, cancel := context.WithTimeoutCause(context.Background(), wait, errNotEnded)
	defer cancel()
	return !errors.Is(s.o.Guest.Wait(ctx), errNotEnded)
}

// completeLater waits in the background for what was not known of the removal, and
// replaces the stored receipt.
func (r *Run) completeLater(rec *receipt.Receipt, res *guestrun.Result) {
	lost := res.GuestLost && rec.Cleanup.Status == receipt.CleanupUnknown
	if res.Cleanup == nil && !lost {
		return
	}
	r.s.work.Add(1)
	go func() {
		defer r.s.work.Done()
		c, ok := r.s.removal(res)
		if !ok {
			return
		}
		log := r.s.o.Log.With("run", rec.Run.ID)
		log.Info("a removal is confirmed later", "cleanup", c.Status)
		if err := r.s.o.Keep.Put(completed(rec, c)); err != nil {
			log.Error("the confirmation of a removal could not be kept", "error", err)
		}
	}()
}

// removal waits for what the guest, or its end, tells later.
func (s *Service) removal(res *guestrun.Result) (receipt.Cleanup, bool) {
	wait := guestrun.CompletionWait
	if res.Cleanup != nil {
		if m, ok := <-res.Cleanup; ok {
			return cleanupOf(m), true
		}
		wait = endWait // the machine may be about to end
	}
	if s.ended(wait) {
		return vmGone(), true
	}
	return receipt.Cleanup{}, false
}

// completed is rec with a later cleanup. It shares nothing with rec that changes.
func completed(rec *receipt.Receipt, c receipt.Cleanup) *receipt.Receipt {
	r := *rec
	r.Cleanup = c
	r.Observed.Engine.Box.Removed = c.Status == receipt.CleanupRemoved
	r.Observed.Engine.Box.Confirmations = c.Confirmations
	if c.Status != receipt.CleanupIncomplete {
		r.Unknown = slices.DeleteFunc(slices.Clone(r.Unknown), func(u receipt.Unknown) bool { return slices.Contains(settled, u.Fact) })
	}
	return &r
}

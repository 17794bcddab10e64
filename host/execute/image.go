package execute

import (
	"errors"
	"fmt"
	"time"

	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/control"
	"github.com/pybox/pybox/host/images"
	"github.com/pybox/pybox/host/show"
)

// noImage tells whether the VM has no image of the name that was asked for.
func noImage(err error) bool {
	var p *api.Problem
	return errors.As(err, &p) && p.Type == api.ProblemImage
}

// bringImage gives the VM, which has not the image, one that was made since it
// started: it is restarted if nothing uses it. An error says why that cannot be.
func (x *execution) bringImage(why error) error {
	name := x.job.imageName()
	st, err := x.Host.Status(x.ctx)
	if err != nil {
		return err
	}
	stored := x.Host.Stored(name)
	// What was wrong with all of them may not be so any more: that is tried, once.
	if in, left := images.In(st, stored); in == images.PresenceLeftOut && (left.Name != "" || x.brought || stored.SHA256 == "") {
		return refuse("--image: the VM left the image %.80q out when it started: %s; %s", name, left.Why, left.Next)
	}
	if stored.SHA256 == "" {
		return why
	}
	if x.brought {
		return refuse("--image: the VM has not the image %.80q, though it was restarted for it: 'pybox image inspect %[1]s' tells more", name)
	}
	const needs = "the image %.80q was made after the VM had started, and 'pybox vm restart' gives it to the VM"
	if x.NoStart {
		return refuse("--image: "+needs+"; --no-start keeps this command from doing so", name)
	}
	if err := x.checkNew(); err != nil {
		return err
	}
	x.brought = true
	x.enter(starting)
	began := time.Now()
	granted := func() {
		if !x.Quiet {
			x.display.line("pybox: restarting the VM so that it has the image %s", name)
		}
		x.display.wait("Restarting the VM", began)
	}
	err = x.Host.RestartIdle(x.ctx, granted, func(s api.Status) { x.display.wait(show.StartStep(s), began) })
	x.display.wait("", began)
	if errors.Is(err, control.ErrInUse) {
		return refuse("--image: "+needs+", when what uses the VM now has ended (%w)", name, err)
	}
	if errors.Is(err, control.ErrNotStartable) {
		return refuse("--image: "+needs+"; %w", name, err)
	}
	if err != nil {
		return fmt.Errorf("restarting the VM for the image %s: %w", name, err)
	}
	return nil
}

// hintReplaced says that the run was in an image whose name stands for another one by
// now, which the VM does not have yet.
func (x *execution) hintReplaced(out *api.Outcome) {
	ran := out.Receipt.Configured.Image
	now := x.Host.Stored(ran.Name).SHA256
	if x.Quiet || now == "" || ran.Digest == "" || ran.Digest == "sha256:"+now {
		return
	}
	x.display.line("pybox: this was an earlier image %s than the one that there is now: 'pybox vm restart' gives that to the VM", ran.Name)
}

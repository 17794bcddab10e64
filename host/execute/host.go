package execute

import (
	"context"
	"fmt"

	"github.com/pybox/pybox/guest/bundle"
	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/config"
	"github.com/pybox/pybox/host/control"
	"github.com/pybox/pybox/host/images"
	"github.com/pybox/pybox/host/policy"
	"github.com/pybox/pybox/host/receipt"
	"github.com/pybox/pybox/host/receipts"
)

// local is the Host of a state directory.
type local struct {
	*api.Client
	ctl    *control.Controller
	getenv func(string) string
}

// NewHost is the Host whose daemon ctl reaches. getenv is os.Getenv.
func NewHost(ctl *control.Controller, getenv func(string) string) Host {
	return &local{ctl.Client(), ctl, getenv}
}

// Start implements Host.
func (l *local) Start(ctx context.Context, progress func(api.Status)) error {
	_, err := l.ctl.Start(ctx, progress)
	return err
}

// RestartIdle implements Host.
func (l *local) RestartIdle(ctx context.Context, granted func(), progress func(api.Status)) error {
	_, err := l.ctl.RestartIdle(ctx, granted, progress)
	return err
}

// Stored implements Host.
func (l *local) Stored(image string) images.Summary {
	return images.View(l.ctl.Home.Dir()).Stored(image)
}

// Policy implements Host.
func (l *local) Policy() (*policy.Policy, error) {
	c, err := config.Load(l.ctl.Home.Config(), l.getenv)
	if err != nil {
		return nil, err
	}
	return policy.New(c).With(images.View(l.ctl.Home.Dir()).Bases()), nil
}

// Images implements Host.
func (l *local) Images() []string { return Installed(l.ctl.Home.Dir()) }

// Installed are the names of the images that a VM of the state directory home has
// when it is started now: those of the installed bundle, and of one's own. There is
// none when there is no bundle.
func Installed(home string) []string {
	b, err := bundle.Current(home)
	if err != nil {
		return nil
	}
	var names []string
	for _, i := range b.Manifest.Images {
		names = append(names, i.Name)
	}
	own, err := images.View(home).List()
	if err != nil {
		return nil // not known: the VM says what it has
	}
	for _, i := range own {
		names = append(names, i.Name)
	}
	return names
}

// DaemonGone implements Host.
func (l *local) DaemonGone() func() bool {
	d, err := l.ctl.Home.Daemon()
	return func() bool {
		if err == nil && !d.Alive() {
			return true
		}
		free, err := l.ctl.Home.Unlocked()
		return free && err == nil
	}
}

// Receipt implements Host.
func (l *local) Receipt(id string) *receipt.Receipt {
	s, err := receipts.View(l.folder())
	if err != nil {
		return nil
	}
	r, err := s.Get(id)
	if err != nil {
		return nil
	}
	return r
}

// Keep implements Host.
func (l *local) Keep(r *receipt.Receipt) error {
	c, err := config.Load(l.ctl.Home.Config(), l.getenv)
	if err != nil {
		c = config.Default()
	}
	s, err := receipts.Open(l.folder(), c.Receipts.Keep)
	if err != nil {
		return fmt.Errorf("the receipt could not be kept: %w", err)
	}
	return s.Put(r)
}

func (l *local) folder() string { return l.ctl.Home.Path("receipts") }

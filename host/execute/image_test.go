package execute

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/control"
	"github.com/pybox/pybox/host/receipt/receipttest"
)

// withoutImage is a VM that has the image mine once it was restarted.
func withoutImage(p *person) {
	has := false
	p.host.run = func(_ context.Context, r api.RunRequest, on func(api.Event) error) (*api.Outcome, error) {
		if !has {
			return nil, &api.Problem{Type: api.ProblemImage, Title: "no such image", Detail: "no such image: \"mine\"; the VM has stdlib", Status: 404}
		}
		return script(on, receipttest.Example())
	}
	p.host.idle = func() error { has = true; return nil }
	p.host.images, p.host.stored = []string{"stdlib", "mine"}, map[string]string{"mine": strings.Repeat("1", 64)}
}

func TestImageMadeSinceTheStart(t *testing.T) {
	p := newPerson(t)
	withoutImage(p)
	p.expect(Command{Image: "mine"}, 0, "pybox: restarting the VM so that it has the image mine\n")
	if len(p.host.runs) != 2 || p.host.starts != 0 {
		t.Errorf("%d requests and %d starts, want 2 and none", len(p.host.runs), p.host.starts)
	}
}

func leftOut(l api.LeftOut) api.Status {
	return api.Status{State: api.StateRunning, VM: &api.VM{LeftOut: []api.LeftOut{l}}}
}

// TestImageMadeSinceItWasLeftOut: what was wrong with an image is no word about the one
// that has its name now, nor for ever when it was wrong with all.
func TestImageMadeSinceItWasLeftOut(t *testing.T) {
	for name, l := range map[string]api.LeftOut{
		"another image": {Name: "mine", SHA256: strings.Repeat("2", 64), Why: "the image is damaged", Next: "make it again"},
		"no record":     {Name: "mine", Why: "the image is damaged", Next: "make it again"},
		"all":           {Why: "the folder cannot be used", Next: "try again"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPerson(t)
			withoutImage(p)
			p.host.status = func() (api.Status, error) { return leftOut(l), nil }
			p.expect(Command{Image: "mine"}, 0, "pybox: restarting the VM so that it has the image mine\n")
		})
	}
}

func TestImageThatCannotBeBrought(t *testing.T) {
	for name, c := range map[string]struct {
		change  func(p *person)
		command Command
		say     []string
		runs    int
	}{
		"in use": {
			func(p *person) {
				p.host.idle = func() error { return fmt.Errorf("%w: a run or a shell is in progress", control.ErrInUse) }
			}, Command{}, []string{"made after the VM had started", "'pybox vm restart'", "a run or a shell is in progress"}, 1,
		},
		"not startable": {
			func(p *person) {
				p.host.idle = func() error { return fmt.Errorf("%w: config.toml is wrong", control.ErrNotStartable) }
			}, Command{}, []string{"made after the VM had started", "left as it is: config.toml is wrong"}, 1,
		},
		"all left out, and again": {
			func(p *person) {
				p.host.idle = func() error { return nil }
				p.host.status = func() (api.Status, error) {
					return leftOut(api.LeftOut{Why: "the folder cannot be used", Next: "try"}), nil
				}
			}, Command{}, []string{"left the image \"mine\" out", "the folder cannot be used; try"}, 2,
		},
		"no start":   {func(p *person) { p.host.idle = nil }, Command{NoStart: true}, []string{"'pybox vm restart'", "--no-start"}, 1},
		"not stored": {func(p *person) { p.host.stored, p.host.idle = nil, nil }, Command{}, []string{"no such image", "the VM has stdlib"}, 1},
		"left out": {
			func(p *person) {
				p.host.idle = nil
				p.host.status = func() (api.Status, error) {
					return leftOut(api.LeftOut{Name: "mine", SHA256: strings.Repeat("1", 64), Why: "the image is damaged", Next: "make it again"}), nil
				}
			}, Command{}, []string{"left the image \"mine\" out", "the image is damaged; make it again"}, 1,
		},
		"still not there": {func(p *person) { p.host.idle = func() error { return nil } }, Command{}, []string{"restarted for it", "pybox image inspect"}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPerson(t)
			withoutImage(p)
			c.change(p)
			c.command.Image = "mine"
			p.expect(c.command, 125, c.say...)
			if said := strings.Contains(p.err.String(), "restarting the VM so"); said != (c.runs > 1) {
				t.Errorf("announced: %v, with %d requests", said, c.runs)
			}
			if len(p.host.runs) != c.runs {
				t.Errorf("%d requests, want %d", len(p.host.runs), c.runs)
			}
		})
	}
}

func TestImageThatWasReplaced(t *testing.T) {
	r := receipttest.Example()
	name, digest := r.Configured.Image.Name, strings.TrimPrefix(r.Configured.Image.Digest, "sha256:")
	for now, hint := range map[string]bool{digest: false, strings.Repeat("1", 64): true, "": false} {
		p := newPerson(t)
		p.host.stored = map[string]string{name: now}
		p.expect(Command{}, 0, "PyBox receipt")
		if got := strings.Contains(p.err.String(), "an earlier image "+name); got != hint {
			t.Errorf("the store has %.8s…: said %v, want %v", now, got, hint)
		}
	}
}

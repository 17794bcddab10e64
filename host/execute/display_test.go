package execute

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/receipt"
	"github.com/pybox/pybox/host/receipt/receipttest"
)

// slow tells of a run with a pause of three seconds after each of these pieces of
// output, and before the first.
func slow(r *receipt.Receipt, pieces ...string) func(context.Context, api.RunRequest, func(api.Event) error) (*api.Outcome, error) {
	return func(_ context.Context, _ api.RunRequest, on func(api.Event) error) (*api.Outcome, error) {
		events := []api.Event{{Event: api.EventAccepted, ID: r.Run.ID}, {Event: api.EventStarted}}
		for _, p := range pieces {
			events = append(events, piece(p))
		}
		for i, e := range events {
			if err := on(e); err != nil {
				return nil, err
			}
			if i > 0 {
				time.Sleep(3 * time.Second) // of the test's own clock
			}
		}
		return &api.Outcome{Receipt: r}, nil
	}
}

// onScreen is what a terminal shows of s: a carriage return and an erased line are
// carried out.
func onScreen(s string) string {
	var lines []string
	for _, l := range strings.Split(s, "\n") {
		for {
			before, after, ok := strings.Cut(l, "\r")
			if !ok {
				break
			}
			text, rest, erased := strings.Cut(after, "\x1b[K")
			if !erased {
				l = before + after
				break
			}
			l = text + rest
		}
		lines = append(lines, l)
	}
	return strings.Join(lines, "\n")
}

func TestSpinner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPerson(t)
		p.terminal()
		p.host.run = slow(receipttest.Example(), "1one\n", "1two", "2err\n")
		p.expect(Command{}, 0)
		got := p.out.String()
		for _, s := range []string{"Running, 1.00 s\x1b[K", "Running, 2.90 s\x1b[K\r", "s\x1b[K\r\x1b[Kone\n\r", "Running, 5.90 s\x1b[K\r", "s\x1b[K\r\x1b[Ktwoerr\n\r"} {
			if !strings.Contains(got, s) {
				t.Errorf("no %q in\n%q", s, got)
			}
		}
		if strings.Contains(got, "Running, 0") {
			t.Errorf("a wait of less than a second is shown: %q", got)
		}
		if s := onScreen(got); !strings.HasPrefix(s, "one\ntwoerr\n\nPyBox receipt") {
			t.Errorf("on the screen: %q", s)
		}
	})
}

// TestNoSpinner: where it would be in the way, nothing is drawn.
func TestNoSpinner(t *testing.T) {
	for name, change := range map[string]func(*person, *Command){
		"stderr no terminal": func(p *person, _ *Command) { p.world.Terminal.Err = false },
		"dumb":               func(p *person, _ *Command) { p.world.Terminal.Dumb = true },
		"quiet":              func(_ *person, c *Command) { c.Quiet = true },
		"JSON":               func(_ *person, c *Command) { c.JSON = true },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPerson(t)
				p.terminal()
				c := Command{}
				change(p, &c)
				p.host.run = slow(receipttest.Example(), "1one\n")
				p.expect(c, 0)
				if got := p.out.String(); strings.ContainsAny(got, "\r\x1b") {
					t.Errorf("drawn: %q", got)
				}
			})
		})
	}
	for name, pieces := range map[string][]string{"unfinished line": {"1prompt> ", "1more"}, "cursor moved": {"1\x1b[2J\n", "1more\n"}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPerson(t)
				p.terminal()
				p.host.run = slow(receipttest.Example(), pieces...)
				p.expect(Command{}, 0)
				between, _, _ := strings.Cut(strings.SplitAfterN(p.out.String(), pieces[0][1:], 2)[1], "more")
				if between != "" {
					t.Errorf("drawn: %q", between)
				}
			})
		})
	}
}

// TestSettled: the receipt begins on a line of its own and in plain text, whatever
// the program has sent to the terminal.
func TestSettled(t *testing.T) {
	const plain = "\x1b\\\x1b(B\x0f\x1b[0m"
	for out, want := range map[string]string{
		"":                  "\nPyBox",
		"1line\n":           "line\n\nPyBox",
		"1no end":           "no end\n\nPyBox",
		"2no end":           "no end\n\nPyBox",
		"1\x1b[8m\n":        "\x1b[8m\n" + plain + "\nPyBox",
		"1\x1b]0;":          "\x1b]0;" + plain + "\n\nPyBox",
		"1\xc2\x9b31mred\n": "\xc2\x9b31mred\n" + plain + "\nPyBox",
		"1\x9b31mred\n":     "\x9b31mred\n" + plain + "\nPyBox",
		"1grün\n":           "grün\n\nPyBox",
	} {
		p := newPerson(t)
		p.terminal()
		var pieces []string
		if out != "" {
			pieces = append(pieces, out)
		}
		p.host.run = tell(receipttest.Example(), pieces...)
		p.expect(Command{}, 0)
		if got := p.out.String(); !strings.HasPrefix(got, want) {
			t.Errorf("%q gives %q, want %q", out, got, want)
		}
	}
	// Where the program's output goes elsewhere, the terminal is as it was.
	p := newPerson(t)
	p.world.Terminal = Terminal{Err: true}
	p.host.run = tell(receipttest.Example(), "1\x1b[8mno end")
	p.expect(Command{}, 0)
	if got := p.err.String(); !strings.HasPrefix(got, "\nPyBox") {
		t.Errorf("stderr %q", got)
	}
}

// TestNarrowSpinner: a line that wraps could not be erased.
func TestNarrowSpinner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPerson(t)
		p.terminal()
		p.world.Terminal.Width = func() int { return 24 }
		p.host.run = func(_ context.Context, _ api.RunRequest, on func(api.Event) error) (*api.Outcome, error) {
			ahead := 3
			_ = on(api.Event{Event: api.EventAccepted, ID: "x"})
			_ = on(api.Event{Event: api.EventQueued, Ahead: &ahead})
			time.Sleep(2 * time.Second)
			return script(on, receipttest.Example())
		}
		p.expect(Command{}, 0)
		n := 0
		for _, l := range strings.Split(p.out.String(), "\r") {
			if text, _, ok := strings.Cut(l, "\x1b[K"); ok && text != "" {
				n++
				if len([]rune(text)) > 23 {
					t.Errorf("%q is too wide", text)
				}
			}
		}
		if n == 0 {
			t.Error("nothing was drawn")
		}
	})
}

// TestStartOfOthers: a run that waits for a start of the VM says how it goes on.
func TestStartOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPerson(t)
		p.terminal()
		p.host.status = func() (api.Status, error) {
			return api.Status{State: api.StateStarting, Stages: []api.Stage{{Name: "machine started"}}}, nil
		}
		p.host.run = func(_ context.Context, _ api.RunRequest, on func(api.Event) error) (*api.Outcome, error) {
			time.Sleep(3 * time.Second)
			return script(on, receipttest.Example())
		}
		p.expect(Command{}, 0)
		if got := p.out.String(); !strings.Contains(got, "Starting the VM: waiting for the guest, 2.") {
			t.Errorf("stderr %q", got)
		}
	})
}

// Package show writes what PyBox knows as text for people: plain lines of at most
// 80 columns where the values allow it, no colours, no control characters from
// any guest. What programs read is JSON and comes from elsewhere.
package show

import (
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"

	"github.com/pybox/pybox/guest/bundle"
	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/units"
)

// label is the width of the left column.
const label = 14

// table writes "Label   value" rows and leaves out those without a value.
type table struct{ w io.Writer }

func (t table) row(name, format string, a ...any) {
	if v := fmt.Sprintf(format, a...); v != "" {
		fmt.Fprintf(t.w, "%-*s%s\n", label, name, Clean(v))
	}
}

// Clean removes what could move a terminal's cursor or colours: everything that
// is not printable. Guests and their consoles are hostile.
func Clean(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return -1
	}, s)
}

// Status writes a status. verbose adds the stages of the start.
func Status(w io.Writer, s api.Status, now time.Time, verbose bool) {
	t := table{w}
	switch s.State {
	case api.StateStopped:
		t.row("VM", "stopped; 'pybox vm start' starts it")
	case api.StateRunning:
		t.row("VM", "running for %s", units.Elapsed(now.Sub(s.Since)))
	default:
		t.row("VM", "%s for %s", s.State, units.Elapsed(now.Sub(s.Since)))
	}
	if s.VM != nil {
		machine(t, s.VM, now)
	}
	if s.Runs != nil {
		t.row("Runs", "%d in progress, of them %d waiting for room", s.Runs.Active, s.Runs.Queued)
	}
	if s.Guest != nil {
		guest(t, s.Guest, now)
	}
	if s.LastEnd != nil && (s.State == api.StateStopped || verbose) {
		t.row("Last end", "%s, %s ago: %s", s.LastEnd.At.Local().Format(time.DateTime), units.Elapsed(now.Sub(s.LastEnd.At)), s.LastEnd.Reason)
	}
	t.row("Home", "%s", s.Daemon.Home)
	if s.Daemon.PID != 0 {
		mem := ""
		if s.Daemon.RSSBytes > 0 {
			mem = fmt.Sprintf(", %v of memory", units.Size(s.Daemon.RSSBytes))
		}
		t.row("Daemon", "pid %d%s, PyBox %s", s.Daemon.PID, mem, s.Version)
	}
	if s.Daemon.Listen != "" {
		t.row("API", "on %s too, for who has the token", s.Daemon.Listen)
	}
	if verbose {
		fmt.Fprintln(w)
		Stages(w, s)
	}
}

func machine(t table, v *api.VM, now time.Time) {
	t.row("Machine", "%s, %s, %d CPUs, %v", v.VMM, v.Arch, v.CPUs, units.Size(v.MemoryBytes))
	t.row("Acceleration", "%s", acceleration(v))
	t.row("Kernel", "%s, sha256 %.12s", kernelKind(v.KernelKind), v.KernelSHA256)
	t.row("Bundle", "%.16s, root sha256 %.12s", v.Bundle, v.RootSHA256)
	for _, i := range v.Images {
		own := ""
		if i.Own {
			own = ", yours"
		}
		t.row("Image", "%s, %v, sha256 %.12s%s", i.Name, units.Size(i.Bytes), i.SHA256, own)
	}
	for _, l := range v.LeftOut {
		what := l.Name
		if what == "" {
			what = "yours, all of them"
		}
		t.row("Image", "%s LEFT OUT: %s; %s", what, l.Why, l.Next)
	}
	if !v.IdleStopAt.IsZero() {
		t.row("Idle stop", "in %s unless it is used", units.Elapsed(v.IdleStopAt.Sub(now)))
	}
}

func acceleration(v *api.VM) string {
	s := v.Acceleration
	if s == "tcg" {
		s = "none, emulated (TCG, 5 to 20 times slower)"
	}
	if v.AccelerationReason != "" {
		s += ": " + v.AccelerationReason
	}
	return s
}

func kernelKind(kind string) string {
	switch kind {
	case bundle.KernelOwn:
		return "PyBox's own (no modules, no io_uring)"
	case bundle.KernelCustom:
		return "custom (not PyBox's configuration)"
	case bundle.KernelDebianCloud:
		return "Debian's cloud kernel (general purpose)"
	}
	return kind
}

func guest(t table, g *api.Guest, now time.Time) {
	if !g.Answering {
		age := "it has never answered"
		if !g.ReadAt.IsZero() {
			age = fmt.Sprintf("the readings below are %s old", units.Elapsed(now.Sub(g.ReadAt)))
		}
		t.row("Guest", "NOT ANSWERING (%s); 'pybox vm restart' starts afresh", age)
	}
	t.row("Guest", "Linux %s, agent %s, protocol %d", g.KernelRelease, g.Agent, g.ProtocolVersion)
	t.row("Boot id", "%s", g.BootID)
	if g.MemoryTotalBytes > 0 {
		shim := ""
		if g.ShimRSSBytes > 0 {
			shim = fmt.Sprintf(", shim %v", units.Size(g.ShimRSSBytes))
		}
		t.row("Guest memory", "%v of %v in use (agent %v, init %v%s)", units.Size(g.MemoryUsedBytes), units.Size(g.MemoryTotalBytes),
			units.Size(g.AgentRSSBytes), units.Size(g.InitRSSBytes), shim)
	}
	t.row("Boxes", "%s", boxes(g))
	for _, r := range g.Ready {
		t.row("Ready boxes", "%s", readyBoxes(r))
	}
	if c := g.Clock; c != nil {
		set := ""
		if c.Stepped {
			set = ", after it was set"
		}
		t.row("Clock", "%+.1f ms from the host's (within ±%.1f ms)%s, %s ago", c.OffsetMS, c.BoundMS, set, units.Elapsed(now.Sub(c.MeasuredAt)))
	}
	if g.ShellEnabled {
		t.row("Shell", "OPENED in this guest: every receipt says so until 'pybox vm restart'")
	}
}

// boxes says what is alive, what waits, and whether boxes can be made.
func boxes(g *api.Guest) string {
	s := fmt.Sprintf("%d alive", g.Boxes)
	if g.Waiting > 0 {
		s += fmt.Sprintf(", %d waiting for room", g.Waiting)
	}
	if g.Engine != "" && g.Engine != "ready" {
		s += "; what makes them is " + g.Engine
	}
	return s
}

// readyBoxes says how many boxes of an image are ready, and why not all are.
func readyBoxes(r api.ReadyBoxes) string {
	s := fmt.Sprintf("%s: %d of %d", r.Image, r.Ready, r.Wanted)
	if r.Making > 0 {
		s += fmt.Sprintf(", %d being made", r.Making)
	}
	if r.Trouble != "" {
		s += "; the last one failed: " + r.Trouble
	}
	return s
}

// Problem writes a problem: the sentence, then what helps to judge it.
func Problem(w io.Writer, p *api.Problem) {
	title := p.Title
	switch {
	case strings.Contains(p.Detail, p.Title):
		title = p.Detail // it says so itself
	case p.Detail != "":
		title += ": " + p.Detail
	}
	fmt.Fprintf(w, "pybox: %s\n", Clean(title))
	t := table{indented{w}}
	t.row("VM", "%s", p.VMState)
	t.row("Likely cause", "%s", p.LikelyCause)
	t.row("Next", "%s", p.Next)
	if p.VMState == "" || p.VMState == "no machine was started" {
		return
	}
	if len(p.ConsoleTail) == 0 {
		t.row("Console", "the guest wrote nothing")
		return
	}
	t.row("Console", "the last lines of the guest, untrusted:")
	for _, l := range p.ConsoleTail {
		fmt.Fprintf(w, "    | %s\n", Clean(l))
	}
}

// indented puts two spaces before what is written in one call.
type indented struct{ w io.Writer }

func (i indented) Write(p []byte) (int, error) {
	_, err := io.WriteString(i.w, "  "+string(p))
	return len(p), err
}

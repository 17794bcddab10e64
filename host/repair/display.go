package repair

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/aymanbagabas/go-udiff"
	"github.com/pybox/pybox/host/engine"
	"github.com/pybox/pybox/host/receipt"
	"github.com/pybox/pybox/host/repair/answer"
	"github.com/pybox/pybox/host/repair/history"
	"github.com/pybox/pybox/host/repair/loop"
	"github.com/pybox/pybox/host/repair/model"
	"github.com/pybox/pybox/host/repair/prompt"
	"github.com/pybox/pybox/host/show"
	"github.com/pybox/pybox/host/units"
)

const (
	// quietBefore is how long something takes before a person is told, and redrawEvery
	// how often that line changes.
	quietBefore = time.Second
	redrawEvery = 200 * time.Millisecond
	// label is the width of the left column.
	label = 10
	// maxDiff bounds the lines of a diff that are shown, maxLine a line in bytes, before
	// any of them is written as an escape.
	maxDiff = 120
	maxLine = 400
)

// display says on standard error how a repair goes. Of the program and the model it
// shows nothing that could move a terminal's cursor. Its methods are safe for
// concurrent use.
type display struct {
	w     io.Writer
	quiet bool

	mu    sync.Mutex
	what  string // is waited for; empty: nothing
	since time.Time
	shown bool // the line about that is on the terminal
	stop  chan struct{}
	ended chan struct{}
}

// newDisplay makes a display. Its close ends it.
func newDisplay(w World, quiet bool) *display {
	d := &display{w: w.Stderr, quiet: quiet, stop: make(chan struct{}), ended: make(chan struct{})}
	if quiet || !w.ErrTerminal || w.Dumb {
		close(d.ended)
		return d
	}
	go d.redraw()
	return d
}

func (d *display) close() {
	close(d.stop)
	<-d.ended
	d.mu.Lock()
	defer d.mu.Unlock()
	d.clear()
}

func (d *display) redraw() {
	defer close(d.ended)
	t := time.NewTicker(redrawEvery)
	defer t.Stop()
	for frame := 0; ; frame++ {
		select {
		case <-t.C:
			d.draw(frame)
		case <-d.stop:
			return
		}
	}
}

func (d *display) draw(frame int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.what == "" || time.Since(d.since) < quietBefore {
		return
	}
	line := fmt.Sprintf("%c %s, %s", `|/-\`[frame%4], d.what, units.Elapsed(time.Since(d.since)))
	fmt.Fprintf(d.w, "\r%s\x1b[K", show.Head(line, 79))
	d.shown = true
}

func (d *display) clear() {
	if d.shown {
		fmt.Fprint(d.w, "\r\x1b[K")
	}
	d.shown = false
}

// wait says what is waited for from now on.
func (d *display) wait(format string, a ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.what, d.since = show.Clean(fmt.Sprintf(format, a...)), time.Now()
}

// still says what is waited for in other words.
func (d *display) still(format string, a ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.what = show.Clean(fmt.Sprintf(format, a...))
}

// row writes a line with a label, empty below the first.
func (d *display) row(name, format string, a ...any) {
	if d.quiet {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.clear()
	d.what = ""
	text := show.Escape(fmt.Sprintf(format, a...), maxLine)
	for i, l := range show.Wrap(text, 80-label) {
		if i > 0 {
			name = ""
		}
		fmt.Fprintf(d.w, "%-*s%s\n", label, name, l)
	}
}

// begin says what will be done, and who gets to see what.
func (d *display) begin(j *job) {
	s := j.settings
	d.row("Model", "%s at %s", s.ModelName, j.provider)
	if !j.provider.Loopback() {
		what := "the program and what it prints are sent there"
		if s.Check != nil {
			what = "the program, and what it and the check print, are sent there; a traceback shows lines of the check"
		}
		d.row("", "%s", what)
	}
	if j.provider.Plain() {
		d.row("", "WITHOUT ENCRYPTION: whoever is on the way can read and change it")
	}
	budgets := fmt.Sprintf("%d rounds, %s in all", s.Rounds, units.Elapsed(s.Wall))
	if s.Model < s.Wall {
		budgets += fmt.Sprintf(", %s for the model", units.Elapsed(s.Model))
	}
	if s.Run < s.Wall {
		budgets += fmt.Sprintf(", %s for runs", units.Elapsed(s.Run))
	}
	d.row("Budget", "%s, %d tokens", budgets, s.Tokens)
}

// events are the loop's.
func (d *display) events() loop.Events {
	round := 0
	return loop.Events{
		Starting: func(s engine.Step) { d.still("%s", show.StartStep(*s.Status)) },
		Running: func(n int, check bool) {
			what := "the program"
			if check {
				what = "the check"
			}
			d.wait("Round %d: running %s", n, what)
		},
		Asking:    func(n int) { round = n; d.wait("Round %d: asking the model", n) },
		Receiving: func(n int) { d.still("Round %d: the model answers, %v so far", round, units.Size(n)) },
		Waiting: func(err *model.Error, pause time.Duration) {
			d.row(fmt.Sprintf("Round %d", round), "%s; asking again in %s", err, units.Elapsed(pause))
			d.wait("Round %d: waiting to ask the model again", round)
		},
		Round: d.round,
	}
}

// round says how a round went.
func (d *display) round(r *history.Round) {
	name := fmt.Sprintf("Round %d", r.Round)
	if a := r.Answer; a != nil {
		d.row(name, "%s", answered(a, r.Diff))
		name = ""
	}
	for _, run := range []struct {
		what string
		*history.Run
	}{{"the program", r.Run}, {"the check", r.Check}} {
		if run.Run != nil {
			d.row(name, "%s %s", run.what, ran(run.Run))
			d.lastLine(run.Run)
			name = ""
		}
	}
	if r.OK {
		d.row("", "this works")
	} else if r.Run != nil && r.Run.Receipt != nil && strings.HasPrefix(r.Why, "its ") {
		d.row("", "%s", r.Why)
	}
}

// answered says what came of a question.
func answered(a *history.Answer, diff string) string {
	took := units.Elapsed(time.Duration(a.MS * float64(time.Millisecond)))
	if a.Error != "" {
		return fmt.Sprintf("no answer in %s", took)
	}
	about := ""
	if a.Tokens.Estimated {
		about = "about "
	}
	s := fmt.Sprintf("the model answered in %s, %s%d + %d tokens: ", took, about, a.Tokens.Input, a.Tokens.Output)
	if a.Refused != "" {
		return s + "refused (" + a.Refused + ")"
	}
	added, removed := counts(diff)
	return s + fmt.Sprintf("+%d -%d lines", added, removed)
}

func counts(diff string) (added, removed int) {
	header := 2
	for l := range strings.Lines(diff) {
		switch {
		case header > 0:
			header--
		case l[0] == '+':
			added++
		case l[0] == '-':
			removed++
		}
	}
	return added, removed
}

// ran says how a run went, as what follows "the program".
func ran(r *history.Run) string {
	took := units.Elapsed(time.Duration(r.MS * float64(time.Millisecond)))
	switch {
	case r.ID == "":
		return "was not run"
	case r.Receipt == nil:
		return fmt.Sprintf("was given up after %s%s", took, id(r))
	}
	return fmt.Sprintf("%s, %s%s", prompt.Ending(r.Receipt), took, id(r))
}

func id(r *history.Run) string {
	if r.ID == "" {
		return ""
	}
	return fmt.Sprintf(" (run %.8s)", r.ID)
}

// lastLine shows the last line of what a program that failed wrote to its standard
// error: in Python that is the error.
func (d *display) lastLine(r *history.Run) {
	if r.Receipt == nil || r.Receipt.Program.Stderr.Text == nil || succeeded(r.Receipt) {
		return
	}
	text := strings.TrimRight(*r.Receipt.Program.Stderr.Text, " \t\r\n")
	if line := text[strings.LastIndexByte(text, '\n')+1:]; line != "" {
		d.row("", "| %s", line)
	}
}

func succeeded(r *receipt.Receipt) bool {
	x := r.Observed.Engine.Exit
	return x != nil && x.Code != nil && *x.Code == 0
}

// end says what ended it, what it took, and where things are.
func (d *display) end(h *history.History, before, after, kept string) {
	if d.quiet {
		if !h.OK {
			fmt.Fprintf(d.w, "pybox: not repaired (%s): %s\n", h.End.By, show.Escape(h.End.Detail, maxLine))
		}
		return
	}
	if h.OK && before != after {
		d.diff(h.Asked.Program, answer.Unix(before), answer.Unix(after))
	}
	switch h.End.By {
	case history.EndFine:
		d.row("Fine", "%s", h.End.Detail)
	case history.EndRepaired:
		d.row("Repaired", "%s", h.End.Detail)
	default:
		d.row("Not fixed", "%s (%s)", h.End.Detail, h.End.By)
	}
	at := func(ms float64) string { return units.Elapsed(time.Duration(ms * float64(time.Millisecond))) }
	spent := fmt.Sprintf("%s of %s: %s for the model, %s for runs; %d of %d tokens",
		at(h.Spent.WallMS), at(h.Budgets.WallMS), at(h.Spent.ModelMS), at(h.Spent.RunMS), h.Spent.Tokens.Sum(), h.Budgets.Tokens)
	if h.Spent.VMStartMS > 0 {
		spent += fmt.Sprintf("; and %s for the VM to start", at(h.Spent.VMStartMS))
	}
	d.row("Spent", "%s", spent)
	d.path("History", kept)
	d.path("Written", h.Output)
}

// path writes where something is, on one line that can be copied; nothing when it is
// empty.
func (d *display) path(name, path string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if path != "" {
		fmt.Fprintf(d.w, "%-*s%s\n", label, name, show.Escape(path, 4<<10))
	}
}

// diff shows what changed in all.
func (d *display) diff(name, before, after string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.clear()
	lines := strings.SplitAfter(strings.TrimSuffix(udiff.Unified("a/"+name, "b/"+name, before, after), "\n"), "\n")
	fmt.Fprintln(d.w)
	for i, l := range lines {
		if i == maxDiff {
			fmt.Fprintf(d.w, "... and %d more lines\n", len(lines)-i)
			break
		}
		l = strings.TrimSuffix(l, "\n")
		cut := ""
		if len(l) > maxLine {
			cut = fmt.Sprintf("... (%d more bytes)", len(l)-maxLine)
			l = l[:maxLine]
		}
		fmt.Fprintln(d.w, shown(l)+cut)
	}
	fmt.Fprintln(d.w)
}

// shown is a text of lines as a terminal may have it.
func shown(text string) string {
	var b strings.Builder
	for l := range strings.Lines(text) {
		line, found := strings.CutSuffix(l, "\n")
		parts := strings.Split(line, "\t")
		for i, p := range parts {
			parts[i] = show.Escape(p, len(text))
		}
		b.WriteString(strings.Join(parts, "\t"))
		if found {
			b.WriteByte('\n')
		}
	}
	return b.String()
}

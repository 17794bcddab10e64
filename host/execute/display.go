package execute

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/pybox/pybox/host/show"
	"github.com/pybox/pybox/host/units"
)

const (
	// quietBefore is how long something has to take before a person is told.
	quietBefore = time.Second
	// redrawEvery is how often the line about a wait changes.
	redrawEvery = 100 * time.Millisecond
)

// Terminal is what is known of the streams that a person may look at.
type Terminal struct {
	// Out and Err tell whether standard output and standard error are terminals,
	// which then are taken for the same one.
	Out, Err bool
	// Dumb tells that it cannot erase a line.
	Dumb bool
	// Color tells that colours are wanted.
	Color bool
	// Width is how many columns it has at the moment.
	Width func() int
}

// display is the one place that writes to standard output and standard error: a
// goroutine does so in the order of asking, so that nobody waits for a terminal or
// a pipe that takes nothing, and a line about a wait never gets into the middle of
// what the program prints. What waits to be written is bounded by who asks.
type display struct {
	out, err io.Writer
	tty      Terminal
	waits    bool // whether waits are shown

	mu    sync.Mutex
	queue []func()
	wake  chan struct{}
	ended chan struct{}
	// failed is closed when standard output has failed, after failure was set.
	failed  chan struct{}
	failure error

	// What follows belongs to the goroutine.
	errFailed bool
	over      bool
	open      bool // the terminal's line is the program's and unfinished
	escape    bool // the program sent the terminal an escape sequence, or what may be one
	shown     bool // the line about the wait is on the terminal
	frame     int
	label     string
	since     time.Time // when that wait began
	quiet     time.Time // when something was last written, or a wait began
}

func newDisplay(out, err io.Writer, tty Terminal, waits bool) *display {
	d := &display{
		out: out, err: err, tty: tty, waits: waits && tty.Err && !tty.Dumb,
		wake: make(chan struct{}, 1), ended: make(chan struct{}), failed: make(chan struct{}),
	}
	go d.run()
	return d
}

// do has f called by the goroutine, after all before it.
func (d *display) do(f func()) {
	d.mu.Lock()
	d.queue = append(d.queue, f)
	d.mu.Unlock()
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

func (d *display) take() []func() {
	d.mu.Lock()
	defer d.mu.Unlock()
	q := d.queue
	d.queue = nil
	return q
}

func (d *display) run() {
	defer close(d.ended)
	var tick <-chan time.Time
	if d.waits {
		t := time.NewTicker(redrawEvery)
		defer t.Stop()
		tick = t.C
	}
	for !d.over {
		for i, q := 0, d.take(); i < len(q); i++ {
			q[i]()
			q[i] = nil // a large output goes as it is written
		}
		if d.over {
			return
		}
		select {
		case <-d.wake:
		case <-tick:
			d.draw()
		}
	}
}

// lastly writes a line of ours to standard error before this command leaves. When
// the goroutine does not get away from what it writes, as to a pipe that nobody
// empties, the line goes past it. It takes about twice patience at most.
func (d *display) lastly(patience time.Duration, s string) {
	free := make(chan struct{})
	d.do(func() { close(free) })
	select {
	case <-free:
		d.line("%s", s)
		return
	case <-d.ended:
		return
	case <-time.After(patience):
	}
	written := make(chan struct{})
	go func() {
		defer close(written)
		fmt.Fprintln(d.err, show.Clean(s))
	}()
	select {
	case <-written:
	case <-time.After(patience): // it is what takes nothing
	}
}

// flush returns when all that was asked for has been written, or nothing is any
// more.
func (d *display) flush() {
	done := make(chan struct{})
	d.do(func() { close(done) })
	select {
	case <-done:
	case <-d.ended:
	}
}

// close clears the line about the wait and ends the goroutine. It waits for that
// no longer than patience: a terminal may take nothing.
func (d *display) close(patience time.Duration) {
	d.do(func() { d.clear(); d.over = true })
	select {
	case <-d.ended:
	case <-time.After(patience):
	}
}

// wait says what is being waited for since when; empty: nothing.
func (d *display) wait(label string, since time.Time) {
	d.do(func() {
		if since != d.since {
			d.quiet = since
		}
		d.label, d.since = label, since
		if label == "" {
			d.clear()
		}
	})
}

// relabel says the wait that goes on in other words.
func (d *display) relabel(label string) {
	d.do(func() {
		if d.label != "" {
			d.label = label
		}
	})
}

// output writes a piece of the program's output, which must not change any more.
func (d *display) output(stream string, b []byte) {
	d.do(func() {
		d.clear()
		d.quiet = time.Now()
		terminal := d.tty.Out
		if stream == "stderr" {
			d.toErr(b)
			terminal = d.tty.Err
		} else {
			d.toOut(b)
		}
		if terminal && len(b) > 0 {
			d.open = b[len(b)-1] != '\n'
			d.escape = d.escape || mayMove(b)
		}
	})
}

// mayMove tells whether a terminal may take b for more than text and ends of
// lines: an ESC, a shift to another character set, or a control of ISO 6429 (C1) as
// UTF-8 or as a byte.
func mayMove(b []byte) bool {
	return bytes.ContainsFunc(b, func(r rune) bool {
		return r == '\x1b' || r == '\x0e' || r >= 0x80 && r < 0xa0 || r == '\ufffd'
	})
}

// record writes b, which is no output of the program, to standard output.
func (d *display) record(b []byte) { d.do(func() { d.clear(); d.toOut(b) }) }

// line writes a line of ours to standard error.
func (d *display) line(format string, a ...any) {
	s := fmt.Sprintf(format, a...)
	d.text(func(w io.Writer) { fmt.Fprintln(w, show.Clean(s)) })
}

// text writes text of ours to standard error, on a line of its own. write must not
// let anything through that moves a terminal's cursor but ends of lines.
func (d *display) text(write func(w io.Writer)) {
	d.do(func() {
		var b bytes.Buffer
		d.clear()
		d.settle(&b)
		write(&b)
		d.toErr(b.Bytes())
		d.quiet = time.Now()
	})
}

// settle makes the terminal fit for text after what the program sent to it.
func (d *display) settle(b *bytes.Buffer) {
	if !d.tty.Err {
		return
	}
	if d.escape {
		// The end of a string that a terminal would swallow text for (ST), ASCII
		// as the character set, and no colours (SGR 0).
		b.WriteString("\x1b\\\x1b(B\x0f\x1b[0m")
	}
	if d.open {
		b.WriteByte('\n')
	}
	d.open, d.escape = false, false
}

func (d *display) toOut(b []byte) {
	if d.failure != nil {
		return
	}
	if _, err := d.out.Write(b); err != nil {
		d.failure = err
		close(d.failed)
	}
}

// toErr writes to standard error. Where that is closed or full nobody can be told,
// and no more is tried.
func (d *display) toErr(b []byte) {
	if d.errFailed || len(b) == 0 {
		return
	}
	_, err := d.err.Write(b)
	d.errFailed = err != nil
}

// draw shows the wait, if there is one that is worth it and its line is free. A
// program that moves the cursor has the terminal for itself.
func (d *display) draw() {
	now := time.Now()
	if d.label == "" || d.open || d.escape || now.Sub(d.quiet) < quietBefore {
		return
	}
	d.frame++
	s := fmt.Sprintf("%c %s, %s", `|/-\`[d.frame%4], show.Clean(d.label), units.Elapsed(now.Sub(d.since)))
	d.toErr([]byte("\r" + cut(s, d.tty.columns()-1) + "\x1b[K"))
	d.shown = true
}

func (d *display) clear() {
	if d.shown {
		d.toErr([]byte("\r\x1b[K"))
	}
	d.shown = false
}

const (
	usualColumns = 80
	// fewestColumns is what text is laid out for at least.
	fewestColumns = 20
)

// columns is how wide text may be.
func (t Terminal) columns() int {
	if !t.Err || t.Width == nil {
		return usualColumns
	}
	if w := t.Width(); w > 0 {
		return max(w, fewestColumns)
	}
	return usualColumns
}

// cut shortens s to n columns.
func cut(s string, n int) string {
	if show.Columns(s) <= n {
		return s
	}
	return strings.TrimRight(show.Head(s, n-1), " ") + "…"
}

package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/pybox/pybox/host/execute"
	"golang.org/x/term"
)

// progress is one line on a terminal that says what a command waits for. It shows
// nothing for the first second, and nothing at all where stderr is no terminal.
type progress struct {
	mu    sync.Mutex
	w     io.Writer
	from  time.Time
	shown bool
	over  bool
}

func newProgress(w io.Writer) *progress {
	return &progress{w: w, from: time.Now(), over: !isTerminal(w) || dumb()}
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// dumb tells whether the terminal can do no more than print.
func dumb() bool { return getenv("TERM") == "dumb" }

// terminal is what is known of the terminal that a command may have. For colours
// see no-color.org.
func terminal(stdout, stderr io.Writer) execute.Terminal {
	t := execute.Terminal{Out: isTerminal(stdout), Err: isTerminal(stderr), Dumb: dumb()}
	t.Color = t.Err && !t.Dumb && getenv("NO_COLOR") == ""
	t.Width = func() int {
		f, ok := stderr.(*os.File)
		if !ok {
			return 0
		}
		width, _, err := term.GetSize(int(f.Fd()))
		if err != nil {
			return 0 // not known
		}
		return width
	}
	return t
}

// show replaces the line.
func (p *progress) show(s string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.over && time.Since(p.from) >= time.Second {
		fmt.Fprintf(p.w, "\r%s\x1b[K", s)
		p.shown = true
	}
}

// clear removes the line for good.
func (p *progress) clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shown {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
	p.over = true
}

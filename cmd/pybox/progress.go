package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

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
	p := &progress{w: w, from: time.Now()}
	if f, ok := w.(*os.File); !ok || !term.IsTerminal(int(f.Fd())) || os.Getenv("TERM") == "dumb" {
		p.over = true
	}
	return p
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

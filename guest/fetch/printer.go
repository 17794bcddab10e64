package fetch

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/term"
)

// How often a person is told: on a terminal one line is rewritten, elsewhere (a
// log, a pipe) lines add up.
const (
	redrawEvery = 100 * time.Millisecond
	lineEvery   = 5 * time.Second
)

// Printer shows a person how downloads go. Its methods are safe for concurrent
// use.
type Printer struct {
	mu       sync.Mutex
	w        io.Writer
	terminal bool
	now      func() time.Time
	files    map[string]Progress
	last     time.Time
	shown    bool // a line that Clear must take away
}

// NewPrinter returns a printer to w.
func NewPrinter(w io.Writer) *Printer {
	f, ok := w.(*os.File)
	return &Printer{w: w, now: time.Now, files: map[string]Progress{},
		terminal: ok && term.IsTerminal(int(f.Fd()))}
}

// Update takes the state of one file; it fits Fetcher.Progress. What is in the
// cache already is no news.
func (p *Printer) Update(u Progress) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, seen := p.files[u.File]; !seen && u.Source == fromCache {
		return
	}
	p.files[u.File] = u
	now, every := p.now(), lineEvery
	if p.terminal {
		every = redrawEvery
	} else if p.last.IsZero() {
		p.last = now // what takes no time needs no line
	}
	if now.Sub(p.last) < every {
		return
	}
	p.last = now
	p.print(u)
}

func (p *Printer) print(u Progress) {
	var done, total int64
	for _, f := range p.files {
		done, total = done+f.Done, total+f.Total
	}
	before, after := "downloading ", "\n"
	if p.terminal {
		before, after, p.shown = "\r\x1b[K", "", true
	}
	const mib = 1 << 20
	fmt.Fprintf(p.w, "%s%6.1f of %.1f MiB · %s · %s%s", before, float64(done)/mib, float64(total)/mib, u.File, u.Source, after)
}

// Clear takes the line away from a terminal, before something else is printed.
// It may be called at any time.
func (p *Printer) Clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shown {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.shown = false
	}
}

package fetch

import (
	"fmt"
	"io"
	"os"
	"strings"
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

// The bar, and the terminal that is too narrow for one.
const (
	barColumns = 20
	barNeeds   = 60
	mib        = 1 << 20
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
	expected int64
	columns  func() int // of the terminal; 0: not known
	shown    bool       // a line that Clear must take away
}

// NewPrinter returns a printer to w.
func NewPrinter(w io.Writer) *Printer {
	p := &Printer{w: w, now: time.Now, files: map[string]Progress{}, columns: func() int { return 0 }}
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) && os.Getenv("TERM") != "dumb" {
		p.terminal = true
		p.columns = func() int {
			n, _, err := term.GetSize(int(f.Fd()))
			if err != nil {
				return 0
			}
			return n
		}
	}
	return p
}

// Expect says how many bytes all downloads have together, for who knows that
// beforehand: a bar then shows how far they are. Without it the total grows with
// the files that are begun.
func (p *Printer) Expect(bytes int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.expected = bytes
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
	total = max(total, p.expected)
	how := fmt.Sprintf("%6.1f of %.1f MiB · %s · %s", float64(done)/mib, float64(total)/mib, u.File, u.Source)
	if !p.terminal {
		fmt.Fprintf(p.w, "downloading %s\n", how)
		return
	}
	width := p.columns()
	if p.expected > 0 && (width == 0 || width >= barNeeds) {
		how = bar(done, total) + " " + how
	}
	fmt.Fprintf(p.w, "\r\x1b[K%s", clip(how, width))
	p.shown = true
}

func bar(done, total int64) string {
	n := int(done * barColumns / max(total, 1))
	return "[" + strings.Repeat("=", n) + strings.Repeat(" ", barColumns-n) + "]"
}

// clip keeps a line in its row of the terminal, whose last column stays free: a
// line that wraps cannot be drawn over.
func clip(s string, columns int) string {
	r := []rune(s)
	if columns > 1 && len(r) >= columns {
		return string(r[:columns-2]) + "…"
	}
	return s
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

package compile

import (
	"strings"
	"sync"

	agentapi "github.com/pybox/pybox/agent/api"
)

// maxLine bounds a line from the guest, in bytes.
const maxLine = 200

// lines cuts what comes in pieces into lines that are safe to show.
type lines struct {
	show func(line string)
	rest []byte
	long bool // the rest of a line that was too long is being passed over
}

func (l *lines) add(piece []byte) {
	for _, b := range piece {
		switch {
		case b == '\n':
			l.end()
			l.long = false
		case l.long:
		default:
			l.rest = append(l.rest, b)
			if len(l.rest) > maxLine {
				l.end()
				l.long = true
			}
		}
	}
}

// end shows what has no end of line yet.
func (l *lines) end() {
	if s := strings.TrimSpace(string(l.rest)); s != "" {
		l.show(agentapi.Text(s, maxLine))
	}
	l.rest = l.rest[:0]
}

// tail keeps the last lines of what is written to it. It is safe for concurrent
// use.
type tail struct {
	mu   sync.Mutex
	in   lines
	kept []string
}

// Write implements io.Writer; it never fails.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.in.show = t.keep
	t.in.add(p)
	return len(p), nil
}

func (t *tail) keep(line string) {
	if t.kept = append(t.kept, line); len(t.kept) > lastLines {
		t.kept = append(t.kept[:0], t.kept[1:]...)
	}
}

func (t *tail) last() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.in.show = t.keep
	t.in.end()
	return append([]string(nil), t.kept...)
}

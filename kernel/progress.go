package kernel

import (
	"bytes"
	"strings"
	"sync"
)

// maxStepBytes bounds a line that is looked at; longer ones are cut.
const maxStepBytes = 4 << 10

// stepCounter reads the lines of kbuild's short form, such as
// "  CC      mm/slub.o", and counts them. Safe for concurrent use.
type stepCounter struct {
	mu   sync.Mutex
	part []byte
	n    int
	last string
}

func (s *stepCounter) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for rest := p; len(rest) > 0; {
		line, after, whole := bytes.Cut(rest, []byte("\n"))
		s.part = append(s.part, line[:min(len(line), maxStepBytes-len(s.part))]...)
		if whole {
			s.line()
		}
		rest = after
	}
	return len(p), nil
}

// line takes the line in s.part.
func (s *stepCounter) line() {
	if f := strings.Fields(string(s.part)); len(f) == 2 && bytes.HasPrefix(s.part, []byte("  ")) {
		s.n++
		s.last = strings.Map(printable, f[0]+" "+f[1])
	}
	s.part = s.part[:0]
}

// get returns how many steps began, and the last of them.
func (s *stepCounter) get() (n int, last string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.n, s.last
}

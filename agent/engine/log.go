package engine

import (
	"bufio"
	"errors"
	"io"
	"log/slog"
	"sync"
	"time"
)

// What containerd and the shim may log: bursts of logBurst lines, then one every
// logEvery, each of at most maxLogLine bytes. What a program does can cause lines.
const (
	logBurst   = 40
	logEvery   = time.Second
	maxLogLine = 1000
)

// limitedLog passes on a bounded number of lines and counts the rest. Methods are
// safe for concurrent use.
type limitedLog struct {
	log *slog.Logger
	now func() time.Time

	mu      sync.Mutex
	left    int
	filled  time.Time
	dropped int
}

func newLimitedLog(log *slog.Logger, now func() time.Time) *limitedLog {
	return &limitedLog{log: log, now: now, left: logBurst, filled: now()}
}

// take tells whether a line may pass, and how many did not before it.
func (l *limitedLog) take() (ok bool, dropped int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := int(l.now().Sub(l.filled) / logEvery); n > 0 {
		l.left = min(l.left+n, logBurst)
		l.filled = l.filled.Add(time.Duration(n) * logEvery)
	}
	if l.left == 0 {
		l.dropped++
		return false, 0
	}
	l.left--
	dropped, l.dropped = l.dropped, 0
	return true, dropped
}

// line logs text of source.
func (l *limitedLog) line(source, text string) {
	ok, dropped := l.take()
	if !ok {
		return
	}
	if dropped > 0 {
		l.log.Warn("lines were dropped", "number", dropped)
	}
	l.log.Warn(source, "line", text[:min(len(text), maxLogLine)])
}

// forwardLines logs what a shim prints until it ends. A line that is too long is
// cut: nothing may ever keep the shim from printing.
func forwardLines(log *limitedLog, r io.ReadCloser) {
	defer r.Close()
	in := bufio.NewReaderSize(r, maxLogLine)
	for whole := true; ; {
		b, err := in.ReadSlice('\n')
		if whole && len(b) > 0 {
			log.line("shim", string(b))
		}
		if whole = !errors.Is(err, bufio.ErrBufferFull); whole && err != nil {
			return
		}
	}
}

package engine

import (
	"bytes"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// recorder is a limitedLog with a clock of the test's and what it has logged.
type recorder struct {
	*limitedLog
	at  time.Time
	out bytes.Buffer
}

func newRecorder() *recorder {
	r := &recorder{at: time.Unix(1, 0)}
	r.limitedLog = newLimitedLog(slog.New(slog.NewTextHandler(&r.out, nil)), func() time.Time { return r.at })
	return r
}

func (r *recorder) lines() int { return strings.Count(r.out.String(), "\n") }

func TestLogIsLimited(t *testing.T) {
	r := newRecorder()
	for range 3 * logBurst {
		r.line("shim", "x")
	}
	if n := r.lines(); n != logBurst {
		t.Errorf("%d lines of a burst, want %d", n, logBurst)
	}
	r.at = r.at.Add(2*logEvery + logEvery/2)
	for range 5 {
		r.line("shim", "x")
	}
	if n := r.lines(); n != logBurst+3 { // two, and how many were not
		t.Errorf("%d lines, want %d", n, logBurst+3)
	}
	if !strings.Contains(r.out.String(), "number=80") {
		t.Errorf("the lines that were dropped are not told:\n%s", r.out.String())
	}
	r.at = r.at.Add(time.Hour)
	r.out.Reset()
	for range 2 * logBurst {
		r.line("shim", "x")
	}
	if n := r.lines(); n != logBurst+1 {
		t.Errorf("%d lines after an hour, want %d", n, logBurst+1)
	}
}

func TestForwardLines(t *testing.T) {
	r := newRecorder()
	long := strings.Repeat("y", 5*maxLogLine)
	in := strings.NewReader("one\n\n" + long + "\ntwo\x1b[31m\nlast")
	done := make(chan struct{})
	go func() {
		defer close(done)
		forwardLines(r.limitedLog, io.NopCloser(in))
	}()
	<-done
	if in.Len() != 0 {
		t.Errorf("%d bytes are not read", in.Len())
	}
	if r.lines() != 5 {
		t.Errorf("%d lines, want 5:\n%s", r.lines(), r.out.String())
	}
	if strings.Contains(r.out.String(), "\x1b") || strings.Contains(r.out.String(), long[:maxLogLine+1]) {
		t.Errorf("raw or too long: %q", r.out.String())
	}
}

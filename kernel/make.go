package kernel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pybox/pybox/guest/nospace"
)

const (
	// tailLines is how much of a log an error shows.
	tailLines = 25
	// maxTailBytes bounds what is kept in memory of a run's output for that: on a
	// full disk the log is what does not get written.
	maxTailBytes = 32 << 10
	// maxStdout bounds what is kept of a program's output.
	maxStdout = 64 << 10
	// killGrace is how long the output of a killed build may stay open.
	killGrace = 5 * time.Second
	// progressEvery spaces the lines that tell of a running build.
	progressEvery = 10 * time.Second
)

// makeRun is one call of the kernel's build.
type makeRun struct {
	verb     string // what it is for, in log names and errors
	args     []string
	env      []string
	log      string
	held     *os.File                      // an open lock that all of make's processes share; may be nil
	capture  bool                          // keep standard output for the caller
	progress func(format string, a ...any) // nil: silent
}

type makeOutput struct {
	stdout    []byte // at most maxStdout bytes of it, where captured
	wall, cpu time.Duration
}

// makeError is a failed run. It matches ErrMake.
type makeError struct {
	verb, log string
	tail      []string
	full      bool // the disk is
	err       error
}

func (e *makeError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v (%s: %v); the end of its log:", ErrMake, e.verb, e.err)
	for _, line := range e.tail {
		b.WriteString("\n  | " + line)
	}
	fmt.Fprintf(&b, "\nthe whole log: %s", e.log)
	if e.full {
		fmt.Fprintf(&b, "\n%v for the kernel's objects: free 3 GB in %s, or %s", nospace.Err, filepath.Dir(e.log), moveCache)
	}
	return b.String()
}

func (e *makeError) Unwrap() []error {
	if e.full {
		return []error{ErrMake, nospace.Err, e.err}
	}
	return []error{ErrMake, e.err}
}

// command prepares a run of make for objects in dir.
func (w *workdir) command(verb, dir string, args ...string) makeRun {
	all := []string{"-s", "-C", w.source.dir, "O=" + dir, "ARCH=" + w.arch.make}
	// kconfig notes the versions of these in the configuration, which is part
	// of the kernel. None takes part in the build: let it find none, anywhere.
	for _, tool := range []string{"RUSTC", "BINDGEN", "PAHOLE"} {
		all = append(all, tool+"=/nonexistent")
	}
	if c := w.arch.cross(); c != "" {
		all = append(all, "CROSS_COMPILE="+c)
	}
	if verb == "build" {
		all[0] = "--no-print-directory" // its lines are the progress
	}
	stamp := w.source.time.UTC().Format("Mon Jan _2 15:04:05 UTC 2006")
	return makeRun{
		verb: verb,
		args: append(all, args...),
		log:  filepath.Join(w.b.Cache, "work", w.arch.name+"-"+verb+".log"),
		held: w.lock.file,
		env: append(hostEnv(),
			"LC_ALL=C", "TZ=UTC",
			"KBUILD_BUILD_TIMESTAMP="+stamp,
			"KBUILD_BUILD_USER=pybox", "KBUILD_BUILD_HOST=pybox", "KBUILD_BUILD_VERSION=1"),
	}
}

// hostEnv is the little of this process's environment that a build may see:
// make takes any variable as a setting (CC, KCFLAGS, LOCALVERSION), and none of
// them is in the key.
func hostEnv() []string {
	var env []string
	for _, name := range []string{"PATH", "HOME", "TMPDIR"} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// do runs make with its output in the log file. When ctx ends, the whole process
// group is killed; when this process dies, make is.
func (r makeRun) do(ctx context.Context) (makeOutput, error) {
	log, err := os.Create(r.log)
	if err != nil {
		return makeOutput{}, fmt.Errorf("make log: %w", err)
	}
	defer log.Close()
	cmd := exec.CommandContext(ctx, "make", r.args...)
	cmd.Env = r.env
	cmd.WaitDelay = killGrace
	ownGroup(cmd)
	dieTogether(cmd)
	if r.held != nil {
		cmd.ExtraFiles = []*os.File{r.held}
	}
	stdout := &head{limit: maxStdout}
	steps := &stepCounter{}
	end := &tail{}
	kept := &logWriter{w: log}
	// One writer for both is one pipe for both: errors stay where they belong.
	sink := io.MultiWriter(end, steps, kept)
	cmd.Stdout, cmd.Stderr = sink, sink
	if r.capture {
		cmd.Stdout = io.MultiWriter(end, stdout, kept)
	}
	start := time.Now()
	stop := r.report(steps, start)
	err = runOnOneThread(cmd)
	stop()
	out := makeOutput{stdout: stdout.buf.Bytes(), wall: time.Since(start)}
	if cmd.ProcessState != nil {
		out.cpu = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	}
	switch {
	case ctx.Err() != nil:
		return out, fmt.Errorf("%s was interrupted, all its processes are killed: %w", r.verb, context.Cause(ctx))
	case errors.Is(err, exec.ErrNotFound):
		return out, fmt.Errorf("%w: %w", ErrTools, err)
	case err != nil:
		lines := end.lines()
		return out, &makeError{verb: r.verb, log: r.log, tail: lines, err: err,
			full: nospace.Is(kept.failed()) || slices.ContainsFunc(lines, tellsOfFullDisk)}
	}
	return out, nil
}

// report tells now and then how far the run is, until stop is called.
func (r makeRun) report(steps *stepCounter, start time.Time) (stop func()) {
	if r.progress == nil {
		return func() {}
	}
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		t := time.NewTicker(progressEvery)
		defer t.Stop()
		for {
			select {
			case <-done:
				return
			case <-t.C:
				n, last := steps.get()
				r.progress("%d steps after %.0f s, now %s", n, time.Since(start).Seconds(), last)
			}
		}
	}()
	return func() { close(done); <-ended }
}

// tellsOfFullDisk recognises what programs say of ENOSPC and EDQUOT (LC_ALL=C).
func tellsOfFullDisk(line string) bool {
	return strings.Contains(line, "No space left on device") || strings.Contains(line, "Disk quota exceeded")
}

// logWriter writes to a log as long as that works. A log that cannot be written
// must not end the build, whose own messages say more. Safe for concurrent use.
type logWriter struct {
	mu  sync.Mutex
	w   io.Writer
	err error
}

func (l *logWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		_, l.err = l.w.Write(p)
	}
	return len(p), nil
}

// failed is the error that ended the log.
func (l *logWriter) failed() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// tail keeps the last maxTailBytes that are written to it. Safe for concurrent
// use.
type tail struct {
	mu  sync.Mutex
	buf []byte // at most twice maxTailBytes
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p[max(0, len(p)-maxTailBytes):]...)
	if extra := len(t.buf) - maxTailBytes; extra > maxTailBytes/2 {
		t.buf = append(t.buf[:0], t.buf[extra:]...)
	}
	return len(p), nil
}

// lines returns the last lines, with control characters replaced.
func (t *tail) lines() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	b := t.buf[max(0, len(t.buf)-maxTailBytes):]
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	if len(lines) > tailLines {
		lines = lines[len(lines)-tailLines:]
	}
	for i := range lines {
		lines[i] = strings.Map(printable, lines[i])
	}
	return lines
}

func printable(r rune) rune {
	if r == '\t' {
		return ' '
	}
	if r < ' ' || r == 0x7f || r == '\uFFFD' {
		return '?'
	}
	return r
}

// head keeps the first bytes that are written to it.
type head struct {
	buf   bytes.Buffer
	limit int
}

func (h *head) Write(p []byte) (int, error) {
	h.buf.Write(p[:min(len(p), h.limit-h.buf.Len())])
	return len(p), nil
}

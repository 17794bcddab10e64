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
	"strings"
	"time"
)

const (
	// tailLines is how much of a log an error shows.
	tailLines = 25
	// maxTailBytes bounds what is read back of a log for that.
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
	err       error
}

func (e *makeError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v (%s: %v); the end of its log:", ErrMake, e.verb, e.err)
	for _, line := range e.tail {
		b.WriteString("\n  | " + line)
	}
	fmt.Fprintf(&b, "\nthe whole log: %s", e.log)
	for _, line := range e.tail {
		if strings.Contains(line, "No space left on device") {
			fmt.Fprintf(&b, "\nfree 3 GB there, or set PYBOX_CACHE to a folder on a larger disk")
			break
		}
	}
	return b.String()
}

func (e *makeError) Unwrap() []error { return []error{ErrMake, e.err} }

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

// do runs make with its output in the log file. When ctx ends, the whole process group is killed.
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
	stdout := &head{limit: maxStdout}
	steps := &stepCounter{}
	// One writer for both is one pipe for both: errors stay where they belong.
	sink := io.MultiWriter(log, steps)
	cmd.Stdout, cmd.Stderr = sink, sink
	if r.capture {
		cmd.Stdout = io.MultiWriter(log, stdout)
	}
	start := time.Now()
	stop := r.report(steps, start)
	err = cmd.Run()
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
		return out, &makeError{verb: r.verb, log: r.log, tail: logTail(r.log), err: err}
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

// logTail returns the last lines of a log, with control characters replaced.
func logTail(path string) []string {
	f, err := os.Open(path)
	if err != nil {
		return []string{err.Error()}
	}
	defer f.Close()
	if st, err := f.Stat(); err == nil && st.Size() > maxTailBytes {
		if _, err := f.Seek(-maxTailBytes, io.SeekEnd); err != nil {
			return []string{err.Error()}
		}
	}
	b, err := io.ReadAll(io.LimitReader(f, maxTailBytes))
	if err != nil {
		return []string{err.Error()}
	}
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

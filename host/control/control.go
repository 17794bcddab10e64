// Package control is what a command does to reach the daemon: find it, start it
// when it is not there, wait for it, and tell how the last one ended when there
// is none. It is the client's half of package daemon.
package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/home"
	"golang.org/x/sys/unix"
)

const (
	// statusWait bounds a status: the daemon answers within a second whatever
	// the guest does.
	statusWait = 3 * time.Second
	// spawnWait bounds a daemon's way to its socket.
	spawnWait = 20 * time.Second
	// pollEvery is how often a new daemon's socket is tried.
	pollEvery = 5 * time.Millisecond
	// stopWait is what a stop may take beyond the guest's own time.
	stopWait = 20 * time.Second
	// lockWait bounds the wait for a daemon that is on its way out.
	lockWait = 15 * time.Second
)

// Controller reaches the daemon of one state directory. It is safe for
// concurrent use.
type Controller struct {
	Home *home.Home
	// Command starts a daemon: its program and arguments.
	Command []string
	// Version is this program's, told in a status without a daemon.
	Version string
	// Startable says what would keep a new VM from starting, as far as can be seen
	// without starting one. RestartIdle asks it, unless it is nil.
	Startable func() error
}

// Client speaks to the daemon, if there is one.
func (c *Controller) Client() *api.Client { return api.NewClient(c.Home.Socket()) }

// Status is the daemon's, or that of a stopped VM when there is none.
func (c *Controller) Status(ctx context.Context) (api.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, statusWait)
	defer cancel()
	s, err := c.Client().Status(ctx)
	if errors.Is(err, api.ErrNoDaemon) || errors.Is(err, api.ErrHungUp) {
		return c.quiet(ctx)
	}
	return s, silent(err)
}

// quiet is the status when nobody answers on the socket: that of a stopped VM,
// unless somebody holds the lock. A daemon that starts or ends does so for a moment.
func (c *Controller) quiet(ctx context.Context) (api.Status, error) {
	t := time.NewTicker(20 * time.Millisecond)
	defer t.Stop()
	for {
		if free, err := c.Home.Unlocked(); free || err != nil {
			return c.stopped(), err
		}
		if s, err := c.Client().Status(ctx); err == nil {
			return s, nil
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return api.Status{}, c.unreachable()
		}
	}
}

// unreachable describes a daemon that lives and cannot be asked.
func (c *Controller) unreachable() error {
	d, _ := c.Home.Daemon()
	return fmt.Errorf("a daemon (pid %d) owns %s but nobody answers at its socket %s (was the file removed?): 'pybox vm stop --force' ends it and the VM",
		d.PID, c.Home.Dir(), c.Home.Socket())
}

// silent turns a deadline of ours into a sentence.
func silent(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w: 'pybox vm stop --force' ends it and the VM", errSilent)
	}
	return err
}

var errSilent = errors.New("the daemon does not answer")

func (c *Controller) stopped() api.Status {
	s := api.Status{State: api.StateStopped, Version: c.Version, Daemon: api.Daemon{Home: c.Home.Dir(), Socket: c.Home.Socket()}}
	if e, err := LastEnd(c.Home); err == nil && e != nil {
		s.LastEnd, s.Since = e, e.At
	}
	return s
}

// LastEnd tells, of a home that no daemon owns, how its last VM ended: nil when it
// never had one. A daemon that left no word was killed, or the host went down. It
// changes nothing. An error means that what is recorded cannot be read.
func LastEnd(h *home.Home) (*api.End, error) {
	e, err := lastEnd(h)
	known := err == nil || errors.Is(err, fs.ErrNotExist) // else it may be of that very daemon
	if d, derr := h.Daemon(); known && derr == nil && !d.Alive() && d.PID != e.PID && d.StartedAt.After(e.At) {
		return &api.End{At: d.StartedAt, PID: d.PID, By: "host", Started: true,
			Reason: fmt.Sprintf("daemon %d, started then, ended without a record (killed, or the host went down)", d.PID)}, nil
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading how the last VM ended: %w", err)
	case e.At.IsZero():
		return nil, nil
	}
	return &e, nil
}

func lastEnd(h *home.Home) (api.End, error) {
	var e api.End
	err := h.ReadJSON(h.LastEnd(), &e)
	return e, err
}

// Start makes sure that a VM is ready: it uses the daemon that runs or starts
// one, and waits for either. Any number of callers may race. progress, which may
// be nil, is called with the daemon's status while the VM starts. The error is an
// *api.Problem when the VM did not start.
func (c *Controller) Start(ctx context.Context, progress func(api.Status)) (api.Status, error) {
	const tries = 20 // each finds a daemon that others are just stopping, at worst
	var err error
	for range tries {
		var s api.Status
		s, err = c.startOnce(ctx, progress)
		var p *api.Problem
		stopping := errors.As(err, &p) && p.Type == api.ProblemStopping
		if !stopping && !errors.Is(err, home.ErrLocked) && !errors.Is(err, api.ErrNoDaemon) {
			return s, err
		}
		if err := c.settle(ctx, 0); err != nil {
			return s, err
		}
		if err := c.awaitEnd(ctx); err != nil {
			return s, err
		}
	}
	return api.Status{}, err
}

// awaitEnd waits, where nobody owns the directory, for the end of the process that
// owned it last: that lets go of it a moment before, and no other daemon begins
// while it lives.
func (c *Controller) awaitEnd(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	t := time.NewTicker(10 * time.Millisecond)
	defer t.Stop()
	for {
		d, err := c.Home.Daemon()
		if err != nil || d.PID == os.Getpid() || !d.Alive() {
			return nil // who is to come will see
		}
		if free, err := c.Home.Unlocked(); !free || err != nil {
			return err
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return fmt.Errorf("the daemon (pid %d) does not end: 'pybox vm stop --force' ends it", d.PID)
		}
	}
}

func (c *Controller) startOnce(ctx context.Context, progress func(api.Status)) (api.Status, error) {
	client := c.Client()
	short, cancel := context.WithTimeout(ctx, statusWait)
	s, err := client.Status(short)
	cancel()
	pid := s.Daemon.PID
	switch {
	case errors.Is(err, api.ErrHungUp):
		return s, fmt.Errorf("%w: %w", api.ErrNoDaemon, err) // on its way out: Start tries again
	case errors.Is(err, api.ErrNoDaemon):
		pid, err = c.spawn(ctx)
	}
	if err != nil {
		return s, silent(err)
	}
	wait, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go watch(wait, stop, client, progress)
	s, err = client.Start(wait)
	if err != nil && ctx.Err() == nil && wait.Err() != nil {
		return s, silent(context.Cause(wait))
	}
	var p *api.Problem
	if err == nil || errors.As(err, &p) || ctx.Err() != nil {
		return s, err
	}
	// The daemon went away in the middle of its answer; it may have left word.
	if e, lerr := lastEnd(c.Home); lerr == nil && e.PID == pid {
		if e.Problem != nil {
			return s, e.Problem
		}
		return s, fmt.Errorf("%w: %s", api.ErrNoDaemon, e.Reason) // someone stopped it: Start tries again
	}
	return s, fmt.Errorf("the daemon (pid %d) ended while the VM was starting, without a record: see %s: %w", pid, c.Home.Log(), err)
}

// watch looks at the daemon while a client waits for its VM: it reports progress,
// and gives the wait up when the daemon no longer answers.
func watch(ctx context.Context, giveUp context.CancelCauseFunc, client *api.Client, progress func(api.Status)) {
	t := time.NewTicker(100 * time.Millisecond)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
		short, cancel := context.WithTimeout(ctx, statusWait)
		s, err := client.Status(short)
		cancel()
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, context.DeadlineExceeded):
			giveUp(err)
			return
		case err == nil && progress != nil:
			progress(s)
		}
	}
}

// settle waits until it is clear who owns the directory: nobody, or a daemon that
// answers, is not stopping, and is not the one with the pid not.
func (c *Controller) settle(ctx context.Context, not int) error {
	ctx, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	t := time.NewTicker(10 * time.Millisecond)
	defer t.Stop()
	for {
		if free, err := c.Home.Unlocked(); free || err != nil {
			return err
		}
		if s, err := c.Client().Status(ctx); err == nil && s.State != api.StateStopping && s.Daemon.PID != not {
			return nil
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			d, _ := c.Home.Daemon()
			return fmt.Errorf("the daemon (pid %d) does not let go of %s: 'pybox vm stop --force' ends it", d.PID, c.Home.Dir())
		}
	}
}

// spawn starts a daemon of its own session and waits for its socket. The error
// matches home.ErrLocked when another daemon was quicker.
func (c *Controller) spawn(ctx context.Context) (int, error) {
	// Appended to, and emptied only when no daemon lives that may still write.
	errFile, err := os.OpenFile(errPath(c.Home), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return 0, err
	}
	defer errFile.Close()
	if free, err := c.Home.Unlocked(); free && err == nil {
		errFile.Truncate(0)
	}
	cmd := exec.Command(c.Command[0], c.Command[1:]...)
	cmd.Dir, cmd.Stderr = "/", errFile // a file, not a pipe: it outlives us
	cmd.Env = append(os.Environ(), "PYBOX_HOME="+c.Home.Dir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	closeOnExec()
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("starting the daemon: %w", err)
	}
	exited := make(chan struct{})
	go func() { cmd.Wait(); close(exited) }()
	return cmd.Process.Pid, c.awaitSocket(ctx, cmd, exited, errFile)
}

// closeOnExec keeps what this process was started with, beside its three streams,
// from the daemon: that would hold a lock of flock(1), or the end of a pipe, for
// as long as the VM lives.
func closeOnExec() {
	open, err := os.ReadDir("/dev/fd")
	if err != nil {
		return // without it nothing can be said of them, and nothing is wrong with most
	}
	for _, f := range open {
		if n, err := strconv.Atoi(f.Name()); err == nil && n > 2 {
			unix.CloseOnExec(n)
		}
	}
}

// LockedExit is the exit code by which a daemon says that another owns the home.
const LockedExit = 3

func (c *Controller) awaitSocket(ctx context.Context, cmd *exec.Cmd, exited <-chan struct{}, errFile io.ReaderAt) error {
	ctx, cancel := context.WithTimeout(ctx, spawnWait)
	defer cancel()
	t := time.NewTicker(pollEvery)
	defer t.Stop()
	pid := cmd.Process.Pid
	for {
		if d, err := c.Home.Daemon(); err == nil && d.PID == pid && d.Alive() {
			return nil // it wrote that after it had bound the socket
		}
		select {
		case <-t.C:
		case <-exited:
			return c.whyExited(pid, cmd.ProcessState, errFile)
		case <-ctx.Done():
			return fmt.Errorf("the daemon (pid %d) did not open its socket within %v: %w", pid, spawnWait, ctx.Err())
		}
	}
}

// whyExited explains a daemon that ended before anyone could ask it.
func (c *Controller) whyExited(pid int, st *os.ProcessState, errFile io.ReaderAt) error {
	if st.ExitCode() == LockedExit {
		return home.ErrLocked
	}
	if e, err := lastEnd(c.Home); err == nil && e.PID == pid && e.Problem != nil {
		return e.Problem
	}
	said := wordsIn(errFile)
	if said == "" {
		said = st.String()
		if c.full() { // then it could not even leave its words
			said = fmt.Sprintf("no space left on device: %s is on a full file system; make room, then start again", c.Home.Dir())
		}
	}
	return fmt.Errorf("the daemon did not start: %s", said)
}

// errPath is the file that takes what a daemon prints, which is nothing unless it
// could not begin, or crashed.
func errPath(h *home.Home) string { return h.Path("daemon.err") }

// wordsIn is the beginning of what a daemon has printed.
func wordsIn(f io.ReaderAt) string {
	b, _ := io.ReadAll(io.NewSectionReader(f, 0, 4<<10))
	return strings.TrimPrefix(strings.TrimSpace(string(b)), "pybox: ")
}

// LastWords are what the last daemon of a home printed, at most 4 KiB of it, and when:
// "" when it printed nothing. It changes nothing.
func LastWords(h *home.Home) (said string, at time.Time) {
	st, err := os.Lstat(errPath(h))
	if err != nil || !st.Mode().IsRegular() {
		return "", time.Time{}
	}
	f, err := os.Open(errPath(h))
	if err != nil {
		return "", time.Time{}
	}
	defer f.Close()
	return wordsIn(f), st.ModTime()
}

// full tells whether the state directory's file system has no room.
func (c *Controller) full() bool {
	var st unix.Statfs_t
	return unix.Statfs(c.Home.Dir(), &st) == nil && st.Bavail == 0
}

// Stop ends the VM and its daemon; stopping a stopped one is no error and tells
// no End. With Force a daemon that does not answer is killed, and the VM with it.
func (c *Controller) Stop(ctx context.Context, r api.StopRequest) (*api.End, error) {
	bound := time.Duration(r.TimeoutMS)*time.Millisecond + stopWait
	if r.Force {
		bound = statusWait
	}
	ask, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	end, err := c.Client().Stop(ask, r)
	switch {
	case err == nil:
		return &end, c.settle(ctx, end.PID)
	case errors.Is(err, api.ErrNoDaemon) && !r.Force:
		_, err := c.Status(ctx) // nobody there, or somebody who cannot be reached
		return nil, err
	case errors.Is(err, api.ErrHungUp) && !r.Force: // another client's stop was quicker
		return nil, c.settle(ctx, 0)
	case !r.Force:
		return nil, silent(err)
	}
	return nil, c.kill(ctx)
}

var (
	// ErrInUse: the VM is in use, and goes on.
	ErrInUse = errors.New("the VM is in use")
	// ErrNotStartable: the VM goes on, since no other would start.
	ErrNotStartable = errors.New("a new VM would not start, so the one that runs was left as it is")
)

// RestartIdle stops a VM that nothing uses and starts another: no run, no shell and no
// start is cut off by it, nothing is lost that a client stores or has yet to take, and
// no run begins in between. granted, which may be nil, is called when the VM is gone for
// that, and progress while the other starts. Where there is no VM it starts none, and
// gives the status of a stopped one. The error matches ErrInUse when the VM is in use,
// or only its daemon, of an older release, cannot tell, and ErrNotStartable when no other
// would start; it then goes on.
func (c *Controller) RestartIdle(ctx context.Context, granted func(), progress func(api.Status)) (api.Status, error) {
	if c.Startable != nil {
		if err := c.Startable(); err != nil {
			return api.Status{}, fmt.Errorf("%w: %w", ErrNotStartable, err)
		}
	}
	switch end, err := c.Stop(ctx, api.StopRequest{IfIdle: true}); {
	case err != nil:
		return api.Status{}, asInUse(err)
	case end == nil:
		return c.Status(ctx)
	}
	if granted != nil {
		granted()
	}
	return c.Start(ctx, progress)
}

// asInUse makes an ErrInUse of the refusal to stop a VM if it is idle.
func asInUse(err error) error {
	var p *api.Problem
	switch {
	case !errors.As(err, &p):
	case p.Type == api.ProblemInUse:
		return fmt.Errorf("%w: %s", ErrInUse, strings.TrimPrefix(p.Detail, ErrInUse.Error()+": "))
	case p.Type == api.ProblemBadRequest: // it does not know the word
		return fmt.Errorf("%w, or not: its daemon is of another release and cannot say", ErrInUse)
	}
	return err
}

// kill ends the recorded daemon if it still is that process.
func (c *Controller) kill(ctx context.Context) error {
	d, err := c.Home.Daemon()
	if err != nil || !d.Alive() {
		if free, err := c.Home.Unlocked(); free || err != nil {
			return err
		}
		return fmt.Errorf("a process that daemon.json does not name owns %s: find it with 'fuser %s'", c.Home.Dir(), c.Home.Path("lock"))
	}
	if err := syscall.Kill(d.PID, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("killing the daemon (pid %d): %w", d.PID, err)
	}
	ctx, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	return c.Home.WaitUnlocked(ctx)
}

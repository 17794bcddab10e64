package shell

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/pybox/pybox/agent/cgroup"
)

const (
	// memoryMax and pidsMax are the limits of all sessions together, and cpuWeight
	// is their share of a busy CPU, where boxes have 100 (cgroup v2): looking must
	// not change what is looked at. The memory comes out of what the guest keeps
	// for itself.
	memoryMax = "33554432"
	pidsMax   = "64"
	cpuWeight = "10"
	// endTimeout bounds the wait for processes that were killed.
	endTimeout = 5 * time.Second
)

// Busybox runs its shell, whose commands are those of busybox. All of it runs as
// root, in cgroups of their own.
type Busybox struct {
	// Path is the program, Parent the cgroup in which a cgroup "shell" is made.
	Path, Parent string

	cgroup   *cgroup.Dir
	sessions atomic.Int64
}

var _ Starter = (*Busybox)(nil)

// Prepare implements Starter.
func (b *Busybox) Prepare() error {
	st, err := os.Stat(b.Path)
	if err != nil || !st.Mode().IsRegular() || st.Mode()&0o111 == 0 {
		return fmt.Errorf("%w: it has no program %s", ErrNone, b.Path)
	}
	parent, err := cgroup.Open(b.Parent)
	if err != nil {
		return err
	}
	defer parent.Close()
	if b.cgroup, err = parent.Make("shell"); err != nil {
		return err
	}
	for _, l := range [][2]string{{"memory.max", memoryMax}, {"pids.max", pidsMax}, {"cpu.weight", cpuWeight}} {
		if err := b.cgroup.Set(l[0], l[1]); err != nil {
			return fmt.Errorf("limit the shell: %w", err)
		}
	}
	return nil
}

// disposable makes a process the first that the kernel takes when it wants memory,
// before it is what it is to be: it has inherited the agent's protection.
const disposable = `echo 1000 >/proc/self/oom_score_adj && exec "$@"`

func (b *Busybox) command(p Program) *exec.Cmd {
	args := []string{"sh", "-c", disposable, "sh", b.Path, "sh"}
	if p.Command != "" {
		args = append(args, "-c", p.Command)
	}
	cmd := &exec.Cmd{Path: b.Path, Args: args, Dir: "/", Env: []string{
		"HOME=/tmp", "USER=root", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", `PS1=pybox guest:\w# `,
	}}
	if p.Term != "" {
		cmd.Env = append(cmd.Env, "TERM="+p.Term)
	}
	if p.Lang != "" {
		cmd.Env = append(cmd.Env, "LANG="+p.Lang)
	}
	return cmd
}

// Start implements Starter. Prepare goes first.
func (b *Busybox) Start(p Program) (Process, error) {
	name := strconv.FormatInt(b.sessions.Add(1), 10)
	group, err := b.cgroup.Make(name)
	if err != nil {
		return nil, err
	}
	r := &running{cgroup: group, path: filepath.Join(b.Parent, "shell", name), cmd: b.command(p)}
	if err := r.start(p.Terminal); err != nil {
		return nil, errors.Join(err, r.End())
	}
	return r, nil
}

// running is a Process in a cgroup of its own.
type running struct {
	cmd            *exec.Cmd
	cgroup         *cgroup.Dir
	path           string
	terminal       *os.File // nil: it has pipes
	stdin          io.WriteCloser
	stdout, stderr *os.File

	mu    sync.Mutex
	ended bool // its process id may be another's
}

func (r *running) start(size *Size) error {
	dir, err := r.cgroup.File()
	if err != nil {
		return err
	}
	defer dir.Close()
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	open := r.pipes
	if size != nil {
		open = func() ([]*os.File, error) { return r.openTerminal(*size) }
	}
	theirs, err := open()
	if err == nil {
		err = r.cmd.Start()
	}
	for _, f := range theirs {
		_ = f.Close()
	}
	if err != nil {
		r.Close()
		return fmt.Errorf("start the shell: %w", err)
	}
	return nil
}

// openTerminal gives it a pseudoterminal, pty(7). What it gets of it is returned.
func (r *running) openTerminal(size Size) ([]*os.File, error) {
	blocking, slave, err := pty.Open()
	if err != nil {
		return nil, err
	}
	master, err := pollable(blocking)
	if err != nil {
		_ = slave.Close()
		return nil, err
	}
	r.terminal, r.stdout, r.stdin = master, master, endOfFile{master}
	r.cmd.Stdin, r.cmd.Stdout, r.cmd.Stderr = slave, slave, slave
	r.cmd.SysProcAttr.Setctty = true // its descriptor 0
	r.Resize(size)
	return []*os.File{slave}, nil
}

// pollable gives f's open file back in non-blocking mode, and closes f. Package pty
// takes its descriptor with Fd, and what is read then is no longer read through the
// poller: a Close would not end a Read, but wait for it.
func pollable(f *os.File) (*os.File, error) {
	defer f.Close()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err == nil {
		if err = unix.SetNonblock(fd, true); err != nil {
			_ = unix.Close(fd)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("prepare the terminal: %w", err)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// endOfFile ends the input of a terminal: by the character for it, since closing it
// would end the output too.
type endOfFile struct{ *os.File }

// Close implements io.Closer.
func (e endOfFile) Close() error {
	_, err := e.Write([]byte{4})
	return err
}

// pipes gives it three pipes, and returns its ends.
func (r *running) pipes() (theirs []*os.File, err error) {
	pipe := func() (read, write *os.File) {
		if err != nil {
			return nil, nil
		}
		read, write, err = os.Pipe()
		return read, write
	}
	in, ours := pipe()
	var out, errs *os.File
	r.stdout, out = pipe()
	r.stderr, errs = pipe()
	for _, f := range []*os.File{in, out, errs} {
		if f != nil {
			theirs = append(theirs, f)
		}
	}
	if ours != nil {
		r.stdin = ours
	}
	if err == nil {
		r.cmd.Stdin, r.cmd.Stdout, r.cmd.Stderr = in, out, errs
	}
	return theirs, err
}

// Stdin implements Process.
func (r *running) Stdin() io.WriteCloser { return r.stdin }

// Stdout implements Process.
func (r *running) Stdout() io.ReadCloser { return r.stdout }

// Stderr implements Process.
func (r *running) Stderr() io.ReadCloser {
	if r.stderr == nil {
		return nil
	}
	return r.stderr
}

// Resize implements Process. It goes past package pty for the reason that pollable has.
func (r *running) Resize(s Size) {
	if r.terminal == nil {
		return
	}
	conn, err := r.terminal.SyscallConn()
	if err != nil {
		return // it keeps its size, as it does when the call fails
	}
	_ = conn.Control(func(fd uintptr) {
		_ = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Col: s.Columns, Row: s.Rows})
	})
}

// Signal implements Process. The program leads its process group.
func (r *running) Signal(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.ended {
		_ = unix.Kill(-r.cmd.Process.Pid, unix.SignalNum("SIG"+name))
	}
}

// Kill implements Process.
func (r *running) Kill() { _ = r.cgroup.Kill() }

// Wait implements Process.
func (r *running) Wait() Exit {
	r.awaitEnd()
	err := r.cmd.Wait()
	var failed *exec.ExitError
	if err != nil && !errors.As(err, &failed) {
		return Exit{Code: 255}
	}
	status := r.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if !status.Signaled() {
		return Exit{Code: status.ExitStatus()}
	}
	switch name := strings.TrimPrefix(unix.SignalName(status.Signal()), "SIG"); name {
	case "ABRT", "ALRM", "FPE", "HUP", "ILL", "INT", "KILL", "PIPE", "QUIT", "SEGV", "TERM", "USR1", "USR2":
		return Exit{Signal: name}
	}
	return Exit{Code: 128 + int(status.Signal())} // as a shell shows it
}

// awaitEnd returns when the program has ended, and before its process id is free.
func (r *running) awaitEnd() {
	for {
		err := unix.Waitid(unix.P_PID, r.cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
}

// End implements Process.
func (r *running) End() error {
	err := r.cgroup.KillWait(endTimeout)
	return errors.Join(err, r.cgroup.Close(), os.Remove(r.path))
}

// Close implements Process.
func (r *running) Close() {
	if r.stdin != nil && r.terminal == nil {
		_ = r.stdin.Close()
	}
	for _, f := range []*os.File{r.stdout, r.stderr} {
		if f != nil {
			_ = f.Close()
		}
	}
}

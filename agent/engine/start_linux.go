package engine

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	runc "github.com/containerd/go-runc"
	"golang.org/x/sys/unix"
)

// startFIFO is what a start writes to, be it "crun start" or startDirectly, and the
// container's process waits for (libcrun_status_write_exec_fifo in crun's status.c), in the
// container's state.
const startFIFO = "exec.fifo"

// startDirectly does what `crun start ID` does for a container of ours: it writes a byte into
// the FIFO that the process waits at, and removes its name. It spares every box the start
// of a process. nil: c is another command, or its container is not as expected, which is
// crun's own to judge.
func startDirectly(c *exec.Cmd) chan runc.Exit {
	root, id, ok := commandArgs(c.Args, "start")
	if !ok {
		return nil
	}
	state, err := openState(root, id)
	if err != nil {
		return nil
	}
	ended := make(chan runc.Exit, 1)
	go func() {
		defer state.Close()
		status := 0
		if err := tell(state); err != nil {
			status = 1
			if c.Stderr != nil {
				fmt.Fprintln(c.Stderr, "start:", err)
			}
		}
		ended <- runc.Exit{Status: status, Timestamp: time.Now()}
	}()
	return ended
}

// openState opens crun's folder of a container that was created, not started, and has no
// hooks.
func openState(root, id string) (*os.Root, error) {
	states, err := os.OpenRoot(root)
	if err != nil {
		return nil, err
	}
	defer states.Close()
	state, err := states.OpenRoot(id)
	if err != nil {
		return nil, err
	}
	info, err := state.Lstat(startFIFO)
	if err == nil && info.Mode().Type() != os.ModeNamedPipe {
		err = fmt.Errorf("%w: %s is no FIFO", errNotOurs, startFIFO)
	}
	if err == nil {
		err = withoutHooks(state.FS())
	}
	if err != nil {
		return nil, errors.Join(err, state.Close())
	}
	return state, nil
}

// tell lets the process of a container begin. It waits, in the shim, until that has come to
// the FIFO. No context ends the wait, and containerd holds Init.mu of the container
// meanwhile, so that nothing else can be done with it. What ends it, should the process
// never come, is unblockStart in the agent, or after programCeiling the end of the shim.
func tell(state *os.Root) error {
	f, err := state.OpenFile(startFIFO, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := state.Remove(startFIFO); err != nil {
		return err
	}
	_, err = f.Write([]byte{0})
	return err
}

// unblockStart lets a start come to its end although the process pid, which is to be
// started, ends before it was told to: tell in the shim, or "crun start", opens the FIFO for
// writing, which waits for a reader (fifo(7)), and there would never be one again. Then this
// is one.
// The function that it gives must be called when the start is over.
func unblockStart(pid int, state string) (over func()) {
	process, err := openProcess(pid)
	if err != nil { // it has ended already
		reader := openReader(state)
		return func() { reader.Close() }
	}
	done := make(chan struct{})
	var reader *os.File // nil can be closed
	go func() {
		defer close(done)
		if awaitExit(process) {
			reader = openReader(state)
		}
	}()
	return func() {
		process.Close() // ends the wait
		<-done
		reader.Close()
	}
}

// openReader opens the FIFO for reading, which waits for nobody. It gives nil where
// the FIFO is gone: then who starts has opened it and removed its name.
func openReader(state string) *os.File {
	f, err := os.OpenFile(filepath.Join(state, startFIFO), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	return f
}

// openProcess gives a descriptor of a process (pidfd_open(2)), which is readable once
// that has ended.
func openProcess(pid int) (*os.File, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("pidfd_open", err)
	}
	return os.NewFile(uintptr(fd), "process"), nil
}

// awaitExit waits until the process has ended, or its descriptor is closed: then it
// gives false.
func awaitExit(process *os.File) bool {
	raw, err := process.SyscallConn()
	if err != nil {
		return false
	}
	return raw.Read(func(fd uintptr) bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return err == nil && n > 0
	}) == nil
}

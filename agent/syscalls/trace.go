//go:build linux

package syscalls

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// options have system calls told from signals, and new threads traced from their start.
// What is started with vfork(2), as all programs of ours are, is not.
const options = unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACECLONE

// syscallStop is the signal of a thread that enters or leaves a system call.
const syscallStop = unix.SIGTRAP | 0x80

// tracer traces processes, all from one thread.
type tracer struct {
	// names are those of processes by their ids, threads what is traced of them, by
	// theirs.
	names   map[int]string
	threads map[int]string
	counts  map[string]map[uint64]int64
}

// trace counts for processes, each NAME=PID, until a program that watches the standard
// input has ended, and writes to w when it begins, and what it counted.
func trace(processes []string, w io.Writer) error {
	runtime.LockOSThread() // whose tracees they are
	t := &tracer{names: map[int]string{}, threads: map[int]string{}, counts: map[string]map[uint64]int64{}}
	for _, p := range processes {
		name, text, _ := strings.Cut(p, "=")
		pid, err := strconv.Atoi(text)
		if err != nil || name == "" {
			return fmt.Errorf("%q is no process", p)
		}
		t.names[pid], t.counts[name] = name, map[uint64]int64{}
	}
	// Its end ends a wait for the next of what happens, as nothing else would at once.
	watcher := exec.Command("/proc/self/exe")
	watcher.Args = []string{Tracer, watch}
	watcher.Stdin = os.Stdin
	watcher.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	if err := watcher.Start(); err != nil {
		return err
	}
	if err := t.attach(); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(w, attached); err != nil {
		return err
	}
	if err := t.count(watcher.Process.Pid); err != nil {
		return err
	}
	if err := t.detach(); err != nil {
		return err
	}
	return json.NewEncoder(w).Encode(t.named())
}

// attach traces all threads there are: it looks again until it finds no new one.
func (t *tracer) attach() error {
	seen := map[int]bool{}
	for more := true; more; {
		more = false
		for pid, name := range t.names {
			ids, err := threadsOf(pid)
			if err != nil {
				return err
			}
			for _, id := range ids {
				if seen[id] {
					continue
				}
				seen[id], more = true, true
				err := seize(id)
				switch {
				case err == nil:
					t.threads[id] = name
				case id == pid || !errors.Is(err, unix.ESRCH) && !errors.Is(err, unix.EPERM):
					return fmt.Errorf("trace %s: %w", name, err)
				default: // it has ended, or was traced from its start and will say so
				}
			}
		}
	}
	return nil
}

// seize traces a thread, and has it stop to begin with.
func seize(id int) error {
	if err := ptrace(unix.PTRACE_SEIZE, id, 0, options); err != nil {
		return err
	}
	err := unix.PtraceInterrupt(id)
	if errors.Is(err, unix.ESRCH) { // its end is told
		return nil
	}
	return err
}

// count counts until the process watcher has ended.
func (t *tracer) count(watcher int) error {
	for {
		id, status, err := wait()
		if err != nil {
			return err
		}
		if id == watcher {
			return nil
		}
		if t.ended(id, status) {
			continue
		}
		if !t.known(id) {
			err = ptrace(unix.PTRACE_DETACH, id, 0, deliver(status))
		} else {
			err = t.resume(id, status)
		}
		if err != nil && !errors.Is(err, unix.ESRCH) { // it was killed
			return err
		}
	}
}

// resume lets a thread that has stopped go on.
func (t *tracer) resume(id int, status unix.WaitStatus) error {
	switch signal, event := status.StopSignal(), status>>16; {
	case signal == syscallStop:
		number, entered, err := systemCall(id)
		if err != nil {
			return err
		}
		if entered {
			t.counts[t.threads[id]][number]++
		}
	case event == unix.PTRACE_EVENT_STOP && signal != unix.SIGTRAP: // its process is stopped
		return ptrace(unix.PTRACE_LISTEN, id, 0, 0)
	}
	return unix.PtraceSyscall(id, int(deliver(status)))
}

// detach stops all threads and lets them go untraced. Those that it does not know of yet
// go with the tracer.
func (t *tracer) detach() error {
	for id := range t.threads {
		if err := unix.PtraceInterrupt(id); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
	for len(t.threads) > 0 {
		id, status, err := wait()
		if err != nil {
			return err
		}
		if t.ended(id, status) {
			continue
		}
		delete(t.threads, id)
		if err := ptrace(unix.PTRACE_DETACH, id, 0, deliver(status)); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
	return nil
}

// ended says whether a thread is no more, and forgets it then.
func (t *tracer) ended(id int, status unix.WaitStatus) bool {
	if status.Stopped() {
		return false
	}
	delete(t.threads, id)
	return true
}

// known says whether a thread is one of the processes'.
func (t *tracer) known(id int) bool {
	if t.threads[id] != "" {
		return true
	}
	for pid, name := range t.names {
		if _, err := os.Stat(filepath.Join("/proc", strconv.Itoa(pid), "task", strconv.Itoa(id))); err == nil {
			t.threads[id] = name
			return true
		}
	}
	return false
}

// named are the counts by the names of system calls.
func (t *tracer) named() Counts {
	all := Counts{}
	for process, numbers := range t.counts {
		all[process] = map[string]int64{}
		for number, n := range numbers {
			all[process][nameOf(number)] += n
		}
	}
	return all
}

// wait waits for the next of what happens to threads and to children.
func wait() (id int, status unix.WaitStatus, err error) {
	for {
		id, err = unix.Wait4(-1, &status, unix.WALL, nil)
		if !errors.Is(err, unix.EINTR) {
			return id, status, os.NewSyscallError("wait4", err)
		}
	}
}

// deliver is the signal that a thread has stopped for and is to get, 0 where it has
// stopped for something else.
func deliver(status unix.WaitStatus) uintptr {
	if signal := status.StopSignal(); status>>16 == 0 && signal != syscallStop {
		return uintptr(signal)
	}
	return 0
}

// infoSize is the size of a struct ptrace_syscall_info; infoNumber is where it has the
// number of the system call (ptrace(2)).
const infoSize, infoNumber = 88, 24

// systemCall gives the number of the system call that a thread has stopped in, and
// whether it is about to enter it.
func systemCall(id int) (number uint64, entered bool, err error) {
	var info [infoSize]byte
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_GET_SYSCALL_INFO, uintptr(id), infoSize, uintptr(unsafe.Pointer(&info)), 0, 0)
	if errno != 0 {
		return 0, false, os.NewSyscallError("ptrace", errno)
	}
	return binary.NativeEndian.Uint64(info[infoNumber:]), info[0] == unix.PTRACE_SYSCALL_INFO_ENTRY, nil
}

func ptrace(request, id int, addr, data uintptr) error {
	if _, _, errno := unix.Syscall6(unix.SYS_PTRACE, uintptr(request), uintptr(id), addr, data, 0, 0); errno != 0 {
		return os.NewSyscallError("ptrace", errno)
	}
	return nil
}

// threadsOf are the ids of the threads of a process.
func threadsOf(pid int) ([]int, error) {
	entries, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(pid), "task"))
	if err != nil {
		return nil, err
	}
	var ids []int
	for _, e := range entries {
		id, err := strconv.Atoi(e.Name())
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, nil
}

//go:build linux

package qemu

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// vmmID is the user and group that QEMU runs as when PyBox is root: no passwd
// entry has it, so nothing else on a host shares it with a guest's monitor.
const vmmID = 64533

// process is a running VMM that cannot outlive this process.
type process struct {
	cmd    *exec.Cmd
	stderr *tail
	done   chan struct{} // closed when it has been reaped
	err    error         // how it ended; read after done
}

// startProcess starts cmd with a parent-death signal. The kernel sends that
// signal when the *thread* that forked ends, so the goroutine here keeps its
// thread until the child is gone (prctl(2), PR_SET_PDEATHSIG).
func startProcess(cmd *exec.Cmd) (*process, error) {
	p := &process{cmd: cmd, stderr: newTail(1 << 10), done: make(chan struct{})}
	cmd.Stderr = p.stderr
	cmd.WaitDelay = 5 * time.Second // a grandchild holding stderr; QEMU's sandbox allows none
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		p.err = cmd.Wait()
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// attributes confines the child: killed with its parent, in a session of its own
// (a terminal's Ctrl-C is the owner's business), and unprivileged where this
// process is privileged. kvm names the device node whose group it needs.
func attributes(kvm string) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setsid: true}
	if !dropsPrivileges() {
		return attr
	}
	cred := &syscall.Credential{Uid: vmmID, Gid: vmmID}
	if st, err := os.Stat(kvm); kvm != "" && err == nil {
		if sys, ok := st.Sys().(*syscall.Stat_t); ok && sys.Gid != 0 {
			cred.Groups = []uint32{sys.Gid}
		}
	}
	attr.Credential = cred
	return attr
}

// dropsPrivileges tells whether QEMU runs under another id than this process:
// "root" of a rootless container may map a single id and has no other to drop to
// (user_namespaces(7)).
func dropsPrivileges() bool {
	return os.Geteuid() == 0 && idMapped("/proc/self/uid_map", vmmID) && idMapped("/proc/self/gid_map", vmmID)
}

// idMapped tells whether a map of this user namespace knows id.
func idMapped(path string, id uint64) bool {
	f, err := os.Open(path)
	if err != nil {
		return true // no user namespaces: ids are what they are
	}
	defer f.Close()
	sc := bufio.NewScanner(io.LimitReader(f, 64<<10))
	for sc.Scan() {
		f := strings.Fields(sc.Text())
		if len(f) != 3 {
			continue
		}
		first, err1 := strconv.ParseUint(f[0], 10, 64)
		count, err2 := strconv.ParseUint(f[2], 10, 64)
		if err1 == nil && err2 == nil && id >= first && id-first < count {
			return true
		}
	}
	return false
}

// tail keeps the last bytes written to it. Safe for concurrent use.
type tail struct {
	mu  sync.Mutex
	max int
	b   []byte
}

func newTail(max int) *tail { return &tail{max: max} }

// Write implements io.Writer; it never fails.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p[max(0, len(p)-t.max):]...)
	if over := len(t.b) - t.max; over > 0 {
		t.b = append(t.b[:0], t.b[over:]...)
	}
	return len(p), nil
}

// String is the text kept, on one line and without control characters: it goes
// into errors that people read.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := strings.Map(func(r rune) rune {
		if r == '\n' {
			return ' '
		}
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return -1
		}
		return r
	}, string(t.b))
	return strings.TrimSpace(s)
}

// readBounded reads a small file whole and refuses a larger one.
func readBounded(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(b)) > limit {
		return nil, fmt.Errorf("%s is larger than %d bytes", path, limit)
	}
	return b, nil
}

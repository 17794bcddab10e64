package initd

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/mdlayher/vsock"
	"golang.org/x/sys/unix"

	"github.com/pybox/pybox/agent/api/pid1"
	"github.com/pybox/pybox/agent/boottime"
	"github.com/pybox/pybox/agent/cgroup"
	"github.com/pybox/pybox/agent/console"
)

const (
	// memoryLimit is a soft limit for the Go heap of PID 1, in bytes.
	memoryLimit = 8 << 20
	// maxOpenFiles is RLIMIT_NOFILE of the agent and what it starts.
	maxOpenFiles = 1 << 16
)

// Main is PID 1. It never returns.
func Main() {
	started := boottime.Now()
	c := console.New(os.Stderr)
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "pybox: init runs as PID 1 of a PyBox guest only")
		os.Exit(2)
	}
	stayUp()
	if inInitramfs() {
		refuse(c, leaveInitramfs(started), powerOff)
	}
	refuse(c, boot(c, started), powerOff)
}

// stayUp makes PID 1 small, and deaf to signals. Go installs handlers for most
// of them, which takes away the protection that the kernel gives to a PID 1
// (pid_namespaces(7)): an unhandled SIGTERM would end it, and panic the kernel.
// Notify, unlike Ignore, is not inherited by the agent. Nobody reads the
// channel: package signal drops what does not fit.
func stayUp() {
	signal.Notify(make(chan os.Signal, 1))
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(25)
	debug.SetMemoryLimit(memoryLimit)
}

// boot brings the guest up and supervises it. It returns only when the guest
// cannot start.
func boot(c *console.Console, started time.Duration) error {
	stages := earlierStages(started)
	if err := mountAll(); err != nil {
		return err
	}
	if err := checkRoot("/", "/sys"); err != nil {
		return err
	}
	tree, err := makeCgroups(cgroupRoot)
	if err != nil {
		return err
	}
	for _, err := range setUpKernel() {
		c.Printf("pybox: %v", err)
	}
	stages = append(stages, stage{"init", boottime.Now()})

	s, err := newSupervisor(c, tree)
	if err != nil {
		return err
	}
	l, err := vsock.ListenContextID(unix.VMADDR_CID_ANY, pid1.Port, nil)
	if err != nil {
		return fmt.Errorf("listen for the host on vsock port %d: %w", pid1.Port, err)
	}
	go func() { _ = s.records.serve(pid1.LimitListener(l, maxReaders, isHost)) }()

	conn, pid, err := startAgent(tree.system, stages)
	if err != nil {
		return err
	}
	go s.serve(conn)
	c.Printf("pybox: init up")
	s.run(reapUntil(pid))
	return errors.New("the power did not go off")
}

func newSupervisor(c *console.Console, tree *cgroups) (*supervisor, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("read the boot id: %w", err)
	}
	open := func(path string) (target, error) {
		d, err := tree.boxes.Sub(path)
		if err != nil {
			return nil, err // not d: a nil *Dir is no nil target
		}
		return d, nil
	}
	t := newTimers(open, boottime.Now)
	return &supervisor{
		console:    c,
		timers:     t,
		records:    newRecords(strings.TrimSpace(string(id)), boottime.Now, t),
		killBoxes:  tree.boxes.KillTree,
		killSystem: func() error { return tree.system.KillWait(systemTimeout) },
		powerOff:   powerOff,
		linger:     recordsLinger,
		off:        make(chan string, 1),
	}, nil
}

// isHost tells whether a vsock peer is the host. Vsock ignores network
// namespaces, so this also keeps out whatever runs in the guest.
func isHost(a net.Addr) bool {
	v, ok := a.(*vsock.Addr)
	return ok && v.ContextID == pid1.HostCID
}

// powerOff ends the machine. There is nothing to write back: no disk of the
// guest is writable.
func powerOff() {
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	// Without ACPI or PSCI the kernel cannot; every VMM of PyBox takes a reset
	// for the end.
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART)
	os.Exit(1) // the kernel panics, and with panic=-1 resets too
}

// agentPath is where the guest's root has the agent.
const agentPath = "/usr/sbin/" + AgentName

// startAgent starts the agent in its cgroup. It gives PID 1's end of the control
// channel and the agent's process id. It forks without package os: that would
// wait for its child, and PID 1 waits for all at once.
func startAgent(system *cgroup.Dir, stages []stage) (net.Conn, int, error) {
	fail := func(err error) (net.Conn, int, error) {
		return nil, 0, fmt.Errorf("start the agent: %w", err)
	}
	ours, theirs, err := socketPair()
	if err != nil {
		return fail(err)
	}
	defer theirs.Close()
	group, err := system.File()
	if err != nil {
		return fail(errors.Join(err, ours.Close()))
	}
	defer group.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return fail(errors.Join(err, ours.Close()))
	}
	defer null.Close()
	pid, err := lax(func() (int, error) { return forkAgent(stages, group, null, theirs) })
	if err != nil {
		return fail(errors.Join(fmt.Errorf("execute %s: %w", agentPath, err), ours.Close()))
	}
	return ours, pid, nil
}

func forkAgent(stages []stage, group, null, control *os.File) (int, error) {
	return syscall.ForkExec(agentPath, []string{AgentName}, &syscall.ProcAttr{
		Dir: "/",
		Env: []string{
			"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8", "TZ=UTC",
			StagesEnv + "=" + formatStages(stages),
		},
		// The agent finds the control channel at ControlFD, which is 3.
		Files: []uintptr{null.Fd(), 2, 2, control.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true, UseCgroupFD: true, CgroupFD: int(group.Fd())},
	})
}

// timerSlack is how much later than asked for the kernel may wake the agent and what it
// starts. Go's runtime looks after its threads every 20 microseconds while they work
// (sysmon), and each of those is an interrupt, which is dear where the guest is emulated.
// No wait of theirs needs to be exact to a millisecond; boxes get the kernel's own
// 50 microseconds back (package engine).
const timerSlack = time.Millisecond

// lax starts a process from a thread with that slack, which a process has from the thread
// that made it (PR_SET_TIMERSLACK in prctl(2)).
func lax(start func() (int, error)) (int, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(timerSlack.Nanoseconds()), 0, 0, 0); err != nil {
		return 0, os.NewSyscallError("prctl", err)
	}
	// 0 sets what the thread had when it was made.
	defer func() { _ = unix.Prctl(unix.PR_SET_TIMERSLACK, 0, 0, 0, 0) }()
	return start()
}

// socketPair makes the control channel: our end, and a file for the agent's.
func socketPair() (net.Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	f := os.NewFile(uintptr(fds[0]), "control")
	defer f.Close()
	conn, err := net.FileConn(f)
	theirs := os.NewFile(uintptr(fds[1]), "control")
	if err != nil {
		return nil, nil, errors.Join(err, theirs.Close())
	}
	return conn, theirs, nil
}

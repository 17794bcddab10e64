//go:build linux

package qemu

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/pybox/pybox/vm"
	"github.com/pybox/pybox/vm/qemu/vhostuser"
	"golang.org/x/sys/unix"
)

// guestCID is the same for every guest: each has a socket device, and with it a
// context id space, of its own. 0 to 2 are taken (virtio 1.2, 5.10.4).
const guestCID = 3

// receiveBuffer is the window of one connection, in bytes: with less the guest waits
// more often than it sends. What all windows may have together (WithReceiveMemory of
// package vhostuser) gives some 48 connections at a time as much; those after them have
// the least window, and are slower, until others close.
const receiveBuffer = 1 << 20

// killWait bounds how long the kernel may take to reap a killed QEMU.
const killWait = 10 * time.Second

// machine is a running QEMU and its socket device.
type machine struct {
	proc *process
	qmp  *qmp
	dev  *vhostuser.Device
	fact vm.Facts

	firstOutput chan struct{} // closed at the guest's first console byte
	gone        chan struct{} // closed when everything is free; end is set

	mu          sync.Mutex
	first       time.Time
	killed      bool
	deviceFault error // why the socket device ended before QEMU
	end         error
}

// launch starts QEMU and returns when it has accepted its command line.
func (d *driver) launch(ctx context.Context, c vm.Config, binary string, ch choice) (_ *machine, err error) {
	files, err := openFiles(c)
	if err != nil {
		return nil, err
	}
	defer closeAll(files) // the child has its own
	var ours [3]net.Conn
	var theirs [3]*os.File
	defer func() {
		closeAll(theirs[:])
		if err != nil {
			closeConns(ours[:])
		}
	}()
	for i := range ours {
		if ours[i], theirs[i], err = socketPair(); err != nil {
			return nil, fmt.Errorf("starting the machine: %w", err)
		}
	}
	dev, err := vhostuser.New(guestCID, vhostuser.WithLogger(d.log), vhostuser.WithReceiveBuffer(receiveBuffer))
	if err != nil {
		return nil, err
	}

	cmd := exec.Command(binary, commandLine(c, ch.accel, d.o.ExtraArgs)...)
	cmd.Dir, cmd.Env = "/", []string{"PATH=/usr/bin:/bin", "LC_ALL=C"}
	cmd.ExtraFiles = append(append(append([]*os.File{}, theirs[:]...), files...), d.o.ExtraFiles...)
	kvm := ""
	if ch.accel == accelKVM {
		kvm = d.o.KVMDevice
	}
	cmd.SysProcAttr = attributes(kvm)
	started := time.Now()
	proc, err := startProcess(cmd)
	if err != nil {
		return nil, fmt.Errorf("%w: starting %s: %w", vm.ErrHost, binary, err)
	}
	closeAll(theirs[:]) // so that their ends show when QEMU ends

	m := &machine{
		proc: proc, dev: dev,
		fact: vm.Facts{Driver: "qemu", Acceleration: ch.accel, AccelerationReason: ch.reason,
			PID: cmd.Process.Pid, Started: started},
		firstOutput: make(chan struct{}), gone: make(chan struct{}),
	}
	var pumps sync.WaitGroup
	pumps.Go(func() { m.serveVsock(ours[0], d) })
	pumps.Go(func() { m.copyConsole(ours[2], c.Console) })
	m.qmp, err = newQMP(ctx, ours[1])
	if err != nil {
		cmd.Process.Kill()
		<-proc.done
		closeConns(ours[:])
		pumps.Wait()
		if ctx.Err() != nil {
			return nil, fmt.Errorf("starting the machine: %w", context.Cause(ctx))
		}
		return nil, errNotStarted(binary, proc.stderr.String(), err)
	}
	m.fact.VMM = m.qmp.version
	go m.reap(ours, &pumps, d)
	return m, nil
}

// deviceGrace is how long a QEMU that closed its end of the socket device may take
// to end: it does so on its way out.
const deviceGrace = 2 * time.Second

// serveVsock runs the socket device until QEMU's end of its socket closes. A
// machine without its device is of no use and cannot be dialled: it is ended.
func (m *machine) serveVsock(c net.Conn, d *driver) {
	err := m.dev.Serve(context.Background(), c.(*net.UnixConn))
	select {
	case <-m.proc.done:
		return
	case <-time.After(deviceGrace):
	}
	if err == nil {
		err = errors.New("QEMU closed its socket")
	}
	d.log.Warn("the socket device ended while QEMU lives: the machine is ended", "pid", m.fact.PID, "error", err)
	m.mu.Lock()
	m.deviceFault = err
	m.mu.Unlock()
	if err := m.proc.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		d.log.Error("could not end QEMU", "pid", m.fact.PID, "error", err)
	}
}

// copyConsole hands the guest's console to w and notes its first byte. When w
// fails the rest is discarded: a full console must not stall the guest.
func (m *machine) copyConsole(c net.Conn, w io.Writer) {
	buf := make([]byte, 16<<10)
	for {
		n, err := c.Read(buf)
		if n > 0 {
			m.noteOutput()
			if w != nil {
				if _, werr := w.Write(buf[:n]); werr != nil {
					w = nil
				}
			}
		}
		if err != nil {
			return
		}
	}
}

func (m *machine) noteOutput() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.first.IsZero() {
		m.first = time.Now()
		close(m.firstOutput)
	}
}

// reap waits for the end of QEMU, frees all that belonged to it, and then says
// why it ended.
func (m *machine) reap(conns [3]net.Conn, pumps *sync.WaitGroup, d *driver) {
	<-m.proc.done
	// What QEMU wrote before it died is still in the sockets; their far ends
	// are closed, so the readers end by themselves.
	select {
	case <-m.qmp.done:
	case <-time.After(time.Second): // a descriptor leaked somewhere: do not wait for it
	}
	m.mu.Lock()
	end := endCause(m.qmp.reason(), m.killed, m.deviceFault, m.proc)
	m.mu.Unlock()
	for _, c := range conns {
		c.SetReadDeadline(time.Now().Add(time.Second)) // drains what is left, no longer
	}
	pumps.Wait()
	closeConns(conns[:])
	m.mu.Lock()
	m.end = end
	m.mu.Unlock()
	d.log.Debug("machine ended", "pid", m.fact.PID, "cause", end)
	close(m.gone)
}

// endCause turns the last words of QEMU into the contract's terms.
func endCause(reason string, killed bool, device error, p *process) error {
	switch {
	case reason == "guest-shutdown":
		return nil
	case reason == "guest-reset" || reason == "guest-panic":
		return &vm.EndError{Cause: vm.ErrGuestReset}
	case killed:
		return &vm.EndError{Cause: vm.ErrKilled}
	case device != nil:
		return &vm.EndError{Cause: vm.ErrVMM, Detail: "its socket device failed: " + device.Error()}
	}
	detail := "QEMU ended"
	if p.err != nil {
		detail = "QEMU: " + p.err.Error()
	}
	if s := p.stderr.String(); s != "" {
		detail += ", saying: " + s
	}
	return &vm.EndError{Cause: vm.ErrVMM, Detail: detail}
}

// spoken waits until the guest has shown a sign of life.
func (m *machine) spoken(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ready := make(chan error, 1)
	go func() { ready <- m.dev.WaitReady(ctx) }()
	select {
	case <-m.firstOutput:
		return nil
	case err := <-ready:
		return err
	case <-m.gone:
		return vm.ErrEnded
	}
}

// isGone tells whether the machine has ended.
func (m *machine) isGone() bool {
	select {
	case <-m.gone:
		return true
	default:
		return false
	}
}

// Dial implements vm.Machine.
func (m *machine) Dial(ctx context.Context, port uint32) (net.Conn, error) {
	c, err := m.dev.Dial(ctx, port)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Wait implements vm.Machine.
func (m *machine) Wait() error {
	<-m.gone
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.end
}

// Stop implements vm.Machine. Our kernel has no power button, so there is nobody
// to ask: the guest has until ctx ends to finish a power-off that it was asked
// for through its agent.
func (m *machine) Stop(ctx context.Context) error {
	select {
	case <-m.gone:
		return nil
	case <-ctx.Done():
		return m.Kill()
	}
}

// Kill implements vm.Machine.
func (m *machine) Kill() error {
	m.mu.Lock()
	m.killed = true
	m.mu.Unlock()
	if err := m.proc.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("killing QEMU (pid %d): %w", m.fact.PID, err)
	}
	t := time.NewTimer(killWait)
	defer t.Stop()
	select {
	case <-m.gone:
		return nil
	case <-t.C:
		return fmt.Errorf("QEMU (pid %d) was killed but has not ended within %v: it may hang in the kernel", m.fact.PID, killWait)
	}
}

// Pause implements vm.Pauser.
func (m *machine) Pause(ctx context.Context) error { return m.control(ctx, "stop") }

// Resume implements vm.Pauser.
func (m *machine) Resume(ctx context.Context) error { return m.control(ctx, "cont") }

func (m *machine) control(ctx context.Context, command string) error {
	if m.isGone() {
		return vm.ErrEnded
	}
	return m.qmp.command(ctx, command)
}

// Facts implements vm.Reporter.
func (m *machine) Facts() vm.Facts {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.fact
	f.FirstOutput = m.first
	return f
}

// openFiles opens kernel, initramfs and disks, in the order that commandLine
// numbers them.
func openFiles(c vm.Config) (files []*os.File, err error) {
	paths := []string{c.Kernel}
	if c.Initramfs != "" {
		paths = append(paths, c.Initramfs)
	}
	for _, d := range c.Disks {
		paths = append(paths, d.Path)
	}
	for _, p := range paths {
		f, err := openRegular(p)
		if err != nil {
			closeAll(files)
			return nil, fmt.Errorf("%w: %w", vm.ErrConfig, err)
		}
		files = append(files, f)
	}
	return files, nil
}

// openRegular opens a plain file for reading. Where QEMU runs under another id,
// it opens the kernel again through /proc/self/fd and so needs the file's own
// permission.
func openRegular(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // a FIFO must not hang us
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", path)
	}
	if err == nil && dropsPrivileges() && st.Mode().Perm()&0o004 == 0 {
		err = fmt.Errorf("%s must be readable by others (mode 0644): QEMU runs under an unprivileged id", path)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// socketPair makes a stream whose one end QEMU inherits: no path, no race.
func socketPair() (net.Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socketpair: %w", err)
	}
	mine, theirs := os.NewFile(uintptr(fds[0]), "socketpair"), os.NewFile(uintptr(fds[1]), "socketpair")
	defer mine.Close() // FileConn duplicates it
	c, err := net.FileConn(mine)
	if err != nil {
		theirs.Close()
		return nil, nil, err
	}
	return c, theirs, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		if f != nil {
			f.Close()
		}
	}
}

func closeConns(conns []net.Conn) {
	for _, c := range conns {
		if c != nil {
			c.Close()
		}
	}
}

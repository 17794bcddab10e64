package runner

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	socketName = "s"
	cacheDir   = "__pycache__"
)

// Listener waits for one box's init. It holds the runner's folder until Accept
// or Close.
type Listener struct {
	sock *net.UnixListener
	work *os.Root // the working folder
	dir  *os.Root // Dir in it, by descriptor: the box may put another in its place

	made []string // what is in dir, in the order of its removal

	uid, gid int // of the program, as the agent sees them

	late    bool     // the program's name comes late
	modules []string // to be imported ahead
	ask     bool     // for byte code, which is then code
	code    Bytecode
}

// AskBytecode says, before Accept, that the init is to give what its Python has made of
// the runner. Bytecode gives that after Accept; nil: the init has none that could be used.
// It is for boxes of that very image only, and as hostile as the image is.
func (l *Listener) AskBytecode() { l.ask = true }

// Bytecode is what AskBytecode asked for.
func (l *Listener) Bytecode() Bytecode { return l.code }

// Late says, before Accept, that the init was started with Placeholder, and which
// modules it is to import before it is ready: their full names.
func (l *Listener) Late(modules []string) { l.late, l.modules = true, modules }

// Prepare puts the runner's folder, with the runner and a listening socket, into
// workDir, which must be the box's working folder, empty and seen by nobody else
// yet. Its path may have at most 94 bytes (sun_path of unix(7) has 108). uid and
// gid are the program's as the agent sees them: that user may connect and change
// nothing. code is what the box's image has of the runner's byte code, if any.
func Prepare(workDir string, uid, gid int, code ...Bytecode) (*Listener, error) {
	l := &Listener{uid: uid, gid: gid}
	if err := l.prepare(workDir, code); err != nil {
		return nil, errors.Join(fmt.Errorf("prepare the runner: %w", err), l.Close())
	}
	return l, nil
}

func (l *Listener) prepare(workDir string, code []Bytecode) (err error) {
	if l.work, err = os.OpenRoot(workDir); err != nil {
		return err
	}
	if err = l.work.Mkdir(Dir, 0o700); err != nil {
		return err
	}
	if l.dir, err = l.work.OpenRoot(Dir); err != nil {
		return err
	}
	if err = l.put(SourceName, source); err != nil {
		return err
	}
	if err = l.putBytecode(code); err != nil {
		return err
	}
	if err = l.listen(filepath.Join(workDir, Dir, socketName)); err != nil {
		return err
	}
	return l.work.Chmod(Dir, 0o755)
}

func (l *Listener) put(name string, data []byte) error {
	l.made = append([]string{name}, l.made...)
	if err := l.dir.WriteFile(name, data, 0o444); err != nil {
		return err
	}
	return l.dir.Chmod(name, 0o444) // whatever the umask is
}

func (l *Listener) putBytecode(code []Bytecode) error {
	for _, c := range code {
		for name, pyc := range c {
			if err := l.putCacheDir(); err != nil {
				return err
			}
			if err := l.put(cacheDir+"/"+name, pyc); err != nil {
				return err
			}
		}
	}
	return nil
}

func (l *Listener) putCacheDir() error {
	err := l.dir.Mkdir(cacheDir, 0o700)
	if errors.Is(err, fs.ErrExist) {
		return nil
	} else if err != nil {
		return err
	}
	l.made = append([]string{cacheDir}, l.made...)
	return l.dir.Chmod(cacheDir, 0o755)
}

func (l *Listener) listen(path string) (err error) {
	addr := &net.UnixAddr{Net: "unixpacket", Name: path}
	if l.sock, err = net.ListenUnix(addr.Net, addr); err != nil {
		return err
	}
	l.made = append([]string{socketName}, l.made...)
	l.sock.SetUnlinkOnClose(false) // by path: the box may have another file there
	if err = l.dir.Lchown(socketName, l.uid, l.gid); err != nil {
		return err
	}
	return l.dir.Chmod(socketName, 0o600)
}

// Close removes the runner's folder and stops listening. Closing twice, or after
// Accept, does nothing.
func (l *Listener) Close() error {
	var errs []error
	if l.sock != nil {
		errs = append(errs, l.sock.Close())
		l.sock = nil
	}
	if l.work != nil {
		errs = append(errs, l.remove(), l.work.Close())
		l.work = nil
	}
	return errors.Join(errs...)
}

// remove takes away exactly what prepare made, and finds it an error when
// something else is there.
func (l *Listener) remove() error {
	if l.dir == nil {
		return nil
	}
	defer l.dir.Close()
	made, err := l.dir.Stat(".")
	if err != nil {
		return err
	}
	found, err := l.work.Lstat(Dir)
	if err != nil {
		return err
	}
	if !os.SameFile(made, found) {
		return fmt.Errorf("%w: something else is in the place of its folder", ErrProtocol)
	}
	for _, name := range l.made {
		if err := l.dir.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return l.work.Remove(Dir)
}

// Accept waits until the init of the box, the process pid as the agent sees it,
// has taken its standard streams and is ready. It fails with ErrPeer when another
// process connects. When it returns, the runner's folder is gone and nobody else
// can connect, whether it failed or not.
//
// in, out and err are the box's ends of the streams. Accept takes them over: it
// makes them blocking, gives pipes to the box's user so that they can be opened
// again through /dev/stdin, /dev/stdout and /dev/stderr, and closes them before
// it returns. ctx bounds the wait; it should end, with the cause ErrGone, when the
// process does, and what that said last is told all the same.
func (l *Listener) Accept(ctx context.Context, pid int, in, out, err *os.File) (*Conn, error) {
	streams := []*os.File{in, out, err}
	defer func() {
		for _, f := range streams {
			_ = f.Close()
		}
	}()
	c, aerr := l.accept(ctx, pid, streams)
	if cerr := l.Close(); aerr == nil && cerr != nil {
		aerr = fmt.Errorf("remove the runner's folder: %w", cerr)
	}
	if aerr != nil {
		if c != nil {
			_ = c.Close()
		}
		return nil, fmt.Errorf("wait for the box's init: %w", aerr)
	}
	return c, nil
}

func (l *Listener) accept(ctx context.Context, pid int, streams []*os.File) (*Conn, error) {
	listening := l.sock
	if listening == nil {
		return nil, net.ErrClosed
	}
	stop := context.AfterFunc(ctx, func() { _ = listening.SetDeadline(time.Unix(1, 0)) })
	sock, err := listening.AcceptUnix()
	stop()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, context.Cause(ctx)
	} else if err != nil {
		return nil, err
	}
	c := newConn(sock)
	c.from = func(b []byte) (int, int, error) { return readFrom(sock, b) }
	c.offer = func(b []byte, size int64) (*os.File, error) { return offer(sock, b, size) }
	c.unread = unread
	c.nameless = l.late
	err = c.within(ctx, func() error {
		if err := checkPeer(sock, pid); err != nil {
			return err
		}
		if err := nameSenders(sock); err != nil {
			return err
		}
		if err := l.handOver(sock, streams); err != nil {
			return err
		}
		if l.ask {
			if err := l.takeBytecode(c); err != nil {
				return err
			}
		}
		_, err := c.expect(msgReady)
		return err
	})
	if errors.Is(err, ErrGone) {
		if word := c.lastWord(); word != nil {
			err = word
		}
	}
	return c, err
}

// offer sends a message with the end of a new pipe that is read from, and gives the
// other.
func offer(sock *net.UnixConn, message []byte, size int64) (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	if size > smallPipe {
		// It is faster so, and works as well without.
		_, _ = withFD(w, func(fd int) (int, error) { return unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, pipeBytes) })
	}
	_, err = withFD(r, func(fd int) (struct{}, error) {
		err := unix.SetNonblock(fd, false)
		if err == nil {
			_, _, err = sock.WriteMsgUnix(message, unix.UnixRights(fd), nil)
		}
		return struct{}{}, err
	})
	if err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}

// unread tells how many bytes are in a pipe: pipe(7).
func unread(pipe *os.File) (int, error) {
	return withFD(pipe, func(fd int) (int, error) { return unix.IoctlGetInt(fd, unix.TIOCINQ) })
}

// nameSenders makes the kernel say who sends each message: see readFrom.
func nameSenders(sock *net.UnixConn) error {
	_, err := withFD(sock, func(fd int) (struct{}, error) {
		return struct{}{}, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSCRED, 1)
	})
	if err != nil {
		return fmt.Errorf("ask for the senders of messages: %w", err)
	}
	return nil
}

// readFrom reads one message. pid is its sender as the agent sees it, dead or
// alive: SCM_CREDENTIALS of unix(7), which the kernel adds because of SO_PASSCRED
// and which only root could forge. 0: it is not known. There is room for nothing
// else beside a message.
func readFrom(sock *net.UnixConn, b []byte) (n, pid int, err error) {
	control := make([]byte, unix.CmsgSpace(unix.SizeofUcred))
	n, m, _, _, err := sock.ReadMsgUnix(b, control)
	if err != nil {
		return n, 0, err
	}
	messages, err := unix.ParseSocketControlMessage(control[:m])
	if err != nil || len(messages) != 1 {
		return n, 0, nil
	}
	cred, err := unix.ParseUnixCredentials(&messages[0])
	if err != nil {
		return n, 0, nil
	}
	return n, int(cred.Pid), nil
}

// checkPeer compares the process that connected with pid: SO_PEERCRED, unix(7).
func checkPeer(sock *net.UnixConn, pid int) error {
	cred, err := withFD(sock, func(fd int) (*unix.Ucred, error) {
		return unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err != nil {
		return fmt.Errorf("ask who connected: %w", err)
	}
	if int(cred.Pid) != pid {
		return fmt.Errorf("%w: process %d instead of %d", ErrPeer, cred.Pid, pid)
	}
	return nil
}

// handOver sends the streams to the box.
func (l *Listener) handOver(sock *net.UnixConn, streams []*os.File) error {
	fds := make([]int, len(streams))
	for i, f := range streams {
		fd, err := withFD(f, func(fd int) (int, error) { return fd, l.ready(fd) })
		if err != nil {
			return fmt.Errorf("descriptor %d for the box: %w", i, err)
		}
		fds[i] = fd // the file stays open until Accept returns
	}
	var flags byte
	if l.late {
		flags |= flagLate
	}
	if l.ask {
		flags |= flagBytecode
	}
	_, _, err := sock.WriteMsgUnix(encodeStreams(flags, l.modules), unix.UnixRights(fds...), nil)
	if isGone(err) {
		return gone(err)
	}
	return err
}

// takeBytecode reads the message of a runner's byte code.
func (l *Listener) takeBytecode(c *Conn) error {
	b := make([]byte, maxBytecodeMessage+1) // one more: a longer one shows
	n, _, err := c.receive(b)
	if err != nil {
		return err
	}
	if n > 0 && b[0] == msgBytecode {
		if n <= maxBytecodeMessage { // the kernel has cut it otherwise
			l.code = decodeBytecode(b[1:n])
		}
		return nil
	}
	r, err := judge(b[:n])
	if err == nil {
		err = unexpected(r)
	}
	return err
}

// ready makes a descriptor what a program expects of its standard streams.
func (l *Listener) ready(fd int) error {
	if err := unix.SetNonblock(fd, false); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFIFO {
		return nil // a device or file of the guest's own is not ours to give away
	}
	return unix.Fchown(fd, l.uid, l.gid)
}

func withFD[T any](c syscall.Conn, f func(fd int) (T, error)) (v T, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return v, err
	}
	cerr := raw.Control(func(fd uintptr) { v, err = f(int(fd)) })
	return v, errors.Join(cerr, err)
}

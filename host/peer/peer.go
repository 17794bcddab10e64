// Package peer makes sure who is at the other end of a Unix socket: the user who
// owns this process, or root. File modes say the same; this also holds where a
// folder's mode is wrong, or where somebody else was first to make a socket in a
// folder that all may write to.
package peer

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
)

// Listener wraps l: connections of other users are closed before anyone reads
// from them.
func Listener(l *net.UnixListener, log *slog.Logger) net.Listener {
	return &listener{l, log}
}

type listener struct {
	*net.UnixListener
	log *slog.Logger
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		if err := Check(c); err != nil {
			l.log.Warn("refused a connection", "error", err)
			c.Close()
			continue
		}
		return c, nil
	}
}

// ErrStranger: the process at the other end belongs to somebody else.
var ErrStranger = errors.New("the socket belongs to another user")

// Check tells whether the process at the other end of c belongs to this process's
// user or to root. The error matches ErrStranger when it does not.
func Check(c *net.UnixConn) error {
	uid, err := userOf(c)
	if err != nil {
		return err
	}
	if uid != 0 && uid != os.Geteuid() {
		return fmt.Errorf("%w (%d)", ErrStranger, uid)
	}
	return nil
}

// userOf asks the kernel who is at the other end of c.
func userOf(c *net.UnixConn) (int, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	uid, uerr := -1, error(nil)
	if err := raw.Control(func(fd uintptr) { uid, uerr = peerUID(int(fd)) }); err != nil {
		return -1, err
	}
	return uid, uerr
}

// Package peer admits to a Unix socket only the user who owns this process, and
// root. File modes say the same; this also holds where a folder's mode is wrong.
package peer

import (
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
		uid, err := userOf(c)
		if err == nil && (uid == 0 || uid == os.Geteuid()) {
			return c, nil
		}
		l.log.Warn("refused a connection of another user", "uid", uid, "error", err)
		c.Close()
	}
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

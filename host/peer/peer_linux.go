package peer

import "golang.org/x/sys/unix"

// peerUID uses SO_PEERCRED of unix(7).
func peerUID(fd int) (int, error) {
	c, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return -1, err
	}
	return int(c.Uid), nil
}

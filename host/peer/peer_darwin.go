package peer

import "golang.org/x/sys/unix"

// peerUID uses LOCAL_PEERCRED of unix(4).
func peerUID(fd int) (int, error) {
	c, err := unix.GetsockoptXucred(fd, unix.SOL_LOCAL, unix.LOCAL_PEERCRED)
	if err != nil {
		return -1, err
	}
	return int(c.Uid), nil
}

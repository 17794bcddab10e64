package images

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// Kernel mounts with the running kernel; that takes CAP_SYS_ADMIN.
type Kernel struct{}

// Mount implements System. MS_NOSUID takes the effect of file capabilities away
// too, see mount(2).
func (Kernel) Mount(device, target string) error {
	return os.NewSyscallError("mount", unix.Mount(device, target, "erofs", unix.MS_RDONLY|unix.MS_NODEV|unix.MS_NOSUID, ""))
}

// Unmount implements System. A mount that something still uses goes with its
// last user.
func (Kernel) Unmount(target string) error {
	err := unix.Unmount(target, unix.UMOUNT_NOFOLLOW)
	if errors.Is(err, unix.EBUSY) {
		err = unix.Unmount(target, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
	}
	return os.NewSyscallError("umount", err)
}

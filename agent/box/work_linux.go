package box

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/pybox/pybox/agent/oci"
)

// makeWork makes the folder of a box in the guest and mounts the tmpfs of its
// working folder there. It is the agent's own mount: one made inside the box
// would go with its last process, before anything could be collected. Its files
// belong to the program, its sizes are the policy's, and nothing on it is
// executable.
func makeWork(dir string, c oci.Config) (string, error) {
	work := filepath.Join(dir, "work")
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return "", fmt.Errorf("make the working folder: %w", err)
	}
	if err := os.Mkdir(work, 0o700); err != nil {
		return "", fmt.Errorf("make the working folder: %w", err)
	}
	options := fmt.Sprintf("size=%d,nr_inodes=%d,mode=0700,uid=%d,gid=%d",
		c.Limits.WorkBytes, c.Limits.WorkFiles, c.HostUID(), c.HostGID())
	if err := unix.Mount("tmpfs", work, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, options); err != nil {
		return "", fmt.Errorf("mount the working folder: %w", err)
	}
	return work, nil
}

// removeWork takes the folder of a box away, mount and all. What is gone already
// is no error.
func removeWork(dir string) error {
	work := filepath.Join(dir, "work")
	if err := unix.Unmount(work, unix.UMOUNT_NOFOLLOW); err != nil && err != unix.EINVAL && err != unix.ENOENT {
		return fmt.Errorf("unmount the working folder: %w", err)
	}
	// Not RemoveAll: whatever is left below is no empty folder of ours.
	for _, d := range []string{work, dir} {
		if err := os.Remove(d); err != nil && !os.IsNotExist(err) {
			return fmt.Errorf("remove the box's folder: %w", err)
		}
	}
	return nil
}

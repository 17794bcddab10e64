package images

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pybox/pybox/guest/erofs"
	"github.com/pybox/pybox/guest/tree"
)

// loopDevice puts an image with Dirs into a block device, or skips.
func loopDevice(t *testing.T) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: mounting takes root")
	}
	tr := tree.New(tree.DefaultLimits)
	for _, d := range Dirs {
		if err := tr.Mkdir(d, tree.Attr{Mode: 0o755}); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(t.TempDir(), "image.erofs")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := erofs.Write(f, tr); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("losetup", "--find", "--show", "--read-only", path).CombinedOutput()
	if err != nil {
		t.Skipf("SKIPPED: no loop device here: %v: %s", err, out)
	}
	dev := strings.TrimSpace(string(out))
	t.Cleanup(func() {
		if out, err := exec.Command("losetup", "--detach", dev).CombinedOutput(); err != nil {
			t.Errorf("detach %s: %v: %s", dev, err, out)
		}
	})
	return dev
}

func TestKernelMounts(t *testing.T) {
	dev, dir := loopDevice(t), t.TempDir()
	var k Kernel
	if err := k.Mount(dev, dir); errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EPERM) {
		t.Skipf("SKIPPED: this kernel mounts no erofs for us: %v", err)
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	if err := CheckLayout(dir); err != nil {
		t.Error(err)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	const want = unix.ST_RDONLY | unix.ST_NODEV | unix.ST_NOSUID
	if st.Flags&want != want || st.Type != unix.EROFS_SUPER_MAGIC_V1 {
		t.Errorf("type %#x, flags %#x", st.Type, st.Flags)
	}
	busy, err := os.Open(filepath.Join(dir, "box"))
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Unmount(dir); err != nil {
		t.Errorf("unmount while in use: %v", err)
	}
	_ = busy.Close()
	if err := CheckLayout(dir); !errors.Is(err, ErrLayout) {
		t.Errorf("after the unmount: %v", err)
	}
}

package setup

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/pybox/pybox/guest/bundle"
	"github.com/pybox/pybox/guest/nospace"
	"github.com/pybox/pybox/guest/nospace/nospacetest"
	"golang.org/x/sys/unix"
)

// TestFullDisk: the plan sees that it cannot fit, and where the room is used up after
// that, setup ends with what to do, and goes on once there is some.
func TestFullDisk(t *testing.T) {
	if !nospacetest.OwnMounts(t) {
		return
	}
	for _, which := range []string{"cache", "state folder"} {
		w := newWorld(t)
		at := &w.o.Cache
		if which == "state folder" {
			at = &w.o.Home
		}
		small := nospacetest.Disk(t, 256<<10)
		*at = filepath.Join(small, "pybox")
		p := w.plan()
		if len(p.Problems) != 1 || !strings.Contains(p.Problems[0].What, "free, and up to") || !strings.Contains(p.Problems[0].Fix, "PYBOX_CACHE") {
			t.Errorf("%s: problems %v", which, p.Problems)
		}
		large := nospacetest.Disk(t, 64<<20)
		*at = filepath.Join(large, "pybox")
		p = w.plan()
		if len(p.Problems) > 0 {
			t.Fatalf("%s: problems %v", which, p.Problems)
		}
		hog := filepath.Join(large, "hog")
		fill(t, hog)
		_, err := p.Execute(t.Context(), Events{})
		if !errors.Is(err, nospace.Err) || !strings.Contains(err.Error(), large) {
			t.Errorf("%s: %v", which, err)
		}
		if _, err := bundle.Current(w.o.Home); !errors.Is(err, bundle.ErrNoBundle) {
			t.Errorf("%s: installed: %v", which, err)
		}
		if err := os.Remove(hog); err != nil {
			t.Fatal(err)
		}
		w.setUp()
	}
}

// fill leaves but a little room on a file's disk.
func fill(t *testing.T, name string) {
	t.Helper()
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	if err := unix.Fallocate(int(f.Fd()), 0, 0, int64(st.Bavail)*st.Bsize-40<<10); err != nil {
		t.Fatal(err)
	}
}

func TestReadOnlyDisk(t *testing.T) {
	if !nospacetest.OwnMounts(t) {
		return
	}
	w := newWorld(t)
	dir := nospacetest.Disk(t, 64<<20)
	w.o.Home = filepath.Join(dir, "pybox")
	good := w.plan()
	readOnly := func(flag uintptr) {
		t.Helper()
		if err := unix.Mount("", dir, "", unix.MS_REMOUNT|flag, ""); err != nil {
			t.Fatal(err)
		}
	}
	readOnly(unix.MS_RDONLY)
	p := w.plan()
	if len(p.Problems) != 1 || !strings.Contains(p.Problems[0].What, "read-only file system") {
		t.Errorf("problems: %v", p.Problems)
	}
	if _, err := good.Execute(t.Context(), Events{}); !errors.Is(err, syscall.EROFS) || !strings.Contains(err.Error(), "PYBOX_HOME") {
		t.Errorf("%v", err)
	}
	readOnly(0)
	r := w.setUp()
	readOnly(unix.MS_RDONLY)
	if p := w.plan(); !p.Nothing {
		t.Errorf("to do, though all is there: %s", p.Why)
	}
	if r.Nothing {
		t.Error("nothing was done")
	}
}

// TestNotWritable: for a user who may not write there; root may everywhere.
func TestNotWritable(t *testing.T) {
	if os.Geteuid() == 0 {
		asNobody(t)
		return
	}
	w := newWorld(t)
	up := filepath.Dir(filepath.Dir(w.o.Home))
	if err := os.Chmod(up, 0o500); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Chmod(up, 0o700) })
	if p := w.plan(); len(p.Problems) == 0 || !strings.Contains(p.Problems[0].What, "permission denied") {
		t.Errorf("problems: %v", p.Problems)
	}
}

// asNobody runs the calling test once more as a user without rights.
func asNobody(t *testing.T) {
	t.Helper()
	const nobody = 65534
	c := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.count=1", "-test.v")
	c.Dir = "/"
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	if out, err := c.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Fatalf("as another user: %v\n%s", err, out)
	}
}

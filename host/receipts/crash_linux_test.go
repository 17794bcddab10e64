package receipts

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// asWriter and onFullDisk name the roles in which this test program starts
// itself; the value is a folder.
const (
	asWriter   = "PYBOX_TEST_WRITER"
	onFullDisk = "PYBOX_TEST_FULL_DISK"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(asWriter); dir != "" {
		os.Exit(writer(dir))
	}
	os.Exit(m.Run())
}

// writer stores receipts until it is killed, and says which.
func writer(dir string) int {
	s, err := Open(dir, 1_000_000)
	for n := 0; err == nil; n++ {
		r := sample(n)
		r.Run.ID = fmt.Sprintf("%d-%d", os.Getpid(), n)
		if err = s.Put(r); err == nil {
			fmt.Println(r.Run.ID)
		}
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// TestKilledWriters: whatever was said to be stored is there after kill -9, and
// nothing is left half written.
func TestKilledWriters(t *testing.T) {
	dir := newFolder(t)
	open(t, dir, 10)
	var stored []string
	for range 5 {
		stored = append(stored, killWriter(t, dir)...)
	}
	if err := os.WriteFile(filepath.Join(dir, ".20261129T232047.123Z-half.json77"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := open(t, dir, 1_000_000)
	for _, id := range stored {
		if _, err := s.Get(id); err != nil {
			t.Error(err)
		}
	}
	if len(stored) < 25 {
		t.Errorf("only %d were stored", len(stored))
	}
	for _, name := range files(t, dir) {
		if _, ok := parseName(name); !ok {
			t.Errorf("%s is left", name)
		}
	}
	put(t, s, sample(1)) // the killed one's lock went with it
}

// killWriter starts a writer, kills it after some receipts, and gives the ids that
// it said were stored.
func killWriter(t *testing.T, dir string) (ids []string) {
	t.Helper()
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), asWriter+"="+dir)
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if ids = append(ids, lines.Text()); len(ids) == 5 {
			if err := c.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	var exit *exec.ExitError
	if err := c.Wait(); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("the writer ended with %v", err)
	}
	return ids
}

// TestFullDisk runs itself with a small file system of its own.
func TestFullDisk(t *testing.T) {
	if dir := os.Getenv(onFullDisk); dir != "" {
		fillDisk(t, dir)
		return
	}
	c := exec.Command(os.Args[0], "-test.run=^TestFullDisk$", "-test.v")
	c.Env = append(os.Environ(), onFullDisk+"="+t.TempDir())
	c.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	out, err := c.CombinedOutput()
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSPC) {
		t.Skipf("this system gives no user namespaces: %v", err)
	}
	if err != nil || !strings.Contains(string(out), "the disk was full") {
		t.Fatalf("%v\n%s", err, out)
	}
}

func fillDisk(t *testing.T, dir string) {
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "mode=0700,size="+strconv.Itoa(128<<10)); err != nil {
		t.Fatal(err)
	}
	dir = filepath.Join(dir, "receipts")
	s := open(t, dir, 1000)
	var err error
	n := 0
	for ; err == nil && n < 1000; n++ {
		err = s.Put(sample(n))
	}
	if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "could not be kept") || !strings.Contains(err.Error(), "no space left") {
		t.Fatalf("after %d: %v", n, err)
	}
	n-- // this one is not there
	for i := range n {
		if _, err := s.Get(sample(i).Run.ID); err != nil {
			t.Error(err)
		}
	}
	if s.Has(sample(n).Run.ID) || len(files(t, dir)) != n {
		t.Errorf("%d stored, files: %v", n, files(t, dir))
	}
	full := files(t, dir)
	// Replacing needs room for both; the old one stays.
	if err := s.Put(sample(0)); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("replacing: %v", err)
	}
	if got := files(t, dir); !slices.Equal(got, full) {
		t.Errorf("files: %v, before %v", got, full)
	}
	// With less to keep there is room again.
	put(t, open(t, dir, 2), sample(n))
	t.Log("the disk was full")
}

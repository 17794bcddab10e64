package home

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func env(m map[string]string) func(string) string { return func(k string) string { return m[k] } }

func TestLocate(t *testing.T) {
	if got, err := Locate(env(map[string]string{"PYBOX_HOME": "/a b/c", "HOME": "/h"})); got != "/a b/c" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	if got, err := Locate(env(map[string]string{"HOME": "/h"})); got != "/h/.pybox" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := Locate(env(nil)); err == nil || !strings.Contains(err.Error(), "PYBOX_HOME") {
		t.Errorf("without HOME: %v", err)
	}
}

func TestOpenRefusesWhatOthersCanChange(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "with space", "h")
	h, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(h.Dir()); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("made %v, %v; want mode 0700", st.Mode(), err)
	}
	os.Chmod(dir, 0o777)
	if _, err := Open(dir); !errors.Is(err, ErrUnsafe) || !strings.Contains(err.Error(), "chmod 700") {
		t.Errorf("mode 0777: %v", err)
	}
	for _, sys := range []string{"/tmp", "/"} {
		if _, err := Open(sys); !errors.Is(err, ErrUnsafe) || strings.Contains(err.Error(), "chmod") {
			t.Errorf("%s: %v, want ErrUnsafe without advice to change its mode", sys, err)
		}
	}
	file := filepath.Join(t.TempDir(), "f")
	os.WriteFile(file, nil, 0o600)
	if _, err := Open(file); err == nil {
		t.Error("took a file as its directory")
	}
}

func TestSocketFitsEverywhere(t *testing.T) {
	short := &Home{"/home/u/.pybox"}
	if got := short.Socket(); got != "/home/u/.pybox/pybox.sock" {
		t.Errorf("short home: %q", got)
	}
	edge := &Home{"/" + strings.Repeat("x", maxSocketPath-len("//pybox.sock"))}
	if got := edge.Socket(); len(got) != maxSocketPath || filepath.Dir(got) != edge.dir {
		t.Errorf("home that just fits: %q", got)
	}
	long, other := &Home{edge.dir + "y"}, &Home{edge.dir + "z"}
	if got := long.Socket(); len(got) > maxSocketPath || !strings.HasPrefix(got, fallbackDir()+"/") {
		t.Errorf("home too long: %q", got)
	}
	if long.Socket() == other.Socket() {
		t.Error("two homes share a socket")
	}
}

// TestMain lets a test start this binary as the holder of a lock.
func TestMain(m *testing.M) {
	if dir := os.Getenv("HOME_TEST_HOLD"); dir != "" {
		h, err := Open(dir)
		if err == nil {
			_, err = h.Lock()
		}
		if err == nil {
			err = h.SetDaemon("test", time.Now(), "127.0.0.1:1")
		}
		if err != nil {
			os.Stderr.WriteString(err.Error())
			os.Exit(1)
		}
		os.Stdout.WriteString("held\n")
		<-time.After(time.Hour) // until it is killed
	}
	os.Exit(m.Run())
}

func TestLockDiesWithItsHolder(t *testing.T) {
	dir := t.TempDir()
	h, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	holder := exec.Command(os.Args[0])
	holder.Env = append(os.Environ(), "HOME_TEST_HOLD="+dir)
	out, err := holder.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	defer holder.Process.Kill()
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "held\n" {
		t.Fatalf("the holder said %q, %v", line, err)
	}
	if _, err := h.Lock(); !errors.Is(err, ErrLocked) {
		t.Fatalf("a held lock was taken: %v", err)
	}
	d, err := h.Daemon()
	if err != nil || d.PID != holder.Process.Pid || !d.Alive() {
		t.Fatalf("daemon %+v, %v; want pid %d, alive", d, err, holder.Process.Pid)
	}
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := h.WaitUnlocked(short); err == nil {
		t.Fatal("a held lock counted as free")
	}

	holder.Process.Kill()
	ctx, cancel2 := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel2()
	if err := h.WaitUnlocked(ctx); err != nil {
		t.Fatalf("the lock outlived its holder: %v", err)
	}
	if d.Alive() { // a zombie until the next line
		t.Error("a killed daemon counts as alive")
	}
	holder.Wait()
	l, err := h.Lock()
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Unlock(); err != nil {
		t.Error(err)
	}
	if got := d.Fate(); got != FateEnded {
		t.Errorf("the fate of a killed daemon: %v", got)
	}
	d.PID = os.Getpid() // the number was reused
	if got := d.Fate(); got != FateReused || d.Alive() {
		t.Errorf("another process with the same number counts as the daemon: %v", got)
	}
	d.HostBootID = "another boot"
	if got := d.Fate(); got != FateRebooted {
		t.Errorf("the fate of a daemon of another boot: %v", got)
	}
}

func TestOpenExistingMakesNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "h")
	if _, err := OpenExisting(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing directory: %v", err)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it was made: %v", err)
	}
	if _, err := Open(dir); err != nil {
		t.Fatal(err)
	}
	if h, err := OpenExisting(dir); err != nil || h.Dir() != dir {
		t.Error(h, err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenExisting(dir); !errors.Is(err, ErrUnsafe) {
		t.Errorf("one that others may write to: %v", err)
	}
}

func TestWhoOnlyLooksChangesNothing(t *testing.T) {
	dir := t.TempDir()
	h := At(dir)
	if free, err := h.Unlocked(); !free || err != nil {
		t.Errorf("a directory without a lock: %v, %v", free, err)
	}
	long := At(filepath.Join(dir, strings.Repeat("x", maxSocketPath)))
	if err := long.CheckSocketDir(); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket's folder of a long path: %v", err)
	}
	if err := h.CheckSocketDir(); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(dir); len(left) != 0 || err != nil {
		t.Errorf("something was made: %v, %v", left, err)
	}
	missing := At(filepath.Join(dir, "none"))
	if free, err := missing.Unlocked(); !free || err != nil {
		t.Errorf("a directory that is missing: %v, %v", free, err)
	}
}

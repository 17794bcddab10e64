package peer

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// TestMain lets a test dial as another user: the binary is its own client.
func TestMain(m *testing.M) {
	if p := os.Getenv("PEER_TEST_DIAL"); p != "" {
		c, err := net.Dial("unix", p)
		if err != nil {
			os.Exit(2)
		}
		c.SetDeadline(time.Now().Add(10 * time.Second))
		if _, err := c.Read(make([]byte, 1)); err != nil {
			os.Exit(3) // closed without a byte
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestAdmitsOnlyTheOwner(t *testing.T) {
	dir := t.TempDir()
	for d := dir; d != "/" && d != "/tmp"; d = filepath.Dir(d) { // so that only the check can refuse
		os.Chmod(d, 0o755)
	}
	sock := filepath.Join(dir, "s")
	ul, err := net.ListenUnix("unix", &net.UnixAddr{Name: sock})
	if err != nil {
		t.Fatal(err)
	}
	l := Listener(ul, slog.New(slog.DiscardHandler))
	defer l.Close()
	os.Chmod(sock, 0o777)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Write([]byte("!"))
			c.Close()
		}
	}()
	if code := dialAs(t, sock, os.Getuid()); code != 0 {
		t.Errorf("the owner was refused: exit %d", code)
	}
	if os.Getuid() != 0 {
		t.Skip("being another user needs root")
	}
	if err := checkOf(t, sock); err != nil {
		t.Errorf("our own socket: %v", err)
	}
	if code := dialAs(t, sock, 12345); code != 3 {
		t.Errorf("another user was not turned away: exit %d, want 3", code)
	}
}

func checkOf(t *testing.T, sock string) error {
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: sock})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	return Check(c)
}

func dialAs(t *testing.T, sock string, uid int) int {
	t.Helper()
	// The test binary's folder is closed to others: hand it over as a copy.
	exe := filepath.Join(filepath.Dir(sock), "client")
	b, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(exe, b, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe)
	cmd.Dir, cmd.Env = "/", []string{"PEER_TEST_DIAL=" + sock}
	if uid != os.Getuid() {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	}
	err = cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode()
}

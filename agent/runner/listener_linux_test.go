package runner

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func noFolder(t *testing.T, work string) {
	t.Helper()
	if _, err := os.Lstat(filepath.Join(work, Dir)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the runner's folder: %v", err)
	}
}

func TestPrepareAndClose(t *testing.T) {
	work := workFolder(t)
	l, err := Prepare(work, os.Getuid(), os.Getgid())
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(work, Dir, SourceName))
	if err != nil || string(got) != string(source) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if _, err := Prepare(work, os.Getuid(), os.Getgid()); !errors.Is(err, fs.ErrExist) {
		t.Errorf("twice: %v", err)
	}
	if _, err := os.Stat(filepath.Join(work, Dir, socketName)); err != nil {
		t.Errorf("the second took the folder of the first: %v", err)
	}
	for range 2 {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
	noFolder(t, work)
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Accept(t.Context(), 1, null, null, null); !errors.Is(err, net.ErrClosed) {
		t.Errorf("accept after close: %v", err)
	}
}

func TestPrepareFails(t *testing.T) {
	if _, err := Prepare(filepath.Join(workFolder(t), "absent"), 0, 0); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	long := filepath.Join(workFolder(t), strings.Repeat("x", 100))
	if err := os.Mkdir(long, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := Prepare(long, os.Getuid(), os.Getgid()); err == nil {
		t.Error("a path over the limit of unix(7) was taken")
	}
	noFolder(t, long)
}

// dial connects as this process, as no init.
func dial(t *testing.T, work string) *net.UnixConn {
	t.Helper()
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Net: "unixpacket", Name: filepath.Join(work, Dir, socketName)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestOtherProcessRefused(t *testing.T) {
	b, err := boxSpec{env: baseEnv, args: []string{"main.py"}, notIt: true}.start(t)
	if !errors.Is(err, ErrPeer) {
		t.Error(err)
	}
	noFolder(t, b.work)
	<-b.gone
	if code := b.cmd.ProcessState.ExitCode(); code != ExitBroken {
		t.Errorf("exit code %d", code)
	}
}

// A Python that never comes to the runner opens the program, which is not there.
func TestNoHook(t *testing.T) {
	b, err := boxSpec{env: baseEnv, args: []string{"-S", "main.py"}}.start(t)
	if !errors.Is(err, ErrGone) { // the cause with which the wait ends, as in the agent
		t.Error(err)
	}
	noFolder(t, b.work)
	<-b.gone
	if code := b.cmd.ProcessState.ExitCode(); code != 2 {
		t.Errorf("exit code %d", code)
	}
}

// Whatever goes wrong with the runner, Python must not go on to the program, even if
// there is one.
func TestRunnerFails(t *testing.T) {
	tests := map[string]func(*Listener) error{
		"nobody listens": func(l *Listener) error { return l.sock.Close() },
		"no socket":      func(l *Listener) error { return l.dir.Remove(socketName) },
	}
	for name, spoil := range tests {
		t.Run(name, func(t *testing.T) {
			work := workFolder(t)
			l, err := Prepare(work, os.Getuid(), os.Getgid())
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			if err := spoil(l); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(work, "main.py"), []byte("print('ran')"), 0o644); err != nil {
				t.Fatal(err)
			}
			cmd := pythonIn(t, work, environment(baseEnv, filepath.Join(work, Dir)), "main.py")
			out, err := cmd.CombinedOutput()
			exit := new(exec.ExitError)
			if !errors.As(err, &exit) || exit.ExitCode() != ExitBroken || len(out) > 0 {
				t.Errorf("%v, output %q", err, out)
			}
		})
	}
}

// impostor accepts a connection of this very process, which then plays the init.
func impostor(t *testing.T, play func(work string, c *net.UnixConn)) (string, *Conn, error) {
	t.Helper()
	work := workFolder(t)
	l, err := Prepare(work, os.Getuid(), os.Getgid())
	if err != nil {
		t.Fatal(err)
	}
	r, w := pipe(t)
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	peer := dial(t, work)
	play(work, peer)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	c, err := l.Accept(ctx, os.Getpid(), null, w, w)
	if c != nil {
		t.Cleanup(func() { _ = c.Close() })
	}
	for _, f := range []*os.File{null, w} {
		if cerr := f.Close(); !errors.Is(cerr, os.ErrClosed) {
			t.Errorf("Accept left a stream open: %v", cerr)
		}
	}
	_ = peer.Close()
	if _, rerr := io.ReadAll(r); rerr != nil { // ends: the descriptors that were sent are closed
		t.Error(rerr)
	}
	return work, c, err
}

func say(t *testing.T, c io.Writer, message string) {
	t.Helper()
	if _, err := io.WriteString(c, message); err != nil {
		t.Fatal(err)
	}
}

func TestAcceptHostileInit(t *testing.T) {
	tests := map[string]struct {
		play func(t *testing.T, c *net.UnixConn)
		want error
	}{
		"ready":         {func(t *testing.T, c *net.UnixConn) { say(t, c, "R\x03") }, nil},
		"other version": {func(t *testing.T, c *net.UnixConn) { say(t, c, "R\x01") }, ErrProtocol},
		"out of turn":   {func(t *testing.T, c *net.UnixConn) { say(t, c, "X\x00\x00\x00\x00") }, ErrProtocol},
		"too long":      {func(t *testing.T, c *net.UnixConn) { say(t, c, "B"+strings.Repeat("x", maxReport)) }, ErrProtocol},
		"broken":        {func(t *testing.T, c *net.UnixConn) { say(t, c, "Bno \x1b[m\u0085") }, ErrBroken},
		"silent":        {func(*testing.T, *net.UnixConn) {}, context.DeadlineExceeded},
		"gone":          {func(_ *testing.T, c *net.UnixConn) { _ = c.Close() }, ErrGone},
		"empty":         {func(t *testing.T, c *net.UnixConn) { _, _, _ = c.WriteMsgUnix(nil, nil, nil) }, ErrGone},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			work, _, err := impostor(t, func(_ string, c *net.UnixConn) { test.play(t, c) })
			if !errors.Is(err, test.want) {
				t.Errorf("%v, want %v", err, test.want)
			}
			if err != nil && strings.ContainsAny(err.Error(), "\x1b\u0085") {
				t.Errorf("raw bytes in %q", err)
			}
			noFolder(t, work)
		})
	}
}

// A box that puts something else in the place of the runner's folder is refused,
// and nothing outside of the working folder is touched.
func TestFolderReplaced(t *testing.T) {
	outside := workFolder(t)
	precious := []string{filepath.Join(outside, socketName), filepath.Join(outside, SourceName)}
	for _, f := range precious {
		if err := os.WriteFile(f, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	tests := map[string]func(work string) error{
		"link": func(work string) error {
			return errors.Join(os.Rename(filepath.Join(work, Dir), filepath.Join(work, "x")),
				os.Symlink(outside, filepath.Join(work, Dir)))
		},
		"moved": func(work string) error {
			return os.Rename(filepath.Join(work, Dir), filepath.Join(work, "x"))
		},
		"not empty": func(work string) error {
			return os.WriteFile(filepath.Join(work, Dir, "more"), nil, 0o644)
		},
	}
	for name, replace := range tests {
		t.Run(name, func(t *testing.T) {
			work, _, err := impostor(t, func(work string, c *net.UnixConn) {
				if err := replace(work); err != nil {
					t.Fatal(err)
				}
				say(t, c, "R\x03")
			})
			if err == nil {
				t.Errorf("accepted; %s has %v", work, list(t, work))
			}
			for _, f := range precious {
				if _, err := os.Stat(f); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

func list(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

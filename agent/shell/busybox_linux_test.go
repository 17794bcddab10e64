package shell

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestTerminalIsGivenBack: closing what the shell has of a terminal or of pipes ends a
// read of it, although somebody holds the other side; also after a new size.
func TestTerminalIsGivenBack(t *testing.T) {
	for name, terminal := range map[string]bool{"terminal": true, "pipes": false} {
		t.Run(name, func(t *testing.T) {
			r := &running{cmd: &exec.Cmd{SysProcAttr: &syscall.SysProcAttr{}}}
			open := r.pipes
			if terminal {
				open = func() ([]*os.File, error) { return r.openTerminal(Size{Columns: 80, Rows: 24}) }
			}
			theirs, err := open()
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				for _, f := range theirs {
					f.Close()
				}
			}()
			r.Resize(Size{Columns: 132, Rows: 43})
			if terminal {
				size, err := unix.IoctlGetWinsize(int(theirs[0].Fd()), unix.TIOCGWINSZ)
				if err != nil || size.Col != 132 || size.Row != 43 {
					t.Errorf("the size is %+v, %v", size, err)
				}
			}
			read := func() error {
				result := make(chan error, 1)
				go func() {
					_, err := r.Stdout().Read(make([]byte, 1))
					result <- err
				}()
				select {
				case err := <-result:
					return err
				case <-time.After(testBound):
					t.Fatal("the read goes on")
					return nil
				}
			}
			// Whatever ends a read in progress by time does so when it is closed.
			if err := r.stdout.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
				t.Fatal(err)
			}
			if err := read(); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%v", err)
			}
			if err := r.stdout.SetReadDeadline(time.Time{}); err != nil {
				t.Fatal(err)
			}
			go r.Close()
			if err := read(); !errors.Is(err, os.ErrClosed) {
				t.Errorf("%v", err)
			}
		})
	}
}

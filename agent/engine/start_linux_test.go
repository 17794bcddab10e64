package engine

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestUnblockStart has a writer do what "crun start" does while the process that it
// starts lives, ends, and has ended before.
func TestUnblockStart(t *testing.T) {
	for _, when := range []string{"before", "meanwhile"} {
		t.Run(when, func(t *testing.T) {
			state := t.TempDir()
			fifo := filepath.Join(state, startFIFO)
			if err := unix.Mkfifo(fifo, 0o600); err != nil {
				t.Fatal(err)
			}
			c := exec.Command("sleep", "600")
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			end := func() { _ = c.Process.Kill(); _ = c.Wait() }
			defer end()
			if when == "before" {
				end()
			}
			defer unblockStart(c.Process.Pid, state)()
			wrote := make(chan error, 1)
			go func() {
				f, err := os.OpenFile(fifo, os.O_WRONLY, 0)
				if err == nil {
					_, err = f.Write([]byte{0})
					f.Close()
				}
				wrote <- err
			}()
			if when == "meanwhile" {
				select {
				case err := <-wrote:
					t.Fatalf("somebody read what is for a process that lives: %v", err)
				case <-time.After(100 * time.Millisecond):
				}
				end()
			}
			select {
			case err := <-wrote:
				if err != nil {
					t.Error(err)
				}
			case <-time.After(10 * time.Second):
				t.Fatal("the writer waits for ever")
			}
		})
	}
	t.Run("it lives", func(t *testing.T) {
		over := unblockStart(os.Getpid(), t.TempDir())
		over()
	})
}

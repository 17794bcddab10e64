package vzcore

import (
	"errors"
	"io"
	"os"
	"sync"
	"time"
)

// serialConsole carries the guest's output from the framework, which wants open
// files, to a writer.
type serialConsole struct {
	port   SerialPort
	input  *os.File // the other end of port.Input: open, so that the guest reads no end of file, and never written
	output *os.File // the other end of port.Output

	copied chan struct{} // closed when copyTo has ended
	mu     sync.Mutex
	first  time.Time
}

func newConsole() (*serialConsole, error) {
	guestIn, input, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	output, guestOut, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, guestIn.Close(), input.Close())
	}
	return &serialConsole{
		port: SerialPort{Input: guestIn, Output: guestOut}, input: input, output: output, copied: make(chan struct{}),
	}, nil
}

// copyTo hands the guest's console to w and notes its first byte. When w fails the
// rest is discarded: a full console must not stall the guest.
func (c *serialConsole) copyTo(w io.Writer) {
	defer close(c.copied)
	buf := make([]byte, 16<<10)
	for {
		n, err := c.output.Read(buf)
		if n > 0 {
			c.note()
			if w != nil {
				if _, werr := w.Write(buf[:n]); werr != nil {
					w = nil
				}
			}
		}
		if err != nil {
			return
		}
	}
}

func (c *serialConsole) note() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.first.IsZero() {
		c.first = time.Now()
	}
}

// firstOutput is when the guest's first byte arrived, zero before.
func (c *serialConsole) firstOutput() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.first
}

// close ends the copying of a machine that has ended, after what is on its way has
// arrived. The framework's process may hold its end of the pipe for longer, and
// the writer may be stuck: neither is waited for beyond drain, each.
func (c *serialConsole) close(drain time.Duration) {
	c.port.Input.Close()
	c.port.Output.Close()
	c.input.Close()
	if drain > 0 {
		c.output.SetReadDeadline(time.Now().Add(drain))
		t := time.NewTimer(2 * drain)
		defer t.Stop()
		select {
		case <-c.copied:
		case <-t.C:
		}
	}
	c.output.Close()
}

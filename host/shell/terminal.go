package shell

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/term"
)

// TTY is the terminal that this process has, as a Terminal.
type TTY struct{ in, out *os.File }

// NewTTY gives the terminal of which in is read and out is written; nil where one of
// them is no terminal.
func NewTTY(in, out *os.File) *TTY {
	if in == nil || out == nil || !term.IsTerminal(int(in.Fd())) || !term.IsTerminal(int(out.Fd())) {
		return nil
	}
	return &TTY{in, out}
}

// Size implements Terminal.
func (t *TTY) Size() (columns, rows int) {
	columns, rows, err := term.GetSize(int(t.out.Fd()))
	if err != nil {
		return 0, 0
	}
	return columns, rows
}

// Raw implements Terminal.
func (t *TTY) Raw() (restore func(), err error) {
	before, err := term.MakeRaw(int(t.in.Fd()))
	if err != nil {
		return nil, err
	}
	return func() { _ = term.Restore(int(t.in.Fd()), before) }, nil
}

// Resized implements Terminal.
func (t *TTY) Resized() (changes <-chan struct{}, stop func()) {
	signals, c, over := make(chan os.Signal, 1), make(chan struct{}), make(chan struct{})
	signal.Notify(signals, syscall.SIGWINCH)
	go func() {
		for {
			select {
			case <-signals:
			case <-over:
				return
			}
			select {
			case c <- struct{}{}:
			case <-over:
				return
			}
		}
	}()
	return c, func() {
		signal.Stop(signals)
		close(over)
	}
}

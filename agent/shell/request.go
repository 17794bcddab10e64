package shell

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/crypto/ssh"
)

// Bounds of what a client sends about its session.
const (
	maxCommand  = 64 << 10
	maxEnvValue = 64
	// maxCells bounds the lines and columns of a terminal.
	maxCells = 4096
)

var errRequest = errors.New("the request is out of bounds")

// Size is that of a terminal, in characters: 1 to 4096 each.
type Size struct{ Columns, Rows uint16 }

// Program is what a session is to run.
type Program struct {
	// Command is a line for the shell, at most 64 KiB; empty: the shell itself.
	Command string
	// Term and Lang are the variables of that name, checked; they may be empty.
	Term, Lang string
	// Terminal is the size of the terminal to run it at; nil: it gets pipes.
	Terminal *Size
}

// terminalOf reads a "pty-req" (RFC 4254, section 6.2). The modes are those that a
// new terminal has.
func terminalOf(payload []byte) (term string, size Size, err error) {
	var m struct {
		Term                         string
		Columns, Rows, Width, Height uint32
		Modes                        string
	}
	if err := ssh.Unmarshal(payload, &m); err != nil {
		return "", Size{}, fmt.Errorf("%w: %w", errRequest, err)
	}
	if !isPlain(m.Term) {
		return "", Size{}, fmt.Errorf("%w: the terminal's name", errRequest)
	}
	return m.Term, sizeOf(m.Columns, m.Rows), nil
}

// sizeOf takes any size: a terminal that does not know its own says 0.
func sizeOf(columns, rows uint32) Size {
	return Size{within(columns, 80), within(rows, 24)}
}

func within(n, unknown uint32) uint16 {
	if n == 0 {
		n = unknown
	}
	return uint16(min(n, maxCells))
}

// windowOf reads a "window-change" (RFC 4254, section 6.7).
func windowOf(payload []byte) (Size, error) {
	var m struct{ Columns, Rows, Width, Height uint32 }
	if err := ssh.Unmarshal(payload, &m); err != nil {
		return Size{}, fmt.Errorf("%w: %w", errRequest, err)
	}
	return sizeOf(m.Columns, m.Rows), nil
}

// commandOf reads an "exec" (RFC 4254, section 6.5).
func commandOf(payload []byte) (string, error) {
	var m struct{ Command string }
	if err := ssh.Unmarshal(payload, &m); err != nil {
		return "", fmt.Errorf("%w: %w", errRequest, err)
	}
	if m.Command == "" || len(m.Command) > maxCommand || strings.ContainsRune(m.Command, 0) {
		return "", fmt.Errorf("%w: a command of %d bytes", errRequest, len(m.Command))
	}
	return m.Command, nil
}

// setEnv reads an "env" (RFC 4254, section 6.4), of which two are taken.
func (p *Program) setEnv(payload []byte) error {
	var m struct{ Name, Value string }
	if err := ssh.Unmarshal(payload, &m); err != nil {
		return fmt.Errorf("%w: %w", errRequest, err)
	}
	if !isPlain(m.Value) {
		return fmt.Errorf("%w: the value of a variable", errRequest)
	}
	switch m.Name {
	case "TERM":
		p.Term = m.Value
	case "LANG":
		p.Lang = m.Value
	default:
		return fmt.Errorf("%w: a variable that is not taken", errRequest)
	}
	return nil
}

// signalOf reads a "signal" (RFC 4254, section 6.9): its name without "SIG".
func signalOf(payload []byte) (string, error) {
	var m struct{ Name string }
	if err := ssh.Unmarshal(payload, &m); err != nil {
		return "", fmt.Errorf("%w: %w", errRequest, err)
	}
	switch m.Name {
	case "HUP", "INT", "KILL", "QUIT", "TERM", "USR1", "USR2":
		return m.Name, nil
	}
	return "", fmt.Errorf("%w: a signal that is not taken", errRequest)
}

// isPlain tells whether s is at most 64 letters, digits, and -_.@+, as names of
// terminals and locales are.
func isPlain(s string) bool {
	return len(s) <= maxEnvValue && !strings.ContainsFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_.@+", r))
	})
}

package shell

import (
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"
)

func FuzzRequests(f *testing.F) {
	f.Add(ssh.Marshal(struct{ Command string }{"ls -l"}))
	f.Add(ssh.Marshal(struct{ Name, Value string }{"LANG", "C.UTF-8"}))
	f.Add(ssh.Marshal(struct {
		Term       string
		A, B, C, D uint32
		Modes      string
	}{"xterm", 80, 24, 0, 0, "\x00"}))
	f.Add(ssh.Marshal(struct{ A, B, C, D uint32 }{0xffffffff, 0, 1, 2}))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 'x'})
	f.Fuzz(func(t *testing.T, payload []byte) {
		if term, size, err := terminalOf(payload); err == nil && (!isPlain(term) || size.Columns < 1 || size.Columns > maxCells || size.Rows < 1 || size.Rows > maxCells) {
			t.Errorf("%q, %v", term, size)
		}
		if size, err := windowOf(payload); err == nil && (size.Columns < 1 || size.Rows > maxCells) {
			t.Errorf("%v", size)
		}
		if c, err := commandOf(payload); err == nil && (c == "" || len(c) > maxCommand || strings.Contains(c, "\x00")) {
			t.Errorf("%q", c)
		}
		var p Program
		if err := p.setEnv(payload); err == nil && strings.ContainsAny(p.Term+p.Lang, "\x00\n\x1b=") {
			t.Errorf("%+v", p)
		}
		if s, err := signalOf(payload); err == nil && len(s) > 4 {
			t.Errorf("%q", s)
		}
	})
}

package api

import (
	"strings"
	"testing"
)

func TestText(t *testing.T) {
	long := strings.Repeat("x", 100)
	for _, c := range []struct {
		s    string
		max  int
		want string
	}{
		{"", 64, ""},
		{"memory.max 134217728", 64, "memory.max 134217728"},
		{"a\nb\x00\x1b[2J", 64, `a\nb\x00\x1b[2J`},
		{`C:\n'"`, 64, `C:\\n'"`},
		{"é ☃ \U0001f600", 64, `\u00e9 \u2603 \U0001f600`},
		{"\xff\xc3", 64, `\xff\xc3`},
		{"\u202eevil\u200b", 64, `\u202eevil\u200b`},
		{long, 100, long},
		{long + "y", 100, strings.Repeat("x", 69) + "...(+32 bytes)"},
		// An escape is cut off whole or not at all.
		{strings.Repeat("x", 65) + strings.Repeat("\x00", 9), 100, strings.Repeat("x", 65) + `\x00...(+8 bytes)`},
		{strings.Repeat("\x00", 20), 32, "...(+20 bytes)"},
	} {
		if got := Text(c.s, c.max); got != c.want {
			t.Errorf("Text(%q, %d) is %q, want %q", c.s, c.max, got, c.want)
		}
	}
}

func FuzzText(f *testing.F) {
	f.Add("a\nb", 32)
	f.Add(strings.Repeat("\xff", 50), 64)
	f.Add("é\\", 300)
	f.Fuzz(func(t *testing.T, s string, max int) {
		max = 32 + max&0xfff
		got := Text(s, max)
		c := checker{what: "text"}
		c.text("text", got, 0, max)
		if c.err != nil {
			t.Errorf("Text(%q, %d) is %q", s, max, got)
		}
		if s != "" && got == "" {
			t.Errorf("Text(%q, %d) is empty", s, max)
		}
	})
}

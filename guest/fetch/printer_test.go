package fetch

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

func TestPrinter(t *testing.T) {
	for _, terminal := range []bool{false, true} {
		var out bytes.Buffer
		now := time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)
		p := NewPrinter(&out)
		p.terminal, p.now = terminal, func() time.Time { return now }
		p.Update(Progress{File: "old.deb", Source: fromCache, Done: 9 << 20, Total: 9 << 20})
		for done := range int64(21) {
			p.Update(Progress{File: "x.deb", Source: "a mirror", Done: done << 20, Total: 40 << 20})
			now = now.Add(time.Second)
		}
		p.Clear()
		p.Clear()
		got := out.String()
		if terminal {
			if strings.Contains(got, "\n") || !strings.HasSuffix(got, "a mirror\r\x1b[K") {
				t.Errorf("on a terminal: %q", got)
			}
			continue
		}
		want := []string{"downloading    5.0 of 40.0 MiB · x.deb · a mirror", "downloading   10.0 of", "downloading   15.0 of", "downloading   20.0 of"}
		lines := strings.Split(strings.TrimSuffix(got, "\n"), "\n")
		if len(lines) != len(want) {
			t.Fatalf("%d lines in 20 s: %q", len(lines), got)
		}
		for i, l := range lines {
			if !strings.HasPrefix(l, want[i]) {
				t.Errorf("got %q, want %q", l, want[i])
			}
		}
	}
}

func TestPrinterBar(t *testing.T) {
	var out bytes.Buffer
	p := NewPrinter(&out)
	p.terminal = true
	p.Expect(40 << 20)
	for columns, want := range map[int]string{
		80: "[=====               ]   10.0 of 40.0 MiB · a-long-name-of-a-package_1.2-3_amd…",
		40: "  10.0 of 40.0 MiB · a-long-name-of-a-…",
		0:  "[=====               ]   10.0 of 40.0 MiB · a-long-name-of-a-package_1.2-3_amd64.deb · a mirror",
	} {
		out.Reset()
		p.last = time.Time{}
		p.columns = func() int { return columns }
		p.Update(Progress{File: "a-long-name-of-a-package_1.2-3_amd64.deb", Source: "a mirror", Done: 10 << 20, Total: 20 << 20})
		if got := strings.TrimPrefix(out.String(), "\r\x1b[K"); got != want {
			t.Errorf("%d columns: %q, want %q", columns, got, want)
		}
	}
}

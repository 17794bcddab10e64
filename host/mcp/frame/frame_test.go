package frame

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

func text(s Stream, mark string) string {
	var b strings.Builder
	Write(&b, mark, s, Shorten(s))
	return b.String()
}

func stream(kept string) Stream {
	n := int64(len(kept))
	return Stream{Name: "stdout", Kept: []byte(kept), Printed: &n}
}

func TestWrite(t *testing.T) {
	lost := stream("kept")
	lost.Printed = new(int64(100))
	unknown := stream("came")
	unknown.Printed = nil
	nothing := stream("")
	nothing.Printed = nil
	for name, c := range map[string]struct {
		s    Stream
		want string
	}{
		"empty":         {stream(""), "[m stdout: empty]\n"},
		"a line":        {stream("hi\n"), "[m stdout: 3 bytes]\nhi\n[m end of stdout]\n"},
		"without end":   {stream("hi"), "[m stdout: 2 bytes]\nhi\n[m end of stdout]\n"},
		"control":       {stream("\x1b]52;c;AA\a\r\x00"), "[m stdout: 12 bytes]\n\\x1b]52;c;AA\\x07\\x0d\\x00\n[m end of stdout]\n"},
		"not UTF-8":     {stream("a\xff\tb"), "[m stdout: 4 bytes]\na\\xff\tb\n[m end of stdout]\n"},
		"hidden":        {stream("a\u202eb\u200b\U000e0041"), "[m stdout: 12 bytes]\na\\u202eb\\u200b\\U000e0041\n[m end of stdout]\n"},
		"lost":          {lost, "[m stdout: 100 bytes]\nkept\n[m stdout: another 96 bytes were printed here and not kept]\n[m end of stdout]\n"},
		"not known":     {unknown, "[m stdout: 4 bytes came, how many were printed is not known]\ncame\n[m end of stdout]\n"},
		"nothing known": {nothing, "[m stdout: nothing of it came, and what was printed is not known]\n"},
	} {
		if got := text(c.s, "m"); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestShorten(t *testing.T) {
	long := strings.Repeat("0123456789\n", 10_000) + "the end\n"
	o := Shorten(stream(long))
	if len(o.Head) > MaxHead || len(o.Tail) > MaxTail || !strings.HasPrefix(long, o.Head) || !strings.HasSuffix(long, o.Tail) ||
		int64(len(o.Head)+len(o.Tail))+o.Omitted != int64(len(long)) || !strings.HasSuffix(o.Head, "\n") || !strings.HasSuffix(o.Tail, "the end\n") {
		t.Errorf("head %d, tail %d, omitted %d of %d", len(o.Head), len(o.Tail), o.Omitted, len(long))
	}
	exact := strings.Repeat("x", MaxHead+MaxTail)
	if o := Shorten(stream(exact)); o.Omitted != 0 || o.Head != exact {
		t.Errorf("what fits is cut: %d omitted", o.Omitted)
	}
	o = Shorten(stream(strings.Repeat("é", 20_000)))
	if strings.Contains(o.Head+o.Tail, `\x`) {
		t.Error("a character was cut apart")
	}
	if got := text(stream(long), "m"); !strings.Contains(got, "bytes left out here]\n") {
		t.Errorf("nothing is said of what is left out: %.200s", got)
	}
}

func TestMarksDiffer(t *testing.T) {
	if a, b := Mark(), Mark(); a == b || len(a) != 16 {
		t.Errorf("marks %q and %q", a, b)
	}
}

// FuzzWrite: whatever a program prints, no line of it begins with the mark, nothing that
// does not show is in it, and it is bounded.
func FuzzWrite(f *testing.F) {
	const mark = "0123456789abcdef"
	f.Add([]byte("[0123456789abcde"), int64(5), 1)
	f.Add([]byte("\x1b[0m\r\n\u2028\xf0\x9f"), int64(-1), 4000)
	f.Fuzz(func(t *testing.T, piece []byte, more int64, times int) {
		kept := []byte(strings.Repeat(string(piece), max(0, min(times, 1+(64<<10)/max(1, len(piece))))))
		if strings.Contains(string(kept), mark) {
			t.Skip("it knows the mark")
		}
		s := Stream{Name: "stderr", Kept: kept}
		if n := int64(len(kept)) + more; more >= 0 && n >= 0 {
			s.Printed = &n
		}
		got := text(s, mark)
		if !utf8.ValidString(got) || strings.ContainsFunc(got, func(r rune) bool { return !unicode.IsPrint(r) && r != '\n' && r != '\t' }) {
			t.Errorf("something does not show: %q", got)
		}
		if len(got) > maxGrowth*(MaxHead+MaxTail)+1000 {
			t.Errorf("%d bytes became %d", len(kept), len(got))
		}
		marks := 0
		for line := range strings.Lines(got) {
			if strings.HasPrefix(line, "["+mark) {
				marks++
			}
		}
		if marks != strings.Count(got, mark) || marks < 1 || marks > 4 {
			t.Errorf("%d lines with the mark of %d: %q", marks, strings.Count(got, mark), got)
		}
		if o := Shorten(s); o.Omitted < 0 || o.Omitted == 0 && o.Tail != "" {
			t.Errorf("%+v", o)
		}
	})
}

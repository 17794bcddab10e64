package shell

import (
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

func TestEscape(t *testing.T) {
	for in, want := range map[string]string{
		"":             "",
		"ls ~\r":       "ls ~\r",
		"~":            "",
		"~.":           "<out>",
		"ls\r~.":       "ls\r<out>",
		"ls ~.\r":      "ls ~.\r",
		"~~.\r":        "~.\r",
		"~a\r~\r~.":    "~a\r~\r<out>",
		"a\n~~\n~\x03": "a\n~\n~\x03",
	} {
		for name, wrap := range map[string]func(io.Reader) io.Reader{"at once": func(r io.Reader) io.Reader { return r }, "byte by byte": iotest.OneByteReader} {
			var out strings.Builder
			e := &escape{r: wrap(strings.NewReader(in)), hangUp: func() { out.WriteString("<out>") }}
			// The bytes before an escape of the same reading come after it here.
			if _, err := io.Copy(writer{&out}, e); err != nil {
				t.Fatal(err)
			}
			if got := out.String(); name == "byte by byte" && got != want || strings.ReplaceAll(got, "<out>", "") != strings.ReplaceAll(want, "<out>", "") {
				t.Errorf("%q %s: %q, want %q", in, name, got, want)
			}
		}
	}
}

// writer hides what else a builder can do.
type writer struct{ io.Writer }

func FuzzEscape(f *testing.F) {
	f.Add("ls\r~.", 2)
	f.Add("~~~a~\n~~", 3)
	f.Fuzz(func(t *testing.T, in string, size int) {
		size = 2 + (size&0xff)%64
		var out strings.Builder
		outs := 0
		e := &escape{r: strings.NewReader(in), hangUp: func() { outs++ }}
		if _, err := io.CopyBuffer(writer{&out}, e, make([]byte, size)); err != nil {
			t.Fatal(err)
		}
		// Nothing is added, and nothing but tildes and escapes is lost.
		if lost := len(in) - out.Len() - outs; lost < 0 || lost > strings.Count(in, "~") {
			t.Errorf("%q became %q, %d escapes", in, out.String(), outs)
		}
		if strip := func(s string) string { return strings.NewReplacer("~", "", ".", "").Replace(s) }; strip(in) != strip(out.String()) {
			t.Errorf("%q became %q", in, out.String())
		}
	})
}

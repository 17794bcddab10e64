package printable

import (
	"strings"
	"testing"
	"unicode"
)

func TestText(t *testing.T) {
	for in, want := range map[string]string{
		"":                        "",
		"numpy ≥ 2, größer \\ \"": "numpy ≥ 2, größer \\ \"",
		"a\x1b[31mb":              `a\x1b[31mb`,
		"a\nb\tc\x00":             `a\x0ab\x09c\x00`,
		"a\xffb":                  `a\xffb`,
		"a\ufffdb":                "a\ufffdb",
		"a\u202eb\u200b":          `a\u202eb\u200b`,
		"\U000e0001":              `\U000e0001`,
		"\u0085":                  `\x85`,
	} {
		if got := Text(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func FuzzText(f *testing.F) {
	f.Add("a\x1b\u202e\xff\U000e0001")
	f.Fuzz(func(t *testing.T, s string) {
		got := Text(s)
		if strings.ContainsFunc(got, func(r rune) bool { return !unicode.IsPrint(r) }) || Text(got) != got {
			t.Fatalf("%q: %q", s, got)
		}
	})
}

package show

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode"
)

// TestJSONIsSafeToLookAt: nothing in it moves a terminal, and it says the same.
func TestJSONIsSafeToLookAt(t *testing.T) {
	for _, s := range []string{"", "plain <&> grün 雪", "\x1b[2J\a\x7f", "\u009b2J\u0085", "\u202elrow\u2066\u200f", "\\u202e \"\u202e\"", "\U0001F40D\u2028"} {
		b, err := JSON(map[string][]string{s: {s}})
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(string(b), "\n") || strings.ContainsFunc(string(b), func(r rune) bool {
			return r != '\n' && unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r)
		}) {
			t.Errorf("%q becomes %q", s, b)
		}
		var back map[string][]string
		if err := json.Unmarshal(b, &back); err != nil || len(back[s]) != 1 || back[s][0] != s {
			t.Errorf("%q comes back as %q, %v", s, back, err)
		}
	}
	if _, err := JSON(func() {}); err == nil {
		t.Error("a function has a JSON form")
	}
}

// Package printable makes text of strangers fit for messages. It does not lay out and
// does not cut.
package printable

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Text returns s with everything that is not printable, marks of direction and line
// ends among it, written as \xNN, \uNNNN or \UNNNNNNNN: what is said of a file cannot
// move a terminal's cursor, nor look like another line.
func Text(s string) string {
	if !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) || r == utf8.RuneError }) {
		return s
	}
	var b strings.Builder
	for i, r := range s {
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(s[i:], string(utf8.RuneError)):
			b.WriteString(`\x` + hex(uint64(s[i]), 2))
		case unicode.IsPrint(r):
			b.WriteRune(r)
		case r < 0x100:
			b.WriteString(`\x` + hex(uint64(r), 2))
		case r < 0x10000:
			b.WriteString(`\u` + hex(uint64(r), 4))
		default:
			b.WriteString(`\U` + hex(uint64(r), 8))
		}
	}
	return b.String()
}

func hex(n uint64, digits int) string {
	s := strconv.FormatUint(n, 16)
	return strings.Repeat("0", digits-len(s)) + s
}

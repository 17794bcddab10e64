package api

import (
	"fmt"
	"strconv"
	"unicode/utf8"
)

// cutMark ends a text that was cut, and markRoom is the most that it takes.
const (
	cutMark  = "...(+%d bytes)"
	markRoom = len("...(+9223372036854775807 bytes)")
)

// Text makes s fit a text field of the protocol: printable ASCII of at most max
// bytes, where max is at least 32. What is not printable, and the backslash
// itself, is written as Go escapes it in a string ("\n", "\u00e9", "\xff"); what
// is too long ends with a mark that says how many bytes of s are missing. It is
// for what a guest's process, file or error may have put into a string, and to be
// applied once: a second time would escape the escapes.
func Text(s string, max int) string {
	b := make([]byte, 0, min(len(s), max))
	// kept is how much of b, and cut of s, stays when the mark must follow.
	kept, cut := 0, 0
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		b = appendEscaped(b, r, s[i:i+n])
		i += n
		if len(b) > max {
			return string(b[:kept]) + fmt.Sprintf(cutMark, len(s)-cut)
		}
		if len(b) <= max-markRoom {
			kept, cut = len(b), i
		}
	}
	return string(b)
}

// appendEscaped appends the rune r, which stands in s as raw.
func appendEscaped(b []byte, r rune, raw string) []byte {
	switch {
	case r >= ' ' && r <= '~' && r != '\\':
		return append(b, byte(r))
	case r == utf8.RuneError && len(raw) == 1:
		return fmt.Appendf(b, `\x%02x`, raw[0])
	default:
		q := strconv.AppendQuoteRuneToASCII(nil, r)
		return append(b, q[1:len(q)-1]...)
	}
}

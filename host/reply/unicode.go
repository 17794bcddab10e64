package reply

import (
	"bytes"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// LoneSurrogate finds an escape of half a character in valid JSON, which
// encoding/json would replace by another character without a word.
func LoneSurrogate(body []byte) (string, bool) {
	for {
		i := bytes.IndexByte(body, '\\') // only strings have it
		if i < 0 {
			return "", false
		}
		body = body[i:]
		r, ok := escape(body)
		switch {
		case !ok:
			body = body[2:]
		case !utf16.IsSurrogate(r):
			body = body[6:]
		default:
			low, _ := escape(body[6:])
			if utf16.DecodeRune(r, low) == utf8.RuneError {
				return string(body[:6]), true
			}
			body = body[12:]
		}
	}
}

// escape reads an escape \uXXXX at the beginning of b.
func escape(b []byte) (rune, bool) {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return 0, false
	}
	n, err := strconv.ParseUint(string(b[2:6]), 16, 16)
	return rune(n), err == nil
}

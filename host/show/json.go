package show

import (
	"bytes"
	"encoding/json"
	"fmt"
	"unicode"
)

// JSON writes v as indented JSON, with an end of line, that may be looked at on a
// terminal: JSON itself escapes no control characters above ASCII, nor those that
// turn the direction of text.
func JSON(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	if !bytes.ContainsFunc(b.Bytes(), moves) {
		return b.Bytes(), nil
	}
	var safe bytes.Buffer
	for _, r := range b.String() { // outside of strings JSON is ASCII
		if moves(r) {
			fmt.Fprintf(&safe, `\u%04x`, r)
		} else {
			safe.WriteRune(r)
		}
	}
	return safe.Bytes(), nil
}

// moves tells whether a terminal may take r, which JSON does not escape, for more
// than a character.
func moves(r rune) bool { return r >= 0x7f && r < 0xa0 || unicode.Is(unicode.Bidi_Control, r) }

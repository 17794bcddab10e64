package maker

import (
	"fmt"
	"strings"
	"unicode"
)

// Bounds of the notes in a record, which come in part from wheels and images.
const (
	mostNotes = 100
	mostRunes = 400
)

// clean makes a line that a terminal may be shown of any text.
func clean(s string) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case !unicode.IsPrint(r) || r == unicode.ReplacementChar:
			return -1
		}
		return r
	}, s)
	if r := []rune(s); len(r) > mostRunes {
		s = string(r[:mostRunes]) + "…"
	}
	return strings.TrimSpace(s)
}

// cleanAll makes notes of any texts, and says how many were too many.
func cleanAll(all []string) (notes []string) {
	for _, s := range all {
		if s = clean(s); s != "" {
			notes = append(notes, s)
		}
	}
	if over := len(notes) - mostNotes; over > 0 {
		notes = append(notes[:mostNotes], fmt.Sprintf("and %d more", over))
	}
	return notes
}

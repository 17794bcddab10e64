package show

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/width"
)

// Style is how a text is laid out.
type Style struct {
	// Width is the terminal's, in columns; 0 means 80. Less than 20 is taken for 20.
	Width int
	// Color allows bold and dim text by the escape sequences of ECMA-48 (SGR).
	Color bool
}

const (
	defaultWidth = 80
	minWidth     = 20
	// narrowWidth is where labels go above their values.
	narrowWidth = 56
	// pageLabel is the width of the column of labels, with its indentation.
	pageLabel = 24
	// glue stands for a space at which no line ends. No escaped text has it.
	glue = '\u00a0'
)

// page lays out labelled text in lines that are no wider than they may be, except
// for a single word that is.
type page struct {
	b     bytes.Buffer
	width int
	color bool
}

func newPage(o Style) *page {
	if o.Width == 0 {
		o.Width = defaultWidth
	}
	return &page{width: max(minWidth, o.Width), color: o.Color}
}

func (p *page) narrow() bool { return p.width < narrowWidth }

// blank ends a part of the page.
func (p *page) blank() { p.b.WriteByte('\n') }

// sgr are the sequences of Style.Color.
const (
	bold  = "\x1b[1m"
	dim   = "\x1b[2m"
	plain = "\x1b[0m"
)

func (p *page) styled(how, s string) string {
	if !p.color || s == "" {
		return s
	}
	return how + s + plain
}

// line writes the first word or words bold and the rest plain, wrapped.
func (p *page) line(first, rest string) {
	for i, l := range wrap(first+" "+rest, p.width, p.width-2) {
		switch {
		case i > 0:
			p.b.WriteString("  " + l)
		case strings.HasPrefix(l, first):
			p.b.WriteString(p.styled(bold, first) + l[len(first):])
		default:
			p.b.WriteString(l)
		}
		p.blank()
	}
}

// title writes a heading and a note, side by side where they fit.
func (p *page) title(heading, note string) {
	heading = strings.ReplaceAll(heading, string(glue), " ")
	if Columns(heading)+2+Columns(note) <= p.width && note != "" {
		p.b.WriteString(p.styled(bold, heading) + "  " + p.styled(dim, note))
		p.blank()
		return
	}
	for i, l := range wrap(heading, p.width, p.width-2) {
		p.b.WriteString(indent(min(i, 1)*2) + p.styled(bold, l))
		p.blank()
	}
	if note == "" {
		return
	}
	for _, l := range wrap(note, p.width-2, p.width-2) {
		p.b.WriteString("  " + p.styled(dim, l))
		p.blank()
	}
}

// row writes paragraphs behind a label, or below it where there is no room beside;
// nothing when there are none.
func (p *page) row(label string, paragraphs ...string) {
	paragraphs = slices.DeleteFunc(paragraphs, func(s string) bool { return strings.Trim(s, " ") == "" })
	if len(paragraphs) == 0 {
		return
	}
	left := pageLabel
	switch {
	case p.narrow():
		left = 4
		if label != "" {
			for _, l := range wrap(label, p.width-2, p.width-2) {
				fmt.Fprintf(&p.b, "  %s\n", l)
			}
		}
	case label != "":
		fmt.Fprintf(&p.b, "  %-*s", pageLabel-2, label)
	}
	first := !p.narrow() && label != ""
	room, hang := p.width-left, 0
	if len(paragraphs) > 1 { // set each off from the next
		hang = 2
	}
	for _, text := range paragraphs {
		for i, l := range wrap(text, room, room-hang) {
			switch {
			case first:
			case i > 0:
				p.b.WriteString(indent(left + hang))
			default:
				p.b.WriteString(indent(left))
			}
			first = false
			p.b.WriteString(l)
			p.blank()
		}
	}
}

func indent(n int) string { return strings.Repeat(" ", n) }

// wrap breaks text at its spaces into lines of at most first columns, and rest for
// those after the first. A word that is wider has a line for itself, after it was
// broken where it is only glued.
func wrap(text string, first, rest int) []string {
	var lines []string
	line, used, room := "", 0, first
	put := func(word string) {
		word = strings.Trim(word, " ")
		n := Columns(word)
		switch {
		case n == 0:
			return
		case line == "":
		case used+1+n <= room:
			line, used = line+" "+word, used+1+n
			return
		default:
			lines = append(lines, line)
			room = rest
		}
		line, used = word, n
	}
	for word := range strings.FieldsSeq(strings.ReplaceAll(text, string(glue), "\x00")) {
		if Columns(word) <= rest {
			put(strings.ReplaceAll(word, "\x00", " "))
			continue
		}
		for part := range strings.SplitSeq(word, "\x00") {
			put(part)
		}
	}
	return append(lines, line)
}

// Wrap breaks text, which has no control characters, at its spaces into lines of at
// most n columns, and a word that is wider wherever it must. Only a character of two
// columns is wider than n of 1.
func Wrap(text string, n int) []string {
	var words []string
	for word := range strings.FieldsSeq(text) {
		for Columns(word) > n {
			head := Head(word, n)
			words = append(words, head)
			word = word[len(head):]
		}
		words = append(words, word)
	}
	return wrap(strings.Join(words, " "), n, n)
}

// Head is as much from the beginning of s as takes n columns at most, but one
// character in any case.
func Head(s string, n int) string {
	for i, r := range s {
		if n -= runeColumns(r); n < 0 && i > 0 {
			return s[:i]
		}
	}
	return s
}

// glued keeps the words of s on one line where that is possible.
func glued(format string, a ...any) string {
	return strings.ReplaceAll(fmt.Sprintf(format, a...), " ", string(glue))
}

// Columns is how many columns of a terminal s takes, which has no control
// characters.
func Columns(s string) (n int) {
	for _, r := range s {
		n += runeColumns(r)
	}
	return n
}

func runeColumns(r rune) int {
	switch {
	case unicode.In(r, unicode.Mn, unicode.Me):
		return 0
	case isWide(r):
		return 2
	}
	return 1
}

// isWide follows Unicode's Annex 11, as terminals do.
func isWide(r rune) bool {
	k := width.LookupRune(r).Kind()
	return k == width.EastAsianWide || k == width.EastAsianFullwidth
}

// maxMarks is how many combining marks may stand on one character: more of them
// write over the lines above.
const maxMarks = 2

// Escape makes s, which may be hostile, fit for a terminal: whatever is not
// printable, marks of direction among it, is written as \xNN, \uNNNN or
// \UNNNNNNNN. Longer text than about max bytes is cut, with a note that says so.
func Escape(s string, max int) string {
	var b strings.Builder
	marks := 0
	for i, r := range s {
		if b.Len() >= max {
			fmt.Fprintf(&b, "... (%d more bytes)", len(s)-i)
			break
		}
		if unicode.In(r, unicode.Mn, unicode.Me) {
			marks++
		} else {
			marks = 0
		}
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(s[i:], string(utf8.RuneError)):
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case unicode.IsPrint(r) && marks <= maxMarks:
			b.WriteRune(r)
		case r < 0x100:
			fmt.Fprintf(&b, `\x%02x`, r)
		case r < 0x10000:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			fmt.Fprintf(&b, `\U%08x`, r)
		}
	}
	return b.String()
}

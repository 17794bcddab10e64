// Package answer takes the code out of what a model said: the one fenced block of
// Python that it was asked for, and nothing else. A model is hostile. What it says
// around the block is dropped; what is not one block is refused, with a reason that
// the model can be told.
package answer

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxCode bounds the code, in bytes.
const MaxCode = 256 << 10

// Reasons for which an answer is refused: Refusal.Reason.
const (
	NoBlock       = "no_block"       // there is no fenced block
	SeveralBlocks = "several_blocks" // there are more than one
	Unterminated  = "unterminated"   // a block has no end
	NotPython     = "not_python"     // the block is marked as something else
	Empty         = "empty"          // there is nothing in it
	TooLarge      = "too_large"      // it has more than MaxCode bytes
	Binary        = "binary"         // it has what no program text needs
)

// Refusal is why an answer is not taken.
type Refusal struct {
	Reason string
	// Detail is a sentence for the model and for a person. It quotes nothing that
	// the model said.
	Detail string
}

// Error implements error.
func (r *Refusal) Error() string { return r.Detail }

// Code is the code in an answer, with "\n" as its ends of lines and one at its end.
// original is the program as its owner wrote it: what that has of unusual characters,
// the code may have too. The error is a *Refusal.
func Code(text, original string) (string, error) {
	blocks, err := split(withoutThoughts(text))
	if err != nil {
		return "", err
	}
	switch {
	case len(blocks) == 0:
		return "", &Refusal{NoBlock, "it has no fenced code block"}
	case len(blocks) > 1:
		return "", &Refusal{SeveralBlocks, fmt.Sprintf("it has %d fenced code blocks, and one is wanted; where the code has ``` in it, fence it with more of them", len(blocks))}
	}
	b := blocks[0]
	if !slices.Contains(languages, strings.ToLower(b.info)) {
		return "", &Refusal{NotPython, "its code block is not marked as python"}
	}
	if err := check(b.code, original); err != nil {
		return "", err
	}
	return b.code, nil
}

// languages are what a block may be marked as.
var languages = []string{"", "python", "python3", "py", "py3"}

func check(code, original string) error {
	switch {
	case len(code) > MaxCode:
		return &Refusal{TooLarge, fmt.Sprintf("its code has more than %d bytes", MaxCode)}
	case strings.TrimSpace(code) == "":
		return &Refusal{Empty, "its code block is empty"}
	case !utf8.ValidString(code):
		return &Refusal{Binary, "its code is not UTF-8"}
	}
	for _, r := range code {
		if odd(r) && (r == 0 || !strings.ContainsRune(original, r)) {
			return &Refusal{Binary, fmt.Sprintf("its code has the character U+%04X in it, which can be written as an escape", r)}
		}
	}
	return nil
}

// odd tells whether r is a control character that programs are not written with, one
// that turns the direction of text, or what stands for bytes that were no text.
func odd(r rune) bool {
	switch r {
	case '\n', '\t', '\f':
		return false
	case utf8.RuneError:
		return true
	}
	return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r)
}

// Ends of what some models write before their answer.
const thinkBegin, thinkEnd = "<think>", "</think>"

// withoutThoughts drops what a model thought aloud before its answer. Some write the end
// alone, at the end of a line, as they are made to begin with thoughts: it counts outside
// of blocks, where an answer follows.
func withoutThoughts(text string) string {
	if strings.HasPrefix(strings.TrimLeft(text, " \t\r\n"), thinkBegin) {
		_, rest, _ := strings.Cut(text, thinkEnd)
		return rest
	}
	var f *fence
	at, end, answer := 0, 0, 0
	for line := range strings.Lines(text) {
		at += len(line)
		line = strings.TrimRight(line, " \t\r\n")
		switch {
		case f != nil && f.closes(line):
			f = nil
		case f != nil:
		case strings.HasSuffix(line, thinkEnd):
			end = at
		default:
			if f = opening(line); f != nil {
				answer = end
			}
		}
	}
	return text[answer:]
}

// Unix is a text with "\n" for every "\r\n".
func Unix(text string) string { return strings.ReplaceAll(text, "\r\n", "\n") }

// EndedAs is code with the ends of lines that most lines of original have.
func EndedAs(code, original string) string {
	if strings.Count(original, "\r\n")*2 <= strings.Count(original, "\n") {
		return code
	}
	return strings.ReplaceAll(code, "\n", "\r\n")
}

// block is a fenced code block.
type block struct{ info, code string }

// split finds the fenced code blocks as CommonMark 0.31 has them (4.5), outside of
// lists and quotes.
func split(text string) ([]block, error) {
	var blocks []block
	var f *fence
	var code strings.Builder
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(strings.TrimSuffix(line, "\n"), "\r")
		switch {
		case f == nil:
			f = opening(line)
			code.Reset()
		case f.closes(line):
			blocks = append(blocks, block{f.info, code.String()})
			f = nil
		default:
			code.WriteString(f.unindent(line))
			code.WriteByte('\n')
		}
	}
	if f != nil {
		return nil, &Refusal{Unterminated, "its code block has no end"}
	}
	return blocks, nil
}

// fence is what opens a block.
type fence struct {
	char   byte
	length int
	indent int
	info   string
}

// fenceAt measures a line that consists of at most three spaces, a fence of at least
// three characters, and the rest.
func fenceAt(line string) (f fence, rest string, ok bool) {
	s := strings.TrimLeft(line, " ")
	f.indent = len(line) - len(s)
	if f.indent > 3 || s == "" || s[0] != '`' && s[0] != '~' {
		return f, "", false
	}
	f.char = s[0]
	rest = strings.TrimLeft(s, s[:1])
	f.length = len(s) - len(rest)
	return f, strings.Trim(rest, " \t"), f.length >= 3
}

// opening is the fence that a line opens a block with; nil: it opens none.
func opening(line string) *fence {
	f, info, ok := fenceAt(line)
	if !ok || f.char == '`' && strings.Contains(info, "`") {
		return nil
	}
	f.info, _, _ = strings.Cut(info, " ")
	return &f
}

func (f *fence) closes(line string) bool {
	g, rest, ok := fenceAt(line)
	return ok && g.char == f.char && g.length >= f.length && rest == ""
}

// unindent takes off a line as many spaces as the fence has before it.
func (f *fence) unindent(line string) string {
	n := 0
	for n < f.indent && n < len(line) && line[n] == ' ' {
		n++
	}
	return line[n:]
}

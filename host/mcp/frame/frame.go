// Package frame writes what an untrusted program printed into a text that a model
// reads: short, with nothing in it that is not visible, and between lines that the
// program could not know when it ran. It knows nothing of protocols or of how the run
// went.
package frame

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/pybox/pybox/host/show"
	"github.com/pybox/pybox/host/units"
)

const (
	// MaxHead and MaxTail bound what is shown of a stream that is longer than both
	// together: its beginning and its end, in bytes as printed.
	MaxHead = 10 << 10
	MaxTail = 6 << 10
	// maxGrowth bounds what escapes make of that, and mostEscaped what they make of a
	// byte.
	maxGrowth   = 2
	mostEscaped = 4
)

// Mark is a word that no program can know: 64 random bits as hexadecimal digits.
func Mark() string {
	var b [8]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// Stream is an output stream of a run.
type Stream struct {
	// Name is "stdout" or "stderr".
	Name string
	// Kept is what was kept of it, from its beginning.
	Kept []byte
	// Printed is how many bytes were printed; nil: that is not known.
	Printed *int64
}

// Short is what is shown of a stream. Head and Tail are UTF-8 in which everything that
// is not visible is escaped, but for line feeds and tabs.
type Short struct {
	// Head is all of it, or the beginning of what was kept where Omitted bytes are
	// left out between it and Tail.
	Head, Tail string
	Omitted    int64
	// Dropped bytes were printed after all that was kept, and are lost; nil: that is
	// not known.
	Dropped *int64
}

// Shorten decides what is shown.
func Shorten(s Stream) Short {
	var o Short
	if s.Printed != nil {
		n := max(0, *s.Printed-int64(len(s.Kept)))
		o.Dropped = &n
	}
	// Escapes take up to four bytes for one.
	for n := 1; ; n *= 2 {
		head, tail := ends(s.Kept, MaxHead/n, MaxTail/n)
		o.Head, o.Tail = Visible(string(head)), Visible(string(tail))
		o.Omitted = int64(len(s.Kept) - len(head) - len(tail))
		if len(o.Head)+len(o.Tail) <= maxGrowth*(MaxHead+MaxTail) {
			return o
		}
	}
}

// ends gives all of b as the head where it fits, else its beginning and its end.
func ends(b []byte, most, last int) (head, tail []byte) {
	if len(b) <= most+last {
		return b, nil
	}
	return before(b[:most]), after(b[len(b)-last:])
}

// before cuts a beginning after its last line, where that leaves most of it, else
// between two characters.
func before(b []byte) []byte {
	if i := bytes.LastIndexByte(b, '\n'); i > len(b)*3/4 {
		return b[:i+1]
	}
	for i := 1; i < utf8.UTFMax && i < len(b); i++ {
		if c := b[len(b)-i:]; utf8.RuneStart(c[0]) && !utf8.FullRune(c) {
			return b[:len(b)-i]
		}
	}
	return b
}

// after cuts an end before its first line, in the same way.
func after(b []byte) []byte {
	if i := bytes.IndexByte(b, '\n'); i >= 0 && i < len(b)/4 {
		return b[i+1:]
	}
	for i := 0; i < utf8.UTFMax && i < len(b); i++ {
		if utf8.RuneStart(b[i]) {
			return b[i:]
		}
	}
	return b
}

// Visible escapes everything that does not show, but for line feeds and tabs.
func Visible(s string) string {
	var b strings.Builder
	for len(s) > 0 {
		i := strings.IndexAny(s, "\n\t")
		if i < 0 {
			b.WriteString(show.Escape(s, mostEscaped*len(s)+1))
			break
		}
		b.WriteString(show.Escape(s[:i], mostEscaped*i+1))
		b.WriteByte(s[i])
		s = s[i+1:]
	}
	return b.String()
}

// Write writes a stream between two lines with the mark.
func Write(b *strings.Builder, mark string, s Stream, o Short) {
	if len(s.Kept) == 0 && (o.Dropped == nil || *o.Dropped == 0) {
		nothing := "empty"
		if o.Dropped == nil {
			nothing = "nothing of it came, and what was printed is not known"
		}
		fmt.Fprintf(b, "[%s %s: %s]\n", mark, s.Name, nothing)
		return
	}
	fmt.Fprintf(b, "[%s %s: %s]\n", mark, s.Name, counted(s))
	lines(b, o.Head)
	if o.Omitted > 0 {
		fmt.Fprintf(b, "[%s %s: %d bytes left out here]\n", mark, s.Name, o.Omitted)
		lines(b, o.Tail)
	}
	if o.Dropped != nil && *o.Dropped > 0 {
		fmt.Fprintf(b, "[%s %s: another %d bytes were printed here and not kept]\n", mark, s.Name, *o.Dropped)
	}
	fmt.Fprintf(b, "[%s end of %s]\n", mark, s.Name)
}

func counted(s Stream) string {
	if s.Printed == nil {
		return fmt.Sprintf("%d bytes came, how many were printed is not known", len(s.Kept))
	}
	if *s.Printed < 10<<10 {
		return fmt.Sprintf("%d bytes", *s.Printed)
	}
	return fmt.Sprintf("%d bytes (%v)", *s.Printed, units.Size(*s.Printed))
}

// lines writes a text that what follows stands on a line of its own.
func lines(b *strings.Builder, s string) {
	b.WriteString(s)
	if s != "" && !strings.HasSuffix(s, "\n") {
		b.WriteByte('\n')
	}
}

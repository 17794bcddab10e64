package recall

import (
	"bytes"
	"unicode/utf8"
)

// chunkBytes is the size of the pieces that output is kept in.
const chunkBytes = 64 << 10

// Output is an output stream in memory, in pieces that are cut between characters, as far
// as there are characters in it. The zero value is empty. It is for one goroutine at a
// time; what Chunks gave is not changed by what is added.
type Output struct {
	chunks [][]byte
	tail   []byte // the beginning of a character
}

// Add adds a piece, which it does not keep.
func (o *Output) Add(b []byte) {
	b = append(o.tail, b...)
	n := Whole(b)
	o.tail = bytes.Clone(b[n:])
	o.push(b[:n])
}

func (o *Output) push(b []byte) {
	last := len(o.chunks) - 1
	switch {
	case len(b) == 0:
	case last >= 0 && len(o.chunks[last])+len(b) <= chunkBytes:
		o.chunks[last] = append(o.chunks[last], b...)
	default:
		o.chunks = append(o.chunks, bytes.Clone(b))
	}
}

// End says that nothing more comes. It may be called again.
func (o *Output) End() {
	o.push(o.tail)
	o.tail = nil
}

// Len is how many bytes there are.
func (o *Output) Len() int64 {
	n := int64(len(o.tail))
	for _, c := range o.chunks {
		n += int64(len(c))
	}
	return n
}

// Text tells whether the chunks are UTF-8.
func (o *Output) Text() bool {
	for _, c := range o.chunks {
		if !utf8.Valid(c) {
			return false
		}
	}
	return true
}

// Chunks are the pieces, without the beginning of a character at the end unless End was
// called.
func (o *Output) Chunks() [][]byte { return o.chunks }

// Whole is how many bytes of b there are before a character that is cut off at its end. It
// is never 0 for more bytes than a character has.
func Whole(b []byte) int {
	for i := len(b) - 1; i >= 0 && i > len(b)-utf8.UTFMax; i-- {
		if utf8.RuneStart(b[i]) {
			if utf8.FullRune(b[i:]) {
				return len(b)
			}
			return i
		}
	}
	return len(b)
}

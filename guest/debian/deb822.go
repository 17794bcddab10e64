package debian

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

// Bounds on control data (deb822(5)). The real lists have lines of 30 kB and
// paragraphs of 60 fields; what is far beyond that is not a package list.
const (
	maxLineBytes      = 1 << 20
	maxParagraphBytes = 8 << 20
	maxFields         = 256
)

// ErrFormat marks control data, a release file or a package list that does not
// follow its format or exceeds a bound.
var ErrFormat = errors.New("malformed Debian metadata")

func formatErr(format string, a ...any) error {
	return fmt.Errorf("%w: %s", ErrFormat, fmt.Sprintf(format, a...))
}

// Paragraph is one paragraph of control data. Field names are as written;
// Debian writes them in one way, so lookups are case-sensitive. Continuation
// lines are joined with "\n" and keep no leading space.
type Paragraph map[string]string

// ReadParagraphs calls fn for each paragraph of r in order and stops at the
// first error, fn's or its own (which matches ErrFormat when r is malformed).
// It holds one paragraph at a time.
func ReadParagraphs(r io.Reader, fn func(Paragraph) error) error {
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 0, 64<<10), maxLineBytes)
	var p paragraphBuilder
	line := 0
	for s.Scan() {
		line++
		b := bytes.TrimRight(s.Bytes(), " \t\r")
		if len(b) == 0 {
			if err := p.flush(fn); err != nil {
				return err
			}
			continue
		}
		if err := p.add(b); err != nil {
			return fmt.Errorf("line %d: %w", line, err)
		}
	}
	if err := s.Err(); err != nil {
		if errors.Is(err, bufio.ErrTooLong) {
			return formatErr("line %d is longer than %d bytes", line+1, maxLineBytes)
		}
		return err
	}
	return p.flush(fn)
}

type paragraphBuilder struct {
	fields Paragraph
	last   string
	value  []byte
	bytes  int
}

func (p *paragraphBuilder) add(line []byte) error {
	if p.bytes += len(line); p.bytes > maxParagraphBytes {
		return formatErr("a paragraph is longer than %d bytes", maxParagraphBytes)
	}
	if line[0] == '#' {
		return nil
	}
	if line[0] == ' ' || line[0] == '\t' {
		if p.last == "" {
			return formatErr("a continuation line without a field")
		}
		p.value = append(append(p.value, '\n'), bytes.TrimLeft(line, " \t")...)
		return nil
	}
	name, value, ok := bytes.Cut(line, []byte{':'})
	if !ok || len(name) == 0 || bytes.ContainsAny(name, " \t") {
		return formatErr("%.40q is not a field", line)
	}
	p.store()
	if p.fields == nil {
		p.fields = make(Paragraph, 32)
	}
	if _, dup := p.fields[string(name)]; dup {
		return formatErr("field %.40q stands twice in a paragraph", name)
	}
	if len(p.fields) == maxFields {
		return formatErr("a paragraph has more than %d fields", maxFields)
	}
	p.last = string(name)
	p.fields[p.last] = ""
	p.value = append(p.value[:0], bytes.TrimLeft(value, " \t")...)
	return nil
}

func (p *paragraphBuilder) store() {
	if p.last != "" {
		p.fields[p.last] = string(p.value)
	}
	p.last = ""
}

func (p *paragraphBuilder) flush(fn func(Paragraph) error) error {
	p.store()
	f := p.fields
	p.fields, p.bytes = nil, 0
	if f == nil {
		return nil
	}
	return fn(f)
}

package pylock

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/pelletier/go-toml/v2/unstable"
)

// Bounds on what a pylock.toml is made of. The steps are those that the TOML library
// takes in looking for a key among all that it remembers, which for a file made to be
// slow are the square of its size; those of a lock are some for each key.
const (
	maxTOMLKeys  = 512 // of a table
	maxTOMLParts = 8   // of a key, as in tool.uv.sources
	maxTOMLSteps = 50_000_000
	// maxTOMLCommas bounds what one expression can be made of before it is looked at:
	// a wheel has five.
	maxTOMLCommas = 300_000
)

var errIntricate = errors.New("it has more tables and keys than a lock has")

// shape follows what the library remembers of a file: each part of a key, and each
// table in an array. Where the two differ it has more.
type shape struct {
	seen   int           // what is remembered now
	steps  int           // taken so far
	keys   int           // of the table that is open
	tables []openedArray // arrays of tables, each below the one before
}

// openedArray is an array of tables; its next table makes the library forget the one
// before.
type openedArray struct {
	path []string
	seen int // when it was met
}

// checkShape refuses a file that would take long or much to read. It says nothing of
// what is no TOML: who reads the file does.
func checkShape(data []byte) (line int, err error) {
	if bytes.Count(data, []byte{','}) > maxTOMLCommas {
		return 0, errIntricate
	}
	var p unstable.Parser
	p.Reset(data)
	var s shape
	for p.NextExpression() {
		e := p.Expression()
		switch e.Kind {
		case unstable.Table, unstable.ArrayTable:
			err = s.header(keyParts(e), e.Kind == unstable.ArrayTable)
		case unstable.KeyValue:
			s.keys++
			err = s.keyValue(e, s.keys, s.seen)
		}
		if err != nil {
			return lineOf(&p, e), err
		}
	}
	return 0, nil
}

// lineOf is where an expression begins.
func lineOf(p *unstable.Parser, e *unstable.Node) int {
	it := e.Key()
	if !it.Next() {
		return 0
	}
	return p.Shape(it.Node().Raw).Start.Line
}

func keyParts(e *unstable.Node) []string {
	var parts []string
	for it := e.Key(); it.Next(); {
		parts = append(parts, string(it.Node().Data))
	}
	return parts
}

// header begins a table.
func (s *shape) header(path []string, array bool) error {
	s.keys = 0
	for len(s.tables) > 0 && !isBelow(path, s.tables[len(s.tables)-1].path) {
		s.tables = s.tables[:len(s.tables)-1]
	}
	if array {
		if n := len(s.tables); n > 0 && len(s.tables[n-1].path) == len(path) {
			// To forget it looks at everything.
			s.steps += s.seen
			s.seen = s.tables[n-1].seen
		} else {
			s.tables = append(s.tables, openedArray{path, s.seen})
		}
	}
	return s.remember(len(path), s.seen)
}

// isBelow tells whether path is that of an array or begins with it.
func isBelow(path, array []string) bool {
	return len(path) >= len(array) && slices.Equal(path[:len(array)], array)
}

// remember notes the parts of a key, each of which was looked for among the last of
// what was seen.
func (s *shape) remember(parts, among int) error {
	s.seen += parts
	s.steps += parts * (among + parts)
	switch {
	case parts > maxTOMLParts:
		return fmt.Errorf("a key of more than %d parts", maxTOMLParts)
	case s.steps > maxTOMLSteps:
		return errIntricate
	}
	return nil
}

// keyValue notes a key, the n-th of its table, and its value.
func (s *shape) keyValue(e *unstable.Node, n, among int) error {
	if n > maxTOMLKeys {
		return fmt.Errorf("a table of more than %d keys", maxTOMLKeys)
	}
	parts := 0
	for it := e.Key(); it.Next(); {
		parts++
	}
	if err := s.remember(parts, among); err != nil {
		return err
	}
	return s.value(e.Value())
}

// value notes what is in arrays and tables. The parser bounds how deep they are.
func (s *shape) value(v *unstable.Node) error {
	start, n := s.seen, 0
	for it := v.Children(); it.Next(); {
		child := it.Node()
		var err error
		switch {
		case v.Kind == unstable.InlineTable:
			n++
			err = s.keyValue(child, n, s.seen-start)
		case v.Kind == unstable.Array && (child.Kind == unstable.InlineTable || child.Kind == unstable.Array):
			s.seen++
			err = s.value(child)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

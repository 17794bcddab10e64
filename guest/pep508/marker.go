package pep508

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pybox/pybox/guest/pep440"
)

// Marker is a parsed marker. The zero value always applies.
type Marker struct {
	text string
	root node // nil: always
}

// String is the marker as it was written.
func (m Marker) String() string { return m.text }

// Empty tells whether there is no condition.
func (m Marker) Empty() bool { return m.root == nil }

// ParseMarker reads a marker, of at most 32 KiB and 64 parentheses inside each other.
// An empty one is refused.
func ParseMarker(s string) (Marker, error) {
	if len(s) > maxMarkerBytes {
		return Marker{}, fmt.Errorf("a marker of more than %d bytes: %w", maxMarkerBytes, ErrSyntax)
	}
	p := markerParser{rest: s}
	root, err := p.or(0)
	if err == nil && p.next() != "" {
		err = fmt.Errorf("unexpected %.40q", p.next())
	}
	if err != nil {
		return Marker{}, fmt.Errorf("marker %.200q: %w: %w", s, err, ErrSyntax)
	}
	return Marker{strings.TrimSpace(s), root}, nil
}

// Eval tells whether the marker applies in env. With several extras it applies where
// it does with one of them, and "extra" is empty where there are none, as in pip. The
// error matches ErrUnknown when the answer depends on what env leaves open, and
// ErrSyntax when a comparison has no meaning.
func (m Marker) Eval(env Environment) (bool, error) {
	if m.root == nil {
		return true, nil
	}
	extras := env.Extras
	if len(extras) == 0 {
		extras = []string{""}
	}
	var open error
	for _, extra := range extras {
		ok, err := m.root.eval(scope{env, extra})
		if ok && err == nil {
			return true, nil
		}
		if err != nil {
			open = fmt.Errorf("marker %.200q: %w", m.text, err)
		}
	}
	return false, open
}

// scope is what a marker is evaluated in.
type scope struct {
	env   Environment
	extra string
}

// node is a part of a marker. An error means that the answer is open.
type node interface {
	eval(scope) (bool, error)
}

// anyOf is "or", allOf is "and". An open part matters only where the others do not
// decide.
type (
	anyOf []node
	allOf []node
)

func (n anyOf) eval(s scope) (bool, error) { return decide(n, s, true) }
func (n allOf) eval(s scope) (bool, error) { return decide(n, s, false) }

// decide returns verdict when one part has it.
func decide(parts []node, s scope, verdict bool) (bool, error) {
	var open error
	for _, p := range parts {
		ok, err := p.eval(s)
		switch {
		case err != nil:
			open = err
		case ok == verdict:
			return verdict, nil
		}
	}
	return !verdict, open
}

// comparison is one condition: a variable and a literal.
type comparison struct {
	variable, op, literal string
	reversed              bool // the literal stands on the left
}

func (c comparison) eval(s scope) (bool, error) {
	switch c.variable {
	case variableExtras:
		return c.listed(s.env.Extras), nil
	case variableGroups:
		return c.listed(s.env.Groups), nil
	case variableExtra:
		c.literal = NormalizeName(c.literal)
		return c.compare(NormalizeName(s.extra))
	}
	value := variables[c.variable](s.env)
	if value == "" {
		return false, fmt.Errorf("%s is %w", c.variable, ErrUnknown)
	}
	return c.compare(value)
}

// listed answers "'x' in extras".
func (c comparison) listed(list []string) bool {
	in := slices.ContainsFunc(list, func(s string) bool { return NormalizeName(s) == NormalizeName(c.literal) })
	return in == (c.op == "in")
}

// compare compares the variable's value with the literal, as Python's packaging
// does: as versions where the variable has one and the literal is one, and otherwise
// as text, which has no order.
func (c comparison) compare(value string) (bool, error) {
	left, right := value, c.literal
	if c.reversed {
		left, right = right, left
	}
	if comparedAsVersions[c.variable] && c.op != "in" && c.op != "not in" {
		if spec, err := pep440.ParseSpecifiers(c.op + right); err == nil && !strings.Contains(right, ",") {
			v, err := pep440.Parse(left)
			return err == nil && spec.Contains(v), nil
		}
	}
	switch c.op {
	case "in":
		return strings.Contains(right, left), nil
	case "not in":
		return !strings.Contains(right, left), nil
	case "==", "<=", ">=":
		return left == right, nil
	case "!=":
		return left != right, nil
	case "<", ">":
		return false, nil
	}
	return false, fmt.Errorf("%q cannot compare %.40q with %.40q: %w", c.op, left, right, ErrSyntax)
}

// markerOperators, those first that others are the beginning of.
var markerOperators = []string{"===", "~=", "==", "!=", "<=", ">=", "<", ">"}

// markerParser reads by recursive descent; depth counts parentheses.
type markerParser struct{ rest string }

func (p *markerParser) or(depth int) (node, error) {
	list, err := p.list(depth, "or", p.and)
	if err != nil || len(list) == 1 {
		return first(list), err
	}
	return anyOf(list), nil
}

func (p *markerParser) and(depth int) (node, error) {
	list, err := p.list(depth, "and", p.atom)
	if err != nil || len(list) == 1 {
		return first(list), err
	}
	return allOf(list), nil
}

func first(list []node) node {
	if len(list) == 0 {
		return nil
	}
	return list[0]
}

// list reads what is between words.
func (p *markerParser) list(depth int, word string, part func(int) (node, error)) ([]node, error) {
	var list []node
	for {
		n, err := part(depth)
		if err != nil {
			return nil, err
		}
		list = append(list, n)
		if p.next() != word {
			return list, nil
		}
		p.take(word)
	}
}

func (p *markerParser) atom(depth int) (node, error) {
	if p.next() != "(" {
		return p.comparison()
	}
	if depth >= maxMarkerDepth {
		return nil, fmt.Errorf("more than %d parentheses inside each other", maxMarkerDepth)
	}
	p.take("(")
	n, err := p.or(depth + 1)
	if err != nil {
		return nil, err
	}
	if p.next() != ")" {
		return nil, fmt.Errorf("want ')', not %.40q", p.next())
	}
	p.take(")")
	return n, nil
}

func (p *markerParser) comparison() (node, error) {
	left, leftLiteral, err := p.operand()
	if err != nil {
		return nil, err
	}
	op, err := p.operator()
	if err != nil {
		return nil, err
	}
	right, rightLiteral, err := p.operand()
	if err != nil {
		return nil, err
	}
	c := comparison{variable: left, op: op, literal: right}
	switch {
	case leftLiteral == rightLiteral:
		return nil, fmt.Errorf("%.40q and %.40q: want a variable and a text in quotes", left, right)
	case leftLiteral:
		c = comparison{variable: right, op: op, literal: left, reversed: true}
	}
	if list := c.variable == variableExtras || c.variable == variableGroups; list && (!c.reversed || op != "in" && op != "not in") {
		return nil, fmt.Errorf("%s can only stand behind 'in' and 'not in'", c.variable)
	}
	return c, nil
}

// operand reads a variable's name or a text in quotes.
func (p *markerParser) operand() (text string, literal bool, err error) {
	word := p.next()
	if word == "" {
		return "", false, fmt.Errorf("it ends too early")
	}
	if word[0] == '\'' || word[0] == '"' {
		if len(word) < 2 || word[len(word)-1] != word[0] {
			return "", false, fmt.Errorf("a quote is not closed")
		}
		p.take(word)
		return word[1 : len(word)-1], true, nil
	}
	if _, ok := variables[word]; !ok {
		return "", false, fmt.Errorf("%.40q is no variable", word)
	}
	p.take(word)
	return word, false, nil
}

func (p *markerParser) operator() (string, error) {
	word := p.next()
	p.take(word)
	switch {
	case word == "in" || slices.Contains(markerOperators, word):
		return word, nil
	case word == "not" && p.next() == "in":
		p.take("in")
		return "not in", nil
	}
	return "", fmt.Errorf("want a comparison, not %.40q", word)
}

// next is the next token, "" at the end; take steps over it.
func (p *markerParser) next() string {
	p.rest = strings.TrimLeft(p.rest, " \t\r\n")
	if p.rest == "" {
		return ""
	}
	switch c := p.rest[0]; {
	case c == '(' || c == ')':
		return p.rest[:1]
	case c == '\'' || c == '"':
		end := strings.IndexByte(p.rest[1:], c)
		if end < 0 {
			return p.rest
		}
		return p.rest[:end+2]
	}
	for _, op := range markerOperators {
		if strings.HasPrefix(p.rest, op) {
			return op
		}
	}
	if n := strings.IndexFunc(p.rest, func(r rune) bool { return !isWord(r) }); n > 0 {
		return p.rest[:n]
	} else if n == 0 {
		return p.rest[:1]
	}
	return p.rest
}

func isWord(r rune) bool {
	return r == '_' || r == '.' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
}

func (p *markerParser) take(token string) { p.rest = strings.TrimPrefix(p.rest, token) }

package picture

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"unicode/utf8"
)

const (
	// maxSVG bounds an SVG, which nobody can make smaller.
	maxSVG = 256 << 10
	// maxDepth bounds how deep its elements nest.
	maxDepth = 64
	// svgSpace is the name space of its elements.
	svgSpace = "http://www.w3.org/2000/svg"
)

// looksLikeSVG tells whether the first element is <svg>: declarations, comments and
// white space may come before it.
func looksLikeSVG(b []byte) bool {
	b = b[:min(len(b), 4<<10)]
	head := bytes.TrimLeft(bytes.TrimPrefix(b, []byte("\xef\xbb\xbf")), " \t\r\n")
	if !bytes.HasPrefix(head, []byte("<?xml")) && !bytes.HasPrefix(head, []byte("<!")) && !bytes.HasPrefix(head, []byte("<svg")) {
		return false
	}
	return regexpSVG.Match(head)
}

var regexpSVG = regexp.MustCompile(`<svg[\s>/]`)

// elements are those that only draw, or group, name and define what draws. Whatever
// else there is, scripts, other documents, links, animations, is not let through.
var elements = set("svg g defs symbol use title desc metadata style " +
	"path rect circle ellipse line polyline polygon text tspan textPath " +
	"clipPath mask pattern marker linearGradient radialGradient stop " +
	"filter feBlend feColorMatrix feComponentTransfer feComposite feConvolveMatrix feDiffuseLighting " +
	"feDisplacementMap feDistantLight feDropShadow feFlood feFuncA feFuncB feFuncG feFuncR feGaussianBlur " +
	"feMerge feMergeNode feMorphology feOffset fePointLight feSpecularLighting feSpotLight feTile feTurbulence image")

func set(words string) map[string]bool {
	m := map[string]bool{}
	for w := range strings.FieldsSeq(words) {
		m[w] = true
	}
	return m
}

// vector lets an SVG through that only draws.
func vector(b []byte) (*Picture, error) {
	if len(b) > maxSVG {
		return nil, fmt.Errorf("%w of %d KiB for an SVG", ErrLimit, maxSVG>>10)
	}
	if !utf8.Valid(b) {
		return nil, ErrDamaged
	}
	c := checker{}
	d := xml.NewDecoder(bytes.NewReader(b))
	for {
		t, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, ErrDamaged
		}
		if err := c.token(t); err != nil {
			return nil, err
		}
	}
	if !c.root {
		return nil, ErrDamaged
	}
	return &Picture{Media: SVG, Data: b}, nil
}

// checker looks at an SVG from its beginning to its end.
type checker struct {
	root  bool // it has been there
	depth int
	other int // how deep inside metadata, whose elements are not drawn
	style int // how deep inside a style sheet
}

func (c *checker) token(t xml.Token) error {
	switch t := t.(type) {
	case xml.StartElement:
		return c.start(t)
	case xml.EndElement:
		c.depth--
		c.other, c.style = max(0, c.other-1), max(0, c.style-1)
	case xml.CharData:
		if c.style > 0 && fetches(string(t)) {
			return fmt.Errorf("%w: its style sheet fetches something", ErrActive)
		}
	case xml.Directive:
		if bytes.ContainsAny(t, "[&") { // entities of its own
			return fmt.Errorf("%w: it declares entities", ErrActive)
		}
	case xml.ProcInst:
		if t.Target != "xml" { // a style sheet from elsewhere
			return fmt.Errorf("%w: it has a processing instruction", ErrActive)
		}
	}
	return nil
}

func (c *checker) start(e xml.StartElement) error {
	if c.depth++; c.depth > maxDepth {
		return fmt.Errorf("%w: its elements nest deeper than %d", ErrLimit, maxDepth)
	}
	if !c.root {
		if e.Name.Local != "svg" || e.Name.Space != svgSpace {
			return ErrDamaged
		}
		c.root = true
	}
	switch {
	case c.other > 0:
		c.other++
		if e.Name.Space == svgSpace || e.Name.Space == "http://www.w3.org/1999/xhtml" {
			return fmt.Errorf("%w: its metadata has elements that draw", ErrActive)
		}
		return nil // RDF, which nothing draws
	case e.Name.Space != svgSpace || !elements[e.Name.Local]:
		return fmt.Errorf("%w: it has an element that does more than draw", ErrActive)
	case e.Name.Local == "metadata":
		c.other = 1
	}
	if c.style > 0 || e.Name.Local == "style" {
		c.style++
	}
	return attributes(e.Attr)
}

// attributes refuses handlers of events, and whatever names something that is not in
// the file itself.
func attributes(all []xml.Attr) error {
	for _, a := range all {
		name, value := strings.ToLower(a.Name.Local), strings.TrimSpace(a.Value)
		switch {
		case a.Name.Space == "xmlns" || a.Name.Local == "xmlns":
		case strings.HasPrefix(name, "on"):
			return fmt.Errorf("%w: it handles events", ErrActive)
		case name == "href" || name == "src" || name == "base":
			if !strings.HasPrefix(value, "#") && !strings.HasPrefix(value, "data:image/png;base64,") && !strings.HasPrefix(value, "data:image/jpeg;base64,") {
				return fmt.Errorf("%w: it names another document", ErrActive)
			}
		case fetches(value):
			return fmt.Errorf("%w: it fetches something", ErrActive)
		}
	}
	return nil
}

// fetches tells whether CSS, in an attribute or in a style sheet, may name anything but
// a part of the file itself. An escape could hide it.
func fetches(css string) bool {
	css = strings.ToLower(css)
	if strings.Contains(css, "@import") || strings.Contains(css, `\`) || strings.Contains(css, "image-set") || strings.Contains(css, "javascript:") {
		return true
	}
	for rest := css; ; {
		_, after, found := strings.Cut(rest, "url")
		if !found {
			return false
		}
		after, is := strings.CutPrefix(strings.TrimLeft(after, " \t\r\n"), "(")
		if is && !strings.HasPrefix(strings.TrimLeft(after, " \t\r\n\"'"), "#") {
			return true
		}
		rest = after
	}
}

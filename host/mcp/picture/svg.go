package picture

import (
	"bytes"
	"encoding/base64"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

const (
	// maxSVG bounds an SVG, which nobody can make smaller, and maxWritten what is
	// written of it: some characters become several.
	maxSVG     = 256 << 10
	maxWritten = 2 * maxSVG
	// maxDepth bounds how deep its elements nest.
	maxDepth = 64
	// svgSpace is the name space of its elements, linkSpace that of links in it, and
	// xmlSpace that of XML's own attributes.
	svgSpace  = "http://www.w3.org/2000/svg"
	linkSpace = "http://www.w3.org/1999/xlink"
	xmlSpace  = "http://www.w3.org/XML/1998/namespace"
)

// looksLikeSVG tells whether the first element is <svg>: declarations, comments and
// white space may come before it.
func looksLikeSVG(b []byte) bool {
	d := xml.NewDecoder(bytes.NewReader(b[:min(len(b), 4<<10)]))
	for {
		t, err := d.RawToken()
		if err != nil {
			return false
		}
		switch t := t.(type) {
		case xml.StartElement:
			return t.Name.Local == "svg"
		case xml.CharData:
			if len(bytes.Trim(t, "\ufeff \t\r\n")) > 0 {
				return false
			}
		case xml.EndElement:
			return false
		}
	}
}

// vector writes an SVG anew: the elements that draw, with the attributes that say how,
// style sheets and text, and nothing else. Comments, declarations, descriptions and
// metadata, which draw nothing, are left out. One that has anything in it that acts or
// fetches, or that draws more than it seems to, is refused.
func vector(b []byte) (*Picture, error) {
	if len(b) > maxSVG {
		return nil, fmt.Errorf("%w of %d KiB for an SVG", ErrLimit, maxSVG>>10)
	}
	if !utf8.Valid(b) {
		return nil, ErrDamaged
	}
	w := rewriter{graph: newGraph()}
	d := xml.NewDecoder(bytes.NewReader(b))
	for {
		t, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, ErrDamaged
		}
		if err := w.token(t); err != nil {
			return nil, err
		}
		if w.out.Len() > maxWritten {
			return nil, fmt.Errorf("%w of %d KiB for an SVG that is written anew", ErrLimit, maxWritten>>10)
		}
	}
	if !w.root {
		return nil, ErrDamaged
	}
	if err := w.graph.check(); err != nil {
		return nil, err
	}
	return &Picture{Media: SVG, Data: w.out.Bytes()}, nil
}

// rewriter writes an SVG from its beginning to its end.
type rewriter struct {
	out    bytes.Buffer
	graph  *graph
	open   []string // names of the elements that are open
	left   int      // how deep inside an element that is left out
	style  strings.Builder
	root   bool // it has been there
	pixels int  // of all images in it
}

func (w *rewriter) token(t xml.Token) error {
	switch t := t.(type) {
	case xml.StartElement:
		return w.start(t)
	case xml.EndElement:
		return w.end()
	case xml.CharData:
		switch {
		case w.left > 0 || len(w.open) == 0:
		case w.within("style"):
			w.style.Write(t)
		case w.within("text") || w.within("tspan") || w.within("textPath"):
			w.escape(string(t))
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

// within tells whether the innermost element that is open has that name.
func (w *rewriter) within(name string) bool {
	return len(w.open) > 0 && w.open[len(w.open)-1] == name
}

func (w *rewriter) start(e xml.StartElement) error {
	name := e.Name.Local
	if len(w.open)+w.left >= maxDepth {
		return fmt.Errorf("%w: its elements nest deeper than %d", ErrLimit, maxDepth)
	}
	if len(w.open) == 0 {
		if w.root || name != "svg" || e.Name.Space != svgSpace {
			return ErrDamaged
		}
		w.root = true
	}
	switch {
	case w.left > 0 || e.Name.Space == svgSpace && leftOut[name]:
		w.left++
		return nil
	case e.Name.Space != svgSpace || !elements[name] || w.within("style"):
		return fmt.Errorf("%w: it has an element that does more than draw", ErrActive)
	}
	w.out.WriteByte('<')
	w.out.WriteString(name)
	if len(w.open) == 0 {
		w.out.WriteString(` xmlns="` + svgSpace + `" xmlns:xlink="` + linkSpace + `"`)
	}
	w.open = append(w.open, name)
	w.graph.start()
	if err := w.attributes(name, e.Attr); err != nil {
		return err
	}
	w.out.WriteByte('>')
	return nil
}

func (w *rewriter) end() error {
	if w.left > 0 {
		w.left--
		return nil
	}
	if w.within("style") {
		css := w.style.String()
		w.style.Reset()
		if active(css) || strings.Contains(css, "<") || len(references(css)) > 0 {
			return fmt.Errorf("%w: its style sheet does more than say how to draw", ErrActive)
		}
		w.escape(css)
	}
	w.out.WriteString("</" + w.open[len(w.open)-1] + ">")
	w.open = w.open[:len(w.open)-1]
	w.graph.end()
	return nil
}

// attributes writes those that say how to draw. It refuses handlers of events, and
// whatever names something that is not in the file itself.
func (w *rewriter) attributes(element string, all []xml.Attr) error {
	seen := map[string]string{}
	for _, a := range all {
		name := a.Name.Local
		low := strings.ToLower(name)
		switch {
		case a.Name.Space == "xmlns" || name == "xmlns":
			continue
		case strings.HasPrefix(low, "on"):
			return fmt.Errorf("%w: it handles events", ErrActive)
		case low == "href" || low == "src" || low == "base":
			link, err := w.link(element, a.Value)
			if err != nil {
				return err
			}
			a.Value, name = link, "xlink:href"
			if low != "href" || a.Name.Space != "" && a.Name.Space != linkSpace {
				continue
			}
		case a.Name.Space == xmlSpace && name == "space":
			name = "xml:space"
		case a.Name.Space != "" || !attributes[name]:
			continue
		}
		if names[name] {
			a.Value = strings.TrimSpace(a.Value)
		} else if name != "xlink:href" && active(a.Value) {
			return fmt.Errorf("%w: it fetches something", ErrActive)
		}
		if before, twice := seen[name]; twice {
			if before != a.Value {
				return ErrDamaged
			}
			continue
		}
		seen[name] = a.Value
		w.refer(name, a.Value)
		w.out.WriteString(" " + name + `="`)
		w.escape(oneLine.Replace(a.Value))
		w.out.WriteByte('"')
	}
	return nil
}

// refer takes note of what an attribute names, or what it is named by.
func (w *rewriter) refer(name, value string) {
	switch {
	case name == "id":
		w.graph.named(value)
	case names[name]:
	case name == "xlink:href":
		if id, is := strings.CutPrefix(value, "#"); is {
			w.graph.uses(id)
		}
	default:
		for _, id := range references(value) {
			w.graph.uses(id)
		}
	}
}

// link is what an element may refer to: a part of the file, or an image as data, which
// is looked into.
func (w *rewriter) link(element, value string) (string, error) {
	value = strings.TrimSpace(value)
	if element != "image" {
		if !strings.HasPrefix(value, "#") {
			return "", fmt.Errorf("%w: it names another document", ErrActive)
		}
		return value, nil
	}
	for _, media := range []string{PNG, JPEG} {
		data, is := strings.CutPrefix(value, "data:"+media+";base64,")
		if !is {
			continue
		}
		b, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(data), ""))
		if err == nil && kind(b) == media {
			b = cut(media, b)
		}
		if err != nil || kind(b) != media {
			return "", fmt.Errorf("%w: it has an image that is none", ErrActive)
		}
		n, err := check(media, b)
		if err != nil {
			return "", fmt.Errorf("it has an image in it: %w", err)
		}
		if w.pixels += n; w.pixels > MaxPixels {
			return "", fmt.Errorf("%w of %d pixels in the images of an SVG", ErrLimit, MaxPixels)
		}
		return "data:" + media + ";base64," + base64.StdEncoding.EncodeToString(b), nil
	}
	return "", fmt.Errorf("%w: it names another document", ErrActive)
}

func (w *rewriter) escape(s string) { w.out.WriteString(escaper.Replace(s)) }

var (
	escaper = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&quot;", "\r", "")
	oneLine = strings.NewReplacer("\n", " ", "\t", " ")
)

package pep508

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pybox/pybox/guest/pep440"
)

// Requirement is a dependency specifier.
type Requirement struct {
	Name       string   // normalised
	Extras     []string // normalised, sorted, each once
	Specifiers pep440.Specifiers
	URL        string // of "name @ URL", else ""
	Marker     Marker
}

// String is the requirement without its marker, such as "requests[socks]>=2".
func (r Requirement) String() string {
	s := r.Name
	if len(r.Extras) > 0 {
		s += "[" + strings.Join(r.Extras, ",") + "]"
	}
	if r.URL != "" {
		return s + " @ " + r.URL
	}
	return s + r.Specifiers.String()
}

// ParseRequirement reads a dependency specifier, as in Requires-Dist. It must be
// one line; the error matches ErrSyntax, and shows nothing of an address, which may
// have a password in it.
func ParseRequirement(s string) (Requirement, error) {
	r, err := parseRequirement(strings.TrimSpace(s))
	switch {
	case err == nil:
		return r, nil
	case strings.Contains(s, "://"):
		return Requirement{}, fmt.Errorf("a requirement with an address, which is not shown: %w; want 'NAME @ ADDRESS', or that and ' ; MARKER'", ErrSyntax)
	}
	return Requirement{}, fmt.Errorf("requirement %.120q: %w: %w", s, err, ErrSyntax)
}

func parseRequirement(s string) (r Requirement, err error) {
	if len(s) > maxRequirementBytes || strings.ContainsAny(s, "\r\n\x00") {
		return r, fmt.Errorf("want one line of at most %d bytes", maxRequirementBytes)
	}
	name := s[:len(s)-len(strings.TrimLeftFunc(s, isNameRune))]
	if !ValidName(name) {
		return r, fmt.Errorf("%.40q is no project's name", name)
	}
	r.Name = NormalizeName(name)
	s = strings.TrimLeft(s[len(name):], " \t")
	if strings.HasPrefix(s, "[") {
		if r.Extras, s, err = parseExtras(s[1:]); err != nil {
			return r, err
		}
	}
	if rest, ok := strings.CutPrefix(s, "@"); ok {
		return parseURL(r, strings.TrimLeft(rest, " \t"))
	}
	versions, marker, hasMarker := strings.Cut(s, ";")
	versions = strings.TrimSpace(versions)
	if inner, ok := strings.CutPrefix(versions, "("); ok {
		if versions, ok = strings.CutSuffix(inner, ")"); !ok {
			return r, fmt.Errorf("a parenthesis is not closed")
		}
	}
	if r.Specifiers, err = pep440.ParseSpecifiers(versions); err != nil {
		return r, err
	}
	if hasMarker {
		r.Marker, err = ParseMarker(marker)
	}
	return r, err
}

// parseURL reads what is behind the '@'; a marker needs white space before its
// semicolon, since a URL may have one.
func parseURL(r Requirement, s string) (Requirement, error) {
	address, rest := s, ""
	if i := strings.IndexAny(s, " \t"); i >= 0 {
		address, rest = s[:i], strings.TrimLeft(s[i:], " \t")
	}
	if address == "" {
		return r, fmt.Errorf("no address behind '@'")
	}
	r.URL = address
	if rest == "" {
		return r, nil
	}
	marker, ok := strings.CutPrefix(rest, ";")
	if !ok {
		return r, fmt.Errorf("unexpected %.40q behind the address", rest)
	}
	var err error
	r.Marker, err = ParseMarker(marker)
	return r, err
}

// parseExtras reads "a, b] rest".
func parseExtras(s string) (extras []string, rest string, err error) {
	list, rest, ok := strings.Cut(s, "]")
	if !ok {
		return nil, "", fmt.Errorf("a bracket is not closed")
	}
	rest = strings.TrimLeft(rest, " \t")
	if strings.TrimSpace(list) == "" {
		return nil, rest, nil
	}
	for extra := range strings.SplitSeq(list, ",") {
		extra = strings.TrimSpace(extra)
		if !ValidName(extra) {
			return nil, "", fmt.Errorf("%.40q is no extra's name", extra)
		}
		if extras = append(extras, NormalizeName(extra)); len(extras) > maxExtras {
			return nil, "", fmt.Errorf("more than %d extras", maxExtras)
		}
	}
	slices.Sort(extras)
	return slices.Compact(extras), rest, nil
}

func isNameRune(r rune) bool { return r == '-' || isWord(r) }

package pep440

import (
	"fmt"
	"slices"
	"strings"
)

// operators, those first that others are the beginning of.
var operators = []string{"===", "~=", "==", "!=", "<=", ">=", "<", ">"}

// Specifiers is a list of conditions that must all hold, such as ">=1.0,!=1.5".
// The zero value admits every version.
type Specifiers struct {
	text string
	list []specifier
}

type specifier struct {
	op      string
	version Version
	prefix  bool   // of "==1.2.*" and "!=1.2.*"
	text    string // what "===" compares with
}

// ParseSpecifiers reads a list of conditions; an empty one admits everything.
func ParseSpecifiers(s string) (Specifiers, error) {
	if len(s) > maxSpecifiersBytes {
		return Specifiers{}, fmt.Errorf("versions %.80q…: longer than %d bytes: %w", s, maxSpecifiersBytes, ErrSyntax)
	}
	out := Specifiers{text: strings.TrimSpace(s)}
	for item := range strings.SplitSeq(s, ",") {
		if item = strings.TrimSpace(item); item == "" {
			continue
		}
		one, err := parseSpecifier(item)
		if err != nil {
			return Specifiers{}, err
		}
		if out.list = append(out.list, one); len(out.list) > maxSpecifiers {
			return Specifiers{}, fmt.Errorf("versions %.80q…: more than %d conditions: %w", s, maxSpecifiers, ErrSyntax)
		}
	}
	return out, nil
}

func parseSpecifier(s string) (specifier, error) {
	bad := fmt.Errorf("condition on a version %.80q: %w", s, ErrSyntax)
	i := slices.IndexFunc(operators, func(op string) bool { return strings.HasPrefix(s, op) })
	if i < 0 {
		return specifier{}, bad
	}
	sp := specifier{op: operators[i]}
	sp.text = strings.TrimSpace(strings.TrimPrefix(s, sp.op))
	if sp.op == "===" {
		if sp.text == "" || len(sp.text) > maxVersionBytes || strings.ContainsAny(sp.text, " \t\r\n;)") {
			return specifier{}, bad
		}
		return sp, nil
	}
	number := sp.text
	if sp.op == "==" || sp.op == "!=" {
		number, sp.prefix = strings.CutSuffix(number, ".*")
	}
	v, err := Parse(number)
	if err != nil {
		return specifier{}, bad
	}
	sp.version = v
	switch released := v.pre == "" && v.post == nil && v.dev == nil && v.local == nil; {
	case sp.prefix && !released,
		v.local != nil && sp.op != "==" && sp.op != "!=",
		sp.op == "~=" && len(v.release) < 2:
		return specifier{}, bad
	}
	return sp, nil
}

// Contains tells whether v meets all conditions. Pre-releases count as any other
// version does: what is judged here was pinned by somebody.
func (s Specifiers) Contains(v Version) bool {
	return !slices.ContainsFunc(s.list, func(sp specifier) bool { return !sp.contains(v) })
}

func (sp specifier) contains(v Version) bool {
	w := sp.version
	switch sp.op {
	case "===":
		return strings.EqualFold(v.String(), sp.text)
	case "==":
		return sp.equal(v)
	case "!=":
		return !sp.equal(v)
	case "~=":
		return v.Public().Compare(w) >= 0 && hasPrefix(v, w.epoch, w.release[:len(w.release)-1])
	case "<=":
		return v.Public().Compare(w) <= 0
	case ">=":
		return v.Public().Compare(w) >= 0
	case "<":
		// Not the pre-releases of what is excluded.
		return v.Compare(w) < 0 && (w.IsPrerelease() || !v.IsPrerelease() || v.compareBase(w) != 0)
	default: // ">": nor its post-releases and local builds
		return v.Compare(w) > 0 && (v.compareBase(w) != 0 || v.local == nil && (w.post != nil || v.post == nil))
	}
}

// equal compares as "==" does: a local label counts only where one is asked for.
func (sp specifier) equal(v Version) bool {
	if sp.prefix {
		return hasPrefix(v, sp.version.epoch, sp.version.release)
	}
	if sp.version.local == nil {
		v = v.Public()
	}
	return v.Compare(sp.version) == 0
}

// hasPrefix tells whether v's release, with zeros behind it, begins with release.
func hasPrefix(v Version, epoch uint64, release []uint64) bool {
	if v.epoch != epoch {
		return false
	}
	for i, n := range release {
		var have uint64
		if i < len(v.release) {
			have = v.release[i]
		}
		if have != n {
			return false
		}
	}
	return true
}

// Exact returns the version of a list that is one "==" or "===" without a wild
// card, and whether it is such a list.
func (s Specifiers) Exact() (Version, bool) {
	if len(s.list) != 1 {
		return Version{}, false
	}
	switch sp := s.list[0]; {
	case sp.op == "==" && !sp.prefix:
		return sp.version, true
	case sp.op == "===":
		v, err := Parse(sp.text)
		return v, err == nil
	}
	return Version{}, false
}

// String is the list as it was written.
func (s Specifiers) String() string { return s.text }

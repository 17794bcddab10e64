package twins

import (
	"strings"
	"testing"
)

func TestAdd(t *testing.T) {
	for _, c := range []struct{ first, second, twin string }{
		{"a.csv", "b.csv", ""},
		{"a.csv", "a.csv", ""},
		{"a.csv", "A.CSV", "a.csv"},
		{"data/a.csv", "data/b.csv", ""},
		{"data/a.csv", "Data/b.csv", "data"},
		{"data", "DATA/b.csv", "data"},
		{"x/data/a", "x/DATA", "x/data"},
		{"x/data/a", "y/DATA", ""},
		{"caf\u00e9", "cafe\u0301", "caf\u00e9"},
		{"caf\u00c9", "cafe\u0301", "caf\u00c9"},
		{"stra\u00dfe", "STRASSE", "stra\u00dfe"},
		{"\u212bngstr\u00f6m", "\u00e5ngstro\u0308m", "\u212bngstr\u00f6m"},
		{"\u1e9b\u0323", "\u1e69", "\u1e9b\u0323"},
		{"\ufb01le", "FILE", "\ufb01le"},
		{"\u03c3", "\u03c2", "\u03c3"},
		{"\u2100", "a/c", ""},
		{"H2O.csv", "H\u2082O.csv", ""},
		{"m2", "m\u00b2", ""},
		{"\uff21", "A", ""},
		{"\uff21", "\uff41", "\uff21"},
		{"\u2126", "\u03c9", "\u2126"},
		{"\u2100", "\u2100/x", ""}, // one is a folder: who adds them has to see to that
		{"I", "\u0131", ""},        // the dotless i is another letter
		{"\xff", "\xfe", ""},
	} {
		var s Set
		if twin, ok := s.Add(c.first); !ok {
			t.Errorf("%q is a twin of %q in an empty set", c.first, twin)
		}
		if twin, ok := s.Add(c.second); ok != (c.twin == "") || twin != c.twin {
			t.Errorf("%q after %q: %q, %t, want %q", c.second, c.first, twin, ok, c.twin)
		}
	}
}

// A name that was not added leaves nothing behind.
func TestAddNothingOfATwin(t *testing.T) {
	var s Set
	s.Add("a/x")
	if _, ok := s.Add("b/A"); !ok {
		t.Error("b/A has no twin")
	}
	if _, ok := s.Add("c/d/../A/X"); !ok {
		t.Error("parts are compared with those of the same folder alone")
	}
	if twin, ok := s.Add("A/new"); ok || twin != "a" {
		t.Errorf("A/new: %q, %t", twin, ok)
	}
	if twin, ok := s.Add("a/NEW"); !ok {
		t.Errorf("a/NEW is a twin of %q, which was not added", twin)
	}
}

// What is added is a twin of itself in another case, and never of itself.
func FuzzAdd(f *testing.F) {
	for _, s := range []string{"a", "A/b", "\u2100/\u00df", "\xff", strings.Repeat("\ufdfa", 80), "/", "\u0345\u0301"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if len(name) > 2048 {
			t.Skip("longer than a name")
		}
		var s Set
		if twin, ok := s.Add(name); !ok {
			t.Skipf("its own parts are twins: %q", twin)
		}
		if twin, ok := s.Add(name); !ok {
			t.Errorf("%q is a twin of %q", name, twin)
		}
		upper := strings.ToUpper(name)
		if twin, ok := s.Add(upper); ok && upper != name && len(name) < 128 && isASCII(name) {
			t.Errorf("%q is no twin of %q (%q)", upper, name, twin)
		}
	})
}

func isASCII(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return r > '~' }) < 0
}

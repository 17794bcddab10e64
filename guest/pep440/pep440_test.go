package pep440

import (
	"cmp"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
)

// packaging is testdata/packaging.json; see README there.
type packaging struct {
	Normal   map[string]*string
	Order    map[string]int
	Contains map[string][]string
}

func readPackaging(t *testing.T) packaging {
	t.Helper()
	b, err := os.ReadFile("testdata/packaging.json")
	if err != nil {
		t.Fatal(err)
	}
	var p packaging
	if err := json.Unmarshal(b, &p); err != nil {
		t.Fatal(err)
	}
	if len(p.Normal) < 50 || len(p.Order) < 50 || len(p.Contains) < 150 {
		t.Fatalf("testdata holds %d versions, %d ranks and %d conditions", len(p.Normal), len(p.Order), len(p.Contains))
	}
	return p
}

func TestNormalFormIsPackagings(t *testing.T) {
	for in, want := range readPackaging(t).Normal {
		v, err := Parse(in)
		switch {
		case want == nil && err == nil:
			t.Errorf("%q was read as %s", in, v)
		case want == nil && !errors.Is(err, ErrSyntax):
			t.Errorf("%q: %v", in, err)
		case want != nil && (err != nil || v.String() != *want):
			t.Errorf("%q: %s, %v, want %s", in, v, err, *want)
		}
	}
}

func TestOrderIsPackagings(t *testing.T) {
	order := readPackaging(t).Order
	for a, ra := range order {
		for b, rb := range order {
			if got, want := mustParse(t, a).Compare(mustParse(t, b)), cmp.Compare(ra, rb); cmp.Compare(got, 0) != want {
				t.Errorf("%s against %s: %d, want %d", a, b, got, want)
			}
		}
	}
}

func TestContainsIsPackagings(t *testing.T) {
	p := readPackaging(t)
	for text, in := range p.Contains {
		s, err := ParseSpecifiers(text)
		if in == nil {
			if !errors.Is(err, ErrSyntax) {
				t.Errorf("%q was read: %v", text, err)
			}
			continue
		}
		if err != nil {
			t.Error(err)
			continue
		}
		for v := range p.Order {
			if got, want := s.Contains(mustParse(t, v)), slices.Contains(in, v); got != want {
				t.Errorf("%q contains %s: %v, want %v", text, v, got, want)
			}
		}
	}
}

func TestExact(t *testing.T) {
	for in, want := range map[string]string{
		"==1.0": "1.0", "== 1.0+cpu": "1.0+cpu", "===1.0a1": "1.0a1", "==v1.0.post1": "1.0.post1",
		"==1.*": "", ">=1": "", "": "", "==1,==1": "", "===not-a-version": "", "~=1.0": "",
	} {
		s, err := ParseSpecifiers(in)
		if err != nil {
			t.Fatal(err)
		}
		v, ok := s.Exact()
		if ok != (want != "") || ok && v.String() != want {
			t.Errorf("%q: %s, %v, want %q", in, v, ok, want)
		}
	}
}

func TestBounds(t *testing.T) {
	for _, s := range []string{
		"1" + strings.Repeat(".1", 200), // long
		"99999999999999999999",          // above 64 bits
		"1!" + strings.Repeat("9", 30),
		"1.0+" + strings.Repeat("9", 30),
	} {
		if v, err := Parse(s); !errors.Is(err, ErrSyntax) {
			t.Errorf("%.30s was read as %s", s, v)
		}
	}
	many := strings.Repeat("!=1.5,", maxSpecifiers+1)
	if _, err := ParseSpecifiers(many); !errors.Is(err, ErrSyntax) {
		t.Errorf("%d conditions: %v", maxSpecifiers+1, err)
	}
	if _, err := ParseSpecifiers(many[len("!=1.5,"):]); err != nil {
		t.Errorf("%d conditions: %v", maxSpecifiers, err)
	}
	if _, err := ParseSpecifiers(strings.Repeat(" ", maxSpecifiersBytes+1)); !errors.Is(err, ErrSyntax) {
		t.Errorf("long: %v", err)
	}
}

func mustParse(t *testing.T, s string) Version {
	t.Helper()
	v, err := Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func FuzzVersion(f *testing.F) {
	for _, s := range []string{"1.0", "1!2.0rc1.post2.dev3+ubuntu-1", "v1.0-1", "1.0.ALPHA", "", "1..0"} {
		f.Add(s, "1.0")
	}
	f.Fuzz(func(t *testing.T, s, u string) {
		v, err := Parse(s)
		if err != nil {
			return
		}
		again, err := Parse(v.String())
		if err != nil || again.String() != v.String() || again.Compare(v) != 0 {
			t.Fatalf("%q: normal form %q: %v, %v", s, v, again, err)
		}
		if w, err := Parse(u); err == nil && v.Compare(w) != -w.Compare(v) {
			t.Fatalf("%q and %q: no order", s, u)
		}
	})
}

func FuzzSpecifiers(f *testing.F) {
	for _, s := range []string{">=1.0,<2", "==1.2.*", "~=1.4.5a4", "===x", "!=1!2.*, >1.0.post1"} {
		f.Add(s, "1.4.6")
	}
	f.Fuzz(func(t *testing.T, text, version string) {
		s, err := ParseSpecifiers(text)
		if err != nil {
			return
		}
		v, err := Parse(version)
		if err != nil {
			return
		}
		in := s.Contains(v)
		if exact, ok := s.Exact(); ok && exact.Compare(v) == 0 && strings.HasPrefix(s.String(), "==") && !strings.HasPrefix(s.String(), "===") && !in {
			t.Fatalf("%q does not contain %s", text, v)
		}
	})
}

// What Unicode folds to a letter of ASCII is none.
func TestVersionsAreASCII(t *testing.T) {
	for _, s := range []string{"1.0.po\u017ft1", "1.0+\u212a", "1.0+a\u017f", "\u0661.0", "1.0rev1\u017f"} {
		if v, err := Parse(s); !errors.Is(err, ErrSyntax) {
			t.Errorf("%q was read as %s, %v", s, v, err)
		}
	}
}

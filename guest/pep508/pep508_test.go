package pep508

import (
	"encoding/json"
	"errors"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// packaging is testdata/packaging.json; see README there.
type packaging struct {
	Env          map[string]string
	Markers      map[string]map[string]*bool
	Requirements map[string]*struct {
		Name, URL    string
		Extras, Spec []string
		Marker       bool
	}
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
	if len(p.Markers) < 60 || len(p.Requirements) < 30 {
		t.Fatalf("testdata holds %d markers and %d requirements", len(p.Markers), len(p.Requirements))
	}
	return p
}

// guest is the environment that testdata is about.
func guest() Environment {
	e := Guest("3.13.5", "x86_64")
	e.PlatformRelease, e.PlatformVersion = "6.12", "#1"
	return e
}

func TestGuestIsWhatThePackagingWasAskedFor(t *testing.T) {
	env := readPackaging(t).Env
	for name, get := range variables {
		if want, ok := env[name]; ok && get(guest()) != want {
			t.Errorf("%s is %q, want %q", name, get(guest()), want)
		}
	}
	if len(env) != 11 {
		t.Errorf("%d variables", len(env))
	}
}

func TestMarkersAreEvaluatedAsPackagingDoes(t *testing.T) {
	extras := map[string][]string{"none": nil, "socks": {"socks"}, "both": {"dev", "socks"}}
	for text, want := range readPackaging(t).Markers {
		m, err := ParseMarker(text)
		if want == nil {
			if !errors.Is(err, ErrSyntax) {
				t.Errorf("%s: read as %#v, %v", text, m.root, err)
			}
			continue
		}
		if err != nil {
			t.Error(err)
			continue
		}
		for name, verdict := range want {
			got, err := m.Eval(guest().With(extras[name]...))
			switch {
			case verdict == nil && !errors.Is(err, ErrSyntax):
				t.Errorf("%s with extras %v: %v, %v", text, extras[name], got, err)
			case verdict != nil && (err != nil || got != *verdict):
				t.Errorf("%s with extras %v: %v, %v, want %v", text, extras[name], got, err, *verdict)
			}
		}
	}
}

func TestRequirementsAreReadAsPackagingDoes(t *testing.T) {
	for text, want := range readPackaging(t).Requirements {
		r, err := ParseRequirement(text)
		if want == nil {
			if !errors.Is(err, ErrSyntax) {
				t.Errorf("%s: read as %+v, %v", text, r, err)
			}
			continue
		}
		if err != nil {
			t.Error(err)
			continue
		}
		spec := strings.FieldsFunc(strings.ReplaceAll(r.Specifiers.String(), " ", ""), func(c rune) bool { return c == ',' })
		slices.Sort(spec)
		if r.Name != want.Name || r.URL != want.URL || r.Marker.Empty() == want.Marker ||
			!slices.Equal(r.Extras, want.Extras) || !slices.Equal(spec, want.Spec) {
			t.Errorf("%s: %+v, want %+v", text, r, *want)
		}
	}
}

// These came after packaging 23: PEP 751's lists, and no order among texts.
func TestNewerMarkers(t *testing.T) {
	env := guest().With("Socks")
	env.Groups = []string{"test"}
	for text, want := range map[string]bool{
		`"socks" in extras`:                                  true,
		`"SOCKS" in extras`:                                  true,
		`"dev" in extras`:                                    false,
		`"dev" not in extras`:                                true,
		`'test' in dependency_groups`:                        true,
		`'docs' in dependency_groups or "socks" in extras`:   true,
		`'test' not in dependency_groups`:                    false,
		`sys_platform < "zzz"`:                               false,
		`sys_platform >= "linux"`:                            true,
		`python_full_version >= "3.13,!=3.13.5"`:             false,
		`python_full_version != "3.13.5,"`:                   true, // a text, since no version
		`python_version >= "3.8" and 'x' not in extras`:      true,
		`"linux" == sys_platform and 'posix' in os_name`:     true,
		`python_version >= "3.8"` + strings.Repeat(" ", 100): true,
	} {
		m, err := ParseMarker(text)
		if err != nil {
			t.Error(err)
			continue
		}
		if got, err := m.Eval(env); got != want || err != nil {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{`extras == "x"`, `"x" == extras`, `extras in "x"`, `dependency_groups`, `"x" in y`} {
		if _, err := ParseMarker(text); !errors.Is(err, ErrSyntax) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestUnknownMattersOnlyWhereItDecides(t *testing.T) {
	env := Guest("3.13.5", "aarch64")
	for text, want := range map[string]string{
		`platform_release >= "5"`:                                                    "unknown",
		`platform_release >= "5" and sys_platform == "win32"`:                        "false",
		`sys_platform == "win32" and platform_release >= "5"`:                        "false",
		`platform_version == "5" or sys_platform == "linux"`:                         "true",
		`platform_release >= "5" or sys_platform == "win32"`:                         "unknown",
		`platform_release >= "5" and sys_platform == "linux"`:                        "unknown",
		`(platform_release >= "5" or os_name == "nt") and platform_machine == "arm"`: "false",
	} {
		m, err := ParseMarker(text)
		if err != nil {
			t.Fatal(err)
		}
		got, err := m.Eval(env)
		said := "false"
		switch {
		case errors.Is(err, ErrUnknown):
			said = "unknown"
		case err != nil:
			said = err.Error()
		case got:
			said = "true"
		}
		if said != want {
			t.Errorf("%s: %s, want %s", text, said, want)
		}
	}
}

func TestEmptyMarkerApplies(t *testing.T) {
	if ok, err := (Marker{}).Eval(Environment{}); !ok || err != nil || !(Marker{}).Empty() {
		t.Error(ok, err)
	}
	if _, err := ParseMarker(""); !errors.Is(err, ErrSyntax) {
		t.Error(err)
	}
}

func TestBounds(t *testing.T) {
	nested := func(n int) string { return strings.Repeat("(", n) + `os_name == "nt"` + strings.Repeat(")", n) }
	if _, err := ParseMarker(nested(maxMarkerDepth)); err != nil {
		t.Error(err)
	}
	if _, err := ParseMarker(nested(maxMarkerDepth + 1)); !errors.Is(err, ErrSyntax) {
		t.Errorf("deep: %v", err)
	}
	if _, err := ParseMarker(strings.Repeat("(", maxMarkerBytes+1)); !errors.Is(err, ErrSyntax) {
		t.Errorf("long: %v", err)
	}
	if _, err := ParseRequirement("a" + strings.Repeat(" ", maxRequirementBytes) + ">1"); !errors.Is(err, ErrSyntax) {
		t.Errorf("long requirement: %v", err)
	}
	if _, err := ParseRequirement("a[" + strings.Repeat("b,", maxExtras) + "c]"); !errors.Is(err, ErrSyntax) {
		t.Errorf("many extras: %v", err)
	}
	if _, err := ParseRequirement("a\n>1"); !errors.Is(err, ErrSyntax) {
		t.Errorf("two lines: %v", err)
	}
	if ValidName(strings.Repeat("a", maxNameBytes+1)) || !ValidName(strings.Repeat("a", maxNameBytes)) {
		t.Error("length of names")
	}
}

func TestString(t *testing.T) {
	for in, want := range map[string]string{
		"Requests[Socks, a]>=2 ; os_name == 'nt'": "requests[a,socks]>=2",
		"pip @ https://example.org/x.whl":         "pip @ https://example.org/x.whl",
		"x":                                       "x",
	} {
		r, err := ParseRequirement(in)
		if err != nil || r.String() != want {
			t.Errorf("%s: %s, %v", in, r, err)
		}
	}
}

func FuzzMarker(f *testing.F) {
	for _, s := range []string{`python_version >= "3.8" and (os_name == 'nt' or "x" in extras)`, `extra == "a"`, `((`, `"`, `a not in b`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		m, err := ParseMarker(s)
		if err != nil {
			return
		}
		again, err := ParseMarker(m.String())
		if err != nil || !reflect.DeepEqual(again, m) {
			t.Fatalf("%q: %q, %v", s, again, err)
		}
		for _, env := range []Environment{{}, guest().With("a", "b")} {
			if ok, err := m.Eval(env); ok && err != nil {
				t.Fatalf("%q applies, and %v", s, err)
			}
		}
	})
}

func FuzzRequirement(f *testing.F) {
	for _, s := range []string{"a[b,c]>=1,<2 ; os_name == 'nt'", "a @ https://b/c ; extra == 'd'", "a (>1)", "a["} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := ParseRequirement(s)
		if err != nil {
			return
		}
		if !ValidName(r.Name) || NormalizeName(r.Name) != r.Name {
			t.Fatalf("%q: name %q", s, r.Name)
		}
		again, err := ParseRequirement(r.String())
		if err != nil || again.String() != r.String() {
			t.Fatalf("%q: %q, %v", s, again, err)
		}
	})
}

// Upper and lower case are those of ASCII, whatever Unicode folds to its letters.
func TestNamesAreASCII(t *testing.T) {
	for _, name := range []string{"\u017fix", "a\u017fb", "\u212aivy", "kiv\u212a", "\u0130x"} {
		if ValidName(name) {
			t.Errorf("%q is a name", name)
		}
		if _, err := ParseRequirement(name + "==1"); !errors.Is(err, ErrSyntax) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestErrorsShowNoAddress(t *testing.T) {
	for _, in := range []string{
		"x @ https://user:SECRET@e.example/x.whl foo", "https://user:SECRET@e.example/x.whl",
		"git+https://SECRET@e.example/x.git", "x https://SECRET@e.example", "x @ https://e.example/ ; SECRET://",
	} {
		if _, err := ParseRequirement(in); !errors.Is(err, ErrSyntax) || strings.Contains(err.Error(), "SECRET") {
			t.Errorf("%q: %v", in, err)
		}
	}
}

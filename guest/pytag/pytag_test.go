package pytag

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
)

// guest is the image of Debian trixie.
func guest(arch string) Target {
	return Target{Arch: arch, Python: "3.13", GlibcMajor: 2, GlibcMinor: 41}
}

func TestSupportedIsPips(t *testing.T) {
	for _, arch := range []string{"x86_64", "aarch64"} {
		b, err := os.ReadFile("testdata/cp313-glibc241-" + arch + ".txt")
		if err != nil {
			t.Fatal(err)
		}
		want := strings.Fields(string(b))
		var got []string
		for _, tag := range guest(arch).Supported() {
			got = append(got, tag.String())
		}
		if len(want) < 700 || !slices.Equal(got, want) {
			t.Errorf("%s: %d tags, want %d", arch, len(got), len(want))
			for i := range min(len(got), len(want)) {
				if got[i] != want[i] {
					t.Fatalf("tag %d is %s, want %s", i, got[i], want[i])
				}
			}
		}
	}
}

func TestSupportedWithoutAPythonWeKnow(t *testing.T) {
	for _, py := range []string{"", "2.7", "3", "3.x", "4.0", "3.1", "3.13.5", "3.1000000"} {
		if tags := (Target{Arch: "x86_64", Python: py, GlibcMajor: 2, GlibcMinor: 41}).Supported(); len(tags) != 0 {
			t.Errorf("%q: %d tags", py, len(tags))
		}
	}
}

func TestParse(t *testing.T) {
	for in, want := range map[string]Wheel{
		"numpy-2.1.2-cp313-cp313-manylinux_2_17_x86_64.manylinux2014_x86_64.whl": {Name: "numpy", Version: "2.1.2", Tags: []Tag{
			{"cp313", "cp313", "manylinux_2_17_x86_64"}, {"cp313", "cp313", "manylinux2014_x86_64"}}},
		"six-1.16.0-py2.py3-none-any.whl":            {Name: "six", Version: "1.16.0", Tags: []Tag{{"py2", "none", "any"}, {"py3", "none", "any"}}},
		"Foo_Bar.Baz-01.0-1abc-PY3-None-Any.whl":     {Name: "foo-bar-baz", Version: "1.0", Build: "1abc", Tags: []Tag{{"py3", "none", "any"}}},
		"torch-2.0.0+cpu.x-cp313-abi3-linux_arm.whl": {Name: "torch", Version: "2.0.0+cpu.x", Tags: []Tag{{"cp313", "abi3", "linux_arm"}}},
		"a-1.0_1-py3-none-any.whl":                   {Name: "a", Version: "1.0.post1", Tags: []Tag{{"py3", "none", "any"}}},
		"a-1!2.0-0-py3-none-any.whl":                 {Name: "a", Version: "1!2.0", Build: "0", Tags: []Tag{{"py3", "none", "any"}}},
	} {
		want.File = in
		got, err := Parse(in)
		if err != nil {
			t.Error(err)
			continue
		}
		if got.File != want.File || got.Name != want.Name || got.Version != want.Version || got.Build != want.Build || !slices.Equal(got.Tags, want.Tags) {
			t.Errorf("%s: %+v", in, got)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	many := strings.Repeat("a.", 30) + "a-" + strings.Repeat("b.", 30) + "b-" + strings.Repeat("c.", 30) + "c"
	for _, in := range []string{
		"", ".whl", "a.whl", "a-1.whl", "a-1-py3-none.whl", "a-1-py3-none-any.tar.gz", "a-1-py3-none-any.whl.x",
		"a-1-2-3-py3-none-any.whl", "-1-py3-none-any.whl", "a--py3-none-any.whl", "a-x-py3-none-any.whl",
		"a__b-1-py3-none-any.whl", "../a-1-py3-none-any.whl", "a/b-1-py3-none-any.whl", "a-1-py3-none-any\x00.whl",
		"a-1-build-py3-none-any.whl", "a-1-py3-none-.whl", "a-1-py3-none-a..b.whl", "a-1-py3-none-any/x.whl",
		"a- 1-py3-none-any.whl", "a-1 -py3-none-any.whl", "ä-1-py3-none-any.whl", "a\\b-1-py3-none-any.whl",
		"a-1-" + many + ".whl", "a-1-py3-none-" + strings.Repeat("a", 250) + ".whl", "_-1-py3-none-any.whl", "a.-1-py3-none-any.whl",
	} {
		if w, err := Parse(in); !errors.Is(err, ErrName) {
			t.Errorf("%.60q was read as %+v, %v", in, w, err)
		}
	}
}

// The names of strangers cost little, whatever they stand for.
func TestTagsAreFew(t *testing.T) {
	tags := func(prefix string, n int) string {
		var list []string
		for i := range n {
			list = append(list, prefix+string(rune('a'+i)))
		}
		return strings.Join(list, ".")
	}
	w, err := Parse("a-1-" + tags("c", 8) + "-" + tags("d", 8) + "-b_x86_64.whl")
	if err != nil || len(w.Tags) != 64 {
		t.Fatal(len(w.Tags), err)
	}
	if _, err := Parse("a-1-" + tags("c", 13) + "-" + tags("d", 5) + "-b_x86_64.whl"); !errors.Is(err, ErrName) {
		t.Error(err)
	}
	c := guest("x86_64").Chooser()
	if n := testing.AllocsPerRun(10, func() { c.Why(w) }); n > 200 {
		t.Errorf("%v allocations to say why a wheel does not fit", n)
	}
}

func TestBest(t *testing.T) {
	for name, c := range map[string]struct {
		wheels []string
		want   int // -1: none
	}{
		"own ABI before abi3 before pure": {[]string{"py3-none-any", "cp39-abi3-manylinux_2_17_x86_64", "cp313-cp313-linux_x86_64"}, 2},
		"newest glibc that fits":          {[]string{"cp313-cp313-manylinux2014_x86_64", "cp313-cp313-manylinux_2_28_x86_64", "cp313-cp313-manylinux_2_42_x86_64"}, 1},
		"newer abi3 first":                {[]string{"cp36-abi3-manylinux_2_17_x86_64", "cp311-abi3-manylinux_2_17_x86_64"}, 1},
		"compressed tags":                 {[]string{"py2.py3-none-any", "cp312.cp313-cp313-manylinux1_x86_64.win_amd64"}, 1},
		"higher build":                    {[]string{"9-py3-none-any", "10-py3-none-any", "py3-none-any"}, 1},
		"build with letters":              {[]string{"1-py3-none-any", "1b-py3-none-any", "1a-py3-none-any"}, 1},
		"first of equals":                 {[]string{"py3-none-any", "py3-none-any"}, 0},
		"musl":                            {[]string{"cp313-cp313-musllinux_1_2_x86_64"}, -1},
		"another processor":               {[]string{"cp313-cp313-manylinux_2_17_aarch64", "cp313-cp313-macosx_11_0_arm64"}, -1},
		"free threading":                  {[]string{"cp313-cp313t-manylinux_2_17_x86_64"}, -1},
		"older Python":                    {[]string{"cp312-cp312-manylinux_2_17_x86_64", "py2-none-any"}, -1},
		"newer abi3":                      {[]string{"cp314-abi3-manylinux_2_17_x86_64"}, -1},
		"newer glibc":                     {[]string{"cp313-cp313-manylinux_2_42_x86_64"}, -1},
		"nothing":                         {nil, -1},
	} {
		var wheels []Wheel
		for _, tail := range c.wheels {
			w, err := Parse("a-1-" + tail + ".whl")
			if err != nil {
				t.Fatal(err)
			}
			wheels = append(wheels, w)
		}
		i, ok := guest("x86_64").Best(wheels)
		if ok != (c.want >= 0) || ok && i != c.want {
			t.Errorf("%s: %d, %v", name, i, ok)
		}
	}
}

func TestWhy(t *testing.T) {
	for tail, want := range map[string]string{
		"py3-none-any":                        "",
		"cp313-cp313-macosx_11_0_arm64":       "for macOS",
		"cp313-cp313-win_amd64":               "for Windows",
		"cp313-cp313-musllinux_1_2_x86_64":    "for musl",
		"cp313-cp313-manylinux_2_17_aarch64":  "for another processor",
		"cp312-cp312-manylinux_2_17_x86_64":   "for another Python (cp312-cp312",
		"cp313-cp313t-manylinux2014_x86_64":   "for another Python (cp313-cp313t",
		"cp313-cp313-manylinux_2_42_x86_64":   "for another glibc (manylinux_2_42_x86_64; the image has 2.41)",
		"py2-none-any":                        "for another Python (py2-none",
		"cp313-cp313-ios_13_0_arm64_iphoneos": "for ios",
		"cp313-cp313-freebsd_14_x86_64":       "for freebsd_14_x86_64",
	} {
		w, err := Parse("a-1-" + tail + ".whl")
		if err != nil {
			t.Fatal(err)
		}
		if got := guest("x86_64").Why(w); !strings.HasPrefix(got, want) || (got == "") != (want == "") {
			t.Errorf("%s: %q, want %q", tail, got, want)
		}
	}
}

func TestExampleIsSupported(t *testing.T) {
	for _, arch := range []string{"x86_64", "aarch64"} {
		w, err := Parse("a-1-" + guest(arch).Example() + ".whl")
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := guest(arch).Best([]Wheel{w}); !ok {
			t.Error(w)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"numpy-2.1.2-cp313-cp313-manylinux_2_17_x86_64.manylinux2014_x86_64.whl", "a-1-1-py2.py3-none-any.whl", "a-1.0_1-py3-none-any.whl", "-.whl"} {
		f.Add(s)
	}
	target := guest("x86_64")
	f.Fuzz(func(t *testing.T, s string) {
		w, err := Parse(s)
		if err != nil {
			return
		}
		if w.File != s || w.Name == "" || w.Version == "" || len(w.Tags) == 0 || len(w.Tags) > maxTags {
			t.Fatalf("%q: %+v", s, w)
		}
		if strings.ContainsAny(s, "/\\\x00 \n") {
			t.Fatalf("%q can leave its folder", s)
		}
		if _, ok := target.Best([]Wheel{w}); ok != (target.Why(w) == "") {
			t.Fatalf("%q: usable %v, but %q", s, ok, target.Why(w))
		}
	})
}

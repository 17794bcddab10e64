package tree

import (
	"errors"
	"io/fs"
	"slices"
	"strings"
	"testing"
)

var plain = Attr{Mode: 0o644}

// newTree has a merged /usr and a link that is not declared.
func newTree(t testing.TB) *Tree {
	t.Helper()
	tr := New(Limits{Entries: 100, Bytes: 1000})
	for _, l := range []string{"bin", "lib"} {
		if err := tr.Alias(l, "usr/"+l); err != nil {
			t.Fatal(err)
		}
	}
	if err := tr.Mkdir("etc", Attr{Mode: 0o755}); err != nil {
		t.Fatal(err)
	}
	if err := tr.Symlink("opt", "etc", Attr{}); err != nil {
		t.Fatal(err)
	}
	return tr
}

func paths(tr *Tree) string {
	var out []string
	for _, n := range tr.Nodes() {
		out = append(out, n.Path)
	}
	return strings.Join(out, " ")
}

func TestCanonical(t *testing.T) {
	tr := newTree(t)
	if err := tr.WriteFile("bin/x", []byte("1"), plain); err != nil {
		t.Fatal(err)
	}
	if n := tr.Lookup("usr/bin/x"); n == nil || string(n.Data) != "1" {
		t.Fatal("bin/x did not land in usr/bin")
	}
	if err := tr.WriteFile("usr/bin/x", nil, plain); !errors.Is(err, ErrConflict) {
		t.Errorf("the same file by its other name: %v", err)
	}
	if err := tr.Mkdir("bin", Attr{Mode: 0o700}); err != nil || tr.Lookup("usr/bin").Mode != 0o755 {
		t.Errorf("a package's own bin folder: %v", err)
	}
	for p, want := range map[string]error{
		"opt/passwd": ErrLink, "bin/x/y": ErrConflict, "../x": ErrPath, "/x": ErrPath, "a/../b": ErrPath, "a//b": ErrPath,
		"": ErrPath, "a\nb": ErrPath, strings.Repeat("a", 256): ErrPath, strings.Repeat("a/", 3000) + "b": ErrPath,
	} {
		if err := tr.WriteFile(p, nil, plain); !errors.Is(err, want) {
			t.Errorf("write %.40q: %v, want %v", p, err, want)
		}
	}
}

func TestSymlinkTargets(t *testing.T) {
	tr := newTree(t)
	for target, ok := range map[string]bool{
		"../../etc": true, "../../../etc": false, "/etc": true, "x": true, "..": true, "../..": true, "../../..": false,
		"a/../../../..": false, "": false, "a\x00b": false, strings.Repeat("a", MaxTargetBytes+1): false,
	} {
		err := tr.Symlink("usr/lib/l", target, Attr{Mode: 0o4000})
		if ok != (err == nil) {
			t.Errorf("target %.40q: %v", target, err)
		}
		tr.Remove("usr/lib/l")
	}
}

func TestHardLinks(t *testing.T) {
	tr := newTree(t)
	if err := tr.WriteFile("etc/a", []byte("12345"), plain); err != nil {
		t.Fatal(err)
	}
	if err := tr.Link("etc/b", "etc/a"); err != nil || string(tr.Lookup("etc/b").Data) != "12345" || tr.Bytes() != 10 {
		t.Errorf("%v, %d bytes", err, tr.Bytes())
	}
	for _, old := range []string{"etc/none", "etc", "opt", "opt/a", "../x"} {
		if err := tr.Link("etc/c", old); err == nil {
			t.Errorf("a hard link to %q passed", old)
		}
	}
}

func TestModesLoseSetID(t *testing.T) {
	tr := newTree(t)
	if err := tr.WriteFile("etc/su", nil, Attr{Mode: fs.ModeSetuid | fs.ModeSetgid | fs.ModeDevice | 0o755}); err != nil {
		t.Fatal(err)
	}
	if m := tr.Lookup("etc/su").Mode; m != 0o755 {
		t.Errorf("mode %v", m)
	}
}

func TestLimits(t *testing.T) {
	tr := newTree(t)
	if err := tr.WriteFile("etc/big", make([]byte, 1001), plain); !errors.Is(err, ErrTooBig) {
		t.Errorf("%v, want ErrTooBig", err)
	}
	var err error
	for i := 0; err == nil && i < 200; i++ {
		err = tr.Mkdir("etc/"+strings.Repeat("d", i+1), Attr{})
	}
	if !errors.Is(err, ErrTooBig) || tr.Len() != 100 {
		t.Errorf("%v with %d entries", err, tr.Len())
	}
}

func TestResolve(t *testing.T) {
	tr := newTree(t)
	for l, target := range map[string]string{"etc/abs": "/bin/x", "etc/rel": "../bin/x", "etc/loop": "loop", "etc/gone": "nothing"} {
		if err := tr.Symlink(l, target, Attr{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := tr.WriteFile("bin/x", nil, plain); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{"/etc/abs", "etc/rel", "opt/abs", "/opt/../bin/x", "../../bin/./x"} {
		if n, _, err := tr.Resolve(p); err != nil || n.Path != "usr/bin/x" {
			t.Errorf("%s: %v", p, err)
		}
	}
	if _, _, err := tr.Resolve("etc/loop"); !errors.Is(err, ErrLink) {
		t.Errorf("loop: %v", err)
	}
	if _, _, err := tr.Resolve("bin/x/y"); !errors.Is(err, ErrNotFound) {
		t.Errorf("below a file: %v", err)
	}
	if got := tr.Dangling(); !slices.Equal(got, []string{"etc/gone -> nothing", "etc/loop -> loop"}) {
		t.Errorf("dangling: %q", got)
	}
}

func TestOrderAndRemove(t *testing.T) {
	tr := newTree(t)
	for _, p := range []string{"z", "a-b", "a/b", "a.c"} {
		if err := tr.WriteFile(p, []byte("x"), plain); err != nil {
			t.Fatal(err)
		}
	}
	if got := paths(tr); got != ". a a-b a.c a/b bin etc lib opt usr usr/bin usr/lib z" {
		t.Error(got)
	}
	tr.Remove("a")
	tr.Remove("absent")
	if got := paths(tr); got != ". a-b a.c bin etc lib opt usr usr/bin usr/lib z" || tr.Bytes() != 3 {
		t.Errorf("%s, %d bytes", got, tr.Bytes())
	}
}

// FuzzTree applies rubbish and holds the tree to what it promises.
func FuzzTree(f *testing.F) {
	f.Add("f bin/x\ns opt2 /etc\nf opt2/y\nl etc/z bin/x\nd a/b/c")
	f.Add("s a ..\ns a/b ../../..\nf a/b/c\nr usr\nf bin/q")
	f.Fuzz(func(t *testing.T, script string) {
		tr := newTree(t)
		for line := range strings.Lines(script) {
			op, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
			p, arg, _ := strings.Cut(rest, " ")
			switch op {
			case "f":
				_ = tr.WriteFile(p, []byte(arg), plain)
			case "d":
				_ = tr.Mkdir(p, plain)
			case "s":
				_ = tr.Symlink(p, arg, plain)
			case "l":
				_ = tr.Link(p, arg)
			}
			_, _, _ = tr.Resolve(p)
		}
		if tr.Len() > 100 || tr.Bytes() > 1000 {
			t.Fatalf("%d entries, %d bytes", tr.Len(), tr.Bytes())
		}
		for _, n := range tr.Nodes() {
			if CheckPath(n.Path) != nil {
				t.Fatalf("path %q", n.Path)
			}
			for dir := n.Path; strings.Contains(dir, "/"); {
				dir = dir[:strings.LastIndexByte(dir, '/')]
				if d := tr.Lookup(dir); d == nil || d.Kind != Dir {
					t.Fatalf("%q stands in %q, which is no directory", n.Path, dir)
				}
			}
		}
	})
}

func TestClone(t *testing.T) {
	a := New(Limits{Entries: 10, Bytes: 10})
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(a.Alias("bin", "usr/bin"))
	must(a.WriteFile("usr/bin/x", []byte("12345"), Attr{Mode: 0o755}))
	b := a.Clone()
	must(b.WriteFile("bin/y", []byte("12345"), Attr{})) // through the declared link
	if err := b.WriteFile("z", []byte("1"), Attr{}); !errors.Is(err, ErrTooBig) {
		t.Errorf("the limits were not copied: %v", err)
	}
	b.Lookup("usr/bin/x").Mode = 0
	b.Remove("bin")
	if a.Len() != 5 || a.Bytes() != 5 || a.Lookup("usr/bin/x").Mode != 0o755 || a.Lookup("usr/bin/y") != nil {
		t.Errorf("the original changed: %d entries, %d bytes", a.Len(), a.Bytes())
	}
	if p, err := a.Canonical("bin/x"); err != nil || p != "usr/bin/x" {
		t.Errorf("the declared link of the original: %q, %v", p, err)
	}
}

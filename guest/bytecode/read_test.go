package bytecode

import (
	"archive/tar"
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"maps"
	"strings"
	"testing"

	"github.com/pybox/pybox/guest/layout"
	"github.com/pybox/pybox/guest/tree"
)

// TestHeader: what importlib.util of Python 3.13 says of these sources.
func TestHeader(t *testing.T) {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	for source, want := range map[string]string{
		"":          "27ec6d312f93b814",
		"a":         "4edf51a8923be584",
		"X = 1\n":   "c15f7cf5890b43a0",
		"12345678":  "e0c23e34a5a68379",
		string(all): "58e329a361564cd3",
	} {
		if got := hex.EncodeToString(Header([]byte(source))); got != "f30d0d0a01000000"+want {
			t.Errorf("%.20q: %s, want ...%s", source, got, want)
		}
	}
}

func TestTarget(t *testing.T) {
	for source, want := range map[string]string{
		"usr/lib/python3.13/json/__init__.py": "usr/lib/python3.13/json/__pycache__/__init__.cpython-313.pyc",
		"usr/lib/python3.13/a.b.py":           "usr/lib/python3.13/__pycache__/a.b.cpython-313.pyc",
	} {
		if got := Target(source); got != want {
			t.Errorf("%s: %s, want %s", source, got, want)
		}
	}
}

// lib is a folder of sources.
const lib = "usr/lib/python3.13/"

var twoSources = map[string][]byte{lib + "a.py": []byte("A = 1\n"), lib + "p/b.py": []byte("B = 2\n")}

func pycOf(source string) []byte { return append(Header(twoSources[source]), "\xe3code"...) }

func TestWriteAndRead(t *testing.T) {
	code := map[string][]byte{}
	for p := range twoSources {
		code[p] = pycOf(p)
	}
	one, err := write(byTarget(code))
	if err != nil {
		t.Fatal(err)
	}
	two, err := write(byTarget(code))
	if err != nil || !bytes.Equal(one, two) {
		t.Errorf("equal code makes other archives, %v", err)
	}
	back, err := read(bytes.NewReader(one), twoSources)
	if err != nil || !maps.EqualFunc(back.code, code, bytes.Equal) || len(back.record) != 0 {
		t.Errorf("%+v, %v", back, err)
	}
	delete(code, lib+"a.py")
	part, err := write(byTarget(code))
	if err != nil {
		t.Fatal(err)
	}
	if back, err := read(bytes.NewReader(part), twoSources); err != nil || len(back.code) != 1 {
		t.Errorf("an archive of some sources: %+v, %v", back, err)
	}
	f := newFound()
	f.left[lib+"a.py"], f.code[lib+"p/b.py"] = true, pycOf(lib+"p/b.py")
	left, err := write(f.files())
	if err != nil {
		t.Fatal(err)
	}
	if back, err := read(bytes.NewReader(left), twoSources); err != nil || len(back.code) != 1 || !back.left[lib+"a.py"] || len(back.left) != 1 {
		t.Errorf("an archive that says what cannot be compiled: %+v, %v", back, err)
	}
}

// entry is one of a hand-made archive.
type entry struct {
	h    tar.Header
	body []byte
}

func file(name string, body []byte) entry {
	return entry{tar.Header{Typeflag: tar.TypeReg, Name: name}, body}
}

func archive(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		e.h.Size = int64(len(e.body))
		if err := w.WriteHeader(&e.h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(e.body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func hostile(t testing.TB) map[string][]byte {
	a, good := Target(lib+"a.py"), pycOf(lib+"a.py")
	with := func(at int, b byte) []byte {
		c := bytes.Clone(good)
		c[at] ^= b
		return c
	}
	kind := func(typ byte) entry { return entry{tar.Header{Typeflag: typ, Name: a, Linkname: "/etc/passwd"}, nil} }
	whole := archive(t, file(a, good))
	return map[string][]byte{
		"no archive":         []byte(strings.Repeat("nonsense", 100)),
		"cut off":            whole[:520],
		"other magic":        archive(t, file(a, with(0, 1))),
		"no carriage return": archive(t, file(a, with(2, 1))),
		"checked":            archive(t, file(a, with(4, 2))),
		"by time":            archive(t, file(a, with(4, 1))),
		"other source":       archive(t, file(a, with(8, 1))),
		"of the other":       archive(t, file(a, pycOf(lib+"p/b.py"))),
		"no code object":     archive(t, file(a, with(16, 1))),
		"header only":        archive(t, file(a, good[:16])),
		"twice":              archive(t, file(a, good), file(a, good)),
		"left and there":     archive(t, file(a, nil), file(a, good)),
		"left twice":         archive(t, file(a, nil), file(a, nil)),
		"source":             archive(t, file(lib+"a.py", good)),
		"no such source":     archive(t, file(Target(lib+"c.py"), good)),
		"beside":             archive(t, file(lib+"a.cpython-313.pyc", good)),
		"other tag":          archive(t, file(lib+"__pycache__/a.cpython-312.pyc", good)),
		"absolute":           archive(t, file("/"+a, good)),
		"dotted":             archive(t, file("./"+a, good)),
		"climbing":           archive(t, file("usr/lib/python3.13/x/../__pycache__/a.cpython-313.pyc", good)),
		"link":               archive(t, kind(tar.TypeSymlink)),
		"hard link":          archive(t, kind(tar.TypeLink)),
		"device":             archive(t, kind(tar.TypeChar)),
		"fifo":               archive(t, kind(tar.TypeFifo)),
		"folder":             archive(t, entry{tar.Header{Typeflag: tar.TypeDir, Name: lib}, nil}),
		"list twice":         archive(t, file(layout.Preread, nil), file(layout.Preread, nil)),
		"long list":          archive(t, file(layout.Preread, make([]byte, layout.MaxPrereadBytes+1))),
		"other seed":         archive(t, file(layout.Seeds+"/x", nil)),
		"other fonts":        archive(t, file(fontsDir+"/fontlist-v1.json/x", nil)),
		"climbing fonts":     archive(t, file(fontsDir+"/fontlist-v1/../../x.json", nil)),
		"global header": archive(t, entry{tar.Header{Typeflag: tar.TypeXGlobalHeader,
			PAXRecords: map[string]string{"path": a}}, nil}, file(a, good)),
	}
}

func TestReadRefuses(t *testing.T) {
	for name, b := range hostile(t) {
		if got, err := read(bytes.NewReader(b), twoSources); !errors.Is(err, ErrArchive) || got != nil {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

// TestBounded: a compiler cannot fill the memory.
func TestBounded(t *testing.T) {
	b := &bounded{left: 10}
	if _, err := b.Write(make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	if n, err := b.Write(make([]byte, 1)); !errors.Is(err, ErrArchive) || n != 0 || b.buf.Len() != 10 {
		t.Errorf("%d, %v", n, err)
	}
}

// zeros is an endless file.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// TestReadIsBounded: what claims to be large is refused before it is read.
func TestReadIsBounded(t *testing.T) {
	for _, size := range []int64{maxFileBytes + 1, 1 << 40} {
		var b bytes.Buffer
		h := &tar.Header{Typeflag: tar.TypeReg, Name: Target(lib + "a.py"), Size: size, Format: tar.FormatPAX}
		if err := tar.NewWriter(&b).WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		counted := &counter{r: io.MultiReader(&b, zeros{})}
		if _, err := read(counted, twoSources); !errors.Is(err, ErrArchive) || !strings.Contains(err.Error(), "too large") {
			t.Errorf("%d: %v", size, err)
		}
		if counted.n > 1<<20 {
			t.Errorf("%d bytes were read", counted.n)
		}
	}
}

type counter struct {
	r io.Reader
	n int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

// FuzzRead: whatever comes from the guest, only byte code of the sources gets in.
func FuzzRead(f *testing.F) {
	for _, b := range hostile(f) {
		f.Add(b)
	}
	f.Add(archive(f, file(layout.Preread, []byte(lib+"a.py\n")), file(fontsDir+"/fontlist-v390.json", []byte(`{"ttflist": [2, 1]}`))))
	f.Add(archive(f, file(Target(lib+"a.py"), pycOf(lib+"a.py")), file(Target(lib+"p/b.py"), pycOf(lib+"p/b.py"))))
	f.Fuzz(func(t *testing.T, b []byte) {
		code, err := read(bytes.NewReader(b), twoSources)
		if err != nil {
			if !errors.Is(err, ErrArchive) || code != nil {
				t.Fatalf("%+v, %v", code, err)
			}
			return
		}
		for p, pyc := range code.code {
			if source, ok := twoSources[p]; !ok || check(pyc, source) != nil {
				t.Fatalf("%q got in as %s", pyc, p)
			}
		}
		img := tree.New(tree.DefaultLimits)
		for p, source := range twoSources {
			if err := img.WriteFile(p, source, tree.Attr{}); err != nil {
				t.Fatal(err)
			}
		}
		if err := addRecord(img, "amd64", code.record); err != nil && !errors.Is(err, ErrArchive) {
			t.Fatal(err)
		}
		if n := img.Lookup(layout.Preread); n != nil {
			for p := range strings.Lines(string(n.Data)) {
				if _, ok := twoSources[strings.TrimSuffix(p, "\n")]; !ok {
					t.Fatalf("%q is to be read", p)
				}
			}
		}
	})
}

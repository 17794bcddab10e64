package deb

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"github.com/pybox/pybox/guest/internal/guesttest"
	"github.com/pybox/pybox/guest/tree"
)

func reg(name string) tar.Header { return tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644} }

func hello(suffix string) guesttest.Package {
	return guesttest.Package{Name: "hello", Version: "1:2-3", Arch: "amd64", Suffix: suffix,
		Entries: []tar.Header{
			{Name: "./", Typeflag: tar.TypeDir, Mode: 0o755},
			{Name: "./usr/", Typeflag: tar.TypeDir, Mode: 0o755},
			{Name: "./usr/su", Typeflag: tar.TypeReg, Mode: 0o6755, Uid: 1, Gid: 2},
			{Name: "./usr/" + strings.Repeat("n", 200), Typeflag: tar.TypeReg, Mode: 0o1644},
			{Name: "./usr/link", Typeflag: tar.TypeSymlink, Linkname: "../usr/su"},
			{Name: "./usr/hard", Typeflag: tar.TypeLink, Linkname: "./usr/su", Mode: 0o755},
		},
		Body: map[string][]byte{"./usr/su": []byte("body")}}
}

func read(b []byte, l Limits) (Info, []Entry, []string, error) {
	var entries []Entry
	var bodies []string
	info, err := Read(bytes.NewReader(b), l, func(e *Entry) error {
		body, err := io.ReadAll(e.Body)
		entries, bodies = append(entries, *e), append(bodies, string(body))
		return err
	})
	return info, entries, bodies, err
}

func TestRead(t *testing.T) {
	for _, suffix := range []string{"", ".gz", ".xz", ".zst"} {
		info, es, bodies, err := read(guesttest.Deb(t, hello(suffix)), DefaultLimits)
		if err != nil {
			t.Fatalf("%q: %v", suffix, err)
		}
		if info != (Info{"hello", "1:2-3", "amd64"}) || len(es) != 6 {
			t.Fatalf("%q: %+v, %d entries", suffix, info, len(es))
		}
		su := es[2]
		if su.Path != "usr/su" || su.Type != File || su.Mode != 0o755 || su.UID != 1 || su.GID != 2 || bodies[2] != "body" {
			t.Errorf("%q: %+v %q", suffix, su, bodies[2])
		}
		if es[0].Path != "." || es[3].Mode != 0o644 || es[4].Target != "../usr/su" || es[5].Type != Link || es[5].Target != "usr/su" {
			t.Errorf("%q: %+v", suffix, es)
		}
	}
}

func TestRefuses(t *testing.T) {
	one := func(h ...tar.Header) []byte {
		return guesttest.Deb(t, guesttest.Package{Name: "p", Version: "1", Arch: "all", Suffix: ".gz", Entries: h,
			Body: map[string][]byte{"./f": []byte("x"), "f": []byte("x")}})
	}
	typed := func(typ byte) []byte { return one(tar.Header{Name: "./d", Typeflag: typ, Devmajor: 1, Devminor: 3}) }
	long := strings.Repeat("d/", 2500) + "f"
	for name, c := range map[string]struct {
		b    []byte
		want error
	}{
		"traversal":          {one(reg("./../etc/passwd")), ErrRefused},
		"traversal inside":   {one(reg("./usr/../../etc/passwd")), ErrRefused},
		"dot dot":            {one(tar.Header{Name: "../", Typeflag: tar.TypeDir}), ErrRefused},
		"absolute":           {one(reg("/etc/passwd")), ErrRefused},
		"unclean":            {one(reg("./usr//x")), ErrRefused},
		"empty":              {one(reg("")), ErrRefused},
		"control character":  {one(reg("./a\x1bb")), ErrRefused},
		"long name":          {one(reg("./" + strings.Repeat("x", 256))), ErrRefused},
		"long path":          {one(reg("./" + long)), ErrRefused},
		"root is a file":     {one(reg(".")), ErrRefused},
		"character device":   {typed(tar.TypeChar), ErrRefused},
		"block device":       {typed(tar.TypeBlock), ErrRefused},
		"FIFO":               {typed(tar.TypeFifo), ErrRefused},
		"duplicate":          {one(reg("./f"), reg("./f")), ErrRefused},
		"duplicate spelling": {one(reg("./f"), reg("f")), ErrRefused},
		"link to outside":    {one(tar.Header{Name: "./l", Typeflag: tar.TypeLink, Linkname: "../../etc/shadow"}), ErrRefused},
		"link to absolute":   {one(tar.Header{Name: "./l", Typeflag: tar.TypeLink, Linkname: "/etc/shadow"}), ErrRefused},
		"link to nothing":    {one(tar.Header{Name: "./l", Typeflag: tar.TypeLink, Linkname: "./f"}), ErrRefused},
		"link to a link": {one(tar.Header{Name: "./s", Typeflag: tar.TypeSymlink, Linkname: "/etc"},
			tar.Header{Name: "./l", Typeflag: tar.TypeLink, Linkname: "./s"}), ErrRefused},
		"link to itself": {one(tar.Header{Name: "./l", Typeflag: tar.TypeLink, Linkname: "./l"}), ErrRefused},
		"owner":          {one(tar.Header{Name: "./f", Typeflag: tar.TypeReg, Uid: 1 << 20}), ErrRefused},
	} {
		if _, _, _, err := read(c.b, DefaultLimits); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

func TestMalformed(t *testing.T) {
	good := guesttest.Deb(t, hello(".xz"))
	v := guesttest.Member{Name: "debian-binary", Body: []byte("2.0\n")}
	control := guesttest.Member{Name: "control.tar", Body: guesttest.Tar(t, []tar.Header{reg("./control")},
		map[string][]byte{"./control": []byte("Package: p\nVersion: 1\n")})}
	data := guesttest.Member{Name: "data.tar", Body: guesttest.Tar(t, nil, nil)}
	noControl := guesttest.Member{Name: "control.tar", Body: data.Body}
	empty := guesttest.Member{Name: "control.tar", Body: guesttest.Tar(t, []tar.Header{reg("./control")}, nil)}
	header := func(size string) []byte {
		return fmt.Appendf(nil, "!<arch>\n%-16s%-12d%-6d%-6d%-8s%-10s`\n", "debian-binary", 0, 0, 0, "100644", size)
	}
	if _, _, _, err := read(guesttest.Ar(v, control, data), DefaultLimits); err != nil {
		t.Fatal(err)
	}
	many := []guesttest.Member{v, control, data}
	for range 20 {
		many = append(many, guesttest.Member{Name: "extra"})
	}
	for name, c := range map[string]struct {
		b    []byte
		want error
	}{
		"empty":           {nil, ErrFormat},
		"page":            {[]byte("<html>not found</html>"), ErrFormat},
		"magic only":      {[]byte("!<arch>\n"), ErrFormat},
		"no version":      {guesttest.Ar(control, data), ErrFormat},
		"version 3":       {guesttest.Ar(guesttest.Member{Name: "debian-binary", Body: []byte("3.0\n")}, control, data), ErrFormat},
		"no data":         {guesttest.Ar(v, control), ErrFormat},
		"order":           {guesttest.Ar(v, data, control), ErrFormat},
		"no control":      {guesttest.Ar(v, noControl, data), ErrFormat},
		"empty control":   {guesttest.Ar(v, empty, data), ErrFormat},
		"extra member":    {guesttest.Ar(many...), ErrFormat},
		"lzma":            {guesttest.Ar(v, control, guesttest.Member{Name: "data.tar.lzma"}), ErrFormat},
		"no xz":           {guesttest.Ar(v, control, guesttest.Member{Name: "data.tar.xz", Body: []byte("nothing")}), ErrFormat},
		"no zstd":         {guesttest.Ar(v, control, guesttest.Member{Name: "data.tar.zst", Body: []byte("nothing")}), ErrFormat},
		"no gzip":         {guesttest.Ar(v, control, guesttest.Member{Name: "data.tar.gz", Body: []byte("nothing")}), ErrFormat},
		"no tar":          {guesttest.Ar(v, control, guesttest.Member{Name: "data.tar", Body: bytes.Repeat([]byte("x"), 1024)}), ErrFormat},
		"negative size":   {header("-1"), ErrFormat},
		"size no number":  {header("0x10"), ErrFormat},
		"size overflow":   {header("9999999999"), ErrTooBig},
		"size beyond end": {header("10"), ErrFormat},
		"member name":     {guesttest.Ar(guesttest.Member{Name: "../x"}), ErrFormat},
	} {
		if _, _, _, err := read(c.b, DefaultLimits); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	for _, n := range []int{9, 70, 100, 200, len(good) / 2, len(good) - 20} {
		if _, _, _, err := read(good[:n], DefaultLimits); !errors.Is(err, ErrFormat) {
			t.Errorf("cut after %d of %d bytes: %v, want ErrFormat", n, len(good), err)
		}
	}
}

// TestBombs: a few kilobytes that unpack to more than is allowed.
func TestBombs(t *testing.T) {
	l := Limits{Bytes: 256 << 10, File: 128 << 10, Entries: 10}
	zeros := make([]byte, maxControlBytes+1)
	bomb := func(suffix string, files int, each int) []byte {
		p := guesttest.Package{Name: "p", Version: "1", Arch: "all", Suffix: suffix, Body: map[string][]byte{}}
		for i := range files {
			n := fmt.Sprintf("./f%d", i)
			p.Entries, p.Body[n] = append(p.Entries, reg(n)), zeros[:each]
		}
		return guesttest.Deb(t, p)
	}
	for _, suffix := range []string{".xz", ".zst", ".gz"} {
		for name, b := range map[string][]byte{
			"big file":   bomb(suffix, 1, 4<<20),
			"many files": bomb(suffix, 5, 100<<10),
			"entries":    bomb(suffix, 11, 0),
		} {
			if _, _, _, err := read(b, l); !errors.Is(err, ErrTooBig) {
				t.Errorf("%s %s of %d bytes: %v, want ErrTooBig", suffix, name, len(b), err)
			}
		}
	}
	control := guesttest.Compress(t, guesttest.Tar(t, []tar.Header{reg("./x")}, map[string][]byte{"./x": zeros}), ".gz")
	b := guesttest.Ar(guesttest.Member{Name: "debian-binary", Body: []byte("2.0\n")}, guesttest.Member{Name: "control.tar.gz", Body: control})
	if _, _, _, err := read(b, l); !errors.Is(err, ErrTooBig) {
		t.Errorf("control tar: %v, want ErrTooBig", err)
	}
}

func TestXZDictionaryIsBounded(t *testing.T) {
	// The stream of an empty xz file whose block asks for a 4 GiB dictionary:
	// header, then a block header with LZMA2 property 40.
	b := guesttest.Compress(t, []byte("x"), ".xz")
	i := bytes.Index(b, []byte{0x21, 0x01})
	if i < 0 {
		t.Fatal("no LZMA2 filter in the header")
	}
	b = slices.Clone(b)
	b[i+2] = 40
	fixBlockCRC(b)
	r, _, err := decompress(bytes.NewReader(b), ".xz")
	if err == nil {
		_, err = io.ReadAll(r)
	}
	if err == nil || !strings.Contains(err.Error(), "memory") && !strings.Contains(err.Error(), "dict") {
		t.Fatalf("%v, want a refusal for the dictionary's size", err)
	}
}

func TestCallersErrorEndsIt(t *testing.T) {
	stop := errors.New("stop")
	if _, err := Read(bytes.NewReader(guesttest.Deb(t, hello(".gz"))), DefaultLimits, func(*Entry) error { return stop }); !errors.Is(err, stop) {
		t.Fatal(err)
	}
}

// checkEntries holds what Read promises of every entry that it lets through.
func checkEntries(t *testing.T, b []byte) {
	total := int64(0)
	l := Limits{Bytes: 1 << 20, File: 1 << 18, Entries: 50}
	_, err := Read(bytes.NewReader(b), l, func(e *Entry) error {
		if err := tree.CheckPath(e.Path); err != nil || strings.HasPrefix(e.Path, "/") || strings.Contains("/"+e.Path+"/", "/../") {
			t.Fatalf("path %q", e.Path)
		}
		if e.Mode&^fs.ModePerm != 0 || e.Type < Dir || e.Type > Link {
			t.Fatalf("%+v", e)
		}
		n, err := io.Copy(io.Discard, e.Body)
		if total += n; total > l.Bytes || n > l.File {
			t.Fatalf("%d bytes", total)
		}
		return err
	})
	if err != nil && !errors.Is(err, ErrFormat) && !errors.Is(err, ErrRefused) && !errors.Is(err, ErrTooBig) {
		t.Fatalf("error of no kind: %v", err)
	}
}

func FuzzDeb(f *testing.F) {
	for _, s := range []string{"", ".gz", ".xz", ".zst"} {
		f.Add(guesttest.Deb(f, hello(s)))
	}
	f.Fuzz(checkEntries)
}

func FuzzAr(f *testing.F) {
	f.Add(guesttest.Ar(guesttest.Member{Name: "a", Body: []byte("1")}, guesttest.Member{Name: "b/", Body: []byte("22")}))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := newArReader(bytes.NewReader(b))
		for n := 0; err == nil; n++ {
			var m *arMember
			if m, err = a.next(); err == nil && (n >= arMaxMembers || m.size < 0 || m.name == "") {
				t.Fatalf("member %d: %+v", n, m)
			}
		}
		if err != io.EOF && !errors.Is(err, ErrFormat) && !errors.Is(err, ErrTooBig) {
			t.Fatal(err)
		}
	})
}

func FuzzTarEntries(f *testing.F) {
	h := hello("")
	f.Add(guesttest.Tar(f, h.Entries, h.Body))
	f.Fuzz(func(t *testing.T, b []byte) {
		control := guesttest.Tar(t, []tar.Header{reg("./control")}, map[string][]byte{"./control": []byte("Package: p\nVersion: 1\n")})
		checkEntries(t, guesttest.Ar(guesttest.Member{Name: "debian-binary", Body: []byte("2.0\n")},
			guesttest.Member{Name: "control.tar", Body: control}, guesttest.Member{Name: "data.tar", Body: b}))
	})
}

// fixBlockCRC makes the CRC32 of an xz file's first block header right again
// (the .xz file format, 3.1: it follows the 12-byte stream header, its first
// byte is its size in words less one).
func fixBlockCRC(b []byte) {
	h := b[12:]
	n := (int(h[0]) + 1) * 4
	binary.LittleEndian.PutUint32(h[n-4:], crc32.ChecksumIEEE(h[:n-4]))
}

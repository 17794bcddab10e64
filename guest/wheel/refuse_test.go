package wheel_test

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pybox/pybox/guest/wheel"
	"github.com/pybox/pybox/guest/wheel/wheeltest"
)

// small is a good wheel to spoil.
func small() wheeltest.Wheel {
	return wheeltest.Wheel{Name: "small", Version: "1", Files: map[string]string{"small.py": "S = 1\n" + strings.Repeat("# text\n", 50)}}
}

const info = "small-1.dist-info/"

func file(name, text string) func(*wheeltest.Wheel) {
	return func(w *wheeltest.Wheel) { w.Files[name] = text }
}

func record(old, new string) func(*wheeltest.Wheel) {
	return func(w *wheeltest.Wheel) {
		w.Record = func(s string) string {
			if !strings.Contains(s, old) {
				panic("no " + old + " in " + s)
			}
			return strings.Replace(s, old, new, 1)
		}
	}
}

func header(change func(*zip.FileHeader)) func(*wheeltest.Wheel) {
	return func(w *wheeltest.Wheel) {
		w.Header = func(h *zip.FileHeader) {
			if h.Name == "small.py" {
				change(h)
			}
		}
	}
}

// spoiled are changes to small, and what is said about each.
var spoiled = map[string]struct {
	change func(*wheeltest.Wheel)
	says   string
}{
	"climbs":         {file("../x.py", ""), "invalid path"},
	"climbs inside":  {file("a/../../x.py", ""), "invalid path"},
	"absolute":       {file("/etc/x", ""), "invalid path"},
	"not clean":      {file("a//b", ""), "invalid path"},
	"dot":            {file("./a", ""), "invalid path"},
	"dots":           {file("a/..", ""), "invalid path"},
	"backslash":      {file(`a\..\b`, ""), "backslash"},
	"drive":          {file("C:x", ""), "drive"},
	"NUL":            {file("a\x00b", ""), "control character"},
	"escape":         {file("a\x1b[2J", ""), "control character"},
	"C1":             {file("a\u009b2J", ""), "printable"},
	"not UTF-8":      {file("a\xff", ""), "encoding"},
	"long name":      {file(strings.Repeat("n", 256), ""), "256 bytes"},
	"two folders":    {file("other-2.dist-info/METADATA", ""), "two folders of metadata"},
	"file over":      {file("small.py/x", ""), "a file and a folder"},
	"normal forms":   {func(w *wheeltest.Wheel) { w.Files["\u00e9.py"], w.Files["e\u0301.py"] = "", "" }, "in it twice"},
	"other's data":   {file("other-1.data/data/x", ""), "of another wheel"},
	"no such scheme": {file("small-1.data/lib/x", ""), "no such kind"},
	"no scheme":      {file("small-1.data/x", ""), "no such kind"},
	"one place":      {file("small-1.data/purelib/small.py", ""), "two files for /usr/local/lib/python3.13/dist-packages/small.py"},
	"over a script": {func(w *wheeltest.Wheel) {
		w.EntryPoints, w.Files["small-1.data/data/bin/run"] = "[console_scripts]\nrun=small:x", ""
	}, "two files for /usr/local/bin/run"},
	"cache file":        {file("small/__pycache__", "x"), "the folder of byte code"},
	"cache file, again": {file("small-1.data/data/lib/python3.13/dist-packages/__pycache__", "x"), "the folder of byte code"},
	"second name":       {header(func(h *zip.FileHeader) { h.Extra = []byte{1, 0x99, 1, 0, 'x', 0x75, 0x70, 1, 0, 'x'} }), "a second name"},
	"long fields": {func(w *wheeltest.Wheel) {
		w.Files[info+"METADATA"] = "Metadata-Version: 2.1\nName: small\nVersion: 1\nLicense: " + strings.Repeat("x", 1<<20) + "\n"
	}, "too long"},
	"long points": {func(w *wheeltest.Wheel) { w.EntryPoints = strings.Repeat("#", 1<<20+1) }, "entry_points.txt is too long"},
	"installer's": {file("small-1.data/data/lib/python3.13/dist-packages/small-1.dist-info/RECORD", ""), "the installer's to write"},

	"symlink":     {header(func(h *zip.FileHeader) { h.SetMode(fs.ModeSymlink | 0o777) }), "a link or a special file"},
	"device":      {header(func(h *zip.FileHeader) { h.SetMode(fs.ModeDevice | 0o600) }), "a link or a special file"},
	"fifo by DOS": {header(func(h *zip.FileHeader) { h.CreatorVersion, h.ExternalAttrs = 0, 0o010644<<16 }), "a link or a special file"},
	"folder":      {header(func(h *zip.FileHeader) { h.SetMode(fs.ModeDir | 0o755) }), "a folder and a file"},
	"encrypted":   {header(func(h *zip.FileHeader) { h.Flags |= 1 }), "encrypted"},
	"masked":      {header(func(h *zip.FileHeader) { h.Flags |= 1 << 13 }), "encrypted"},
	"patch":       {header(func(h *zip.FileHeader) { h.Flags |= 1 << 5 }), "compressed in a way"},

	"no RECORD": {file(info+"RECORD", ""), "no RECORD"},
	"unlisted":  {record("small.py,", "smalls.py,"), `"small.py" is not in its RECORD`},
	"not there": {func(w *wheeltest.Wheel) {
		w.Record = func(s string) string { return s + "gone.py,sha256=" + strings.Repeat("A", 43) + ",1\n" }
	}, `lists "gone.py", which is not in it`},
	"other hash":      {record("small.py,sha256=", "small.py,sha256=AAAA"), "malformed"},
	"other content":   {file(info+"RECORD", wheeltest.Record(map[string]string{"small.py": "x", info + "METADATA": "", info + "WHEEL": ""}, info+"RECORD")), "by RECORD"},
	"other size":      {record(",356\n", ",355\n"), "356 bytes, and 355 by RECORD"},
	"negative size":   {record(",356\n", ",-1\n"), "with the size"},
	"md5":             {record("small.py,sha256=", "small.py,md5="), "not with sha256"},
	"sha1":            {record("small.py,sha256=", "small.py,sha1="), "not with sha256"},
	"no hash":         {record(info+"WHEEL,sha256=", info+"WHEEL,=="), "not with sha256"},
	"listed twice":    {func(w *wheeltest.Wheel) { w.Record = func(s string) string { return s + s } }, "twice"},
	"no CSV":          {record("small.py", `"small.py`), "its RECORD"},
	"two columns":     {func(w *wheeltest.Wheel) { w.Record = func(s string) string { return s + "a,b\n" } }, "its RECORD"},
	"climbing RECORD": {func(w *wheeltest.Wheel) { w.Record = func(s string) string { return s + "../a,sha256=x,1\n" } }, "invalid path"},

	"no METADATA":      {file(info+"METADATA", ""), "no METADATA"},
	"other project":    {file(info+"METADATA", "Metadata-Version: 2.1\nName: other\nVersion: 1\n"), "says that it is other 1"},
	"other version":    {file(info+"METADATA", "Metadata-Version: 2.1\nName: small\nVersion: 2\n"), "says that it is small 2"},
	"new metadata":     {file(info+"METADATA", "Metadata-Version: 3.0\nName: small\nVersion: 1\n"), "knows those up to 2.x"},
	"no WHEEL":         {file(info+"WHEEL", ""), "no WHEEL"},
	"new wheel":        {file(info+"WHEEL", "Wheel-Version: 2.0\nRoot-Is-Purelib: true\n"), "knows those up to 1.x"},
	"no wheel version": {file(info+"WHEEL", "Root-Is-Purelib: true\n"), "Wheel-Version"},
	"no root":          {file(info+"WHEEL", "Wheel-Version: 1.0\n"), "Root-Is-Purelib"},

	"no function":      {func(w *wheeltest.Wheel) { w.EntryPoints = "[console_scripts]\nrun = small\n" }, "names no function"},
	"code":             {func(w *wheeltest.Wheel) { w.EntryPoints = "[console_scripts]\nrun = small:x();import os\n" }, "names no function"},
	"no value":         {func(w *wheeltest.Wheel) { w.EntryPoints = "[gui_scripts]\nrun\n" }, "names no function"},
	"program climbs":   {func(w *wheeltest.Wheel) { w.EntryPoints = "[console_scripts]\n../run = small:x\n" }, "invalid path"},
	"program below":    {func(w *wheeltest.Wheel) { w.EntryPoints = "[console_scripts]\na/run = small:x\n" }, "no name of a program"},
	"program twice":    {func(w *wheeltest.Wheel) { w.EntryPoints = "[console_scripts]\nrun = small:x\nrun = small:y\n" }, "twice"},
	"no name":          {func(w *wheeltest.Wheel) { w.EntryPoints = "[console_scripts]\n = small:x\n" }, "invalid path"},
	"points not UTF-8": {func(w *wheeltest.Wheel) { w.EntryPoints = "[console_scripts]\nrun = small:\xff\n" }, "not UTF-8"},
}

func TestRefuses(t *testing.T) {
	if _, err := read(t, small().File(), small().Bytes(t)); err != nil {
		t.Fatal(err)
	}
	for name, c := range spoiled {
		t.Run(name, func(t *testing.T) {
			w := small()
			c.change(&w)
			_, err := read(t, w.File(), w.Bytes(t))
			if !errors.Is(err, wheel.ErrWheel) || !strings.Contains(fmt.Sprint(err), c.says) {
				t.Errorf("%v, want %q", err, c.says)
			}
			if err != nil && (strings.ContainsAny(err.Error(), "\x00\x1b\n") || !strings.Contains(err.Error(), "small-1-py3-none-any.whl")) {
				t.Errorf("%q", err)
			}
		})
	}
}

// TestAccepts: what is unusual and good.
func TestAccepts(t *testing.T) {
	for name, change := range map[string]func(*wheeltest.Wheel){
		"nothing":          func(*wheeltest.Wheel) {},
		"folder entries":   file("pkg/", ""),
		"stored":           header(func(h *zip.FileHeader) { h.Method = zip.Store }),
		"no mode":          header(func(h *zip.FileHeader) { h.CreatorVersion, h.ExternalAttrs = 0, 0 }),
		"a comment":        header(func(h *zip.FileHeader) { h.Comment = "of a file" }),
		"no size":          record(",356\n", ",\n"),
		"padded hash":      record(",356\n", "=,356\n"),
		"signature":        file(info+"RECORD.jws", "{}"),
		"old metadata":     file(info+"METADATA", "Metadata-Version: 1.0\nName: Small\nVersion: 1.0\n"),
		"case twins":       func(w *wheeltest.Wheel) { w.Files["tz/Eire"], w.Files["tz/EIRE"] = "1", "2" },
		"other points":     func(w *wheeltest.Wheel) { w.EntryPoints = "nonsense\n[plugins]\n= = =\n" },
		"empty files":      file("pkg/__init__.py", ""),
		"colon, not first": file("a/b:c", ""),
	} {
		t.Run(name, func(t *testing.T) {
			w := small()
			change(&w)
			if _, err := read(t, w.File(), w.Bytes(t)); err != nil {
				t.Error(err)
			}
		})
	}
	if w := mustRead(t, wheeltest.Wheel{Name: "zope.interface_x", Version: "1.0+local.1"}); w.Metadata.Version != "1.0+local.1" {
		t.Errorf("%+v", w.Metadata)
	}
}

// sites of the bytes of an archive.
const (
	localSig, listSig, endSig = "PK\x03\x04", "PK\x01\x02", "PK\x05\x06"
)

var le = binary.LittleEndian

// list is where the list of members starts.
func list(b []byte) int { return int(le.Uint32(b[len(b)-22+16:])) }

// entry is where the entry of a name is in the list.
func entry(b []byte, name string) int {
	return bytes.LastIndex(b, []byte(name)) - 46
}

// insert puts something before the list and moves that.
func insert(b []byte, at int, what string) []byte {
	out := append(append(bytes.Clone(b[:at]), what...), b[at:]...)
	le.PutUint32(out[len(out)-22+16:], uint32(list(b)+len(what)))
	return out
}

// zip64 gives an archive the end of a large one.
func zip64(b []byte, change func(record, locator []byte)) []byte {
	end := len(b) - 22
	rec, loc := make([]byte, 56), make([]byte, 20)
	copy(rec, "PK\x06\x06")
	le.PutUint64(rec[4:], 44)
	n := uint64(le.Uint16(b[end+10:]))
	le.PutUint64(rec[24:], n)
	le.PutUint64(rec[32:], n)
	le.PutUint64(rec[40:], uint64(le.Uint32(b[end+12:])))
	le.PutUint64(rec[48:], uint64(list(b)))
	copy(loc, "PK\x06\x07")
	le.PutUint64(loc[8:], uint64(end))
	le.PutUint32(loc[16:], 1)
	change(rec, loc)
	tail := bytes.Clone(b[end:])
	le.PutUint16(tail[8:], 0xffff)
	le.PutUint16(tail[10:], 0xffff)
	le.PutUint32(tail[12:], 0xffffffff)
	le.PutUint32(tail[16:], 0xffffffff)
	return append(append(append(bytes.Clone(b[:end]), rec...), loc...), tail...)
}

// damaged are archives that are wrong in their structure.
func damaged(t testing.TB) map[string][]byte {
	good := small().Bytes(t)
	stored := small()
	stored.Header = func(h *zip.FileHeader) { h.Method = zip.Store }
	plain := stored.Bytes(t)
	patch := func(b []byte, at int, value ...byte) []byte {
		c := bytes.Clone(b)
		copy(c[at:], value)
		return c
	}
	py := entry(good, "small.py")
	meta := entry(good, info+"METADATA")
	out := map[string][]byte{
		"nothing":            nil,
		"no zip":             bytes.Repeat([]byte("nonsense"), 100),
		"empty archive":      []byte(endSig + strings.Repeat("\x00", 18)),
		"cut off":            good[:len(good)-1],
		"half":               good[:len(good)/2],
		"after the end":      append(bytes.Clone(good), 'x'),
		"archive after":      append(bytes.Clone(good), good...),
		"comment":            append(patch(good, len(good)-2, 1, 0), 'x'),
		"before the start":   append([]byte("#!/bin/sh\n"), good...),
		"before, moved":      insert(good, 0, "#!/bin/sh\n"),
		"gap":                insert(good, list(good), "between"),
		"garbage in list":    patch(insertList(good, "garbage"), len(good)+7-22+12, byte(len(good)-22-list(good)+7), 0, 0, 0),
		"count":              patch(good, len(good)-22+8, 9, 0, 9, 0),
		"disks":              patch(good, len(good)-22+4, 1),
		"other name inside":  patch(good, 30, 'S'),
		"other flags":        patch(good, 6, 0),
		"other method":       patch(good, 8, 0),
		"unknown method":     patch(patch(good, 8, 12), py+10, 12),
		"same place":         patch(good, py+42, good[meta+42:meta+46]...),
		"behind the end":     patch(good, py+42, 0xff, 0xff, 0xff, 0x7f),
		"wrong checksum":     patch(good, py+16, 1, 2, 3, 4),
		"no checksum":        patch(plain, entry(plain, "small.py")+16, 0, 0, 0, 0),
		"declares less":      patch(good, py+24, 10, 0, 0, 0),
		"declares more":      patch(good, py+24, 0xff, 0xff, 0, 0),
		"longer body":        patch(good, py+20, 0xff, 0xff, 0xff, 0),
		"stored, two sizes":  patch(plain, entry(plain, "small.py")+24, 1, 0, 0, 0),
		"bad deflate":        patch(good, 30+8, 0xff, 0xff, 0xff),
		"64: no record":      zip64(good, func(r, _ []byte) { r[0] = 'x' }),
		"64: no locator":     zip64(good, func(_, l []byte) { l[0] = 'x' }),
		"64: elsewhere":      zip64(good, func(_, l []byte) { l[8]++ }),
		"64: far away":       zip64(good, func(_, l []byte) { l[15] = 0x80 }),
		"64: long record":    zip64(good, func(r, _ []byte) { r[4]++ }),
		"64: many members":   zip64(good, func(r, _ []byte) { r[30], r[38] = 1, 1 }),
		"64: long list":      zip64(good, func(r, _ []byte) { r[46] = 1 }),
		"64: list elsewhere": zip64(good, func(r, _ []byte) { r[48]-- }),
		"64: far list":       zip64(good, func(r, _ []byte) { r[55] = 0xff }),
		"64: counts differ":  zip64(good, func(r, _ []byte) { r[24]-- }),
		"64: not asked for": func() []byte {
			b := zip64(good, func(_, _ []byte) {})
			copy(b[len(b)-22:], good[len(good)-22:])
			return b
		}(),
	}
	named := small()
	named.Header = func(h *zip.FileHeader) { h.Extra = []byte("\x76\x70\x01\x00x") }
	extra := named.Bytes(t)
	out["second name inside"] = patch(extra, bytes.Index(extra, []byte("\x76\x70\x01\x00x")), 0x75)
	out["extra behind the list"] = patch(good, bytes.LastIndex(good, []byte(localSig))+28, 0xff, 0x7f)
	out["twice"] = rawZip(t, "a.py", "a.py")
	return out
}

// insertList puts something at the end of the list.
func insertList(b []byte, what string) []byte {
	end := len(b) - 22
	return append(append(bytes.Clone(b[:end]), what...), b[end:]...)
}

// rawZip is an archive of empty files, whatever their names.
func rawZip(t testing.TB, names ...string) []byte {
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, n := range append(names, info+"RECORD") {
		if _, err := z.CreateRaw(&zip.FileHeader{Name: n}); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestRefusesDamaged(t *testing.T) {
	for name, b := range damaged(t) {
		t.Run(name, func(t *testing.T) {
			if _, err := read(t, small().File(), b); !errors.Is(err, wheel.ErrWheel) {
				t.Errorf("%v", err)
			} else {
				t.Log(err)
			}
		})
	}
}

// TestLargeArchive: the end of a large archive is read as well.
func TestLargeArchive(t *testing.T) {
	if _, err := read(t, small().File(), zip64(small().Bytes(t), func(_, _ []byte) {})); err != nil {
		t.Error(err)
	}
}

// TestDescriptors: the sizes of a member may stand before it, or after it in any of
// four forms.
func TestDescriptors(t *testing.T) {
	good := small().Bytes(t)
	py := entry(good, "small.py")
	start := 30 + len("small.py")
	body := int(le.Uint32(good[py+20:]))
	crc := good[py+16 : py+20]
	wide := func() []byte { // sizes of 8 bytes
		out := bytes.Clone(crc)
		out = le.AppendUint64(out, uint64(body))
		return le.AppendUint64(out, uint64(le.Uint32(good[py+24:])))
	}
	narrow := good[start+body+4 : start+body+16]
	for name, desc := range map[string][]byte{
		"signed":         append([]byte("PK\x07\x08"), narrow...),
		"unsigned":       narrow,
		"wide":           append([]byte("PK\x07\x08"), wide()...),
		"wide, unsigned": wide(),
	} {
		b := replaceDescriptor(good, start+body, desc)
		if _, err := read(t, small().File(), b); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := read(t, small().File(), replaceDescriptor(good, start+body, []byte("PK\x07\x08 no such thing"))); !errors.Is(err, wheel.ErrWheel) {
		t.Errorf("nonsense: %v", err)
	}
}

// replaceDescriptor replaces the 16 bytes at a place and moves what comes after them.
func replaceDescriptor(b []byte, at int, desc []byte) []byte {
	shift := len(desc) - 16
	out := append(append(bytes.Clone(b[:at]), desc...), b[at+16:]...)
	end := len(out) - 22
	start := list(b) + shift
	le.PutUint32(out[end+16:], uint32(start))
	for p := start; p < end; {
		if off := int(le.Uint32(out[p+42:])); off > at {
			le.PutUint32(out[p+42:], uint32(off+shift))
		}
		p += 46 + int(le.Uint16(out[p+28:])) + int(le.Uint16(out[p+30:])) + int(le.Uint16(out[p+32:]))
	}
	return out
}

// TestLimits: each bound holds to the byte, before anything is unpacked where the
// archive says so.
func TestLimits(t *testing.T) {
	w := small()
	b := w.Bytes(t)
	p := filepath.Join(t.TempDir(), "w")
	if err := os.WriteFile(p, b, 0o600); err != nil {
		t.Fatal(err)
	}
	_, digest := w.Write(t, t.TempDir())
	src := wheel.Source{Path: p, File: w.File(), SHA256: digest}
	z, err := zip.NewReader(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	exact := wheel.Limits{ArchiveBytes: int64(len(b)), Members: len(z.File)}
	for _, f := range z.File {
		exact.Bytes += int64(f.UncompressedSize64)
		exact.MemberBytes = max(exact.MemberBytes, int64(f.UncompressedSize64))
	}
	try := func(l wheel.Limits) error {
		got, err := wheel.Read(t.Context(), src, wheel.Options{TempDir: t.TempDir(), Limits: l})
		if err == nil {
			err = got.Close()
		}
		return err
	}
	if err := try(exact); err != nil {
		t.Fatal(err)
	}
	for name, less := range map[string]func(*wheel.Limits){
		"archive": func(l *wheel.Limits) { l.ArchiveBytes-- },
		"members": func(l *wheel.Limits) { l.Members-- },
		"member":  func(l *wheel.Limits) { l.MemberBytes-- },
		"all":     func(l *wheel.Limits) { l.Bytes-- },
	} {
		l := exact
		less(&l)
		if err := try(l); !errors.Is(err, wheel.ErrWheel) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestBomb: 8 MiB of zeros behind a declaration of 100 bytes end after 100.
func TestBomb(t *testing.T) {
	w := small()
	w.Files["zeros"] = strings.Repeat("\x00", 8<<20)
	w.Record = func(s string) string { return strings.Replace(s, fmt.Sprintf(",%d\n", 8<<20), ",\n", 1) }
	b := w.Bytes(t)
	if len(b) > 1<<20 {
		t.Fatalf("the bomb has %d bytes", len(b))
	}
	le.PutUint32(b[entry(b, "zeros")+24:], 100)
	if _, err := read(t, w.File(), b); !errors.Is(err, wheel.ErrWheel) || strings.Contains(err.Error(), "RECORD") {
		t.Errorf("%v", err)
	}
}

func TestOtherFailures(t *testing.T) {
	w := small()
	p, digest := w.Write(t, t.TempDir())
	src := wheel.Source{Path: p, File: w.File(), SHA256: digest}
	for name, c := range map[string]struct {
		change func(*wheel.Source)
		want   error
	}{
		"digest":    {func(s *wheel.Source) { s.SHA256 = strings.Repeat("0", 64) }, wheel.ErrWheel},
		"name":      {func(s *wheel.Source) { s.File = "small.zip" }, wheel.ErrWheel},
		"not there": {func(s *wheel.Source) { s.Path += "x" }, fs.ErrNotExist},
		"folder":    {func(s *wheel.Source) { s.Path = filepath.Dir(s.Path) }, wheel.ErrWheel},
	} {
		s := src
		c.change(&s)
		if _, err := wheel.Read(t.Context(), s, wheel.Options{TempDir: t.TempDir()}); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := wheel.Read(ctx, src, wheel.Options{TempDir: t.TempDir()}); !errors.Is(err, context.Canceled) || errors.Is(err, wheel.ErrWheel) {
		t.Errorf("cancelled: %v", err)
	}
	if _, err := wheel.Read(t.Context(), src, wheel.Options{TempDir: filepath.Join(t.TempDir(), "none")}); !errors.Is(err, fs.ErrNotExist) || errors.Is(err, wheel.ErrWheel) {
		t.Errorf("no folder: %v", err)
	}
}

// TestBudget: wheels that are used together share a bound.
func TestBudget(t *testing.T) {
	w := small()
	p, digest := w.Write(t, t.TempDir())
	src := wheel.Source{Path: p, File: w.File(), SHA256: digest}
	z, err := zip.OpenReader(p)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	members, size := len(z.File), int64(0)
	for _, f := range z.File {
		size += int64(f.UncompressedSize64)
	}
	for name, c := range map[string]struct {
		b    *wheel.Budget
		want [3]bool // which of three wheels fit
	}{
		"none":    {nil, [3]bool{true, true, true}},
		"two":     {wheel.NewBudget(2*members, 2*size), [3]bool{true, true, false}},
		"members": {wheel.NewBudget(2*members-1, 3*size), [3]bool{true, false, false}},
		"bytes":   {wheel.NewBudget(3*members, 2*size-1), [3]bool{true, false, false}},
	} {
		for i, fits := range c.want {
			got, err := wheel.Read(t.Context(), src, wheel.Options{TempDir: t.TempDir(), Budget: c.b})
			if fits && err != nil || !fits && !errors.Is(err, wheel.ErrBudget) {
				t.Errorf("%s: wheel %d: %v", name, i, err)
			}
			if err == nil {
				if err := got.Close(); err != nil {
					t.Error(err)
				}
			}
		}
	}
}

// TestLongList: a list of more members than its end says is not read into memory.
func TestLongList(t *testing.T) {
	const n = 1<<18 + 1 // 1 in the 16 bits of the end
	e := make([]byte, 46)
	copy(e, listSig)
	b := append([]byte(localSig), make([]byte, 26)...)
	start := len(b)
	for range n {
		b = append(b, e...)
	}
	end := make([]byte, 22)
	copy(end, endSig)
	le.PutUint16(end[8:], n&0xffff)
	le.PutUint16(end[10:], n&0xffff)
	le.PutUint32(end[12:], uint32(len(b)-start))
	le.PutUint32(end[16:], uint32(start))
	b = append(b, end...)
	p := filepath.Join(t.TempDir(), "w")
	if err := os.WriteFile(p, b, 0o600); err != nil {
		t.Fatal(err)
	}
	src := wheel.Source{Path: p, File: small().File(), SHA256: fmt.Sprintf("%x", sha256.Sum256(b))}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := wheel.Read(t.Context(), src, wheel.Options{TempDir: t.TempDir()})
	runtime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; !errors.Is(err, wheel.ErrWheel) || used > 1<<20 {
		t.Errorf("%d bytes were allocated: %v", used, err)
	}
}

// TestFIFO: what is no file does not hold anybody up.
func TestFIFO(t *testing.T) {
	p := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(p, 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := wheel.Read(t.Context(), wheel.Source{Path: p, File: small().File()}, wheel.Options{TempDir: t.TempDir()})
		done <- err
	}()
	select {
	case err := <-done:
		if !errors.Is(err, wheel.ErrWheel) {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("it waits for a writer")
	}
}

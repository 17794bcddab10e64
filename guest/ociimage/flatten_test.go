package ociimage

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/pybox/pybox/guest/erofs"
	"github.com/pybox/pybox/guest/tree"
)

var small = tree.Limits{Entries: 200, Bytes: 10_000}

// heap is a sink.
type heap struct{ bytes.Buffer }

func (h *heap) Size() int64 { return int64(h.Len()) }

// stackUp flattens plain tars.
func stackUp(layers ...[]byte) (*tree.Tree, leftOut, error) {
	h := &heap{}
	f := newFlattener(h, small)
	for _, l := range layers {
		if err := f.apply(bytes.NewReader(l)); err != nil {
			return nil, f.left, err
		}
	}
	t, err := f.tree(context.Background(), h.Bytes())
	return t, f.left, err
}

func TestFlatten(t *testing.T) {
	for name, c := range map[string]struct {
		layers [][]string
		want   string
	}{
		"a file of an upper layer": {[][]string{{"f a 1", "f b 1"}, {"f a 2"}}, "a=2 b=1"},
		"names":                    {[][]string{{"d ./", "f ./a 1", "f /b 2", "f c//d 3", "d ././e/", "f g/./h 4"}}, "a=1 b=2 c/ c/d=3 e/ g/ g/h=4"},
		"removed":                  {[][]string{{"f a 1", "f d/x 1", "f d/y 1"}, {"w .wh.a", "w d/.wh.x"}}, "d/ d/y=1"},
		"a removed folder":         {[][]string{{"f d/x/y 1", "f e 1"}, {"w .wh.d"}}, "e=1"},
		"a folder removed and made again": {[][]string{{"f d/old 1", "f d/e/old 1"}, {"d d", "f d/new 2", "w .wh.d"}},
			"d/ d/new=2"},
		"removed and made again, mark first": {[][]string{{"f d/old 1"}, {"w .wh.d", "f d/new 2"}}, "d/ d/new=2"},
		"removed and made again without a folder's own entry": {[][]string{{"d d 700 5:5", "f d/old 1"}, {"f d/e/new 2", "w .wh.d"}},
			"d/ d/e/ d/e/new=2"},
		"a file of the same layer stays":             {[][]string{{"f a 1"}, {"f a 2", "w .wh.a"}}, "a=2"},
		"a file of the same layer stays, mark first": {[][]string{{"f a 1"}, {"w .wh.a", "f a 2"}}, "a=2"},
		"opaque": {[][]string{{"f d/a 1", "f d/e/b 1", "f d/f/c 1"}, {"f d/e/n 2", "w d/.wh..wh..opq", "f d/m 2"}},
			"d/ d/e/ d/e/n=2 d/m=2"},
		"opaque, mark first":           {[][]string{{"f d/a 1"}, {"w d/.wh..wh..opq", "f d/m 2"}}, "d/ d/m=2"},
		"opaque at the root":           {[][]string{{"f a 1", "f d/b 1"}, {"w .wh..wh..opq", "f n 2"}}, "n=2"},
		"opaque, two layers up":        {[][]string{{"f d/a 1"}, {"w d/.wh..wh..opq", "f d/b 2"}, {"w d/.wh..wh..opq", "f d/c 3"}}, "d/ d/c=3"},
		"removed in the lowest layer":  {[][]string{{"w .wh.a", "f a 1", "w d/.wh..wh..opq", "w e/f/.wh.g"}}, "a=1"},
		"removed twice":                {[][]string{{"f d/a 1"}, {"w .wh.d", "f d/b 2", "w .wh.d"}}, "d/ d/b=2"},
		"removed, and back above":      {[][]string{{"f a 1"}, {"w .wh.a"}, {"f a 3"}}, "a=3"},
		"a mark below a file":          {[][]string{{"f d 1"}, {"w d/.wh.x"}}, "d=1"},
		"a removed link":               {[][]string{{"f a 1", "l l a"}, {"w .wh.l"}}, "a=1"},
		"a name that only looks so":    {[][]string{{"f wh.a 1", "f .wha 1"}, {"w .wh.wh.a"}}, ".wha=1"},
		"AUFS's own":                   {[][]string{{"f .wh..wh.aufs x", "d .wh..wh.orph", "f .wh..wh.plnk/1.2 x", "f a 1"}, {"h .wh.a .wh..wh.aufs"}}, ""},
		"a file instead of a folder":   {[][]string{{"f d/a/b 1"}, {"f d 2"}}, "d=2"},
		"a folder instead of a file":   {[][]string{{"f d 1"}, {"d d", "f d/a 2"}}, "d/ d/a=2"},
		"a folder instead of a link":   {[][]string{{"l d /etc"}, {"d d", "f d/a 2"}}, "d/ d/a=2"},
		"a link instead of a folder":   {[][]string{{"f d/a 1"}, {"l d e"}}, "d->e"},
		"a folder that comes again":    {[][]string{{"f d/a 1"}, {"d d 700 1:2"}}, "d/ d/a=1"},
		"twice in a layer":             {[][]string{{"f a 1", "f a 2"}}, "a=2"},
		"hard link":                    {[][]string{{"f a 1", "h b a", "h c/d /a", "h e ./c/d"}}, "a=1 b=1 c/ c/d=1 e=1"},
		"hard link to a lower layer":   {[][]string{{"f a 1"}, {"h b a"}}, "a=1 b=1"},
		"hard link to itself":          {[][]string{{"f a 1"}, {"h a a"}}, "a=1"},
		"hard link to a link":          {[][]string{{"l a /x", "h b a"}}, "a->/x b->/x"},
		"hard link, then another file": {[][]string{{"f a 1", "h b a"}, {"f a 2"}}, "a=2 b=1"},
		"links stay as they are": {[][]string{{"l a /etc/../x", "l b ../../up", "l c/d ../../up", "l e .", "l f nowhere"}},
			"a->/etc/../x b->/up c/ c/d->/up e->. f->nowhere"},
		"through a merged /usr": {[][]string{{"d usr/bin", "d usr/lib", "l bin usr/bin", "l lib /usr/lib", "f usr/bin/a 1"},
			{"f bin/b 2", "f lib/x/y 2", "h lib/c bin/a", "w bin/.wh.a"}},
			"bin->usr/bin lib->/usr/lib usr/ usr/bin/ usr/bin/b=2 usr/lib/ usr/lib/c=1 usr/lib/x/ usr/lib/x/y=2"},
	} {
		t.Run(name, func(t *testing.T) {
			var layers [][]byte
			for _, l := range c.layers {
				layers = append(layers, lines(t, l...))
			}
			tr, _, err := stackUp(layers...)
			if err != nil {
				t.Fatal(err)
			}
			if got := listing(tr); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

// TestAttributes: what an entry keeps, and what is counted as left behind.
func TestAttributes(t *testing.T) {
	with := func(line string, change func(*tar.Header)) tar.Header {
		h := m(line)
		change(&h)
		return h
	}
	tr, left, err := stackUp(layer(t,
		with("d ./", func(h *tar.Header) { h.Mode = 0o700 }),
		with("f su x", func(h *tar.Header) { h.Mode = 0o4755 }),
		with("f sg x", func(h *tar.Header) { h.Mode = 0o2711; h.Uid, h.Gid = 65535, 65535 }),
		with("d tmp", func(h *tar.Header) { h.Mode = 0o1777 }),
		with("f sticky x", func(h *tar.Header) { h.Mode = 0o1644 }),
		with("f far x", func(h *tar.Header) { h.Uid, h.Gid = 70000, 3 }),
		with("f less x", func(h *tar.Header) {
			h.Gid = -1
			h.Format = tar.FormatGNU
			delete(h.PAXRecords, "TEST.body")
			h.Size = 0
		}),
		with("f cap x", func(h *tar.Header) {
			h.PAXRecords["SCHILY.xattr.security.capability"] = "\x01"
			h.PAXRecords["SCHILY.xattr.user.x"] = "y"
		}),
		tar.Header{Typeflag: tar.TypeChar, Name: "dev/null", Mode: 0o666, Devmajor: 1, Devminor: 3},
		tar.Header{Typeflag: tar.TypeBlock, Name: "dev/sda"},
		tar.Header{Typeflag: tar.TypeFifo, Name: "pipe"},
		m("d d"), m("l up ../../../../x"),
	))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]tree.Attr{
		".": {Mode: 0o700}, "su": {Mode: 0o755}, "sg": {Mode: 0o711, UID: 65535, GID: 65535}, "tmp": {Mode: 0o777 | fs.ModeSticky},
		"sticky": {Mode: 0o644}, "far": {Mode: 0o644, UID: 65534, GID: 3}, "less": {Mode: 0o644, GID: 65534},
	}
	for p, a := range want {
		if n := tr.Lookup(p); n == nil || n.Attr != a {
			t.Errorf("%s: %+v, want %+v", p, n, a)
		}
	}
	if want := (leftOut{devices: 3, setID: 2, owners: 2, xattrs: 1, climbing: 1}); left != want {
		t.Errorf("left behind %+v, want %+v", left, want)
	}
	if n := len(left.notes()); n != 5 {
		t.Errorf("%d notes", n)
	}
	if tr.Lookup("dev/null") != nil || tr.Lookup("pipe") != nil {
		t.Error("a device is in the tree")
	}
}

// TestDeviceInsteadOfFile: what a device stands on is not what the image shows there.
func TestDeviceInsteadOfFile(t *testing.T) {
	tr, _, err := stackUp(lines(t, "f a 1", "f b 1"), layer(t, tar.Header{Typeflag: tar.TypeChar, Name: "a"}))
	if err != nil || listing(tr) != "b=1" {
		t.Errorf("%v", err)
	}
}

func TestRefusedContent(t *testing.T) {
	sparse := m("f a 1")
	sparse.PAXRecords["GNU.sparse.major"] = "1"
	long := strings.Repeat("n", 256)
	for name, c := range map[string]struct {
		layers [][]byte
		want   []error
	}{
		"upwards":                         {[][]byte{lines(t, "f ../a 1")}, []error{ErrContent, tree.ErrPath}},
		"upwards inside":                  {[][]byte{lines(t, "f a/../../b 1")}, []error{ErrContent, tree.ErrPath}},
		"upwards, and back":               {[][]byte{lines(t, "f a/../b 1")}, []error{ErrContent, tree.ErrPath}},
		"control characters":              {[][]byte{lines(t, "f a\x1b[2J 1")}, []error{ErrContent, tree.ErrPath}},
		"a long name":                     {[][]byte{lines(t, "f "+long+" 1")}, []error{ErrContent, tree.ErrPath}},
		"a long path":                     {[][]byte{lines(t, "f "+strings.Repeat("a/", 2100)+"b 1")}, []error{ErrContent, tree.ErrPath}},
		"through a link":                  {[][]byte{lines(t, "l a /etc", "f a/b 1")}, []error{ErrContent, tree.ErrLink}},
		"through a link of a lower layer": {[][]byte{lines(t, "l a usr"), lines(t, "d usr", "f a/b 1")}, []error{ErrContent, tree.ErrLink}},
		"deep through a link":             {[][]byte{lines(t, "l d/a .", "f d/a/b/c 1")}, []error{ErrContent, tree.ErrLink}},
		"through a link like a merged /usr's": {[][]byte{lines(t, "l bin usr/sbin", "d usr/sbin", "f bin/b 1")},
			[]error{ErrContent, tree.ErrLink}},
		"through a merged /usr that is not there": {[][]byte{lines(t, "l bin usr/bin", "f bin/b 1")}, []error{ErrContent, tree.ErrLink}},
		"through a merged /usr that is a link":    {[][]byte{lines(t, "l usr/bin /etc", "l bin usr/bin", "f bin/b 1")}, []error{ErrContent, tree.ErrLink}},
		"through a merged /usr below another":     {[][]byte{lines(t, "d usr/bin", "l x/bin usr/bin", "f x/bin/b 1")}, []error{ErrContent, tree.ErrLink}},
		"a hard link through a link":              {[][]byte{lines(t, "f d/x 1", "l a d", "h b a/x")}, []error{ErrContent, tree.ErrLink}},
		"a mark through a link":                   {[][]byte{lines(t, "f d/x 1", "l a d"), lines(t, "w a/.wh.x")}, []error{ErrContent, tree.ErrLink}},
		"opaque through a link":                   {[][]byte{lines(t, "f d/x 1", "l a d"), lines(t, "w a/.wh..wh..opq")}, []error{ErrContent, tree.ErrLink}},
		"through a file":                          {[][]byte{lines(t, "f a 1", "f a/b 1")}, []error{ErrContent, tree.ErrConflict}},
		"deep through a file":                     {[][]byte{lines(t, "f a 1", "f a/b/c 1")}, []error{ErrContent, tree.ErrConflict}},
		"a hard link to nothing":                  {[][]byte{lines(t, "h a b", "f b 1")}, []error{ErrContent}},
		"a hard link to a folder":                 {[][]byte{lines(t, "d d", "h a d")}, []error{ErrContent}},
		"a hard link upwards":                     {[][]byte{lines(t, "h a ../../etc/passwd")}, []error{ErrContent, tree.ErrPath}},
		"a hard link to what was removed":         {[][]byte{lines(t, "f a 1"), lines(t, "w .wh.a", "h b a")}, []error{ErrContent}},
		"a mark for nothing":                      {[][]byte{lines(t, "w .wh.")}, []error{ErrContent}},
		"a mark for the folder itself":            {[][]byte{lines(t, "w d/.wh..")}, []error{ErrContent}},
		"a mark for the folder above":             {[][]byte{lines(t, "w d/.wh...")}, []error{ErrContent}},
		"a mark that is a folder":                 {[][]byte{lines(t, "d .wh.a")}, []error{ErrContent}},
		"inside of a mark":                        {[][]byte{lines(t, "f .wh.a/b 1")}, []error{ErrContent}},
		"a mark inside of a mark":                 {[][]byte{lines(t, "w .wh.a/.wh.b")}, []error{ErrContent}},
		"a link that climbs in its middle":        {[][]byte{lines(t, "l a x/../../../y")}, []error{ErrContent, tree.ErrLink}},
		"a link to nothing at all":                {[][]byte{layer(t, tar.Header{Typeflag: tar.TypeSymlink, Name: "a"})}, []error{ErrContent, tree.ErrPath}},
		"a link with control characters":          {[][]byte{lines(t, "l a b\nc")}, []error{ErrContent, tree.ErrPath}},
		"a root that is a file":                   {[][]byte{lines(t, "f ./. 1")}, []error{ErrContent}},
		"a sparse file":                           {[][]byte{sparseTar(t)}, []error{ErrContent}},
		"an old sparse file":                      {[][]byte{oldSparse(t)}, []error{ErrContent}},
		"another type":                            {[][]byte{otherType(t, '7')}, []error{ErrContent}},
		"too many entries":                        {[][]byte{lines(t, many("f d/", 300)...)}, []error{ErrTooBig}},
		"too many folders above some":             {[][]byte{lines(t, many("f "+strings.Repeat("a/", 90)+"b/", 120)...)}, []error{ErrTooBig}},
		"too deep":                                {[][]byte{lines(t, "f "+strings.Repeat("a/", maxDepth)+"b 1")}, []error{ErrTooBig}},
		"a mark too deep":                         {[][]byte{lines(t, "w "+strings.Repeat("a/", maxDepth)+".wh.b")}, []error{ErrTooBig}},
		"a hard link from too deep":               {[][]byte{lines(t, "h a "+strings.Repeat("a/", maxDepth)+"b")}, []error{ErrTooBig}},
		"a link that is too long":                 {[][]byte{lines(t, "l a "+strings.Repeat("x", tree.MaxTargetBytes+1))}, []error{ErrContent, tree.ErrPath}},
		"a bad link that is removed again":        {[][]byte{lines(t, "l a b\nc"), lines(t, "w .wh.a")}, []error{ErrContent, tree.ErrPath}},
		"too many records":                        {[][]byte{layer(t, withRecords("f a 1", maxPAXBytes))}, []error{ErrTooBig}},
		"too many records for all":                {[][]byte{layer(t, tar.Header{Typeflag: tar.TypeXGlobalHeader, Name: "g", PAXRecords: map[string]string{"comment": strings.Repeat("x", maxPAXBytes)}})}, []error{ErrTooBig}},
		"too large":                               {[][]byte{lines(t, "f a "+strings.Repeat("x", 10_001))}, []error{ErrTooBig}},
		"too large together":                      {[][]byte{lines(t, "f a "+strings.Repeat("x", 6000)), lines(t, "f b "+strings.Repeat("x", 6000))}, []error{ErrTooBig}},
		"too large together by hard links":        {[][]byte{lines(t, "f a "+strings.Repeat("x", 6000), "h b a")}, []error{ErrTooBig}},
		"no tar":                                  {[][]byte{bytes.Repeat([]byte("x"), 1024)}, []error{ErrFormat}},
		"cut off in a file":                       {[][]byte{lines(t, "f a "+strings.Repeat("x", 6000))[:2048]}, []error{ErrFormat}},
		"cut off in a header":                     {[][]byte{lines(t, "f a 1", "f b 1")[:1300]}, []error{ErrFormat}},
	} {
		t.Run(name, func(t *testing.T) {
			tr, _, err := stackUp(c.layers...)
			if err == nil {
				t.Fatalf("taken: %s", listing(tr))
			}
			for _, w := range c.want {
				if !errors.Is(err, w) {
					t.Errorf("got %v, want %v", err, w)
				}
			}
			if strings.ContainsFunc(err.Error(), func(r rune) bool { return r < ' ' }) {
				t.Errorf("control characters in %q", err)
			}
		})
	}
}

// TestReplacedBytesAreFree: the bounds are of what is there, not of what was.
func TestReplacedBytesAreFree(t *testing.T) {
	big := strings.Repeat("x", 6000)
	tr, _, err := stackUp(lines(t, "f a "+big), lines(t, "w .wh.a", "f b "+big), lines(t, "f b "+big), lines(t, "d b", "f c "+big))
	if err != nil || tr.Bytes() != 6000 {
		t.Fatal(err)
	}
	var layers [][]byte
	for range 5 {
		layers = append(layers, lines(t, append([]string{"w .wh.d"}, many("f d/", 150)...)...))
	}
	if _, _, err := stackUp(layers...); err != nil {
		t.Fatal(err)
	}
}

// withRecords is a member with n bytes beside its own in the header.
func withRecords(line string, n int) tar.Header {
	h := m(line)
	if h.PAXRecords == nil {
		h.PAXRecords = map[string]string{}
	}
	h.PAXRecords["JUNK.a"] = strings.Repeat("x", n)
	return h
}

// TestDeepest: what is as deep as is taken can be written as a disk and read again.
func TestDeepest(t *testing.T) {
	deep := "bin/" + strings.Repeat("d/", maxDepth-2)
	tr, _, err := stackUp(lines(t, "d usr/bin", "l bin usr/bin", "f "+deep+"f 1"))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "x.erofs")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	p := "usr/" + deep + "f/beside" // one step more, as pybox-venv.pth may be
	tr.Remove("usr/" + deep + "f")
	if err := tr.WriteFile(p, []byte("1"), tree.Attr{Mode: 0o644}); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(erofs.Write(f, tr), f.Close()); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	back, err := erofs.Read(b, small)
	if err != nil {
		t.Fatal(err)
	}
	if n := back.Lookup(p); n == nil || string(n.Data) != "1" {
		t.Errorf("%+v", n)
	}
}

// TestNamesHoldLittle: of a member's header nothing stays in memory but its names.
func TestNamesHoldLittle(t *testing.T) {
	var b bytes.Buffer
	for i := range 40 {
		for _, line := range []string{fmt.Sprintf("f é%d ", i), fmt.Sprintf("l l%d é", i), fmt.Sprintf("d é/%d", i)} {
			one := layer(t, withRecords(line, maxPAXBytes-1000))
			b.Write(one[:len(one)-1024]) // without the end of the tar
		}
	}
	b.Write(make([]byte, 1024))
	held := func() uint64 {
		var s runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&s)
		return s.HeapAlloc
	}
	f := newFlattener(&heap{}, tree.DefaultLimits)
	before := held()
	if err := f.apply(bytes.NewReader(b.Bytes())); err != nil {
		t.Fatal(err)
	}
	if after := held(); after > before+4<<20 {
		t.Errorf("%d entries hold %d KiB", f.count, (after-before)>>10)
	}
	runtime.KeepAlive(f)
	runtime.KeepAlive(&b)
}

// TestNamesAreBounded: all together they are.
func TestNamesAreBounded(t *testing.T) {
	f := newFlattener(&heap{}, small)
	apply := func(list ...string) error { return f.apply(bytes.NewReader(lines(t, list...))) }
	if err := apply("f dir/name 1", "l dir/link target", "h again dir/link"); err != nil {
		t.Fatal(err)
	}
	if want := len("dir") + len("dir/name") + len("dir/linktarget") + len("againtarget"); f.names != want {
		t.Errorf("%d bytes of names, want %d", f.names, want)
	}
	f.names += maxNameBytes - f.names - 10
	if err := apply("f elevenbytes 1"); !errors.Is(err, ErrTooBig) {
		t.Errorf("got %v", err)
	}
	if err := apply("w .wh.dir", "f elevenbytes 1"); err != nil {
		t.Errorf("with room again: %v", err)
	}
}

// TestTreeEnds: a context's end ends the making of the tree.
func TestTreeEnds(t *testing.T) {
	f := newFlattener(&heap{}, small)
	if err := f.apply(bytes.NewReader(lines(t, "f a 1"))); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := f.tree(ctx, []byte("1")); !errors.Is(err, context.Canceled) || errors.Is(err, ErrContent) {
		t.Errorf("got %v", err)
	}
}

// TestNotesAreOfTheImage: what upper layers removed or replaced has lost nothing.
func TestNotesAreOfTheImage(t *testing.T) {
	suid := m("f bin/passwd x")
	suid.Mode, suid.Uid = 0o4755, 70_000
	suid.PAXRecords["SCHILY.xattr.user.x"] = "y"
	for name, c := range map[string]struct {
		top  []byte
		want leftOut
	}{
		"kept":     {lines(t, "f a 1"), leftOut{setID: 1, owners: 1, xattrs: 1}},
		"linked":   {lines(t, "h a bin/passwd"), leftOut{setID: 2, owners: 2, xattrs: 2}},
		"removed":  {lines(t, "w bin/.wh.passwd"), leftOut{}},
		"replaced": {lines(t, "f bin/passwd 1"), leftOut{}},
		"opaque":   {lines(t, "w bin/.wh..wh..opq"), leftOut{}},
	} {
		if _, left, err := stackUp(layer(t, suid), layer(t, suid), c.top); err != nil || left != c.want {
			t.Errorf("%s: %+v, %v", name, left, err)
		}
	}
}

// TestOfTwoFaultsTheSame: the error does not depend on chance.
func TestOfTwoFaultsTheSame(t *testing.T) {
	var list []string
	for i := range 20 {
		list = append(list, fmt.Sprintf("l %c x/../../../y", 'a'+i))
	}
	for range 10 {
		if _, _, err := stackUp(lines(t, list...)); err == nil || !strings.Contains(err.Error(), `"a" points`) {
			t.Fatalf("got %v", err)
		}
	}
}

func many(prefix string, n int) (out []string) {
	for i := range n {
		out = append(out, fmt.Sprintf("%s%d 1", prefix, i))
	}
	return out
}

// sparseTar is a file in GNU tar's PAX format 1.0 for sparse files: a map, and then
// the bytes of one region at the end of a gigabyte of nothing.
func sparseTar(t testing.TB) []byte {
	t.Helper()
	const size = "1073741824"
	body := "1\n1073741823\n1\n" + strings.Repeat("\x00", 512-15) + "x" + strings.Repeat("\x00", 511)
	records := ""
	for _, k := range []string{"GNU.sparse.major=1", "GNU.sparse.minor=0", "GNU.sparse.name=giant", "GNU.sparse.realsize=" + size} {
		records += record(k)
	}
	raw := rawMember("PaxHeaders/giant", tar.TypeXHeader, records)
	raw = append(raw, rawMember("GNUSparseFile.0/giant", tar.TypeReg, body[:513])...)
	return append(raw, make([]byte, 1024)...)
}

// oldSparse is one in GNU's older format, with the map in the header.
func oldSparse(t testing.TB) []byte {
	t.Helper()
	raw := rawMember("giant", tar.TypeGNUSparse, "x")
	copy(raw[257:], "ustar  \x00")
	copy(raw[386:], "00000000000\x00")
	copy(raw[398:], "00000000001\x00")
	copy(raw[483:], "00000001000\x00")
	checksum(raw)
	return append(raw, make([]byte, 1024)...)
}

func otherType(t testing.TB, kind byte) []byte {
	t.Helper()
	return append(rawMember("odd", kind, ""), make([]byte, 1024)...)
}

// record is a line of a PAX header: its own length comes first.
func record(kv string) string {
	n := len(kv) + 2
	for {
		s := fmt.Sprintf("%d %s\n", n, kv)
		if len(s) == n {
			return s
		}
		n = len(s)
	}
}

// rawMember is a member as no library would write it.
func rawMember(name string, kind byte, body string) []byte {
	h := make([]byte, 512)
	copy(h, name)
	copy(h[100:], "0000644\x000000000\x000000000\x00")
	copy(h[124:], fmt.Sprintf("%011o\x00", len(body)))
	copy(h[136:], "00000000000\x00")
	h[156] = kind
	copy(h[257:], "ustar\x0000")
	checksum(h)
	h = append(h, body...)
	return append(h, make([]byte, (512-len(body)%512)%512)...)
}

func checksum(h []byte) {
	copy(h[148:], "        ")
	sum := 0
	for _, b := range h[:512] {
		sum += int(b)
	}
	copy(h[148:], fmt.Sprintf("%06o\x00 ", sum))
}

// FuzzLayer stacks two hostile layers and holds the result to what a tree promises
// and to the bounds.
func FuzzLayer(f *testing.F) {
	f.Add(lines(f, "f a 1", "l b a", "h c a"), lines(f, "w .wh.a", "f d/e 1", "w d/.wh..wh..opq"))
	f.Add(lines(f, "d usr/bin", "l bin usr/bin"), lines(f, "f bin/x 1", "w .wh.bin"))
	f.Add(lines(f, "l a ../../x", "d .wh..wh.plnk"), []byte{})
	f.Add(sparseTar(f), oldSparse(f))
	f.Add(otherType(f, tar.TypeChar), otherType(f, tar.TypeFifo))
	f.Add(lines(f, "f ../x 1"), lines(f, "l a /", "f a/b 1"))
	f.Fuzz(func(t *testing.T, lower, upper []byte) {
		h := &heap{}
		fl := newFlattener(h, small)
		for _, l := range [][]byte{lower, upper} {
			if fl.apply(bytes.NewReader(l)) != nil {
				break
			}
		}
		if fl.names != measureNames("", fl.root) || fl.names > maxNameBytes {
			t.Fatalf("%d bytes of names, counted as %d", measureNames("", fl.root), fl.names)
		}
		entries, size := measure(t, fl.root, fl.layer)
		if entries != fl.count || size != fl.bytes || entries > small.Entries || size > small.Bytes {
			t.Fatalf("%d entries and %d bytes, counted as %d and %d", entries, size, fl.count, fl.bytes)
		}
		tr, err := fl.tree(t.Context(), h.Bytes())
		if err != nil {
			return
		}
		for _, n := range tr.Nodes() {
			if tree.CheckPath(n.Path) != nil || strings.HasPrefix(path.Base(n.Path), whiteout) {
				t.Fatalf("path %q", n.Path)
			}
			if d := tr.Lookup(path.Dir(n.Path)); d == nil || d.Kind != tree.Dir {
				t.Fatalf("%q stands in no folder", n.Path)
			}
			if n.UID > maxID || n.GID > maxID || n.Mode&^(fs.ModePerm|fs.ModeSticky) != 0 {
				t.Fatalf("%+v", n.Attr)
			}
		}
	})
}

// measureNames counts the bytes of paths and targets.
func measureNames(p string, e *entry) int {
	n := len(p) + len(e.target)
	for name, c := range e.children {
		n += measureNames(path.Join(p, name), c)
	}
	return n
}

// measure counts what is really there.
func measure(t testing.TB, e *entry, top int) (entries int, size int64) {
	t.Helper()
	if e.kind != tree.Dir && len(e.children) > 0 || e.layer > top {
		t.Fatalf("%+v", e)
	}
	entries, size = 1, e.size
	for _, n := range slices.Sorted(maps.Keys(e.children)) {
		c, s := measure(t, e.children[n], top)
		entries, size = entries+c, size+s
	}
	return entries, size
}

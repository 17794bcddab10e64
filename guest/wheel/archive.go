package wheel

import (
	"archive/zip"
	"bufio"
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"io"
	"path"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/klauspost/compress/flate"
	"golang.org/x/text/unicode/norm"

	"github.com/pybox/pybox/guest/tree"
)

// maxDirectoryBytes bounds the list of members, which is read into memory.
const maxDirectoryBytes = 64 << 20

// readBuffer is how much of a member is read at once.
const readBuffer = 64 << 10

// archive is a zip file of which the outside was checked: every byte of it belongs to
// one member, the list of them or the end.
type archive struct {
	members []member // files, in the order of the list
	listed  int      // with folders
	bytes   int64    // of all members, unpacked
}

// member is a file in an archive.
type member struct {
	*zip.File
	exec bool
}

// openArchive looks at everything but the contents.
func openArchive(r io.ReaderAt, size int64, l Limits) (*archive, error) {
	end, err := checkEnd(r, size, l)
	if err != nil {
		return nil, err
	}
	// archive/zip reads lists to their end, whatever the number of members.
	if err := walkList(r, end); err != nil {
		return nil, err
	}
	z, err := zip.NewReader(r, size)
	if err != nil && !errors.Is(err, zip.ErrInsecurePath) { // checkName is stricter
		return nil, wheelErr("%w", err)
	}
	z.RegisterDecompressor(zip.Deflate, func(r io.Reader) io.ReadCloser {
		return flate.NewReader(bufio.NewReaderSize(r, readBuffer))
	})
	if len(z.File) != end.members {
		return nil, errList
	}
	if err := checkBodies(r, z.File, end.list); err != nil {
		return nil, err
	}
	a := &archive{listed: len(z.File)}
	for _, f := range z.File {
		if err := checkMember(f, l); err != nil {
			return nil, wheelErr("%.200q: %w", f.Name, err)
		}
		if f.UncompressedSize64 > uint64(l.Bytes-a.bytes) {
			return nil, wheelErr("it unpacks to more than %d bytes", l.Bytes)
		}
		a.bytes += int64(f.UncompressedSize64)
		if !strings.HasSuffix(f.Name, "/") {
			a.members = append(a.members, member{f, f.ExternalAttrs>>16&0o111 != 0})
		}
	}
	return a, checkTwins(z.File)
}

var errList = wheelErr("its list of members is not as long as it says")

// walkList makes sure that the list has as many members and bytes as the end says.
func walkList(r io.ReaderAt, e end) error {
	list := bufio.NewReaderSize(io.NewSectionReader(r, e.list, e.bytes), readBuffer)
	h := make([]byte, entryBytes)
	for range e.members {
		if _, err := io.ReadFull(list, h); err != nil || string(h[:4]) != entrySig {
			return errList
		}
		le := binary.LittleEndian
		if _, err := list.Discard(int(le.Uint16(h[28:])) + int(le.Uint16(h[30:])) + int(le.Uint16(h[32:]))); err != nil {
			return errList
		}
	}
	if _, err := list.ReadByte(); err != io.EOF {
		return errList
	}
	return nil
}

// The end of an archive: section 4.3.16 of APPNOTE.TXT, and 4.3.14 and 4.3.15 for
// large ones.
const (
	endSig, endBytes               = "PK\x05\x06", 22
	locatorSig, locatorBytes       = "PK\x06\x07", 20
	end64Sig, end64Bytes           = "PK\x06\x06", 56
	headerSig, headerBytes         = "PK\x03\x04", 30
	entrySig, entryBytes           = "PK\x01\x02", 46 // of the list, without its names
	full16                         = 1<<16 - 1
	full32                         = 1<<32 - 1
	flagEncrypted, flagStrong      = 1 << 0, 1 << 6
	flagDescriptor, flagPatch      = 1 << 3, 1 << 5
	flagMasked                     = 1 << 13
	typeBits, typeFile, typeFolder = 0o170000, 0o100000, 0o040000
	extraPath                      = 0x7075 // 4.6.9: another name
)

// end says where the list of members is.
type end struct {
	members int
	list    int64 // where it starts, which is where the last member ends
	bytes   int64 // how long it is
}

// checkEnd makes sure that the file is a zip archive and nothing else: it starts with
// a member and ends with the end of the list, without a comment, so no two readers can
// take it for different archives.
func checkEnd(r io.ReaderAt, size int64, l Limits) (end, error) {
	e, le := make([]byte, endBytes), binary.LittleEndian
	pos := size - endBytes
	if pos < 0 {
		return end{}, wheelErr("it is no zip archive")
	}
	if _, err := r.ReadAt(e, pos); err != nil && err != io.EOF {
		return end{}, err
	}
	if string(e[:4]) != endSig || le.Uint16(e[20:]) != 0 {
		return end{}, wheelErr("it does not end as a zip archive does: it is none, was cut off, or has something after its end")
	}
	if le.Uint16(e[4:]) != 0 || le.Uint16(e[6:]) != 0 || le.Uint16(e[8:]) != le.Uint16(e[10:]) {
		return end{}, wheelErr("it is one of several parts")
	}
	members, bytes, start := uint64(le.Uint16(e[10:])), uint64(le.Uint32(e[12:])), uint64(le.Uint32(e[16:]))
	if members == full16 || bytes == full32 || start == full32 {
		var err error
		if pos, members, bytes, start, err = checkEnd64(r, pos); err != nil {
			return end{}, err
		}
	}
	if bytes > maxDirectoryBytes || members > uint64(l.Members) {
		return end{}, wheelErr("%d members, listed in %d bytes; at most %d in %d", members, bytes, l.Members, maxDirectoryBytes)
	}
	if start > uint64(size) || int64(start+bytes) != pos {
		return end{}, wheelErr("there is something before its first member or after its list of members")
	}
	return end{int(members), int64(start), int64(bytes)}, nil
}

// checkEnd64 reads the end of a large archive, which comes before the other at pos.
func checkEnd64(r io.ReaderAt, pos int64) (at int64, members, bytes, start uint64, err error) {
	le := binary.LittleEndian
	locator, e := make([]byte, locatorBytes), make([]byte, end64Bytes)
	pos -= locatorBytes
	if _, err := r.ReadAt(locator, max(pos, 0)); err != nil || pos < 0 || string(locator[:4]) != locatorSig {
		return 0, 0, 0, 0, wheelErr("its end says that it is a large archive, and it is none")
	}
	at = int64(le.Uint64(locator[8:]))
	if at < 0 || at > pos-end64Bytes {
		return 0, 0, 0, 0, wheelErr("the end of a large archive is not where it says")
	}
	if _, err := r.ReadAt(e, at); err != nil || string(e[:4]) != end64Sig || le.Uint64(e[4:]) != uint64(pos-at-12) {
		return 0, 0, 0, 0, wheelErr("the end of a large archive is not where it says")
	}
	if le.Uint32(e[16:]) != 0 || le.Uint32(e[20:]) != 0 || le.Uint64(e[24:]) != le.Uint64(e[32:]) {
		return 0, 0, 0, 0, wheelErr("it is one of several parts")
	}
	return at, le.Uint64(e[32:]), le.Uint64(e[40:]), le.Uint64(e[48:]), nil
}

// checkBodies makes sure that the members follow one another from the start of the
// file to the list, without overlap or gap, and say of themselves what the list says
// of them.
func checkBodies(r io.ReaderAt, files []*zip.File, list int64) error {
	type body struct {
		*zip.File
		at int64
	}
	bodies := make([]body, len(files))
	for i, f := range files {
		at, err := f.DataOffset()
		if err != nil {
			return wheelErr("%.200q: %w", f.Name, err)
		}
		bodies[i] = body{f, at}
	}
	slices.SortStableFunc(bodies, func(a, b body) int { return cmp.Compare(a.at, b.at) })
	pos := int64(0)
	for i, b := range bodies {
		start, err := checkHeader(r, b.File, pos)
		if err != nil {
			return wheelErr("%.200q: %w", b.Name, err)
		}
		if start != b.at || start > list || b.CompressedSize64 > uint64(list-start) {
			return wheelErr("%.200q overlaps another member, or there is something between them", b.Name)
		}
		pos = start + int64(b.CompressedSize64)
		if b.Flags&flagDescriptor != 0 {
			last := i == len(bodies)-1
			pos += descriptorBytes(r, b.File, pos, list, last)
		}
	}
	if pos != list {
		return wheelErr("there is something between its last member and its list of members")
	}
	return nil
}

// checkHeader reads what a member at pos says of itself and returns where its content
// starts.
func checkHeader(r io.ReaderAt, f *zip.File, pos int64) (int64, error) {
	h := make([]byte, headerBytes+len(f.Name))
	if _, err := r.ReadAt(h, pos); err != nil || string(h[:4]) != headerSig {
		return 0, errors.New("it overlaps another member, or there is something between them")
	}
	le := binary.LittleEndian
	if int(le.Uint16(h[26:])) != len(f.Name) || string(h[headerBytes:]) != f.Name {
		return 0, errors.New("it is called something else in the list of members")
	}
	same := func(at int, v uint64) bool {
		own := uint64(le.Uint32(h[at:]))
		return own == v || own == full32
	}
	described := f.Flags&flagDescriptor != 0 // what it is comes after the content
	if le.Uint16(h[6:]) != f.Flags || le.Uint16(h[8:]) != f.Method ||
		!described && (le.Uint32(h[14:]) != f.CRC32 || !same(18, f.CompressedSize64) || !same(22, f.UncompressedSize64)) {
		return 0, errors.New("it is something else in the list of members")
	}
	pos += int64(len(h))
	extra := make([]byte, le.Uint16(h[28:]))
	if _, err := r.ReadAt(extra, pos); err != nil {
		return 0, errors.New("it is cut off")
	}
	return pos + int64(len(extra)), checkExtra(extra)
}

// checkExtra refuses a second name of a member, which some readers take and others do
// not.
func checkExtra(b []byte) error {
	le := binary.LittleEndian
	for len(b) >= 4 {
		if le.Uint16(b) == extraPath {
			return errors.New("it has a second name")
		}
		b = b[min(len(b), 4+int(le.Uint16(b[2:]))):]
	}
	return nil
}

// descriptorBytes is how long the description at pos is that follows a content:
// 4.3.9. With or without a signature, with sizes of 4 or 8 bytes: what comes after it
// tells which. 0: there is none.
func descriptorBytes(r io.ReaderAt, f *zip.File, pos, list int64, last bool) int64 {
	b := make([]byte, 24+4)
	n, _ := r.ReadAt(b, pos)
	b = b[:n]
	le := binary.LittleEndian
	for _, size := range []int{16, 24, 12, 20} {
		d := b
		if size%8 == 0 {
			if !bytes.HasPrefix(d, []byte("PK\x07\x08")) {
				continue
			}
			d = d[4:]
		}
		if len(b) < size || le.Uint32(d) != f.CRC32 {
			continue
		}
		if last && pos+int64(size) == list || !last && len(b) >= size+4 && string(b[size:size+4]) == headerSig {
			return int64(size)
		}
	}
	return 0
}

// checkMember judges what the list says of a member.
func checkMember(f *zip.File, l Limits) error {
	name, isDir := strings.CutSuffix(f.Name, "/")
	kind := f.ExternalAttrs >> 16 & typeBits
	switch {
	case f.Flags&(flagEncrypted|flagStrong|flagMasked) != 0:
		return errors.New("it is encrypted")
	case f.Flags&flagPatch != 0 || f.Method != zip.Store && f.Method != zip.Deflate:
		return errors.New("it is compressed in a way that wheels are not")
	case f.Method == zip.Store && f.CompressedSize64 != f.UncompressedSize64:
		return errors.New("it is not compressed and has two sizes")
	case f.UncompressedSize64 > uint64(l.MemberBytes):
		return errors.New("it is too large")
	case kind != 0 && kind != typeFile && kind != typeFolder:
		return errors.New("it is a link or a special file")
	case isDir && (f.UncompressedSize64 != 0 || kind == typeFile), !isDir && kind == typeFolder:
		return errors.New("it is a folder and a file")
	case checkExtra(f.Extra) != nil:
		return checkExtra(f.Extra)
	case f.NonUTF8 && strings.ContainsFunc(f.Name, func(r rune) bool { return r >= utf8.RuneSelf }):
		return errors.New("its name has no known encoding")
	}
	return checkName(name)
}

// checkName takes names that mean the same everywhere.
func checkName(name string) error {
	if err := tree.CheckPath(name); err != nil {
		return err
	}
	switch {
	case name == ".":
		return errors.New("it has no name")
	case !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl):
		return errors.New("its name is not printable UTF-8")
	case strings.Contains(name, `\`):
		return errors.New("its name has a backslash")
	case len(name) > 1 && name[1] == ':':
		return errors.New("its name starts with a drive")
	}
	return nil
}

// checkTwins makes sure that each member has a name of its own, and no name is a file
// and a folder. Names that differ in case are two; ones that differ only in how their
// letters are encoded are one.
func checkTwins(files []*zip.File) error {
	names, folders := make(map[string]bool, len(files)), map[string]bool{}
	for _, f := range files {
		name, isDir := strings.CutSuffix(norm.NFC.String(f.Name), "/")
		if names[name] {
			return wheelErr("%.200q is in it twice", f.Name)
		}
		if names[name] = true; isDir {
			folders[name] = true
		}
		for dir := path.Dir(name); dir != "." && !folders[dir]; dir = path.Dir(dir) {
			folders[dir] = true
		}
	}
	for _, f := range files {
		if name := norm.NFC.String(f.Name); folders[name] {
			return wheelErr("%.200q is a file and a folder in it", f.Name)
		}
	}
	return nil
}

package wheel

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/pybox/pybox/guest/image"
	"github.com/pybox/pybox/guest/mapped"
	"github.com/pybox/pybox/guest/pep508"
	"github.com/pybox/pybox/guest/pytag"
)

// Where Debian's Python has the packages that pip installs, relative to the root.
const (
	Prefix     = "usr/local"
	Site       = Prefix + "/lib/python" + image.Python + "/dist-packages"
	Scripts    = Prefix + "/bin"
	headersDir = Prefix + "/include/python" + image.Python
	// Interpreter is what the programs of wheels start with.
	Interpreter = "/usr/bin/python3"
)

// maxScriptBytes bounds a script whose first line is replaced, in memory.
const maxScriptBytes = 16 << 20

const (
	distInfoSuffix = ".dist-info"
	dataSuffix     = ".data"
)

// findDistInfo finds the one folder of metadata, which has to be of the project and
// version that the wheel's name says.
func findDistInfo(members []member, name pytag.Wheel) (string, error) {
	found := ""
	for _, m := range members {
		top, _, nested := strings.Cut(m.Name, "/")
		if !nested || !strings.HasSuffix(top, distInfoSuffix) || top == found {
			continue
		}
		if found != "" {
			return "", wheelErr("it has two folders of metadata, %.200q and %.200q", found, top)
		}
		found = top
	}
	if found == "" {
		return "", wheelErr("it has no folder of metadata (NAME-VERSION%s)", distInfoSuffix)
	}
	if !isOf(strings.TrimSuffix(found, distInfoSuffix), name) {
		return "", wheelErr("its metadata is in %.200q", found)
	}
	return found, nil
}

// isOf tells whether stem is "NAME-VERSION" of a wheel, in any spelling.
func isOf(stem string, name pytag.Wheel) bool {
	for i := range len(stem) {
		if stem[i] == '-' && pep508.NormalizeName(stem[:i]) == name.Name && sameVersion(strings.ReplaceAll(stem[i+1:], "_", "-"), name.Version) {
			return true
		}
	}
	return false
}

// unpacked is a member whose content lies in the spool.
type unpacked struct {
	member
	row
	at, size int64
}

// unpack unpacks all members and holds them against RECORD.
func (w *Wheel) unpack(ctx context.Context, a *archive, tempDir string) error {
	recordName := w.distInfo + "/RECORD"
	i := slices.IndexFunc(a.members, func(m member) bool { return m.Name == recordName })
	if i < 0 {
		return wheelErr("it has no RECORD")
	}
	if a.members[i].UncompressedSize64 > maxRecordBytes {
		return wheelErr("its RECORD is too long")
	}
	var text bytes.Buffer
	if err := extract(ctx, a.members[i], &text); err != nil {
		return err
	}
	rec, err := parseRecord(text.Bytes(), recordName)
	if err != nil {
		return err
	}
	if err := rec.check(a.members, recordName); err != nil {
		return err
	}
	spool, err := mapped.NewSpool(tempDir)
	if err != nil {
		return err
	}
	defer spool.Discard()
	var all []unpacked
	for _, m := range a.members {
		u := unpacked{member: m, row: rec[m.Name], at: spool.Size()}
		if err := u.verify(ctx, spool); err != nil {
			return err
		}
		u.size = spool.Size() - u.at
		all = append(all, u)
	}
	if w.data, err = spool.Map(); err != nil {
		return err
	}
	return w.place(all)
}

// verify unpacks the member into out and compares it with its row of RECORD. One
// that has no hash there is RECORD itself or a signature of it.
func (u unpacked) verify(ctx context.Context, out io.Writer) error {
	if u.algorithm == "" {
		return extract(ctx, u.member, out)
	}
	if u.row.size >= 0 && uint64(u.row.size) != u.UncompressedSize64 {
		return wheelErr("%.200q has %d bytes, and %d by RECORD", u.Name, u.UncompressedSize64, u.row.size)
	}
	h := hashes[u.algorithm]()
	if err := extract(ctx, u.member, io.MultiWriter(out, h)); err != nil {
		return err
	}
	if !bytes.Equal(h.Sum(nil), u.sum) {
		return wheelErr("%.200q is not what RECORD says: its %s is %x, expected %x", u.Name, u.algorithm, h.Sum(nil), u.sum)
	}
	return nil
}

// extract unpacks a member, which has exactly the bytes that the list says: archive/zip
// ends one that has more or fewer, and compares the checksum unless it is 0.
func extract(ctx context.Context, m member, out io.Writer) error {
	in, err := m.Open()
	if err != nil {
		return wheelErr("%.200q: %w", m.Name, err)
	}
	defer in.Close()
	var sum hash.Hash32
	if m.CRC32 == 0 {
		sum = crc32.NewIEEE()
		out = io.MultiWriter(out, sum)
	}
	w := &firstError{w: out}
	_, err = io.Copy(w, ctxReader{ctx, io.LimitReader(in, int64(m.UncompressedSize64)+1)})
	switch {
	case w.err != nil:
		return w.err // the disk's, not the wheel's
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return wheelErr("%.200q: %w", m.Name, err)
	case sum != nil && sum.Sum32() != 0:
		return wheelErr("%.200q: wrong checksum", m.Name)
	}
	return nil
}

// firstError keeps the error of a writer apart from others.
type firstError struct {
	w   io.Writer
	err error
}

func (f *firstError) Write(p []byte) (int, error) {
	n, err := f.w.Write(p)
	if err != nil && f.err == nil {
		f.err = err
	}
	return n, err
}

// place decides where each member goes.
func (w *Wheel) place(all []unpacked) error {
	data := w.data.Data()
	content := func(u unpacked) []byte { return data[u.at : u.at+u.size : u.at+u.size] }
	for _, u := range all {
		if u.Name == w.distInfo+"/entry_points.txt" {
			var err error
			if w.scripts, err = parseScripts(content(u)); err != nil {
				return err
			}
		}
	}
	for _, u := range all {
		dest, scheme, err := w.destination(u.Name)
		if err != nil {
			return wheelErr("%.200q: %w", u.Name, err)
		}
		if dest == "" {
			continue
		}
		if rest, ok := strings.CutPrefix(dest, Site+"/"); ok && w.isOurs(rest) {
			return wheelErr("%.200q: that file is the installer's to write", u.Name)
		}
		f := file{dest: dest, data: content(u), exec: u.exec, digest: u.digest()}
		if u.algorithm == "" {
			f.digest = digestOf(f.data)
		}
		if scheme == schemeScripts {
			f.exec = true
			if bytes.HasPrefix(f.data, []byte(shebang)) {
				if len(f.data) > maxScriptBytes {
					return wheelErr("%.200q is too large for a script", u.Name)
				}
				f.data = withInterpreter(f.data)
				f.digest = digestOf(f.data)
			}
		}
		w.files = append(w.files, f)
	}
	for _, s := range w.scripts {
		b := s.text()
		w.files = append(w.files, file{path.Join(Scripts, s.name), b, true, digestOf(b)})
	}
	slices.SortFunc(w.files, func(a, b file) int { return cmp.Compare(a.dest, b.dest) })
	for i := 1; i < len(w.files); i++ {
		if w.files[i].dest == w.files[i-1].dest {
			return wheelErr("it has two files for /%.200s", w.files[i].dest)
		}
	}
	return nil
}

// The folders of NAME-VERSION.data, which have places of their own.
const schemeScripts = "scripts"

// destination is where a member belongs in an image; "" where it does not get in.
func (w *Wheel) destination(name string) (dest, scheme string, err error) {
	top, rest, _ := strings.Cut(name, "/")
	if !strings.HasSuffix(top, dataSuffix) || rest == "" {
		if w.isOurs(name) || isByteCode(name) {
			return "", "", nil
		}
		return path.Join(Site, name), "", nil
	}
	if strings.TrimSuffix(top, dataSuffix) != strings.TrimSuffix(w.distInfo, distInfoSuffix) {
		return "", "", fmt.Errorf("the folder is of another wheel; this one's is called %.200s", w.distInfo)
	}
	scheme, rest, _ = strings.Cut(rest, "/")
	if rest == "" {
		return "", "", fmt.Errorf("there is no such kind of file")
	}
	switch scheme {
	case "purelib", "platlib": // one folder in Debian's Python
		if isByteCode(rest) {
			return "", "", nil
		}
		return path.Join(Site, rest), scheme, nil
	case schemeScripts:
		if w.isGenerated(rest) {
			return "", "", nil
		}
		return path.Join(Scripts, rest), scheme, nil
	case "headers":
		project, _, _ := strings.Cut(w.distInfo, "-")
		return path.Join(headersDir, project, rest), scheme, nil
	case "data":
		return path.Join(Prefix, rest), scheme, nil
	}
	return "", "", fmt.Errorf("there is no such kind of file as %.40q", scheme)
}

// isOurs tells which files of metadata the installer writes itself.
func (w *Wheel) isOurs(name string) bool {
	dir, base := path.Split(name)
	return dir == w.distInfo+"/" && (base == "RECORD" || base == "INSTALLER" || base == "REQUESTED" || base == "direct_url.json")
}

// isGenerated tells whether a script is one that setuptools made for an entry point;
// pip leaves those out as well.
func (w *Wheel) isGenerated(name string) bool {
	for _, suffix := range []string{".exe", "-script.py", ".pya"} {
		name = strings.TrimSuffix(name, suffix)
	}
	return slices.ContainsFunc(w.scripts, func(s script) bool { return s.name == name })
}

// isByteCode tells what stays out because the image gets byte code of its own, made
// from the sources that are there. Byte code without a source is a module like others.
func isByteCode(name string) bool {
	return path.Ext(name) == ".pyc" && path.Base(path.Dir(name)) == "__pycache__"
}

// shebang is what scripts start with that ask for whatever Python they are installed
// for; "#!pythonw" is one of them.
const shebang = "#!python"

// withInterpreter replaces the first line of such a script.
func withInterpreter(b []byte) []byte {
	_, rest, _ := bytes.Cut(b, []byte("\n"))
	return append([]byte("#!"+Interpreter+"\n"), rest...)
}

// understand reads the metadata, which has to be of the project and version that the
// wheel's name says.
func (w *Wheel) understand(name pytag.Wheel) error {
	text, err := w.metadataFile("WHEEL")
	if err != nil {
		return err
	}
	h, err := parseHeaders(text)
	if err != nil {
		return wheelErr("its WHEEL: %w", err)
	}
	if err := checkMajor(h.first("wheel-version"), wheelMajor); err != nil {
		return wheelErr("its WHEEL: Wheel-Version: %w", err)
	}
	switch v := strings.ToLower(h.first("root-is-purelib")); v {
	case "true", "false": // one folder in Debian's Python
	default:
		return wheelErr("its WHEEL: Root-Is-Purelib is %.40q", v)
	}
	if text, err = w.metadataFile("METADATA"); err != nil {
		return err
	}
	if w.Metadata, err = ParseMetadata(text); err != nil {
		return wheelErr("its METADATA: %w", err)
	}
	if pep508.NormalizeName(w.Metadata.Name) != name.Name || !sameVersion(w.Metadata.Version, name.Version) {
		return wheelErr("its METADATA says that it is %s %.80s", w.Metadata.Name, w.Metadata.Version)
	}
	return nil
}

// metadataFile is a file of the folder of metadata.
func (w *Wheel) metadataFile(name string) ([]byte, error) {
	dest := path.Join(Site, w.distInfo, name)
	i, found := slices.BinarySearchFunc(w.files, dest, func(f file, dest string) int { return cmp.Compare(f.dest, dest) })
	if !found {
		return nil, wheelErr("it has no %s", name)
	}
	return w.files[i].data, nil
}

package wheel

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
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

// unpacked is a file that is going to be installed and whose content lies in the spool.
type unpacked struct {
	file
	at, size int64
}

// unpack unpacks all members and holds them against RECORD.
func (w *Wheel) unpack(ctx context.Context, a *archive, tempDir string) error {
	rec, err := w.readRecord(ctx, a)
	if err != nil {
		return err
	}
	if err := w.readScripts(ctx, a, rec); err != nil {
		return err
	}
	spool, err := mapped.NewSpool(tempDir)
	if err != nil {
		return err
	}
	defer spool.Discard()
	var all []unpacked
	for _, m := range a.members {
		dest, scheme, err := w.destination(m.Name)
		if err != nil {
			return wheelErr("%.200q: %w", m.Name, err)
		}
		if dest == "" {
			if _, err := verify(ctx, m, rec[m.Name], io.Discard); err != nil {
				return err
			}
			continue
		}
		u := unpacked{file{dest: dest, exec: m.exec || scheme == schemeScripts}, spool.Size(), 0}
		if u.digest, err = store(ctx, m, rec[m.Name], scheme, spool); err != nil {
			return err
		}
		u.size = spool.Size() - u.at
		all = append(all, u)
	}
	for _, s := range w.scripts {
		b := s.text()
		all = append(all, unpacked{file{dest: path.Join(Scripts, s.name), exec: true, digest: digestOf(b)}, spool.Size(), int64(len(b))})
		if _, err := spool.Write(b); err != nil {
			return err
		}
	}
	if w.data, err = spool.Map(); err != nil {
		return err
	}
	return w.place(all)
}

// find finds a file of the folder of metadata that is read into memory, so it is
// bounded.
func (w *Wheel) find(a *archive, name string, most uint64) (member, bool, error) {
	i := slices.IndexFunc(a.members, func(m member) bool { return m.Name == w.distInfo+"/"+name })
	if i < 0 {
		return member{}, false, nil
	}
	if a.members[i].UncompressedSize64 > most {
		return member{}, false, wheelErr("its %s is too long", name)
	}
	return a.members[i], true, nil
}

func (w *Wheel) readRecord(ctx context.Context, a *archive) (record, error) {
	m, ok, err := w.find(a, "RECORD", maxRecordBytes)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, wheelErr("it has no RECORD")
	}
	var text bytes.Buffer
	if err := extract(ctx, m, &text); err != nil {
		return nil, err
	}
	rec, err := parseRecord(text.Bytes(), m.Name)
	if err != nil {
		return nil, err
	}
	return rec, rec.check(a.members, m.Name)
}

// readScripts finds out which programs the wheel asks for.
func (w *Wheel) readScripts(ctx context.Context, a *archive, rec record) error {
	m, ok, err := w.find(a, "entry_points.txt", maxEntryPointsBytes)
	if err != nil || !ok {
		return err
	}
	var text bytes.Buffer
	if _, err := verify(ctx, m, rec[m.Name], &text); err != nil {
		return err
	}
	w.scripts, err = parseScripts(text.Bytes())
	return err
}

// store unpacks a member into the spool, and returns the digest of what is there.
func store(ctx context.Context, m member, r row, scheme string, spool io.Writer) (digest string, err error) {
	if scheme != schemeScripts {
		return verify(ctx, m, r, spool)
	}
	s := &scriptWriter{w: spool, hash: sha256.New()}
	if _, err := verify(ctx, m, r, s); err != nil {
		return "", err
	}
	if err := s.end(); err != nil {
		return "", err
	}
	return digestText("sha256", s.hash.Sum(nil)), nil
}

// verify unpacks a member into out, compares it with its row of RECORD and returns its
// digest. One that has no hash there is RECORD itself or a signature of it.
func verify(ctx context.Context, m member, r row, out io.Writer) (digest string, err error) {
	if r.size >= 0 && uint64(r.size) != m.UncompressedSize64 {
		return "", wheelErr("%.200q has %d bytes, and %d by RECORD", m.Name, m.UncompressedSize64, r.size)
	}
	listed := r.algorithm != ""
	if !listed {
		r.algorithm = "sha256"
	}
	h := hashes[r.algorithm]()
	if err := extract(ctx, m, io.MultiWriter(out, h)); err != nil {
		return "", err
	}
	sum := h.Sum(nil)
	if listed && !bytes.Equal(sum, r.sum) {
		return "", wheelErr("%.200q is not what RECORD says: its %s is %x, expected %x", m.Name, r.algorithm, sum, r.sum)
	}
	return digestText(r.algorithm, sum), nil
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

// place gives each file its content, which is mapped by now.
func (w *Wheel) place(all []unpacked) error {
	data := w.data.Data()
	for _, u := range all {
		u.data = data[u.at : u.at+u.size : u.at+u.size]
		w.files = append(w.files, u.file)
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
	dest, scheme, err = w.schemePath(name)
	if err != nil || dest == "" {
		return "", "", err
	}
	// Whatever the scheme is called, this is about where the file would be.
	below, isModule := strings.CutPrefix(dest, Site+"/")
	switch {
	case !isModule:
		return dest, scheme, nil
	case path.Base(below) == cacheDir:
		return "", "", fmt.Errorf("no file can be called like the folder of byte code")
	case strings.Contains("/"+below, "/"+cacheDir+"/"):
		return "", "", nil // the image gets byte code of its own, made from what is there
	case w.isOurs(below) && below != name:
		return "", "", fmt.Errorf("that file is the installer's to write")
	case w.isOurs(below):
		return "", "", nil
	}
	return dest, scheme, nil
}

// cacheDir is where Python looks for the byte code of the sources beside: PEP 3147.
// Byte code elsewhere, without a source, is a module like others.
const cacheDir = "__pycache__"

// schemePath is where a member belongs by its name; "" where a program takes its place.
func (w *Wheel) schemePath(name string) (dest, scheme string, err error) {
	top, rest, _ := strings.Cut(name, "/")
	if !strings.HasSuffix(top, dataSuffix) || rest == "" {
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

// shebang is what scripts start with that ask for whatever Python they are installed
// for; "#!pythonw" is one of them.
const shebang = "#!python"

// scriptWriter replaces the first line of such a script on its way.
type scriptWriter struct {
	w       io.Writer
	hash    hash.Hash // of what went to w
	start   []byte    // held back until it is long enough to tell
	decided bool
	skip    bool // the rest of the first line
}

// Write implements io.Writer.
func (s *scriptWriter) Write(p []byte) (int, error) {
	n := len(p)
	if !s.decided {
		if s.start = append(s.start, p...); len(s.start) < len(shebang) {
			return n, nil
		}
		p = s.start
		s.start, s.decided, s.skip = nil, true, bytes.HasPrefix(p, []byte(shebang))
		if s.skip {
			if err := s.pass([]byte("#!" + Interpreter + "\n")); err != nil {
				return 0, err
			}
		}
	}
	if s.skip {
		i := bytes.IndexByte(p, '\n')
		if i < 0 {
			return n, nil
		}
		s.skip, p = false, p[i+1:]
	}
	return n, s.pass(p)
}

func (s *scriptWriter) pass(p []byte) error {
	s.hash.Write(p)
	_, err := s.w.Write(p)
	return err
}

// end passes on what is held back.
func (s *scriptWriter) end() error {
	return s.pass(s.start)
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

package bundle

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// SumsName is the file of an archive that has the digest of every other one, in
// the format of sha256sum(1), for people who have nothing but that program.
const SumsName = "SHA256SUMS"

// ErrArchive marks a file that is no bundle in one file, or a broken one.
var ErrArchive = errors.New("unusable bundle archive")

func archiveErr(format string, a ...any) error {
	return fmt.Errorf("%w: %s", ErrArchive, fmt.Sprintf(format, a...))
}

// Pack writes a bundle as one file: a plain tar (POSIX.1-2017, pax: "ustar
// Interchange Format") of the manifest, SHA256SUMS, and the manifest's files in
// its order. Equal bundles give equal bytes. Every file is verified on its way;
// after an error what was written is of no use. Errors match those of Verify.
func Pack(ctx context.Context, b *Bundle, w io.Writer) error {
	raw, err := readManifest(filepath.Join(b.dir, ManifestName))
	if err != nil {
		return fmt.Errorf("pack guest bundle: %w", err)
	}
	if digest(raw) != b.id {
		return fmt.Errorf("%w: the manifest in %s changed while it was read", ErrDamaged, b.dir)
	}
	t := tar.NewWriter(w)
	for _, f := range []struct {
		name string
		body []byte
	}{{ManifestName, raw}, {SumsName, sums(raw, &b.Manifest)}} {
		if err := t.WriteHeader(tarHeader(f.name, int64(len(f.body)))); err != nil {
			return fmt.Errorf("pack guest bundle: %w", err)
		}
		if _, err := t.Write(f.body); err != nil {
			return fmt.Errorf("pack guest bundle: %w", err)
		}
	}
	for _, f := range b.Manifest.Files() {
		if err := t.WriteHeader(tarHeader(f.File, f.Bytes)); err != nil {
			return fmt.Errorf("pack guest bundle: %w", err)
		}
		if err := b.verifyFile(ctx, f, t); err != nil {
			return err
		}
	}
	if err := t.Close(); err != nil {
		return fmt.Errorf("pack guest bundle: %w", err)
	}
	return nil
}

func tarHeader(name string, bytes int64) *tar.Header {
	return &tar.Header{Typeflag: tar.TypeReg, Name: name, Size: bytes, Mode: 0o644, ModTime: time.Unix(0, 0)}
}

// sums are the lines of SHA256SUMS for a manifest and its bytes.
func sums(raw []byte, m *Manifest) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s  %s\n", digest(raw), ManifestName)
	for _, f := range m.Files() {
		fmt.Fprintf(&b, "%s  %s\n", f.SHA256, f.File)
	}
	return b.Bytes()
}

// CheckSums compares the SHA256SUMS of a bundle's folder with its manifest, where
// there is such a file: one that says other things is a sign that not all of the
// folder is of one piece. Errors match ErrDamaged.
func (b *Bundle) CheckSums() error {
	name := filepath.Join(b.dir, SumsName)
	f, err := openRegular(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("check guest bundle: %w", err)
	}
	defer f.Close()
	got, err := io.ReadAll(io.LimitReader(f, maxManifestBytes+1))
	if err != nil {
		return fmt.Errorf("check guest bundle: %w", err)
	}
	raw, err := readManifest(filepath.Join(b.dir, ManifestName))
	if err != nil {
		return fmt.Errorf("check guest bundle: %w", err)
	}
	if !bytes.Equal(got, sums(raw, &b.Manifest)) {
		return fmt.Errorf("%w: %s does not say what the manifest says", ErrDamaged, name)
	}
	return nil
}

// Archive is a bundle in one file, read from its beginning. All of it may be
// hostile: names, sizes and order are those of its manifest or it is refused, so
// that nothing but the manifest's plain names is ever written.
type Archive struct {
	// Manifest is what it says it holds. It must not be changed.
	Manifest Manifest
	id       string
	raw      []byte
	tar      *tar.Reader
}

// OpenArchive reads the manifest of an archive and the SHA256SUMS behind it, and
// no more. Errors match ErrArchive or ErrManifest, or come from r.
func OpenArchive(r io.Reader) (*Archive, error) {
	a := &Archive{tar: tar.NewReader(r)}
	h, err := a.next(ManifestName)
	if err != nil {
		return nil, err
	}
	if h.Size > maxManifestBytes {
		return nil, archiveErr("its manifest has %d bytes", h.Size)
	}
	if a.raw, err = io.ReadAll(a.tar); err != nil {
		return nil, a.readError(err)
	}
	m, err := ParseManifest(a.raw)
	if err != nil {
		return nil, err
	}
	a.Manifest, a.id = *m, digest(a.raw)
	return a, a.checkSums()
}

func (a *Archive) checkSums() error {
	want := sums(a.raw, &a.Manifest)
	h, err := a.next(SumsName)
	if err != nil {
		return err
	}
	if h.Size == int64(len(want)) {
		got, err := io.ReadAll(a.tar)
		if err != nil {
			return a.readError(err)
		}
		if bytes.Equal(got, want) {
			return nil
		}
	}
	return archiveErr("its %s does not say what its manifest says", SumsName)
}

// ID is that of the bundle which the archive holds; see Bundle.ID.
func (a *Archive) ID() string { return a.id }

// Bytes is the sum of the sizes of the bundle's files, its manifest included.
func (a *Archive) Bytes() int64 { return a.Manifest.size() + int64(len(a.raw)) }

// next goes to the next file, which must be a regular one of that name.
func (a *Archive) next(name string) (*tar.Header, error) {
	h, err := a.tar.Next()
	switch {
	case err == io.EOF:
		return nil, archiveErr("it ends before %s", name)
	case err != nil:
		return nil, a.readError(err)
	case h.Typeflag != tar.TypeReg || h.Linkname != "":
		return nil, archiveErr("%.200q is no regular file", h.Name)
	case h.Name != name:
		return nil, archiveErr("it has %.200q where %s belongs ('pybox-guest pack' makes one in order)", h.Name, name)
	}
	for key := range h.PAXRecords {
		if key != "size" { // what is beyond 8 GiB needs it
			return nil, archiveErr("%s has the extension %.80q", name, key)
		}
	}
	return h, nil
}

// readError sorts what reading the archive ended with.
func (a *Archive) readError(err error) error {
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return archiveErr("it is cut off; copy or download it again")
	case errors.Is(err, tar.ErrHeader), errors.Is(err, tar.ErrFieldTooLong), errors.Is(err, tar.ErrInsecurePath):
		return archiveErr("it is no plain tar file, or a damaged one (%v); a compressed one must be decompressed first", err)
	}
	return fmt.Errorf("read bundle archive: %w", err)
}

// Extract writes the files into dir, which must be there and have none of them,
// and opens the bundle. The manifest is written last: what was cut off does not
// pass for a bundle. It can be called once. Errors match ErrArchive, ErrDamaged or
// ctx's, or come from the disk.
func (a *Archive) Extract(ctx context.Context, dir string) (*Bundle, error) {
	for _, f := range a.Manifest.Files() {
		h, err := a.next(f.File)
		if err != nil {
			return nil, err
		}
		if h.Size != f.Bytes {
			return nil, archiveErr("%s has %d bytes, and the manifest says %d", f.File, h.Size, f.Bytes)
		}
		if err := writeSynced(filepath.Join(dir, f.File), func(w io.Writer) error { return a.copy(ctx, f, w) }); err != nil {
			return nil, err
		}
	}
	switch h, err := a.tar.Next(); {
	case err == nil:
		return nil, archiveErr("it has %.200q beyond its manifest", h.Name)
	case err != io.EOF:
		return nil, a.readError(err)
	}
	err := writeSynced(filepath.Join(dir, ManifestName), func(w io.Writer) error {
		_, err := w.Write(a.raw)
		return err
	})
	if err != nil {
		return nil, err
	}
	return Open(dir)
}

// copy copies the archive's present file to w and compares its digest with f's.
func (a *Archive) copy(ctx context.Context, f File, w io.Writer) error {
	h := sha256.New()
	out := &firstError{w: w}
	_, err := io.Copy(io.MultiWriter(out, h), ctxReader{ctx, a.tar})
	switch {
	case out.err != nil:
		return out.err
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return a.readError(err)
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != f.SHA256 {
		return fmt.Errorf("%w: %s has SHA-256 %s in the archive, expected %s; copy or download it again", ErrDamaged, f.File, got, f.SHA256)
	}
	return nil
}

// WriteArchive makes the file name of a bundle: written aside, and given its name
// when it is complete.
func WriteArchive(ctx context.Context, b *Bundle, name string) (err error) {
	f, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+"-*")
	if err != nil {
		return fmt.Errorf("pack guest bundle: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	defer f.Close()
	if err := Pack(ctx, b, f); err != nil {
		return err
	}
	if err := errors.Join(f.Chmod(0o644), f.Sync()); err != nil {
		return fmt.Errorf("pack guest bundle: %w", err)
	}
	if err := os.Rename(f.Name(), name); err != nil {
		return fmt.Errorf("pack guest bundle: %w", err)
	}
	return nil
}

package bytecode

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
)

// Bounds of an archive.
const (
	// MaxArchiveBytes bounds an archive. The largest image in sight fits twice.
	MaxArchiveBytes = 256 << 20
	maxFileBytes    = 32 << 20 // of one file
)

// ErrArchive marks an archive that is not what a compiler may hand back.
var ErrArchive = errors.New("invalid archive of byte code")

func archiveErr(format string, a ...any) error {
	return fmt.Errorf("%w: %w", ErrArchive, fmt.Errorf(format, a...))
}

// found is what an archive holds: byte code by the paths of its sources, the sources
// that cannot be compiled, and what was recorded, by its paths in the image.
type found struct {
	code   map[string][]byte
	left   map[string]bool
	record map[string][]byte
}

func newFound() *found {
	return &found{code: map[string][]byte{}, left: map[string]bool{}, record: map[string][]byte{}}
}

// of is the part that is about some sources, without the record.
func (f *found) of(sources map[string][]byte) *found {
	out := newFound()
	for p := range sources {
		if b, ok := f.code[p]; ok {
			out.code[p] = b
		}
		if f.left[p] {
			out.left[p] = true
		}
	}
	return out
}

// add takes over what other has of sources.
func (f *found) add(other *found) {
	maps.Copy(f.code, other.code)
	maps.Copy(f.left, other.left)
}

// files are what is kept of f's sources, by their paths in an archive.
func (f *found) files() map[string][]byte {
	out := byTarget(f.code)
	for p := range f.left {
		out[Target(p)] = nil
	}
	return out
}

// read takes an archive apart that holds byte code of the given sources, not
// necessarily of all, what was recorded (see isRecord), and nothing else. An empty file
// in the place of byte code says that its source cannot be compiled. All errors match
// ErrArchive.
func read(r io.Reader, sources map[string][]byte) (*found, error) {
	source := map[string]string{} // by target
	for p := range sources {
		source[Target(p)] = p
	}
	out := newFound()
	left := int64(MaxArchiveBytes)
	tr := tar.NewReader(io.LimitReader(r, MaxArchiveBytes))
	for {
		h, err := tr.Next()
		if err == io.EOF {
			return out, nil
		}
		if err != nil {
			return nil, archiveErr("%w", err)
		}
		p, ok := source[h.Name]
		max, record := isRecord(h.Name)
		if !record {
			max = maxFileBytes
		}
		switch {
		case h.Typeflag != tar.TypeReg:
			return nil, archiveErr("%.200q is no regular file", h.Name)
		case !ok && !record:
			return nil, archiveErr("%.200q is the byte code of no source of the image", h.Name)
		case out.code[p] != nil || out.left[p] || out.record[h.Name] != nil:
			return nil, archiveErr("%q stands twice in it", h.Name)
		case h.Size > max || h.Size > left:
			return nil, archiveErr("%q is too large", h.Name)
		}
		left -= h.Size
		b, err := io.ReadAll(tr)
		if err == nil && ok && len(b) > 0 {
			err = check(b, sources[p])
		}
		switch {
		case err != nil:
			return nil, archiveErr("%q: %w", h.Name, err)
		case ok && len(b) == 0:
			out.left[p] = true
		case ok:
			out.code[p] = b
		default:
			out.record[h.Name] = b
		}
	}
}

// byTarget gives byte code the paths that it has in an image.
func byTarget(code map[string][]byte) map[string][]byte {
	out := make(map[string][]byte, len(code))
	for p, b := range code {
		out[Target(p)] = b
	}
	return out
}

// write makes an archive of files, by their paths in an image, that read takes. Equal
// arguments give equal bytes.
func write(files map[string][]byte) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, p := range slices.Sorted(maps.Keys(files)) {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: p, Mode: 0o644, Size: int64(len(files[p])), Format: tar.FormatPAX}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(files[p]); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

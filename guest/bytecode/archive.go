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

// read takes an archive apart that holds byte code of the given sources, not
// necessarily of all, and nothing else. It returns the byte code by the paths of
// the sources. All errors match ErrArchive.
func read(r io.Reader, sources map[string][]byte) (map[string][]byte, error) {
	source := map[string]string{} // by target
	for p := range sources {
		source[Target(p)] = p
	}
	out := map[string][]byte{}
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
		switch {
		case h.Typeflag != tar.TypeReg:
			return nil, archiveErr("%.200q is no regular file", h.Name)
		case !ok:
			return nil, archiveErr("%.200q is the byte code of no source of the image", h.Name)
		case out[p] != nil:
			return nil, archiveErr("%q stands twice in it", h.Name)
		case h.Size > maxFileBytes || h.Size > left:
			return nil, archiveErr("%q is too large", h.Name)
		}
		left -= h.Size
		pyc, err := io.ReadAll(tr)
		if err == nil {
			err = check(pyc, sources[p])
		}
		if err != nil {
			return nil, archiveErr("%q: %w", h.Name, err)
		}
		out[p] = pyc
	}
}

// write makes an archive that read takes. Equal arguments give equal bytes.
func write(code map[string][]byte) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, p := range slices.Sorted(maps.Keys(code)) {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: Target(p), Mode: 0o644, Size: int64(len(code[p])), Format: tar.FormatPAX}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(code[p]); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), w.Close()
}

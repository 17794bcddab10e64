// Package deb reads Debian binary packages (deb(5)): an ar archive with a
// version, a control tar and a data tar. It takes every byte for hostile, even
// though PyBox only reads packages whose digest a lock file pins: sizes are
// bounded before memory is, names are checked before they are used, and only
// directories, regular files and links come out. It unpacks nothing to disk.
//
// Reading a tree's worth of entries safely is half of the matter; package tree
// does the other half and refuses to write through links.
package deb

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/klauspost/compress/zstd"
	"github.com/xi2/xz"

	"github.com/pybox/pybox/guest/debian"
)

// Sentinels, to be tested with errors.Is.
var (
	// ErrFormat marks what is no package or a damaged one.
	ErrFormat = errors.New("malformed package")
	// ErrRefused marks a well-formed package with content that PyBox does not
	// take: devices, escaping names, links to outside.
	ErrRefused = errors.New("refused package content")
	// ErrTooBig marks a package that exceeds a limit.
	ErrTooBig = errors.New("package too big")
)

func formatErr(format string, a ...any) error {
	return fmt.Errorf("%w: %s", ErrFormat, fmt.Sprintf(format, a...))
}

// Limits bound one package.
type Limits struct {
	Bytes   int64 // uncompressed data tar, headers included
	File    int64 // one file
	Entries int   // of the data tar
}

// DefaultLimits fit every package in PyBox's sets several times over.
var DefaultLimits = Limits{Bytes: 1 << 30, File: 512 << 20, Entries: 100_000}

// Decoder memory and the control tar's bounds.
const (
	// xz -9 and zstd --ultra use dictionaries and windows of up to 64 and
	// 128 MiB; dpkg-deb's defaults are 8 MiB.
	maxDictBytes    = 128 << 20
	maxControlBytes = 32 << 20
	maxControlFile  = 1 << 20
)

// Info is what a package says of itself.
type Info struct {
	Package, Version, Architecture string
}

// Read checks a package and calls fn for each entry of its data tar in order.
// It stops at the first error, fn's or its own, which matches one of this
// package's sentinels or comes from r. fn must not keep e.Body.
func Read(r io.Reader, l Limits, fn func(e *Entry) error) (Info, error) {
	a, err := newArReader(bufio.NewReaderSize(r, 64<<10))
	if err != nil {
		return Info{}, err
	}
	if err := readVersion(a); err != nil {
		return Info{}, err
	}
	info, err := readControl(a)
	if err != nil {
		return info, err
	}
	if err := readData(a, l, fn); err != nil {
		return info, err
	}
	// deb(5): members after the data tar are ignored; ours have none.
	if _, err := a.next(); err != io.EOF {
		return info, formatErr("something follows the data member")
	}
	return info, nil
}

func readVersion(a *arReader) error {
	m, err := a.next()
	if err != nil {
		return noEOF(err)
	}
	var b [16]byte
	n, err := io.ReadFull(m, b[:])
	if err != nil && err != io.ErrUnexpectedEOF && err != io.EOF {
		return err
	}
	if m.name != "debian-binary" || !bytes.HasPrefix(b[:n], []byte("2.")) || m.size > int64(len(b)) {
		return formatErr("it does not start with a debian-binary 2.x member")
	}
	return nil
}

func readControl(a *arReader) (Info, error) {
	m, err := a.next()
	if err != nil {
		return Info{}, noEOF(err)
	}
	tr, done, err := openTar(m, "control.tar", maxControlBytes)
	if err != nil {
		return Info{}, err
	}
	defer done()
	for count := 0; ; count++ {
		h, err := tr.Next()
		if err == io.EOF {
			return Info{}, formatErr("no control file")
		}
		if err != nil {
			return Info{}, tarErr(err)
		}
		if count > 1000 {
			return Info{}, fmt.Errorf("%w: more than 1000 control files", ErrTooBig)
		}
		if path.Clean(h.Name) == "control" {
			return parseControl(io.LimitReader(tr, maxControlFile))
		}
	}
}

func parseControl(r io.Reader) (info Info, err error) {
	n := 0
	err = debian.ReadParagraphs(r, func(p debian.Paragraph) error {
		n++
		info = Info{Package: p["Package"], Version: p["Version"], Architecture: p["Architecture"]}
		return nil
	})
	if err != nil {
		return info, formatErr("control file: %v", err)
	}
	if n != 1 || info.Package == "" || info.Version == "" {
		return info, formatErr("control file without a package and version")
	}
	return info, nil
}

// decompress wraps r by the suffix of a member's name.
func decompress(r io.Reader, suffix string) (io.Reader, func(), error) {
	switch suffix {
	case "":
		return r, func() {}, nil
	case ".gz":
		z, err := gzip.NewReader(r)
		if err != nil {
			return nil, nil, formatErr("gzip: %v", err)
		}
		return z, func() { _ = z.Close() }, nil
	case ".xz":
		z, err := xz.NewReader(r, maxDictBytes)
		if err != nil {
			return nil, nil, formatErr("xz: %v", err)
		}
		return z, func() {}, nil
	case ".zst":
		z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1),
			zstd.WithDecoderMaxWindow(maxDictBytes), zstd.WithDecoderLowmem(true))
		if err != nil {
			return nil, nil, formatErr("zstd: %v", err)
		}
		return z, z.Close, nil
	}
	return nil, nil, formatErr("compression %.20q is not one of xz, zstd, gzip or none", suffix)
}

// suffixOf returns what follows prefix in a member's name.
func suffixOf(m *arMember, prefix string) (string, error) {
	s, ok := strings.CutPrefix(m.name, prefix)
	if !ok {
		return "", formatErr("member %q where %s was expected", m.name, prefix)
	}
	return s, nil
}

func noEOF(err error) error {
	if err == io.EOF {
		return formatErr("it ends early")
	}
	return err
}

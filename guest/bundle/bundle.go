// Package bundle is the guest bundle: the kernel, the guest's root file system
// and the images of boxes in one folder, with a manifest that pins each by
// SHA-256. It opens, verifies and installs bundles; package build makes them.
//
// A bundle is named by the digest of its manifest, and the installation records
// that digest. So nothing in an installed bundle, the manifest included, can
// change without Verify noticing. What it cannot notice is somebody who owns
// the state folder and replaces everything, the record too.
package bundle

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
)

// Sentinels, to be tested with errors.Is.
var (
	// ErrDamaged: a file of a bundle is not what the manifest, or the
	// manifest not what the installation, says.
	ErrDamaged = errors.New("the guest bundle is damaged")
	// ErrNoBundle: there is no bundle installed, or none in the folder.
	ErrNoBundle = errors.New("no guest bundle")
)

const fixHint = "'pybox setup' says what it takes to install a whole one"

// Fault is what an error of this package says without what to do about it, for who
// says that elsewhere.
func Fault(err error) string { return strings.ReplaceAll(err.Error(), "; "+fixHint, "") }

// verifyParallel is how many files are hashed at once.
const verifyParallel = 4

// Bundle is an opened bundle. Its methods are safe for concurrent use.
type Bundle struct {
	// Manifest is what the bundle says it holds. It must not be changed.
	Manifest Manifest
	dir, id  string
}

// Open reads and validates the manifest of the bundle in dir and checks that
// every file it names is there, regular and of the right size. It reads no
// other contents: see Verify. Errors match ErrNoBundle, ErrManifest or
// ErrDamaged.
func Open(dir string) (*Bundle, error) {
	b, err := readManifest(filepath.Join(dir, ManifestName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w in %s: it has no %s; %s", ErrNoBundle, dir, ManifestName, fixHint)
	}
	if err != nil {
		return nil, fmt.Errorf("open guest bundle: %w", err)
	}
	m, err := ParseManifest(b)
	if err != nil {
		return nil, fmt.Errorf("guest bundle %s: %w", dir, err)
	}
	bun := &Bundle{Manifest: *m, dir: dir, id: digest(b)}
	for _, f := range m.Files() {
		if err := bun.checkFile(f); err != nil {
			return nil, err
		}
	}
	return bun, nil
}

func readManifest(name string) ([]byte, error) {
	f, err := openRegular(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxManifestBytes+1))
}

// openRegular opens a regular file and nothing else: no link, and no FIFO that
// would block.
func openRegular(name string) (*os.File, error) {
	st, err := os.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%w: %s is no regular file", ErrDamaged, name)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	if now, err := f.Stat(); err != nil || !os.SameFile(st, now) {
		f.Close()
		return nil, fmt.Errorf("%w: %s was replaced while it was opened", ErrDamaged, name)
	}
	return f, nil
}

func (b *Bundle) checkFile(f File) error {
	st, err := os.Lstat(b.Path(f))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: %s is missing; %s", ErrDamaged, b.Path(f), fixHint)
	case err != nil:
		return fmt.Errorf("open guest bundle: %w", err)
	case !st.Mode().IsRegular():
		return fmt.Errorf("%w: %s is no regular file; %s", ErrDamaged, b.Path(f), fixHint)
	case st.Size() != f.Bytes:
		return fmt.Errorf("%w: %s has %d bytes instead of %d; %s", ErrDamaged, b.Path(f), st.Size(), f.Bytes, fixHint)
	}
	return nil
}

// Dir is the bundle's folder.
func (b *Bundle) Dir() string { return b.dir }

// ID is the lower-case hex SHA-256 of the manifest's bytes.
func (b *Bundle) ID() string { return b.id }

// Path is where a file of the manifest is.
func (b *Bundle) Path(f File) string { return filepath.Join(b.dir, f.File) }

// Verify reads every file of the bundle and compares its digest, several at
// once. The error matches ErrDamaged and names the file, both digests and what
// to do; or it is ctx's.
func (b *Bundle) Verify(ctx context.Context) error {
	return b.VerifyCounting(ctx, new(atomic.Int64))
}

// VerifyCounting is Verify that adds to n the bytes that it has read, while it does.
func (b *Bundle) VerifyCounting(ctx context.Context, n *atomic.Int64) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(verifyParallel)
	for _, f := range b.Manifest.Files() {
		g.Go(func() error { return b.verifyFile(ctx, f, counter{n}) })
	}
	return g.Wait()
}

// counter counts what is written to it.
type counter struct{ n *atomic.Int64 }

func (c counter) Write(p []byte) (int, error) {
	c.n.Add(int64(len(p)))
	return len(p), nil
}

// verifyFile copies f to w while it computes the digest, and returns an error
// when that is wrong.
func (b *Bundle) verifyFile(ctx context.Context, f File, w io.Writer) error {
	in, err := openRegular(b.Path(f))
	if err != nil {
		return fmt.Errorf("verify guest bundle: %w", err)
	}
	defer in.Close()
	h := sha256.New()
	out := &firstError{w: w}
	n, err := io.Copy(io.MultiWriter(out, h), ctxReader{ctx, io.LimitReader(in, f.Bytes+1)})
	if out.err != nil {
		return out.err // about the copy: nothing is wrong with the bundle
	}
	if err != nil {
		return fmt.Errorf("verify guest bundle: %s: %w", b.Path(f), err)
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != f.SHA256 || n != f.Bytes {
		return fmt.Errorf("%w: %s has SHA-256 %s, expected %s; %s", ErrDamaged, b.Path(f), got, f.SHA256, fixHint)
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

// ctxReader ends a long copy when ctx does.
type ctxReader struct {
	ctx context.Context
	r   io.Reader
}

func (c ctxReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}

func digest(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

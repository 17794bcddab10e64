package bundle

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gofrs/flock"
	"github.com/google/renameio/v2"

	"github.com/pybox/pybox/guest/nospace"
)

// The layout of an installation below the state folder:
//
//	bundles/current     the ID of the bundle in use, one line
//	bundles/previous    the ID of the one before it
//	bundles/ID16/       the bundles themselves
//	bundles/lock        serialises installations
const (
	bundlesDir   = "bundles"
	currentName  = "current"
	previousName = "previous"
	lockName     = "lock"
	tempPrefix   = "tmp-"
	shortID      = 16
	lockPoll     = 50 * time.Millisecond
)

// Install copies the bundle in dir into the state folder home and makes it the
// current one. Every byte is verified on its way; a bundle appears under its
// name only when it is complete and on disk. All bundles but the current and
// the previous one are removed. Where the same bundle is installed already, that
// copy is verified in place; dir's contents are only read when it is damaged and
// must be replaced. Errors match those of Open and Verify, or nospace.Err.
func Install(ctx context.Context, home, dir string) (_ *Bundle, err error) {
	src, err := Open(dir)
	if err != nil {
		return nil, err
	}
	base := filepath.Join(home, bundlesDir)
	defer func() {
		err = nospace.Explain(err, "the guest bundle", base, src.Manifest.size(), "choose a state folder on another disk with --home or PYBOX_HOME")
	}()
	if err := os.MkdirAll(base, 0o700); err != nil {
		return nil, fmt.Errorf("install guest bundle: %w", err)
	}
	l := flock.New(filepath.Join(base, lockName))
	if _, err := l.TryLockContext(ctx, lockPoll); err != nil {
		return nil, fmt.Errorf("wait for another installation in %s: %w", base, err)
	}
	defer l.Close()
	dst := filepath.Join(base, src.id[:shortID])
	if !src.installedAt(ctx, dst) {
		if err := src.copyTo(ctx, base, dst); err != nil {
			return nil, fmt.Errorf("install guest bundle: %w", err)
		}
	}
	if err := setCurrent(base, src.id); err != nil {
		return nil, fmt.Errorf("install guest bundle: %w", err)
	}
	prune(home)
	return Current(home)
}

// installedAt tells whether dst is a whole copy of b.
func (b *Bundle) installedAt(ctx context.Context, dst string) bool {
	have, err := Open(dst)
	return err == nil && have.id == b.id && have.Verify(ctx) == nil
}

// copyTo makes a verified copy of b at dst by way of a temporary folder beside it. A
// damaged copy that is there gets whole files in place of its own, one at a time; what
// else lies in its folder is somebody's, and stays.
func (b *Bundle) copyTo(ctx context.Context, base, dst string) (err error) {
	tmp, err := os.MkdirTemp(base, tempPrefix)
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	for _, f := range b.Manifest.Files() {
		if err := writeSynced(filepath.Join(tmp, f.File), func(w io.Writer) error {
			return b.verifyFile(ctx, f, w)
		}); err != nil {
			return err
		}
	}
	m, err := readManifest(filepath.Join(b.dir, ManifestName))
	if err != nil {
		return err
	}
	if err := writeSynced(filepath.Join(tmp, ManifestName), func(w io.Writer) error {
		_, err := io.Copy(w, bytes.NewReader(m))
		return err
	}); err != nil {
		return err
	}
	if c, err := Open(tmp); err != nil || c.id != b.id {
		return errors.Join(fmt.Errorf("%w: %s changed while it was copied", ErrDamaged, b.dir), err)
	}
	if err := syncDir(tmp); err != nil {
		return err
	}
	switch st, err := os.Lstat(dst); {
	case errors.Is(err, fs.ErrNotExist):
		if err := os.Rename(tmp, dst); err != nil {
			return err
		}
		return syncDir(base)
	case err != nil:
		return err
	case !st.IsDir():
		return fmt.Errorf("%s is in the way: it is no folder", dst)
	}
	for _, f := range append(b.Manifest.Files(), File{File: ManifestName}) {
		if err := os.Rename(filepath.Join(tmp, f.File), filepath.Join(dst, f.File)); err != nil {
			return err
		}
	}
	return syncDir(dst)
}

// writeSynced makes a file with mode 0644 whatever the umask: the VMM may run
// as another user and reads it by an open descriptor.
func writeSynced(name string, fill func(io.Writer) error) (err error) {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := fill(f); err != nil {
		return err
	}
	if err := f.Chmod(0o644); err != nil {
		return err
	}
	return f.Sync()
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

func setCurrent(base, id string) error {
	old, err := readID(filepath.Join(base, currentName))
	if err == nil && old != id {
		if err := renameio.WriteFile(filepath.Join(base, previousName), []byte(old+"\n"), 0o644); err != nil {
			return err
		}
	}
	if err := renameio.WriteFile(filepath.Join(base, currentName), []byte(id+"\n"), 0o644); err != nil {
		return err
	}
	return syncDir(base)
}

// prune removes bundles that are neither current nor previous, and leftovers of
// installations that were cut off. It is best effort: what stays is only space.
func prune(home string) {
	i, err := List(home)
	if err != nil {
		return
	}
	for _, n := range i.Superseded(i.Current) {
		_ = os.RemoveAll(filepath.Join(i.Dir, n))
	}
}

func isShortID(s string) bool {
	return len(s) == shortID && isSHA256(strings.Repeat(s, 64/shortID))
}

func readID(name string) (string, error) {
	f, err := openRegular(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, 128))
	if err != nil {
		return "", err
	}
	id := strings.TrimSuffix(string(b), "\n")
	if !isSHA256(id) {
		return "", fmt.Errorf("%w: %s does not hold a bundle's id", ErrDamaged, name)
	}
	return id, nil
}

// Current opens the bundle that is installed in the state folder home. The
// manifest is compared with the id that Install recorded; contents are left to
// Verify. Errors match ErrNoBundle, ErrDamaged or ErrManifest.
func Current(home string) (*Bundle, error) {
	base := filepath.Join(home, bundlesDir)
	id, err := readID(filepath.Join(base, currentName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w is installed in %s; %s", ErrNoBundle, home, fixHint)
	}
	if err != nil {
		return nil, fmt.Errorf("find the installed guest bundle: %w; %s", err, fixHint)
	}
	dir := filepath.Join(base, id[:shortID])
	raw, err := readManifest(filepath.Join(dir, ManifestName))
	if err == nil {
		if got := digest(raw); got != id {
			return nil, fmt.Errorf("%w: %s has SHA-256 %s, expected %s; %s", ErrDamaged,
				filepath.Join(dir, ManifestName), got, id, fixHint)
		}
	}
	b, err := Open(dir)
	if err != nil {
		return nil, err
	}
	if b.id != id {
		return nil, fmt.Errorf("%w: the manifest in %s changed while it was read; %s", ErrDamaged, dir, fixHint)
	}
	return b, nil
}

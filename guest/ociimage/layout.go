package ociimage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
)

// layoutDir is a folder in the OCI image layout. Its parts are named by digest; what
// index.json says is of no use to who knows the digest.
type layoutDir struct{ root *os.Root }

func openLayout(dir string) (store, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	if _, err := root.Lstat("oci-layout"); err != nil {
		root.Close()
		return nil, fmt.Errorf("%w: %s is no OCI image layout: it has no file oci-layout", ErrFormat, dir)
	}
	return &layoutDir{root: root}, nil
}

// Close implements store.
func (l *layoutDir) Close() error { return l.root.Close() }

func blobPath(digest string) string {
	return "blobs/sha256/" + strings.TrimPrefix(digest, digestPrefix)
}

// open opens a blob, which must be a regular file.
func (l *layoutDir) open(digest string) (*os.File, int64, error) {
	p := blobPath(digest)
	st, err := l.root.Stat(p)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, fmt.Errorf("%w: %s is not in %s", ErrNotFound, digest, l.root.Name())
	}
	if err != nil {
		return nil, 0, err
	}
	if !st.Mode().IsRegular() { // opening a FIFO would wait for a writer
		return nil, 0, fmt.Errorf("%w: %s is no regular file", ErrFormat, p)
	}
	f, err := l.root.Open(p)
	return f, st.Size(), err
}

// small implements store.
func (l *layoutDir) small(_ context.Context, digest string, _ bool, max int64) ([]byte, error) {
	f, size, err := l.open(digest)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readSmall(f, size, max)
}

// layers implements store.
func (l *layoutDir) layers(ctx context.Context, list []stored) ([]opener, error) {
	out := make([]opener, 0, len(list))
	for _, s := range list {
		open := func() (io.ReadCloser, error) {
			f, size, err := l.open(s.Digest)
			if err == nil && size != s.Bytes {
				f.Close()
				return nil, fmt.Errorf("%w: %s has %d bytes instead of %d", ErrDigest, s.Digest, size, s.Bytes)
			}
			if err != nil {
				return nil, err
			}
			return f, nil
		}
		if err := verifyLayer(ctx, open, s); err != nil {
			return nil, err
		}
		out = append(out, open)
	}
	return out, nil
}

func readSmall(r io.Reader, size, max int64) ([]byte, error) {
	if size > max {
		return nil, fmt.Errorf("%w: it has %d bytes instead of at most %d", ErrTooBig, size, max)
	}
	return io.ReadAll(io.LimitReader(r, max))
}

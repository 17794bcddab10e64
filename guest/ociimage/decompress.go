package ociimage

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// How a layer is compressed.
type compression int

const (
	plain compression = iota
	gzipped
	zstandard
	unknown
)

// Bounds of unpacking. A layer that is all zeroes is packed a thousand times
// smaller, real ones ten times at most.
const (
	maxRatio     = 100
	freeUnpacked = 64 << 20 // bytes before the ratio counts
	maxZstdMem   = 128 << 20
	maxTail      = 64 << 20 // after the end of the tar; real ones have some KiB
)

// compressionOf tells by the first bytes. Media types say it too, but those of
// docker save do not, and the digest of the plain tar settles it.
func compressionOf(head []byte) compression {
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		return gzipped
	case bytes.HasPrefix(head, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		return zstandard
	case len(head) > 3 && head[0]&0xf0 == 0x50 && bytes.Equal(head[1:4], []byte{0x2a, 0x4d, 0x18}):
		return zstandard // a skippable frame first, as zstd:chunked has
	case bytes.HasPrefix(head, []byte("BZh")), bytes.HasPrefix(head, []byte("\xfd7zX")):
		return unknown
	}
	return plain
}

// unpacked reads the plain tar of a layer, hashes it and holds it to its bounds.
type unpacked struct {
	ctx    context.Context
	packed *counter
	r      io.Reader
	close  func()
	sum    hash.Hash
	n      int64
	budget *int64 // bytes that all layers may still unpack to
}

// unpack begins to unpack a layer.
func unpack(ctx context.Context, r io.Reader, budget *int64) (*unpacked, error) {
	packed := &counter{r: r}
	buffered := bufio.NewReaderSize(packed, 64<<10)
	head, err := buffered.Peek(4)
	if err != nil && err != io.EOF {
		return nil, err
	}
	u := &unpacked{ctx: ctx, packed: packed, r: buffered, close: func() {}, sum: sha256.New(), budget: budget}
	switch compressionOf(head) {
	case gzipped:
		u.r, err = gzip.NewReader(buffered)
	case zstandard:
		var d *zstd.Decoder
		d, err = zstd.NewReader(buffered, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxWindow(maxZstdMem), zstd.WithDecoderMaxMemory(1<<40))
		if err == nil {
			u.r, u.close = d, d.Close
		}
	case unknown:
		err = errors.New("it is compressed with neither gzip nor zstd")
	default:
		err = nil
	}
	if u.packed.err != nil {
		return nil, u.packed.err
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	return u, nil
}

// Read implements io.Reader.
func (u *unpacked) Read(p []byte) (int, error) {
	if err := u.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := u.r.Read(p)
	u.sum.Write(p[:n])
	u.n += int64(n)
	if *u.budget -= int64(n); *u.budget < 0 {
		return 0, fmt.Errorf("%w: the layers unpack to more than is taken", ErrTooBig)
	}
	if u.n > freeUnpacked && u.n/maxRatio > u.packed.n {
		return 0, fmt.Errorf("%w: a layer unpacks to more than %d times its size", ErrTooBig, maxRatio)
	}
	switch {
	case err == nil || err == io.EOF:
	case u.packed.err != nil: // not the layer's fault
		err = u.packed.err
	default:
		err = fmt.Errorf("%w: %w", ErrFormat, err)
	}
	return n, err
}

// finish reads what is behind the end of the tar and compares the digest of all.
func (u *unpacked) finish(diffID string) error {
	n, err := io.Copy(io.Discard, io.LimitReader(u, maxTail+1))
	if err != nil {
		return err
	}
	if n > maxTail {
		return fmt.Errorf("%w: more than %d bytes follow the end of the tar", ErrTooBig, maxTail)
	}
	if got := digestPrefix + hex.EncodeToString(u.sum.Sum(nil)); got != diffID {
		return fmt.Errorf("%w: the layer unpacks to %s, and the configuration says %s; nothing of it was used", ErrDigest, got, diffID)
	}
	return nil
}

// counter counts what is read, and keeps what reading failed with.
type counter struct {
	r   io.Reader
	n   int64
	err error
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	if err != nil && err != io.EOF {
		c.err = err
	}
	return n, err
}

package ociimage

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/klauspost/compress/zstd"

	"github.com/pybox/pybox/guest/internal/guesttest"
)

func diffOf(b []byte) string {
	h, _, _ := shaOf(b)
	return h
}

// readAll unpacks everything that is stored.
func readAll(t *testing.T, stored []byte, diffID string, budget int64) (int64, error) {
	t.Helper()
	u, err := unpack(t.Context(), bytes.NewReader(stored), &budget)
	if err != nil {
		return 0, err
	}
	defer u.close()
	n, err := io.Copy(io.Discard, u)
	if err != nil {
		return n, err
	}
	return n, u.finish(diffID)
}

func TestUnpack(t *testing.T) {
	text := bytes.Repeat([]byte("some text "), 1000)
	half := len(text) / 2
	two := append(guesttest.Compress(t, text[:half], ".gz"), guesttest.Compress(t, text[half:], ".gz")...)
	skippable := append([]byte{0x50, 0x2a, 0x4d, 0x18, 4, 0, 0, 0, 1, 2, 3, 4}, guesttest.Compress(t, text, ".zst")...)
	for name, stored := range map[string][]byte{
		"plain": text, "gzip": guesttest.Compress(t, text, ".gz"), "zstd": guesttest.Compress(t, text, ".zst"), "two members": two, "a skippable frame": skippable,
	} {
		if n, err := readAll(t, stored, diffOf(text), 1<<20); err != nil || n != int64(len(text)) {
			t.Errorf("%s: %d bytes, %v", name, n, err)
		}
		if _, err := readAll(t, stored, someDigest, 1<<20); !errors.Is(err, ErrDigest) {
			t.Errorf("%s, another digest: %v", name, err)
		}
		if _, err := readAll(t, stored, diffOf(text), 5000); !errors.Is(err, ErrTooBig) {
			t.Errorf("%s, too long: %v", name, err)
		}
	}
	for name, stored := range map[string][]byte{
		"cut gzip": guesttest.Compress(t, text, ".gz")[:40], "cut zstd": guesttest.Compress(t, text, ".zst")[:20], "gzip and more": append(guesttest.Compress(t, text, ".gz"), "more"...),
		"damaged gzip": damaged(guesttest.Compress(t, text, ".gz")), "bzip2": []byte("BZh91AY"), "xz": []byte("\xfd7zXZ\x00"), "only a head": {0x1f, 0x8b},
	} {
		if _, err := readAll(t, stored, diffOf(text), 1<<20); !errors.Is(err, ErrFormat) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func damaged(b []byte) []byte {
	b[len(b)-6] ^= 0xff
	return b
}

// TestBombs: what unpacks to far more than it is, ends early.
func TestBombs(t *testing.T) {
	zeroes := make([]byte, 100<<20)
	for _, suffix := range []string{".gz", ".zst"} {
		stored := guesttest.Compress(t, zeroes, suffix)
		n, err := readAll(t, stored, someDigest, 1<<40)
		if !errors.Is(err, ErrTooBig) || n > freeUnpacked+16<<20 {
			t.Errorf("%s: %d of %d bytes, %v", suffix, n, len(zeroes), err)
		}
	}
	// The same in small is no bomb.
	if _, err := readAll(t, guesttest.Compress(t, zeroes[:8<<20], ".gz"), diffOf(zeroes[:8<<20]), 1<<40); err != nil {
		t.Error(err)
	}
	// A frame that wants a window of 2 GiB wants that much memory.
	var b bytes.Buffer
	w, err := zstd.NewWriter(&b, zstd.WithWindowSize(zstd.MaxWindowSize), zstd.WithSingleSegment(false))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(zeroes[:1<<20]); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := readAll(t, b.Bytes(), someDigest, 1<<40); !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), "window") {
		t.Errorf("a window of %d bytes: %v", zstd.MaxWindowSize, err)
	}
}

// TestReadErrors: a disk that fails is not a layer that is malformed.
func TestReadErrors(t *testing.T) {
	broken := errors.New("input/output error")
	data := make([]byte, 1<<20)
	for i := range data { // what a compressor leaves as it is
		data[i] = byte(i * i * i >> 7)
	}
	for _, suffix := range []string{"", ".gz", ".zst"} {
		b := guesttest.Compress(t, data, suffix)
		for _, n := range []int{0, 2, 12, len(b) / 2} {
			budget := int64(1 << 30)
			u, err := unpack(t.Context(), io.MultiReader(bytes.NewReader(b[:n]), iotest.ErrReader(broken)), &budget)
			if err == nil {
				_, err = io.Copy(io.Discard, u)
				u.close()
			}
			if !errors.Is(err, broken) || errors.Is(err, ErrFormat) {
				t.Errorf("%q after %d bytes: %v", suffix, n, err)
			}
		}
	}
}

// TestTail: what follows the end of the tar counts for the digest and is bounded.
func TestTail(t *testing.T) {
	tarred := append(lines(t, "f a 1"), make([]byte, 10_240)...)
	for diffID, want := range map[string]error{diffOf(tarred): nil, diffOf(lines(t, "f a 1")): ErrDigest} {
		budget := int64(1 << 20)
		err := stack(t.Context(), newFlattener(&heap{}, small), func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(tarred)), nil }, diffID, &budget)
		if !errors.Is(err, want) {
			t.Errorf("got %v, want %v", err, want)
		}
	}
	endless := io.MultiReader(bytes.NewReader(lines(t, "f a 1")), endlessly{})
	budget := int64(1 << 40)
	err := stack(t.Context(), newFlattener(&heap{}, small), func() (io.ReadCloser, error) { return io.NopCloser(endless), nil }, someDigest, &budget)
	if !errors.Is(err, ErrTooBig) {
		t.Errorf("an endless tail: %v", err)
	}
}

type endlessly struct{}

func (endlessly) Read(p []byte) (int, error) { return len(p), nil }

// TestUnpackEnds: a context's end ends it.
func TestUnpackEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	budget := int64(1 << 40)
	u, err := unpack(ctx, endlessly{}, &budget)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := u.Read(make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := u.Read(make([]byte, 10)); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

package picture

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"image/jpeg"
	"runtime"
	"strings"
	"testing"
	"time"
)

// scans is a progressive JPEG of a few bytes whose every scan of every colour goes over
// all blocks, and finds nothing in them.
func scans(w, h, colours, n int) []byte {
	b := []byte("\xff\xd8\xff\xee\x00\x0eAdobe\x00\x64\x00\x00\x00\x00\x00")
	b = append(b, 0xff, 0xc2, 0, byte(8+3*colours), 8)
	b = binary.BigEndian.AppendUint16(b, uint16(h))
	b = binary.BigEndian.AppendUint16(b, uint16(w))
	b = append(b, byte(colours))
	for c := range colours {
		b = append(b, byte(c+1), 0x11, 0)
	}
	b = append(append(b, 0xff, 0xdb, 0, 67, 0), bytes.Repeat([]byte{1}, 64)...)
	// One code of a bit: the next 2^14 blocks, and as many as 14 bits say, are empty.
	b = append(append(b, 0xff, 0xc4, 0, 20, 0x10, 1), append(make([]byte, 15), 0xe0)...)
	for i := range n * colours {
		b = append(b, 0xff, startOfScan, 0, 8, 1, byte(i%colours+1), 0, 1, 63, 0)
		var bits strings.Builder
		for left := (w + 7) / 8 * ((h + 7) / 8); left > 0; left -= 16384 + 16382 {
			bits.WriteString("011111111111110")
		}
		for bits.Len()%8 != 0 {
			bits.WriteByte('1')
		}
		for s := bits.String(); s != ""; s = s[8:] {
			var x byte
			for _, c := range s[:8] {
				x = x<<1 | byte(c-'0')
			}
			if b = append(b, x); x == 0xff {
				b = append(b, 0)
			}
		}
	}
	return append(b, 0xff, endOfImage)
}

// TestScansAreBounded: an image of a few bytes that takes a decoder minutes is refused
// before it is decoded, one as encoders make them is taken.
func TestScansAreBounded(t *testing.T) {
	for name, c := range map[string]struct {
		b    []byte
		want error
	}{
		"ten scans of much":  {scans(4096, 2048, 1, 10), nil},
		"many scans of much": {scans(4096, 2048, 1, 17), ErrLimit},
		"a bomb":             {scans(4096, 2048, 1, 100_000), ErrLimit},
		"64 scans of little": {scans(64, 64, 1, 64), nil},
		"65 scans of little": {scans(64, 64, 1, 65), ErrLimit},
		"four colours":       {scans(4096, 2048, 4, 1), ErrLimit},
	} {
		if _, err := check(JPEG, c.b); !errors.Is(err, c.want) {
			t.Errorf("%s, %d bytes: %v, want %v", name, len(c.b), err, c.want)
		}
	}
	if _, err := NewMaker().Make(t.Context(), scans(64, 64, 1, 65)); !errors.Is(err, ErrLimit) {
		t.Errorf("nobody checks: %v", err)
	}
	if _, err := jpeg.Decode(bytes.NewReader(scans(64, 64, 1, 1000))); err != nil {
		t.Errorf("what is refused is no JPEG at all: %v", err)
	}
}

// TestDecodingEnds: a decoder does not outlast the context.
func TestDecodingEnds(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	b := scans(4096, 2048, 1, 20_000)
	began := time.Now()
	if _, err := raster(ctx, JPEG, b); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > time.Minute {
		t.Errorf("%v after %v", err, time.Since(began))
	}
	for media, b := range map[string][]byte{PNG: pngOf(t, drawing(3000, 10, false)), JPEG: jpegOf(t, drawing(3000, 10, false))} {
		if _, err := raster(ctx, media, b); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", media, err)
		}
	}
}

// TestMemoryIsBounded: decoding takes no more than it says at MaxPixels.
func TestMemoryIsBounded(t *testing.T) {
	const w, h = 1024, 512
	for colours, most := range map[int]int{3: 20, 4: 2 * 20} {
		b := scans(w, h, colours, 1)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if _, err := decode(t.Context(), JPEG, b); err != nil {
			t.Errorf("%d colours: %v", colours, err)
		}
		runtime.ReadMemStats(&after)
		if got := int(after.TotalAlloc-before.TotalAlloc) / (w * h); got > most {
			t.Errorf("%d colours: %d bytes a pixel, want at most %d", colours, got, most)
		}
	}
	for n, want := range map[int]error{2048: nil, 2049: ErrLimit} {
		if _, err := check(JPEG, scans(2048, n, 4, 1)); !errors.Is(err, want) {
			t.Errorf("2048 x %d pixels of four colours: %v, want %v", n, err, want)
		}
	}
}

// TestNothingAfterTheEnd: what stands behind an image does not go along with it.
func TestNothingAfterTheEnd(t *testing.T) {
	for media, b := range map[string][]byte{PNG: pngOf(t, drawing(30, 20, true)), JPEG: jpegOf(t, drawing(30, 20, true))} {
		p, err := NewMaker().Make(t.Context(), append(bytes.Clone(b), "<script>hidden</script>\xff\xd9IEND"...))
		if err != nil || !bytes.Equal(p.Data, b) {
			t.Errorf("%s: %+v, %v", media, p, err)
		}
	}
	if got := endOfJPEG([]byte("\xff\xd8\xff\xe0\x00\x04\xff\xd9ab\xff\x00\xff\xd0\xff\xff\xd9x")); got != 17 {
		t.Errorf("an end of image inside a segment: %d", got)
	}
}

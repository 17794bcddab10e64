package picture

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"image"
	"image/color"
	"image/jpeg"
	"image/png"
	"math/rand/v2"
	"strings"
	"testing"
)

// drawing is an image of so many pixels; noise compresses badly.
func drawing(w, h int, noise bool) image.Image {
	img := image.NewRGBA(image.Rect(0, 0, w, h))
	r := rand.New(rand.NewPCG(1, 2))
	for i := range img.Pix {
		if img.Pix[i] = byte(i % 251); noise {
			img.Pix[i] = byte(r.Uint32())
		}
	}
	img.Set(0, 0, color.White)
	return img
}

func pngOf(t testing.TB, img image.Image) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := png.Encode(&b, img); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func jpegOf(t testing.TB, img image.Image) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := jpeg.Encode(&b, img, nil); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// says is a PNG of a few bytes that says to have so many pixels.
func says(w, h uint32) []byte {
	head := binary.BigEndian.AppendUint32([]byte("IHDR"), w)
	head = append(binary.BigEndian.AppendUint32(head, h), 8, 2, 0, 0, 0)
	b := binary.BigEndian.AppendUint32([]byte("\x89PNG\r\n\x1a\n"), 13)
	b = append(b, head...)
	return binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(head))
}

func TestSmallIsGivenAsItIs(t *testing.T) {
	for media, b := range map[string][]byte{PNG: pngOf(t, drawing(300, 200, false)), JPEG: jpegOf(t, drawing(300, 200, false))} {
		p, err := NewMaker().Make(t.Context(), b)
		if err != nil || p.Media != media || !bytes.Equal(p.Data, b) || p.Width != 300 || p.Height != 200 || p.From != (image.Point{}) {
			t.Errorf("%s: %+v, %v", media, p, err)
		}
	}
}

func TestLargeIsMadeSmaller(t *testing.T) {
	for name, c := range map[string]struct {
		b             []byte
		width, height int // 0: less
	}{
		"wide":  {pngOf(t, drawing(3000, 100, false)), MaxSide, 52},
		"tall":  {jpegOf(t, drawing(100, 3000, false)), 52, MaxSide},
		"thin":  {pngOf(t, drawing(1, 4000, false)), 1, MaxSide},
		"heavy": {pngOf(t, drawing(640, 640, true)), 0, 0},
	} {
		p, err := NewMaker().Make(t.Context(), c.b)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if c.width != 0 && (p.Width != c.width || p.Height != c.height) || p.Width > MaxSide || p.Height > MaxSide || len(p.Data) > MaxGiven || p.From == (image.Point{}) {
			t.Errorf("%s: %d x %d, %d bytes, was %v", name, p.Width, p.Height, len(p.Data), p.From)
		}
		if got, _, err := image.Decode(bytes.NewReader(p.Data)); err != nil || got.Bounds().Dx() != p.Width || got.Bounds().Dy() != p.Height {
			t.Errorf("%s: it is not the image that it says: %v", name, err)
		}
	}
}

func TestRefused(t *testing.T) {
	whole := pngOf(t, drawing(100, 100, true))
	broken := bytes.Clone(whole)
	broken[len(broken)/2] ^= 0xff
	for name, c := range map[string]struct {
		b    []byte
		want error
	}{
		"nothing":          {nil, ErrNone},
		"text":             {[]byte("hello"), ErrNone},
		"GIF":              {[]byte("GIF89a\x01\x00\x01\x00"), ErrNone},
		"magic alone":      {[]byte("\x89PNG\r\n\x1a\n"), ErrDamaged},
		"cut off":          {whole[:len(whole)/2], ErrDamaged},
		"flipped":          {broken, ErrDamaged},
		"cut off JPEG":     {jpegOf(t, drawing(100, 100, true))[:500], ErrDamaged},
		"a bomb":           {says(100_000, 100_000), ErrLimit},
		"overflow":         {says(1<<31-1, 1<<31-1), ErrDamaged},
		"no pixels":        {says(0, 10), ErrDamaged},
		"a large file":     {append(bytes.Clone(whole), make([]byte, MaxBytes)...), ErrLimit},
		"a pixel too many": {says(MaxPixels, 2), ErrLimit},
	} {
		if p, err := NewMaker().Make(t.Context(), c.b); !errors.Is(err, c.want) {
			t.Errorf("%s: %+v, %v, want %v", name, p, err, c.want)
		}
	}
}

func TestTurns(t *testing.T) {
	m := NewMaker()
	m.turn <- struct{}{} // somebody decodes
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := m.Make(ctx, pngOf(t, drawing(3, 3, false))); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	<-m.turn
	if _, err := m.Make(t.Context(), pngOf(t, drawing(3, 3, false))); err != nil {
		t.Error(err)
	}
}

// FuzzMake: whatever a program writes, what is given is within its bounds and is what
// it says.
func FuzzMake(f *testing.F) {
	f.Add(pngOf(f, drawing(8, 8, true)))
	f.Add(jpegOf(f, drawing(8, 8, true)))
	f.Add(pngOf(f, drawing(2000, 2, false)))
	f.Add(says(1<<20, 1<<20))
	f.Add([]byte(plot))
	f.Add([]byte(inSVG(`<style>*{fill:rgb(1,2,3)}</style><text x="1">a&lt;b</text><image href="data:image/png;base64,` + base64.StdEncoding.EncodeToString(pngOf(f, drawing(2, 2, false))) + `"/>`)))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := NewMaker().Make(t.Context(), b)
		if err != nil {
			return
		}
		if len(p.Data) == 0 || len(p.Data) > MaxGiven || p.Width > MaxSide || p.Height > MaxSide {
			t.Errorf("%d bytes, %d x %d", len(p.Data), p.Width, p.Height)
		}
		if p.Media != SVG {
			return
		}
		for _, s := range []string{"<script", "<!", "<?"} {
			if strings.Contains(strings.ToLower(string(p.Data)), s) {
				t.Errorf("%q got through: %q", s, p.Data)
			}
		}
		if again, err := vector(p.Data); err != nil || !bytes.Equal(again.Data, p.Data) {
			t.Errorf("what was written anew is not taken, or as something else: %v, %q, %q", err, p.Data, again)
		}
	})
}

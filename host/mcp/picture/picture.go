// Package picture makes of a file that an untrusted program wrote an image that may be
// shown: PNG and JPEG are decoded whole, within bounds, and made smaller where they are
// large; SVG is let through where nothing in it acts or fetches. It reads no files and
// knows nothing of programs.
package picture

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"image"
	"image/jpeg"
	"image/png"

	"golang.org/x/image/draw"
)

// Media types of images.
const (
	PNG  = "image/png"
	JPEG = "image/jpeg"
	SVG  = "image/svg+xml"
)

const (
	// MaxBytes bounds a file that is taken for an image.
	MaxBytes = 8 << 20
	// MaxPixels bounds an image before it is decoded: an image of a few bytes can
	// say that it has billions. A decoder needs up to 16 bytes for each.
	MaxPixels = 8 << 20
	// MaxSide is the longest side of an image that is given: models see no more of
	// a larger one.
	MaxSide = 1568
	// MaxGiven bounds the bytes of an image that is given.
	MaxGiven = 1 << 20
	// quality is that of a JPEG that was made smaller.
	quality = 85
)

var (
	// ErrNone: the file is no image of a kind that is known here.
	ErrNone = errors.New("no PNG, JPEG or SVG image")
	// ErrLimit: it is more than is looked at or given.
	ErrLimit = errors.New("over the limit")
	// ErrDamaged: it begins like an image and is none.
	ErrDamaged = errors.New("damaged")
	// ErrActive: there is something in an SVG that acts or fetches.
	ErrActive = errors.New("not a passive picture")
)

// Picture is an image that may be shown.
type Picture struct {
	Media string
	Data  []byte
	// Width and Height are in pixels; 0 where that is not known, as of an SVG.
	Width, Height int
	// From are the width and height of the file, where it was made smaller.
	From image.Point
}

// Maker makes pictures, one at a time: decoding one takes up to 128 MiB for a moment.
// Its methods are safe for concurrent use.
type Maker struct{ turn chan struct{} }

// NewMaker makes a Maker.
func NewMaker() *Maker { return &Maker{make(chan struct{}, 1)} }

// Make makes a picture of a file. The error matches ErrNone, ErrLimit, ErrDamaged or
// ErrActive, or is the context's, which bounds the wait for others. What it says is fit
// to be shown.
func (m *Maker) Make(ctx context.Context, b []byte) (*Picture, error) {
	media := kind(b)
	switch {
	case media == "":
		return nil, ErrNone
	case len(b) > MaxBytes:
		return nil, fmt.Errorf("%w of %d MiB for an image", ErrLimit, MaxBytes>>20)
	case media == SVG:
		return vector(b)
	}
	c, err := config(media, b)
	switch {
	case err != nil:
		return nil, ErrDamaged
	case c.Width <= 0 || c.Height <= 0:
		return nil, ErrDamaged
	case c.Width > MaxPixels/c.Height:
		return nil, fmt.Errorf("%w of %d pixels: it says that it has %d x %d", ErrLimit, MaxPixels, c.Width, c.Height)
	}
	select {
	case m.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-m.turn }()
	return raster(media, b)
}

// kind is the media type of what the bytes begin like; "" when it is none.
func kind(b []byte) string {
	switch {
	case bytes.HasPrefix(b, []byte("\x89PNG\r\n\x1a\n")):
		return PNG
	case bytes.HasPrefix(b, []byte("\xff\xd8\xff")):
		return JPEG
	case looksLikeSVG(b):
		return SVG
	}
	return ""
}

func config(media string, b []byte) (image.Config, error) {
	if media == PNG {
		return png.DecodeConfig(bytes.NewReader(b))
	}
	return jpeg.DecodeConfig(bytes.NewReader(b))
}

func decode(media string, b []byte) (image.Image, error) {
	if media == PNG {
		return png.Decode(bytes.NewReader(b))
	}
	return jpeg.Decode(bytes.NewReader(b))
}

// raster decodes an image. One that is small enough is given as it is.
func raster(media string, b []byte) (*Picture, error) {
	img, err := decode(media, b)
	if err != nil {
		return nil, ErrDamaged
	}
	size := img.Bounds().Size()
	p := &Picture{Media: media, Data: b, Width: size.X, Height: size.Y}
	if size.X <= MaxSide && size.Y <= MaxSide && len(b) <= MaxGiven {
		return p, nil
	}
	p.From = size
	for side := min(MaxSide, max(size.X, size.Y)); side >= 64; side = side * 3 / 4 {
		if err := p.shrink(img, side); err != nil {
			return nil, err
		}
		if len(p.Data) <= MaxGiven {
			return p, nil
		}
	}
	return nil, fmt.Errorf("%w of %d KiB, however small it is made", ErrLimit, MaxGiven>>10)
}

// shrink encodes the image with its longest side at most that long.
func (p *Picture) shrink(img image.Image, side int) error {
	from := img.Bounds()
	p.Width, p.Height = fit(from.Size(), side)
	small := image.NewNRGBA(image.Rect(0, 0, p.Width, p.Height))
	draw.ApproxBiLinear.Scale(small, small.Bounds(), img, from, draw.Src, nil)
	var out bytes.Buffer
	var err error
	if p.Media == PNG {
		err = png.Encode(&out, small)
	} else {
		err = jpeg.Encode(&out, small, &jpeg.Options{Quality: quality})
	}
	if err != nil {
		return fmt.Errorf("making the image smaller: %w", err)
	}
	p.Data = out.Bytes()
	return nil
}

// fit gives the sides of an image whose longest is at most side.
func fit(size image.Point, side int) (width, height int) {
	longest := max(size.X, size.Y)
	if longest <= side {
		return size.X, size.Y
	}
	scale := func(n int) int { return max(1, n*side/longest) }
	return scale(size.X), scale(size.Y)
}

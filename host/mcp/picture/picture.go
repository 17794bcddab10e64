// Package picture makes of a file that an untrusted program wrote an image that may be
// shown: PNG and JPEG are decoded whole, within bounds, and made smaller where they are
// large; SVG is written anew, of what draws alone. It reads no files and knows nothing of
// programs.
package picture

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/jpeg"
	"image/png"
	"io"

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
	// say that it has billions. A decoder needs up to 20 bytes for each. A JPEG of
	// four colours, which takes more, may have half as many.
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

// Maker makes pictures, one at a time: decoding one takes up to 160 MiB for a moment.
// Its methods are safe for concurrent use.
type Maker struct{ turn chan struct{} }

// NewMaker makes a Maker.
func NewMaker() *Maker { return &Maker{make(chan struct{}, 1)} }

// Make makes a picture of a file. The error matches ErrNone, ErrLimit, ErrDamaged or
// ErrActive, or is the context's, which bounds the wait for others and the decoding. What
// it says is fit to be shown.
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
	if _, err := check(media, b); err != nil {
		return nil, err
	}
	select {
	case m.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-m.turn }()
	return raster(ctx, media, b)
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

// check refuses, before it is decoded, an image that would take much memory or time. It
// gives the number of its pixels.
func check(media string, b []byte) (pixels int, err error) {
	read := png.DecodeConfig
	if media == JPEG {
		read = jpeg.DecodeConfig
	}
	c, err := read(bytes.NewReader(b))
	most := MaxPixels
	if media == JPEG && c.ColorModel == color.CMYKModel {
		most /= 2
	}
	switch {
	case err != nil || c.Width <= 0 || c.Height <= 0:
		return 0, ErrDamaged
	case c.Width > most/c.Height:
		return 0, fmt.Errorf("%w of %d pixels: it says that it has %d x %d", ErrLimit, most, c.Width, c.Height)
	case media == JPEG:
		return c.Width * c.Height, checkScans(b, c.Width*c.Height)
	}
	return c.Width * c.Height, nil
}

// during is a reader that fails when the context is over: a decoder does not know of one.
type during struct {
	ctx context.Context
	r   io.Reader
}

// Read implements io.Reader.
func (d *during) Read(b []byte) (int, error) {
	if d.ctx.Err() != nil {
		return 0, context.Cause(d.ctx)
	}
	return d.r.Read(b)
}

func decode(ctx context.Context, media string, b []byte) (image.Image, error) {
	read := png.Decode
	if media == JPEG {
		read = jpeg.Decode
	}
	img, err := read(&during{ctx, bytes.NewReader(b)})
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, ErrDamaged
	}
	return img, nil
}

// raster decodes an image. One that is small enough is given as it is, without what
// stands after its end.
func raster(ctx context.Context, media string, b []byte) (*Picture, error) {
	img, err := decode(ctx, media, b)
	if err != nil {
		return nil, err
	}
	if b = cut(media, b); b == nil {
		return nil, ErrDamaged
	}
	size := img.Bounds().Size()
	p := &Picture{Media: media, Data: b, Width: size.X, Height: size.Y}
	if size.X <= MaxSide && size.Y <= MaxSide && len(b) <= MaxGiven {
		return p, nil
	}
	p.From = size
	for side := min(MaxSide, max(size.X, size.Y)); side >= 64; side = side * 3 / 4 {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
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

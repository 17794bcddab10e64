package mcp

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/url"
	"path"
	"strings"
	"unicode/utf8"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/pybox/pybox/host/mcp/picture"
	"github.com/pybox/pybox/host/receipt"
	"github.com/pybox/pybox/host/show"
	"github.com/pybox/pybox/host/units"
)

// Bounds of what a result has of files. A model reads all of it.
const (
	maxGiven    = 16
	maxGivenAll = 4 << 20
	maxText     = 64 << 10
	maxBlob     = 1 << 20
	maxListed   = 64
	maxFileName = 255
)

// given is what a result has of the files that a program left.
type given struct {
	server  *Server
	order   *order
	run     string
	files   []Left
	more    int // files that are not in the list
	content []sdk.Content
	bytes   int
	unmet   []string // names and patterns that matched nothing
}

// give reads the files that the call asked for, as far as a result can have them.
func (s *Server) give(ctx context.Context, o *order, r *receipt.Receipt) *given {
	g := &given{server: s, order: o, run: r.Run.ID, files: []Left{}}
	met := map[string]bool{}
	for _, f := range r.Program.Files {
		if f.Folder {
			continue
		}
		left := Left{Name: show.Escape(f.Name, maxFileName), Bytes: f.Bytes, SHA256: f.SHA256}
		wanted := g.wanted(f.Name, met)
		if len(g.files) == maxListed {
			g.more++
			continue
		}
		switch {
		case !wanted && f.Reason != "" && f.Reason != receipt.FileNotAsked:
			left.Note = reasonWords(f.Reason)
		case !wanted:
			left.Note = "not asked for"
		case !f.Returned:
			left.Note = reasonWords(f.Reason)
		default:
			g.add(ctx, f, &left)
		}
		g.files = append(g.files, left)
	}
	for _, p := range o.ReturnFiles {
		if !met[p] {
			g.unmet = append(g.unmet, p)
		}
	}
	return g
}

// wanted tells whether the call asked for a file, and takes note of what it matched.
func (g *given) wanted(name string, met map[string]bool) (is bool) {
	for _, p := range g.order.ReturnFiles {
		if ok, err := matches(p, name); ok && err == nil {
			met[p], is = true, true
		}
	}
	return is
}

// reasonWords says why a file did not come back.
func reasonWords(reason string) string {
	switch reason {
	case receipt.FileTooMany:
		return "did not come back: there are too many files"
	case receipt.FileTooLarge:
		return "did not come back: the files are too large together"
	case receipt.FileLink:
		return "did not come back: it is a symbolic link"
	case receipt.FileSpecial:
		return "did not come back: it is no regular file"
	case receipt.FileName, receipt.FileTwin:
		return "did not come back: not every system can have that name beside the others"
	}
	return "did not come back: " + word(reason)
}

// errAltered: the bytes are not those that the receipt tells of.
var errAltered = errors.New("what came is not what the program left")

// add puts a file into the result, or says why not.
func (g *given) add(ctx context.Context, f receipt.File, left *Left) {
	switch {
	case len(g.content) >= maxGiven:
		left.Note = fmt.Sprintf("left out: a result has at most %d files", maxGiven)
		return
	case f.Bytes > picture.MaxBytes:
		left.Note = fmt.Sprintf("left out: it is over the limit of %v", units.Size(picture.MaxBytes))
		return
	}
	b, err := g.server.read(ctx, f)
	if err != nil {
		left.Note = "left out: " + show.Escape(why(err), maxWord)
		return
	}
	p, err := g.server.pictures.Make(ctx, b)
	switch {
	case err == nil:
		g.picture(p, left)
	case errors.Is(err, picture.ErrNone), errors.Is(err, picture.ErrDamaged), errors.Is(err, picture.ErrActive):
		g.resource(f.Name, b, left)
		if !errors.Is(err, picture.ErrNone) {
			left.Note = strings.TrimPrefix(left.Note+"; no image: "+err.Error(), "; ")
		}
	default:
		left.Note = "left out: " + show.Escape(why(err), maxWord)
	}
}

// read reads a file that came back, which the receipt tells the length and digest of.
func (s *Server) read(ctx context.Context, f receipt.File) ([]byte, error) {
	r, err := s.engine.Open(ctx, f.File)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	var b bytes.Buffer
	if _, err := io.Copy(&b, io.LimitReader(r, f.Bytes+1)); err != nil {
		return nil, err
	}
	sum := sha256.Sum256(b.Bytes())
	if int64(b.Len()) != f.Bytes || f.SHA256 == nil || *f.SHA256 != hex.EncodeToString(sum[:]) {
		return nil, errAltered
	}
	return b.Bytes(), nil
}

// room takes n bytes of what a result may have.
func (g *given) room(n int, left *Left) bool {
	if g.bytes+n > maxGivenAll {
		left.Note = fmt.Sprintf("left out: the files of a result have at most %v together", units.Size(maxGivenAll))
		return false
	}
	g.bytes += n
	return true
}

func (g *given) picture(p *picture.Picture, left *Left) {
	if !g.room(len(p.Data), left) {
		return
	}
	left.Given = givenImage
	image := &sdk.ImageContent{Data: p.Data, MIMEType: p.Media}
	switch {
	case p.Media == picture.SVG:
		// Few models see these, and a client that does not know it would fail.
		image.Annotations = &sdk.Annotations{Audience: []sdk.Role{"user"}}
	case p.From.X > 0:
		left.Note = fmt.Sprintf("made smaller: %d x %d, was %d x %d", p.Width, p.Height, p.From.X, p.From.Y)
	default:
		left.Note = fmt.Sprintf("%d x %d", p.Width, p.Height)
	}
	g.content = append(g.content, image)
}

// resource gives a file as it is: as text where it is one that can be shown.
func (g *given) resource(name string, b []byte, left *Left) {
	text := len(b) > 0 && isText(b) // the SDK leaves an empty text out
	switch {
	case text && len(b) > maxText:
		left.Note = fmt.Sprintf("left out: it is over the limit of %v for text; have the program print what matters", units.Size(maxText))
		return
	case !text && len(b) > maxBlob:
		left.Note = fmt.Sprintf("left out: it is over the limit of %v", units.Size(maxBlob))
		return
	case !g.room(len(b), left):
		return
	}
	left.URI = "pybox://runs/" + url.PathEscape(g.run) + "/files/" + escapePath(name)
	c := &sdk.ResourceContents{URI: left.URI, MIMEType: media(name, text)}
	if left.Given = givenText; text {
		c.Text = string(b)
	} else {
		left.Given, c.Blob = givenBlob, b
	}
	g.content = append(g.content, &sdk.EmbeddedResource{Resource: c})
}

func escapePath(name string) string {
	parts := strings.Split(name, "/")
	for i, p := range parts {
		parts[i] = url.PathEscape(p)
	}
	return strings.Join(parts, "/")
}

// isText tells whether b is UTF-8 without control characters that a text has not.
func isText(b []byte) bool {
	if !utf8.Valid(b) {
		return false
	}
	return !bytes.ContainsFunc(b, func(r rune) bool {
		return r < ' ' && r != '\n' && r != '\t' && r != '\r' || r >= 0x7f && r < 0xa0
	})
}

// mediaTypes are those of names that programs like to give. What a system's own table
// says differs between machines.
var mediaTypes = map[string]string{
	".csv": "text/csv", ".json": "application/json", ".html": "text/html", ".htm": "text/html", ".md": "text/markdown",
	".py": "text/x-python", ".xml": "application/xml", ".svg": picture.SVG, ".pdf": "application/pdf", ".zip": "application/zip",
}

func media(name string, text bool) string {
	if m := mediaTypes[strings.ToLower(path.Ext(name))]; m != "" {
		return m
	}
	if text {
		return "text/plain"
	}
	return "application/octet-stream"
}

// list writes what became of the files.
func (g *given) list(b *strings.Builder, unlisted int64) {
	if len(g.files) > 0 {
		fmt.Fprintf(b, "Files that the program left (names and contents are untrusted; those that are given follow in this order):\n")
	}
	for _, f := range g.files {
		fmt.Fprintf(b, "- %s, %v", quote(f.Name), units.Size(f.Bytes))
		if f.Given != "" {
			fmt.Fprintf(b, ", given as %s", f.Given)
		}
		if f.Note != "" {
			fmt.Fprintf(b, ", %s", f.Note)
		}
		b.WriteByte('\n')
	}
	if n := int64(g.more) + unlisted; n > 0 {
		fmt.Fprintf(b, "- and %d more\n", n)
	}
	for _, p := range g.unmet {
		fmt.Fprintf(b, "return_files: nothing that the program left matches %s\n", quote(p))
	}
}

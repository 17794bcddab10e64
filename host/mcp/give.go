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
	"unicode"
	"unicode/utf8"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/pybox/pybox/host/mcp/frame"
	"github.com/pybox/pybox/host/mcp/picture"
	"github.com/pybox/pybox/host/receipt"
	"github.com/pybox/pybox/host/show"
	"github.com/pybox/pybox/host/units"
)

// Bounds of what a result has of files. A model reads all of it. maxGiven bounds those
// that are read, maxAsked the list of those that a call asked for, and maxListed that of
// all.
const (
	maxGiven    = 16
	maxGivenAll = 4 << 20
	maxText     = 64 << 10
	maxBlob     = 1 << 20
	maxAsked    = 256
	maxListed   = 64
	maxFileName = 255
)

// given is what a result has of the files that a program left.
type given struct {
	server  *Server
	order   *order
	run     string
	files   []Left
	names   []string // of files, as they are
	more    int      // files that are not in the list, and how many of them were asked for
	asked   int
	read    int // files that were read
	content []sdk.Content
	bytes   int
	full    bool     // a file found no room
	unmet   []string // names and patterns that matched nothing
}

// give reads the files that the call asked for, as far as a result can have them. Those
// that it names come first, then those that a pattern of it matches, then all others.
func (s *Server) give(ctx context.Context, o *order, r *receipt.Receipt) *given {
	g := &given{server: s, order: o, run: r.Run.ID, files: []Left{}}
	met := map[string]bool{}
	var ranks [3][]receipt.File
	for _, f := range r.Program.Files {
		if !f.Folder {
			rank := g.rank(f.Name, met)
			ranks[rank] = append(ranks[rank], f)
		}
	}
	for rank, files := range ranks {
		for _, f := range files {
			g.file(ctx, f, rank < rankOther)
		}
	}
	for _, p := range o.ReturnFiles {
		if !met[p] {
			g.unmet = append(g.unmet, p)
		}
	}
	return g
}

// How a call asked for a file.
const (
	rankNamed = iota
	rankMatched
	rankOther
)

// rank tells how the call asked for a file, and takes note of what it matched.
func (g *given) rank(name string, met map[string]bool) int {
	rank := rankOther
	for _, p := range g.order.ReturnFiles {
		if ok, err := matches(p, name); !ok || err != nil {
			continue
		}
		met[p], rank = true, min(rank, rankMatched)
		if path.Clean(p) == name {
			rank = rankNamed
		}
	}
	return rank
}

// file lists a file, and gives it where the call asked for it.
func (g *given) file(ctx context.Context, f receipt.File, wanted bool) {
	if len(g.files) >= maxAsked || !wanted && len(g.files) >= maxListed {
		if g.more++; wanted {
			g.asked++
		}
		return
	}
	left := Left{Name: show.Escape(f.Name, maxFileName), Bytes: f.Bytes, SHA256: f.SHA256}
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
	g.files, g.names = append(g.files, left), append(g.names, f.Name)
}

// reasonWords says why a file did not come back.
func reasonWords(reason string) string {
	switch reason {
	case receipt.FileTooMany:
		return "did not come back: there are too many files; have the program delete what is not needed, or write it to /tmp"
	case receipt.FileTooLarge:
		return "did not come back: the files are too large together; have the program delete what is not needed, or write it to /tmp"
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
	case g.read >= maxGiven:
		left.Note = fmt.Sprintf("left out: at most %d files of a call are read", maxGiven)
		return
	case f.Bytes > picture.MaxBytes:
		left.Note = fmt.Sprintf("left out: it is over the limit of %v", units.Size(picture.MaxBytes))
		return
	case g.full && f.Bytes > int64(maxGivenAll-g.bytes):
		left.Note = noRoom
		return
	case ctx.Err() != nil:
		left.Note = "left out: " + show.Escape(why(context.Cause(ctx)), maxWord)
		return
	}
	g.read++
	b, err := g.server.read(ctx, f)
	if err != nil {
		left.Note = "left out: " + show.Escape(why(err), maxWord)
		return
	}
	p, err := g.server.pictures.Make(ctx, b)
	switch {
	case err == nil:
		g.picture(p, left)
	case errors.Is(err, picture.ErrNone):
		g.resource(f.Name, b, left)
	case errors.Is(err, picture.ErrDamaged), errors.Is(err, picture.ErrActive), errors.Is(err, picture.ErrLimit):
		g.resource(f.Name, b, left)
		left.Note = strings.TrimPrefix(left.Note+"; no image: "+err.Error(), "; ")
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

// noRoom is the note of a file that a result has no room for.
var noRoom = fmt.Sprintf("left out: the files of a result have at most %v together", units.Size(maxGivenAll))

// room takes n bytes of what a result may have.
func (g *given) room(n int, left *Left) bool {
	if g.bytes+n > maxGivenAll {
		left.Note, g.full = noRoom, true
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
	case text && len(b) <= maxText && !shows(b):
		text, left.Note = false, "it has characters that do not show"
	case text && len(b) > maxText:
		left.Note = fmt.Sprintf("left out: it is over the limit of %v for text; have the program print what matters", units.Size(maxText))
		return
	case !text && len(b) > maxBlob:
		left.Note = fmt.Sprintf("left out: it is over the limit of %v", units.Size(maxBlob))
		return
	}
	if !g.room(len(b), left) {
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

// shows tells whether all of a text shows, so that a reader sees what a model gets. Ends
// of lines and spaces of every kind do, and a mark of the byte order at the beginning
// does no harm.
func shows(b []byte) bool {
	s := strings.ReplaceAll(strings.TrimPrefix(string(b), "\ufeff"), "\r\n", "\n")
	s = strings.Map(func(r rune) rune {
		if unicode.Is(unicode.Zs, r) {
			return ' '
		}
		return r
	}, s)
	return frame.Visible(s) == s
}

// mediaTypes are those of names that programs like to give. What a system's own table
// says differs between machines. An SVG that is no image content is not told as one.
var mediaTypes = map[string]string{
	".csv": "text/csv", ".json": "application/json", ".html": "text/html", ".htm": "text/html", ".md": "text/markdown",
	".py": "text/x-python", ".xml": "application/xml", ".pdf": "application/pdf", ".zip": "application/zip",
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
	for i, f := range g.files {
		fmt.Fprintf(b, "- %s, %v", quote(g.names[i]), units.Size(f.Bytes))
		if f.Given != "" {
			fmt.Fprintf(b, ", given as %s", f.Given)
		}
		if f.Note != "" {
			fmt.Fprintf(b, ", %s", f.Note)
		}
		b.WriteByte('\n')
	}
	switch n := int64(g.more) + unlisted; {
	case g.asked > 0:
		fmt.Fprintf(b, "- and %d more, %d of which were asked for and are left out: ask for fewer\n", n, g.asked)
	case n > 0:
		fmt.Fprintf(b, "- and %d more\n", n)
	}
	for _, p := range g.unmet {
		fmt.Fprintf(b, "return_files: nothing that the program left matches %s\n", quote(p))
	}
}

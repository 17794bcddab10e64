package runapi

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/policy"
	"github.com/pybox/pybox/host/reply"
	"github.com/pybox/pybox/host/runs"
	"github.com/pybox/pybox/host/spool"
)

// useFiles is what to do about a content that is too large for a request.
const useFiles = "store large contents with POST " + api.PathFiles + " and name them as file"

// decode reads the JSON of a run. It refuses what encoding/json would let pass or
// alter: what reply.Strict does, unknown fields, a second value, and strings that are
// not Unicode.
func decode(body []byte) (api.RunRequest, *api.Problem) {
	var req api.RunRequest
	if !utf8.Valid(body) {
		return req, reply.BadRequest("the body is not UTF-8: give a content that is not as base64")
	}
	if p := reply.Strict(body); p != nil {
		return req, p
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&req); err != nil {
		return req, notJSON(err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return req, reply.BadRequest("the body has more than one JSON value")
	}
	if half, found := reply.LoneSurrogate(body); found {
		return req, reply.BadRequest("the body has half of a character, %s: give a content that is not Unicode as base64", half)
	}
	return req, nil
}

// notJSON says what is wrong with a body in the terms of the API.
func notJSON(err error) *api.Problem {
	var typ *json.UnmarshalTypeError
	switch {
	case errors.Is(err, io.EOF):
		return reply.BadRequest("the body is empty: want the JSON of a run")
	case errors.Is(err, io.ErrUnexpectedEOF):
		return reply.BadRequest("the body ends in the middle of its JSON")
	case errors.As(err, &typ) && typ.Field != "":
		return reply.BadRequest("%s: a JSON %.60s does not fit there", typ.Field, typ.Value)
	}
	return reply.BadRequest("the body is not the JSON of a run: %.200s", strings.TrimPrefix(err.Error(), "json: "))
}

// ask is what the limits of a request ask for.
func ask(l api.Limits) (policy.Ask, *api.Problem) {
	a := policy.Ask{
		MemoryBytes: l.MemoryBytes, CPUs: l.CPUs, PIDs: l.PIDs,
		OutputBytes: l.OutputBytes, Files: l.Files, FilesBytes: l.FilesBytes,
	}
	if l.CPUs != nil && (math.IsNaN(*l.CPUs) || math.IsInf(*l.CPUs, 0)) {
		return a, reply.BadRequest("limits.cpus: %v is not a number of CPUs", *l.CPUs)
	}
	if l.TimeoutMS == nil {
		return a, nil
	}
	ns := *l.TimeoutMS * float64(time.Millisecond)
	if !(ns > math.MinInt64 && ns < math.MaxInt64) { // NaN too
		return a, reply.BadRequest("limits.timeout_ms: %v is not a time", *l.TimeoutMS)
	}
	d := time.Duration(math.Round(ns))
	a.Timeout = &d
	return a, nil
}

// contents are those of one request. Close gives the stored files back.
type contents struct {
	files *spool.Spool
	taken []*spool.Handle
	// digests tells that sums are wanted: the digests of all contents by what names
	// them, and used: those of the stored files by their ids.
	digests    bool
	sums, used map[string]string
	// before are the digests of stored files that an earlier request for the same run
	// used up: such a content is known, and cannot be opened.
	before map[string]string
}

// newContents has the digests taken, or not.
func newContents(files *spool.Spool, digests bool) *contents {
	return &contents{files: files, digests: digests, sums: map[string]string{}, used: map[string]string{}}
}

func (c *contents) close() {
	for _, h := range c.taken {
		h.Close()
	}
}

// file gives the content of a source; what names it in messages.
func (c *contents) file(what string, s api.Source) (runs.File, error) {
	given := 0
	for _, is := range []bool{s.Text != nil, s.Base64 != nil, s.File != ""} {
		if is {
			given++
		}
	}
	if given != 1 {
		return runs.File{}, reply.BadRequest("%s: want exactly one of text, base64 and file, not %d", what, given)
	}
	switch {
	case s.Text != nil:
		return c.inline(what, ".text", s.Name, []byte(*s.Text))
	case s.Base64 != nil:
		b, err := base64.StdEncoding.Strict().DecodeString(*s.Base64)
		if err == nil && strings.ContainsAny(*s.Base64, "\r\n") {
			err = errors.New("it has line breaks")
		}
		if err != nil {
			return runs.File{}, reply.BadRequest("%s.base64: %v", what, err)
		}
		return c.inline(what, ".base64", s.Name, b)
	}
	h, err := c.files.Take(s.File)
	if sum := c.before[s.File]; sum != "" && errors.Is(err, spool.ErrNotFound) {
		c.note(what, sum)
		return runs.File{Name: s.Name}, nil
	}
	if err != nil {
		return runs.File{}, fmt.Errorf("%s.file: %w", what, err)
	}
	c.taken = append(c.taken, h)
	c.note(what, h.SHA256())
	if c.digests {
		c.used[s.File] = h.SHA256()
	}
	return runs.File{Name: s.Name, Bytes: h.Bytes(), Open: h.Open}, nil
}

// note keeps the digest of a content.
func (c *contents) note(what, sum string) {
	if c.digests {
		c.sums[what] = sum
	}
}

func (c *contents) inline(what, kind, name string, b []byte) (runs.File, error) {
	if len(b) > api.MaxInline {
		p := reply.BadRequest("%s%s: %d bytes are more than the %d that a request may have", what, kind, len(b), api.MaxInline)
		p.Status, p.Title, p.Next = http.StatusRequestEntityTooLarge, "too large", useFiles
		return runs.File{}, p
	}
	if c.digests {
		sum := sha256.Sum256(b)
		c.note(what, hex.EncodeToString(sum[:]))
	}
	return runs.File{Name: name, Bytes: int64(len(b)), Open: func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(b)), nil
	}}, nil
}

// request turns what was decoded into what the service takes. The error is a
// *api.Problem, or of the stored files.
func (c *contents) request(req api.RunRequest) (runs.Request, error) {
	out := runs.Request{ID: req.ID, Image: req.Image, Args: req.Args, Env: req.Env, Collect: req.Collect, Watch: req.Watch}
	var p *api.Problem
	if out.Ask, p = ask(req.Limits); p != nil {
		return out, p
	}
	if req.Stdin != nil && req.Stdin.Name != "" {
		return out, reply.BadRequest("stdin.name: a standard input has no name")
	}
	var err error
	if out.Program, err = c.file("program", req.Program); err != nil {
		return out, err
	}
	if out.Inputs, err = c.inputs(req.Inputs); err != nil || req.Stdin == nil {
		return out, err
	}
	stdin, err := c.file("stdin", *req.Stdin)
	out.Stdin = &stdin
	return out, err
}

// inputName is what names an input in messages.
func inputName(n int) string { return fmt.Sprintf("inputs[%d]", n) }

// inputs gives the contents of the inputs. Their names are left to the service.
func (c *contents) inputs(inputs []api.InputFile) ([]runs.File, error) {
	out := make([]runs.File, 0, len(inputs))
	for n, in := range inputs {
		what := inputName(n)
		if in.Folder {
			if in.Text != nil || in.Base64 != nil || in.File != "" || in.Executable {
				return nil, reply.BadRequest("%s: a folder has a name alone", what)
			}
			out = append(out, runs.File{Name: in.Name, Folder: true})
			continue
		}
		f, err := c.file(what, in.Source)
		if err != nil {
			return nil, err
		}
		f.Executable = in.Executable
		out = append(out, f)
	}
	return out, nil
}

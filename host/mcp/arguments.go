package mcp

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	agentapi "github.com/pybox/pybox/agent/api"
	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/engine"
	"github.com/pybox/pybox/host/reply"
	"github.com/pybox/pybox/host/show"
)

// Bounds of what a call may have. What a message may have is package stdio's.
const (
	maxCode      = api.MaxInline
	maxStdin     = 4 << 20
	maxInputs    = 256
	maxPatterns  = 32
	maxPattern   = 255
	minSeconds   = 0.001
	maxNameShown = 80
)

// arguments are those of a call, as they travel.
type arguments struct {
	Code        *string    `json:"code"`
	Image       string     `json:"image"`
	Files       []fileGive `json:"files"`
	ReturnFiles []string   `json:"return_files"`
	Timeout     *float64   `json:"timeout"`
	Stdin       string     `json:"stdin"`
	Args        []*string  `json:"args"`
}

// fileGive is a file that the client gives.
type fileGive struct {
	Name   string  `json:"name"`
	Text   *string `json:"text"`
	Base64 *string `json:"base64"`
}

// parse reads the arguments of a call. Its error is for a model, which can correct
// what it did.
func parse(raw json.RawMessage) (*arguments, error) {
	var a arguments
	if len(raw) == 0 {
		raw = json.RawMessage("{}")
	}
	if !utf8.Valid(raw) {
		return nil, errors.New("the arguments are not UTF-8: give a file that is not as base64")
	}
	if p := reply.Strict(raw); p != nil {
		return nil, errors.New(strings.Replace(p.Detail, "the body", "the arguments", 1))
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(&a); err != nil {
		return nil, explainJSON(err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("the arguments are more than one JSON value")
	}
	if half, found := reply.LoneSurrogate(raw); found {
		return nil, fmt.Errorf("the arguments have half of a character, %s: give a file that is not Unicode as base64", half)
	}
	return &a, a.check()
}

// explainJSON says what is wrong with JSON in the terms of the tool.
func explainJSON(err error) error {
	var typ *json.UnmarshalTypeError
	switch {
	case errors.As(err, &typ) && typ.Field == "":
		return fmt.Errorf("the arguments are a JSON %.60s: want an object with code", typ.Value)
	case errors.As(err, &typ):
		return fmt.Errorf("%s: a JSON %.60s does not fit there: want %s", typ.Field, typ.Value, wanted(typ.Field))
	}
	what, _ := strings.CutPrefix(err.Error(), "json: ")
	return fmt.Errorf("%.200s: a call has %s; each of files has name, and text or base64", what, list(fieldNames))
}

// fieldNames are the arguments that there are.
var fieldNames = []string{"code", "image", "files", "return_files", "timeout", "stdin", "args"}

func wanted(field string) string {
	switch {
	case field == "timeout":
		return "a number of seconds"
	case field == "files":
		return `a list of objects with "name" and either "text" or "base64"`
	case field == "args" || field == "return_files":
		return "a list of strings"
	}
	return "a string"
}

// check looks at what needs no policy. What names mean is the daemon's affair.
func (a *arguments) check() error {
	switch {
	case a.Code == nil:
		return errors.New("code is missing: give the text of a Python program")
	case len(*a.Code) > maxCode:
		return fmt.Errorf("code: %d bytes, want at most %d: give large data as files", len(*a.Code), maxCode)
	case len(a.Stdin) > maxStdin:
		return fmt.Errorf("stdin: %d bytes, want at most %d", len(a.Stdin), maxStdin)
	case len(a.Files) > maxInputs:
		return fmt.Errorf("files: %d of them, want at most %d", len(a.Files), maxInputs)
	case len(a.Args) > agentapi.MaxArgs:
		return fmt.Errorf("args: %d of them, want at most %d", len(a.Args), agentapi.MaxArgs)
	case len(a.ReturnFiles) > maxPatterns:
		return fmt.Errorf("return_files: %d of them, want at most %d: a pattern such as \"*.csv\" stands for many", len(a.ReturnFiles), maxPatterns)
	}
	for i, p := range a.ReturnFiles {
		if err := checkPattern(p); err != nil {
			return fmt.Errorf("return_files[%d]: %w", i, err)
		}
	}
	for i, f := range a.Files {
		if err := checkName(f.Name); err != nil {
			return fmt.Errorf("files[%d], %s: %w", i, quote(f.Name), err)
		}
	}
	if err := a.checkArgs(); err != nil {
		return err
	}
	_, err := a.time()
	return err
}

// checkName bounds a name, so that a request has room for all of them.
func checkName(name string) error {
	switch {
	case name == "":
		return errors.New("it has no name")
	case len(name) > agentapi.MaxNameBytes:
		return fmt.Errorf("a name of %d bytes, want at most %d", len(name), agentapi.MaxNameBytes)
	}
	for part := range strings.SplitSeq(name, "/") {
		if len(part) > agentapi.MaxNamePart {
			return fmt.Errorf("a name with a part of %d bytes, want at most %d", len(part), agentapi.MaxNamePart)
		}
	}
	return nil
}

func (a *arguments) checkArgs() error {
	n := 0
	for i, s := range a.Args {
		if s == nil {
			return fmt.Errorf("args[%d]: a JSON null does not fit there: want a string", i)
		}
		n += len(*s)
	}
	if n > agentapi.MaxArgBytes {
		return fmt.Errorf("args: %d bytes, want at most %d: give large data as files or stdin", n, agentapi.MaxArgBytes)
	}
	return nil
}

// words are the arguments of the program.
func (a *arguments) words() (words []string) {
	for _, s := range a.Args {
		words = append(words, *s)
	}
	return words
}

// time is the time that is asked for, nil where none is.
func (a *arguments) time() (*time.Duration, error) {
	if a.Timeout == nil {
		return nil, nil
	}
	s := *a.Timeout
	if !(s >= minSeconds) { // NaN too
		return nil, fmt.Errorf("timeout: %v seconds, want at least %v", s, minSeconds)
	}
	// What is more than any run can have is told with the ceiling.
	s = min(s, 2*agentapi.MaxTimeout.Seconds())
	d := time.Duration(math.Round(s * float64(time.Second)))
	return &d, nil
}

// inputs are the files that go into the box.
func (a *arguments) inputs() ([]engine.File, error) {
	var files []engine.File
	for i, f := range a.Files {
		b, err := f.content()
		if err != nil {
			return nil, fmt.Errorf("files[%d], %s: %w", i, quote(f.Name), err)
		}
		files = append(files, engine.File{Name: f.Name, Data: b})
	}
	return files, nil
}

func (f *fileGive) content() ([]byte, error) {
	switch {
	case (f.Text == nil) == (f.Base64 == nil):
		return nil, errors.New("want exactly one of text and base64")
	case f.Text != nil:
		return []byte(*f.Text), nil
	}
	b, err := base64.StdEncoding.Strict().DecodeString(*f.Base64)
	if err != nil || strings.ContainsAny(*f.Base64, "\r\n") {
		return nil, errors.New("base64: it is not base64 (with padding, in one line)")
	}
	return b, nil
}

// quote shows a name that came from a client or a program in one line, in which nothing
// of it can look like what stands around it. It must not be escaped already.
func quote(s string) string {
	s = strings.ReplaceAll(s, `\`, `\\`)
	return `"` + strings.ReplaceAll(show.Escape(s, maxNameShown), `"`, `\"`) + `"`
}

// checkPattern refuses what matches nothing.
func checkPattern(p string) error {
	switch {
	case p == "" || len(p) > maxPattern:
		return fmt.Errorf("%d bytes: want a name or a pattern of 1 to %d", len(p), maxPattern)
	case strings.HasPrefix(p, "/") || slices.Contains(strings.Split(p, "/"), ".."):
		return fmt.Errorf("%s: want a name relative to the program's working folder, such as \"plot.png\" or \"*.csv\"", quote(p))
	}
	if _, err := matches(p, "x"); err != nil {
		return fmt.Errorf("%s: %w: escape [ and \\ by a \\", quote(p), err)
	}
	return nil
}

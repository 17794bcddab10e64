package wheel

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/pybox/pybox/guest/pep440"
	"github.com/pybox/pybox/guest/pep508"
)

// Bounds of the files of metadata.
const (
	maxMetadataBytes = 8 << 20 // with a whole manual for a description
	maxHeaderBytes   = 1 << 20 // without it, and with a licence
	maxHeaders       = 10_000
	maxSummary       = 200
)

// metadataMajor and wheelMajor are the versions of the two formats that are read.
const (
	metadataMajor = 2
	wheelMajor    = 1
)

// ErrMetadata marks metadata that cannot be read.
var ErrMetadata = errors.New("unusable metadata")

// Metadata is what a distribution says of itself
// (https://packaging.python.org/en/latest/specifications/core-metadata/).
type Metadata struct {
	Name, Version  string
	Summary        string   // a line of printable text, cut to 200 bytes
	RequiresPython string   // as written; "": any
	RequiresDist   []string // as written
	ProvidesExtra  []string // as written
}

// ParseMetadata reads METADATA or PKG-INFO. The error matches ErrMetadata.
func ParseMetadata(b []byte) (Metadata, error) {
	h, err := parseHeaders(b)
	if err != nil {
		return Metadata{}, err
	}
	if err := checkMajor(h.first("metadata-version"), metadataMajor); err != nil {
		return Metadata{}, metadataErr("Metadata-Version", err)
	}
	m := Metadata{
		Name: h.first("name"), Version: h.first("version"), Summary: printable(h.first("summary")),
		RequiresPython: h.first("requires-python"), RequiresDist: h["requires-dist"], ProvidesExtra: h["provides-extra"],
	}
	if !pep508.ValidName(m.Name) {
		return Metadata{}, metadataErr("Name", errors.New(strconv.QuoteToASCII(cut(m.Name))))
	}
	if _, err := pep440.Parse(m.Version); err != nil {
		return Metadata{}, metadataErr("Version", err)
	}
	return m, nil
}

func metadataErr(field string, err error) error {
	return fmt.Errorf("%w: %s: %w", ErrMetadata, field, err)
}

// checkMajor takes a version of a format that is not too new to be understood.
func checkMajor(version string, most int) error {
	major, _, _ := strings.Cut(version, ".")
	n, err := strconv.Atoi(major)
	switch {
	case err != nil || n < 1:
		return errors.New("there is none, or it is no version: " + strconv.QuoteToASCII(cut(version)))
	case n > most:
		return errors.New("it is " + strconv.QuoteToASCII(cut(version)) + ", and this PyBox knows those up to " + strconv.Itoa(most) + ".x")
	}
	return nil
}

// headers are fields by their names in lower case.
type headers map[string][]string

func (h headers) first(name string) string {
	if v := h[name]; len(v) > 0 {
		return v[0]
	}
	return ""
}

// parseHeaders reads the fields before the first empty line, as the package "email"
// of Python does that writes and reads them: folded lines are joined, and a line that
// is no field starts the text.
func parseHeaders(b []byte) (headers, error) {
	if len(b) > maxMetadataBytes {
		return nil, metadataErr("the file", errors.New("it is too long"))
	}
	h := headers{}
	name, value, count, length := "", []byte(nil), 0, 0
	keep := func() {
		if name != "" {
			h[name] = append(h[name], strings.TrimSpace(string(value)))
		}
	}
	for line := range bytes.Lines(b) {
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			break
		}
		if length += len(line); length > maxHeaderBytes {
			return nil, metadataErr("the file", errors.New("it is too long"))
		}
		if line[0] == ' ' || line[0] == '\t' {
			value = append(append(value, ' '), bytes.TrimSpace(line)...)
			continue
		}
		field, rest, ok := bytes.Cut(line, []byte(":"))
		if !ok || bytes.ContainsAny(field, " \t") {
			break
		}
		if count++; count > maxHeaders || !utf8.Valid(line) {
			return nil, metadataErr("the file", errors.New("it is not UTF-8, or has too many fields"))
		}
		keep()
		name, value = strings.ToLower(string(field)), bytes.Clone(rest)
	}
	keep()
	return h, nil
}

// printable makes a short line of what a package says.
func printable(s string) string {
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, s)
	return strings.TrimSpace(strings.ToValidUTF8(s[:min(len(s), maxSummary)], ""))
}

// cut shortens what is quoted in an error.
func cut(s string) string { return s[:min(len(s), 80)] }

// sameVersion compares two spellings.
func sameVersion(a, b string) bool {
	v, err := pep440.Parse(a)
	if err != nil {
		return a == b
	}
	w, err := pep440.Parse(b)
	return err == nil && v.Compare(w) == 0
}

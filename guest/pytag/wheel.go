// Package pytag reads the names of wheels and says which of them an interpreter in
// the guest can use, and which it would rather have, as pip does (PEP 425, 427 and
// 600). The interpreter is CPython on Linux with glibc; nothing is asked of this
// machine, and no file is opened.
package pytag

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/pybox/pybox/guest/pep440"
	"github.com/pybox/pybox/guest/pep508"
)

// ErrName is matched by errors about a name that no wheel can have.
var ErrName = errors.New("no wheel's name")

// Bounds on names: a file name's own, and what compressed tags may expand to.
const (
	maxNameBytes = 255
	maxTags      = 64
)

// Suffix is what the names of wheels end with.
const Suffix = ".whl"

var (
	projectPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.]*$`)
	buildPattern   = regexp.MustCompile(`^[0-9]+[A-Za-z0-9_.]*$`)
	tagPattern     = regexp.MustCompile(`^[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*$`)
)

// Tag is one combination that a wheel is for, in lower case.
type Tag struct{ Interpreter, ABI, Platform string }

// String is the tag as in a wheel's name, such as "cp313-cp313-manylinux_2_17_x86_64".
func (t Tag) String() string { return t.Interpreter + "-" + t.ABI + "-" + t.Platform }

// Wheel is what a wheel's name says.
type Wheel struct {
	File    string // the name itself
	Name    string // of the project, normalised
	Version string // normalised
	Build   string // "" where there is none, else beginning with a digit
	Tags    []Tag  // at least one
}

// Parse reads the name of a wheel file, without any folder:
// NAME-VERSION[-BUILD]-PYTHON-ABI-PLATFORM.whl, at most 255 bytes. The error
// matches ErrName.
func Parse(filename string) (Wheel, error) {
	w, err := parse(filename)
	if err != nil {
		return Wheel{}, fmt.Errorf("%.255q: %w: %w", filename, ErrName, err)
	}
	return w, nil
}

func parse(filename string) (Wheel, error) {
	if len(filename) > maxNameBytes {
		return Wheel{}, fmt.Errorf("longer than %d bytes", maxNameBytes)
	}
	stem, ok := strings.CutSuffix(filename, Suffix)
	if !ok {
		return Wheel{}, fmt.Errorf("it does not end in %s", Suffix)
	}
	parts := strings.Split(stem, "-")
	if len(parts) != 5 && len(parts) != 6 {
		return Wheel{}, fmt.Errorf("want 5 or 6 parts with '-' between them, not %d", len(parts))
	}
	w := Wheel{File: filename, Name: pep508.NormalizeName(parts[0])}
	if !projectPattern.MatchString(parts[0]) || strings.Contains(parts[0], "__") || !pep508.ValidName(w.Name) {
		return Wheel{}, fmt.Errorf("%.80q is no project's name", parts[0])
	}
	version, err := parseVersion(parts[1])
	if err != nil {
		return Wheel{}, err
	}
	w.Version = version
	if len(parts) == 6 {
		if w.Build = parts[2]; !buildPattern.MatchString(w.Build) {
			return Wheel{}, fmt.Errorf("build %.80q does not begin with a digit", w.Build)
		}
	}
	w.Tags, err = expand(parts[len(parts)-3:])
	return w, err
}

// parseVersion reads a version in which every '-' was written as '_'.
func parseVersion(s string) (string, error) {
	v, err := pep440.Parse(s)
	if err != nil && strings.Contains(s, "_") {
		v, err = pep440.Parse(strings.ReplaceAll(s, "_", "-"))
	}
	if err != nil || strings.TrimSpace(s) != s {
		return "", fmt.Errorf("version %.80q: %w", s, pep440.ErrSyntax)
	}
	return v.String(), nil
}

// expand makes the tags of a compressed set: py2.py3-none-any is two.
func expand(parts []string) ([]Tag, error) {
	var sets [3][]string
	n := 1
	for i, p := range parts {
		if !tagPattern.MatchString(p) {
			return nil, fmt.Errorf("%.80q is no tag", p)
		}
		sets[i] = strings.Split(strings.ToLower(p), ".")
		n *= len(sets[i])
	}
	if n > maxTags {
		return nil, fmt.Errorf("it stands for %d tags, more than %d", n, maxTags)
	}
	tags := make([]Tag, 0, n)
	for _, interpreter := range sets[0] {
		for _, abi := range sets[1] {
			for _, platform := range sets[2] {
				tags = append(tags, Tag{interpreter, abi, platform})
			}
		}
	}
	return tags, nil
}

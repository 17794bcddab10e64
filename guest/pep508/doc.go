// Package pep508 reads dependency specifiers: a name, extras, versions or a URL, and
// a marker that says where the requirement applies
// (https://packaging.python.org/en/latest/specifications/dependency-specifiers/).
// It evaluates markers for an environment that is given, which here is the guest's
// and never this machine's. No library that could be had does this.
package pep508

import (
	"errors"
	"regexp"
	"strings"
)

// ErrSyntax is matched by errors about text that is no requirement or marker,
// ErrUnknown by those about a marker that asks for what the environment leaves open.
var (
	ErrSyntax  = errors.New("not as PEP 508 has it")
	ErrUnknown = errors.New("not known before the machine runs")
)

// Bounds on what is read.
const (
	maxRequirementBytes = 64 << 10
	maxMarkerBytes      = 32 << 10
	maxMarkerDepth      = 64 // of parentheses
	maxNameBytes        = 255
	maxExtras           = 256
)

var (
	namePattern = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)
	separators  = regexp.MustCompile(`[-_.]+`)
)

// NormalizeName is the one spelling of a project's, an extra's or a group's name
// (PEP 503, 685).
func NormalizeName(name string) string {
	return strings.ToLower(separators.ReplaceAllString(name, "-"))
}

// ValidName tells whether name can be a project's: letters, digits, and single or
// repeated '-', '_' and '.' between them, 1 to 255 bytes.
func ValidName(name string) bool {
	return len(name) <= maxNameBytes && namePattern.MatchString(name)
}

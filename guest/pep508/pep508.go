// Package pep508 reads dependency specifiers: a name, extras, versions or a URL, and
// a marker that says where the requirement applies
// (https://packaging.python.org/en/latest/specifications/dependency-specifiers/).
// It evaluates markers for an environment that is given, which here is the guest's
// and never this machine's.
package pep508

import (
	"errors"

	"github.com/pybox/pybox/guest/pep440"
)

// ErrSyntax is matched by errors about text that is no requirement or marker,
// ErrUnknown by those about a marker that asks for what the environment leaves open.
var (
	ErrSyntax  = errors.New("not as PEP 508 has it")
	ErrUnknown = errors.New("not known before the machine runs")
)

// Environment has the values that markers ask for. An empty one is unknown, and a
// marker that depends on it is an error, except where the field says otherwise.
type Environment struct {
	PythonVersion         string // "3.13"
	PythonFullVersion     string // "3.13.5"
	ImplementationName    string // "cpython"
	ImplementationVersion string // "3.13.5"
	PlatformPython        string // platform_python_implementation, "CPython"
	OSName                string // "posix"
	SysPlatform           string // "linux"
	PlatformSystem        string // "Linux"
	PlatformMachine       string // "x86_64" or "aarch64"
	PlatformRelease       string // of the kernel
	PlatformVersion       string // of the kernel
	// Extras are those that were asked for; none is an answer too. Groups are the
	// dependency groups, which only lock files ask for.
	Extras, Groups []string
}

// Guest is the environment of a CPython of a full version ("3.13.5") in the guest;
// machine is "x86_64" or "aarch64". The kernel's release and version stay unknown.
func Guest(fullVersion, machine string) Environment { return Environment{} }

// With returns e with other extras.
func (e Environment) With(extras ...string) Environment { e.Extras = extras; return e }

// Marker is a parsed marker. The zero value always applies.
type Marker struct{}

// ParseMarker reads a marker.
func ParseMarker(s string) (Marker, error) { return Marker{}, nil }

// Eval tells whether the marker applies in env.
func (m Marker) Eval(env Environment) (bool, error) { return false, nil }

// Requirement is a dependency specifier.
type Requirement struct {
	Name       string   // normalised
	Extras     []string // normalised, sorted
	Specifiers pep440.Specifiers
	URL        string // of "name @ URL", else ""
	Marker     Marker
}

// ParseRequirement reads a dependency specifier, as in Requires-Dist.
func ParseRequirement(s string) (Requirement, error) { return Requirement{}, nil }

// NormalizeName is the one spelling of a project's or an extra's name (PEP 503, 685).
func NormalizeName(name string) string { return name }

// ValidName tells whether name can be a project's.
func ValidName(name string) bool { return false }

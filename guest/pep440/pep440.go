// Package pep440 reads and compares the versions of Python distributions and the
// conditions on them
// (https://packaging.python.org/en/latest/specifications/version-specifiers/).
// It does not resolve dependencies.
package pep440

import "errors"

// ErrSyntax is matched by every error of this package.
var ErrSyntax = errors.New("not as PEP 440 has it")

// Version is a parsed version. The zero value is no version.
type Version struct{ text string }

// Parse reads a version in any spelling that the specification admits.
func Parse(s string) (Version, error) { return Version{s}, nil }

// String is the version's normal form.
func (v Version) String() string { return v.text }

// Compare orders two versions: negative, 0 or positive.
func (v Version) Compare(w Version) int { return 0 }

// Specifiers is a list of conditions that must all hold, such as ">=1.0,!=1.5".
// The zero value admits every version.
type Specifiers struct{ text string }

// ParseSpecifiers reads a list of conditions; an empty one admits everything.
func ParseSpecifiers(s string) (Specifiers, error) { return Specifiers{s}, nil }

// Contains tells whether v meets all conditions. Pre-releases count as any other
// version does: what is judged here was pinned by somebody.
func (s Specifiers) Contains(v Version) bool { return false }

// Exact returns the version of a list that is one "==" or "===" without a wild
// card, and whether it is such a list.
func (s Specifiers) Exact() (Version, bool) { return Version{}, false }

// String is the list as it was written.
func (s Specifiers) String() string { return s.text }

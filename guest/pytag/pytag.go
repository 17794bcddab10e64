// Package pytag reads the names of wheels and says which of them an interpreter in
// the guest can use, and which it would rather have, as pip does (PEP 425, 427 and
// 600). The interpreter is CPython on Linux with glibc; nothing is asked of this
// machine.
package pytag

import "errors"

// ErrName is matched by errors about a name that no wheel can have.
var ErrName = errors.New("no wheel's name")

// Tag is one combination that a wheel is for.
type Tag struct{ Interpreter, ABI, Platform string }

// String is the tag as in a wheel's name, such as "cp313-cp313-manylinux_2_17_x86_64".
func (t Tag) String() string { return t.Interpreter + "-" + t.ABI + "-" + t.Platform }

// Wheel is what a wheel's name says.
type Wheel struct {
	File    string // the name itself
	Name    string // of the project, normalised
	Version string // normalised
	Build   string // "" where there is none
	Tags    []Tag
}

// Parse reads the name of a wheel file, without any folder.
func Parse(filename string) (Wheel, error) { return Wheel{}, ErrName }

// Target is what wheels are chosen for.
type Target struct {
	Arch                   string // "x86_64" or "aarch64"
	Python                 string // "3.13"
	GlibcMajor, GlibcMinor int    // 2, 41
}

// Supported returns the tags that the target takes, best first.
func (t Target) Supported() []Tag { return nil }

// Best returns the index of the wheel that the target would rather have, or false
// where it can use none.
func (t Target) Best(wheels []Wheel) (int, bool) { return 0, false }

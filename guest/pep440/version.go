// Package pep440 reads and compares the versions of Python distributions and the
// conditions on them
// (https://packaging.python.org/en/latest/specifications/version-specifiers/).
// It does not resolve dependencies.
//
// It is our own because none of the libraries that could be had agrees with the
// specification: one takes 1!3 for "==1!2.*" and panics on what it did not expect,
// the other knows no "===" and refuses 1.0+cpu for "==1.0". The answers of Python's
// packaging are in testdata.
package pep440

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// ErrSyntax is matched by every error of this package.
var ErrSyntax = errors.New("not as PEP 440 has it")

// Bounds on what is read: nobody's version is longer.
const (
	maxVersionBytes    = 256
	maxSpecifiersBytes = 4096
	maxSpecifiers      = 128
)

// versionPattern is the one of the specification's appendix, without white space, for
// ASCII: (?i) would take U+017F for an s, and [a-z] U+212A for a k.
var versionPattern = regexp.MustCompile(`(?i)^v?` +
	`(?:([0-9]+)!)?` + // 1 epoch
	`([0-9]+(?:\.[0-9]+)*)` + // 2 release
	`(?:[-_.]?(alpha|a|beta|b|preview|pre|c|rc)[-_.]?([0-9]+)?)?` + // 3, 4 pre-release
	`(?:-([0-9]+)|[-_.]?(post|rev|r)[-_.]?([0-9]+)?)?` + // 5 | 6, 7 post-release
	`(?:[-_.]?(dev)[-_.]?([0-9]+)?)?` + // 8, 9 development release
	`(?:\+([a-z0-9]+(?:[-_.][a-z0-9]+)*))?$`) // 10 local label

// Version is a parsed version. The zero value is no version and comes before all.
type Version struct {
	epoch   uint64
	release []uint64
	pre     string // "a", "b", "rc" or ""
	preN    uint64
	post    *uint64
	dev     *uint64
	local   []string // lower case
}

func notASCII(r rune) bool { return r > 0x7f }

// Parse reads a version in any spelling that the specification admits. Numbers
// above 64 bits are refused.
func Parse(s string) (Version, error) {
	if len(s) > maxVersionBytes || strings.ContainsFunc(strings.TrimSpace(s), notASCII) {
		return Version{}, fmt.Errorf("version %.80q: %w", s, ErrSyntax)
	}
	m := versionPattern.FindStringSubmatch(strings.TrimSpace(s))
	if m == nil {
		return Version{}, fmt.Errorf("version %.80q: %w", s, ErrSyntax)
	}
	var v Version
	var n numbers
	if m[1] != "" {
		v.epoch = n.parse(m[1])
	}
	for part := range strings.SplitSeq(m[2], ".") {
		v.release = append(v.release, n.parse(part))
	}
	if m[3] != "" {
		v.pre, v.preN = preName(m[3]), n.parse(m[4])
	}
	if m[5] != "" || m[6] != "" {
		post := n.parse(m[5] + m[7])
		v.post = &post
	}
	if m[8] != "" {
		dev := n.parse(m[9])
		v.dev = &dev
	}
	if m[10] != "" {
		v.local = strings.FieldsFunc(strings.ToLower(m[10]), func(r rune) bool { return strings.ContainsRune("-_.", r) })
		for i, part := range v.local {
			if isNumber(part) {
				v.local[i] = strconv.FormatUint(n.parse(part), 10)
			}
		}
	}
	if n.err != nil {
		return Version{}, fmt.Errorf("version %.80q has a number that is too large: %w", s, ErrSyntax)
	}
	return v, nil
}

// numbers parses several numbers and keeps the first error.
type numbers struct{ err error }

// parse reads digits; none are 0, as in "1.0a".
func (n *numbers) parse(digits string) uint64 {
	if digits == "" {
		return 0
	}
	u, err := strconv.ParseUint(digits, 10, 64)
	n.err = errors.Join(n.err, err)
	return u
}

func preName(s string) string {
	switch s = strings.ToLower(s); s {
	case "alpha":
		return "a"
	case "beta":
		return "b"
	case "c", "pre", "preview":
		return "rc"
	}
	return s
}

func isNumber(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}

// String is the version's normal form.
func (v Version) String() string {
	var b strings.Builder
	if v.epoch != 0 {
		fmt.Fprintf(&b, "%d!", v.epoch)
	}
	for i, n := range v.release {
		if i > 0 {
			b.WriteByte('.')
		}
		b.WriteString(strconv.FormatUint(n, 10))
	}
	if v.pre != "" {
		fmt.Fprintf(&b, "%s%d", v.pre, v.preN)
	}
	if v.post != nil {
		fmt.Fprintf(&b, ".post%d", *v.post)
	}
	if v.dev != nil {
		fmt.Fprintf(&b, ".dev%d", *v.dev)
	}
	if len(v.local) > 0 {
		b.WriteString("+" + strings.Join(v.local, "."))
	}
	return b.String()
}

// Compare orders two versions: negative, 0 or positive. Spellings of one version,
// such as 1.0 and 1.0.0, are equal.
func (v Version) Compare(w Version) int {
	return cmp.Or(v.compareBase(w), v.comparePre(w),
		compareOptional(v.post, w.post, -1),
		compareOptional(v.dev, w.dev, 1),
		slices.CompareFunc(v.local, w.local, compareLocal))
}

// compareBase compares epoch and release.
func (v Version) compareBase(w Version) int {
	return cmp.Or(cmp.Compare(v.epoch, w.epoch), slices.Compare(trimZeros(v.release), trimZeros(w.release)))
}

// comparePre compares pre-releases: 1.0.dev1 < 1.0a1 < 1.0.
func (v Version) comparePre(w Version) int {
	return cmp.Or(cmp.Compare(v.preRank(), w.preRank()), cmp.Compare(v.pre, w.pre), cmp.Compare(v.preN, w.preN))
}

func (v Version) preRank() int {
	switch {
	case v.pre != "":
		return 1
	case v.post == nil && v.dev != nil:
		return 0
	}
	return 2
}

// compareOptional compares numbers that may be absent; absent tells where those
// stand.
func compareOptional(a, b *uint64, absent int) int {
	switch {
	case a == nil && b == nil:
		return 0
	case a == nil:
		return absent
	case b == nil:
		return -absent
	}
	return cmp.Compare(*a, *b)
}

// compareLocal compares two parts of local labels: letters come before numbers.
func compareLocal(a, b string) int {
	switch na, nb := isNumber(a), isNumber(b); {
	case na && nb: // without leading zeros
		return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b))
	case na:
		return 1
	case nb:
		return -1
	}
	return strings.Compare(a, b)
}

func trimZeros(r []uint64) []uint64 {
	for len(r) > 0 && r[len(r)-1] == 0 {
		r = r[:len(r)-1]
	}
	return r
}

// Public is v without its local label.
func (v Version) Public() Version {
	v.local = nil
	return v
}

// IsPrerelease tells whether v is an alpha, a beta, a release candidate or a
// development release.
func (v Version) IsPrerelease() bool { return v.pre != "" || v.dev != nil }

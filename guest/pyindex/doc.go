// Package pyindex finds the wheels of a lock file and brings them here: from a package
// index (the Simple repository API: JSON of PEP 691, HTML of PEP 503) or from folders
// of this machine. It resolves nothing: versions and hashes are the lock's. No index
// is trusted; what one can do is to be slow, useless or curious. Nothing is unpacked
// and nothing is run.
//
// Addresses: an index is asked by https, or by http where the person named it so; what
// it links and redirects to is https too, or on its own host. What runs on this machine
// is asked where the person named it, and never because a lock or a server did. A name
// and password in an index's address go to that host alone and are never shown.
package pyindex

import (
	"errors"
	"fmt"
	"strings"

	"github.com/pybox/pybox/guest/internal/printable"
)

// DefaultIndex is the public index.
const DefaultIndex = "https://pypi.org/simple/"

// MaxWheelBytes is the size of a wheel, at most, and MaxTotalBytes that of all those of
// a lock. An image is not larger.
const (
	MaxWheelBytes = 1 << 30
	MaxTotalBytes = 8 << 30
)

// Bounds on what is said at once.
const (
	maxProblems     = 50
	maxProblemBytes = 2000
)

// ErrChoice is matched by errors about packages for which no wheel can be had.
var ErrChoice = errors.New("no usable wheels")

// ChoiceError says for each package that cannot be had why. It matches ErrChoice, and
// what made a place fail.
type ChoiceError struct {
	Lock     string   // the lock file's name
	Problems []string // a printable line each, at least one
	More     int      // problems beyond those listed
	causes   []error
}

// add notes a problem and what made it.
func (e *ChoiceError) add(text string, cause error) {
	if len(e.Problems) == maxProblems {
		e.More++
		return
	}
	text = printable.Text(text)
	if len(text) > maxProblemBytes {
		text = strings.ToValidUTF8(text[:maxProblemBytes], "") + "…"
	}
	e.Problems = append(e.Problems, text)
	e.causes = append(e.causes, cause)
}

// Error implements error: a paragraph for each problem.
func (e *ChoiceError) Error() string {
	text := fmt.Sprintf("%s: %v\n  %s", e.Lock, ErrChoice, strings.Join(e.Problems, "\n  "))
	if e.More > 0 {
		text += fmt.Sprintf("\n  and %d more", e.More)
	}
	return text
}

// Unwrap makes errors.Is find ErrChoice and the causes.
func (e *ChoiceError) Unwrap() []error { return append([]error{ErrChoice}, e.causes...) }

// Package pyindex finds the wheels of a lock file and brings them here: from a package
// index (the Simple repository API: JSON of PEP 691, HTML of PEP 503) or from folders
// of this machine. It resolves nothing: versions and hashes are the lock's. No index
// is trusted; what one can do is to be slow, useless or curious. Nothing is unpacked
// and nothing is run.
//
// Addresses: an index is asked by https, or by http where the person named it so; what
// it links and redirects to is https too, or on its own host. A name and password
// in an index's address go to that host alone and are never shown.
package pyindex

import (
	"errors"
	"fmt"
	"strings"
)

// DefaultIndex is the public index.
const DefaultIndex = "https://pypi.org/simple/"

// MaxWheelBytes is the size of a wheel, at most.
const MaxWheelBytes = 1 << 30

// ErrChoice is matched by errors about packages for which no wheel can be had.
var ErrChoice = errors.New("no usable wheels")

// ChoiceError says for each package that cannot be had why. It matches ErrChoice, and
// what made a place fail.
type ChoiceError struct {
	Lock     string   // the lock file's name
	Problems []string // a printable line each
	causes   []error
}

// Error implements error: a paragraph for each problem.
func (e *ChoiceError) Error() string {
	return fmt.Sprintf("%s: %v\n  %s", e.Lock, ErrChoice, strings.Join(e.Problems, "\n  "))
}

// Unwrap makes errors.Is find ErrChoice and the causes.
func (e *ChoiceError) Unwrap() []error { return append([]error{ErrChoice}, e.causes...) }

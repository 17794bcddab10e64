// Package pylock reads lock files of Python packages: requirements with hashes, as
// "uv pip compile --generate-hashes" and "pip-compile --generate-hashes" write them,
// and pylock.toml (PEP 751). It opens no other file and asks no index.
package pylock

import (
	"errors"

	"github.com/pybox/pybox/guest/pep508"
)

// Kinds of lock files.
const (
	KindRequirements = "requirements"
	KindPylock       = "pylock"
)

// ErrLock is matched by every error about a lock file's content.
var ErrLock = errors.New("the lock file cannot be used")

// Environment is what markers are evaluated for.
type Environment = pep508.Environment

// Lock is what a lock file asks for in one environment.
type Lock struct {
	Name       string // of the file, as given
	SHA256     string // of the file's bytes, lower-case hex
	Kind       string // KindRequirements or KindPylock
	Packages   []Package
	Skipped    []Package // whose marker does not apply here; no wheels and hashes
	IndexURL   string    // that the file names, "" for none
	ExtraIndex []string  // further ones
	NoIndex    bool      // "--no-index"
}

// Package is a distribution that is pinned.
type Package struct {
	Name    string // normalised (PEP 503)
	Version string // normalised; "" where a pylock.toml leaves it to the wheels' names
	Extras  []string
	Hashes  []Hash  // of requirements: those of all files that are good
	Wheels  []Wheel // of pylock.toml or a requirement with a URL: the files themselves
	Line    int     // where it stands, from 1; 0 where unknown
}

// Hash is a digest of a file: "sha256", "sha384" or "sha512".
type Hash struct{ Algorithm, Hex string }

// Wheel is a wheel that a lock names.
type Wheel struct {
	File   string // its name
	URL    string // where it is, or ""
	Path   string // where it is on this machine, or ""
	Bytes  int64  // 0 where unknown
	Hashes []Hash
}

// Parse reads a lock file; its name says which kind it is (pylock.toml and
// pylock.NAME.toml, all else is requirements).
func Parse(name string, data []byte, env Environment) (*Lock, error) { return nil, ErrLock }

// Package pylock reads lock files of Python packages: requirements with hashes, as
// "uv pip compile --generate-hashes" and "pip-compile --generate-hashes" write them,
// and pylock.toml (PEP 751). It takes what is pinned exactly and by SHA-256, and
// wheels only; everything else is refused with a sentence that says what to do. It
// opens no other file, asks no index and expands no variable.
package pylock

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/pybox/pybox/guest/internal/printable"
	"github.com/pybox/pybox/guest/pep508"
)

// Kinds of lock files.
const (
	KindRequirements = "requirements"
	KindPylock       = "pylock"
)

// MaxBytes is the size of a lock file, at most.
const MaxBytes = 16 << 20

// maxTOMLBytes is that of a pylock.toml, of which more is kept while it is read. One
// with 250 packages has some 600 KiB.
const maxTOMLBytes = 4 << 20

// Bounds on a lock file's content.
const (
	maxPackages = 4096
	maxHashes   = 4096 // of one package
	maxWheels   = 4096 // of one package
	maxProblems = 50   // that are shown
)

// ErrLock is matched by every error about a lock file's content.
var ErrLock = errors.New("the lock file cannot be used")

// Environment is what markers are evaluated for.
type Environment = pep508.Environment

// Lock is what a lock file asks for in one environment.
type Lock struct {
	Name       string    // of the file, as given
	SHA256     string    // of the file's bytes, lower-case hex
	Python     string    // the full version that it was read for
	Kind       string    // KindRequirements or KindPylock
	Packages   []Package // in the file's order, each project once, at least one
	Skipped    []Package // whose marker does not apply here: name, version and line only
	IndexURL   string    // that the file names, "" for none
	ExtraIndex []string  // further ones
	NoIndex    bool      // "--no-index": only folders are to be looked at
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

// Hash is a digest of a file.
type Hash struct {
	Algorithm string // "sha256", "sha384" or "sha512"
	Hex       string // lower case
}

// Wheel is a wheel that a lock names; either URL or Path is set.
type Wheel struct {
	File   string // its name, which is a wheel's
	URL    string // where it is: http or https
	Path   string // where it is on this machine, below the lock file's folder
	Bytes  int64  // 0 where unknown
	Hashes []Hash // with at least one sha256
}

// SHA256 are those of a package's digests that are SHA-256.
func (p Package) SHA256() []string { return onlySHA256(p.Hashes) }

// SHA256 is the wheel's digest; "" where it has none, as none has that was read.
func (w Wheel) SHA256() string {
	if list := onlySHA256(w.Hashes); len(list) > 0 {
		return list[0]
	}
	return ""
}

func onlySHA256(hashes []Hash) []string {
	var list []string
	for _, h := range hashes {
		if h.Algorithm == "sha256" {
			list = append(list, h.Hex)
		}
	}
	return list
}

// Error is everything that is wrong with a lock file. It matches ErrLock.
type Error struct {
	Name     string
	Problems []Problem // at least one
	More     int       // problems beyond those listed
}

// Problem is one of them.
type Problem struct {
	Line int    // 0 where it is about the whole file
	Text string // printable
}

// Error implements error: one line for each problem.
func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %v", e.Name, ErrLock)
	for _, p := range e.Problems {
		b.WriteString("\n  ")
		if p.Line > 0 {
			fmt.Fprintf(&b, "line %d: ", p.Line)
		}
		b.WriteString(p.Text)
	}
	if e.More > 0 {
		fmt.Fprintf(&b, "\n  and %d more", e.More)
	}
	return b.String()
}

// Unwrap makes errors.Is find ErrLock.
func (e *Error) Unwrap() error { return ErrLock }

// problems collects them.
type problems struct{ Error }

func (p *problems) add(line int, format string, args ...any) {
	if len(p.Problems) == maxProblems {
		p.More++
		return
	}
	p.Problems = append(p.Problems, Problem{line, printable.Text(fmt.Sprintf(format, args...))})
}

func (p *problems) err() error {
	if len(p.Problems) == 0 {
		return nil
	}
	return &p.Error
}

// Parse reads a lock file for one environment. The name says which kind it is: what
// ends in ".toml" is PEP 751's, all else are requirements. Paths in it count from the
// name's folder. The error is an *Error.
func Parse(name string, data []byte, env Environment) (*Lock, error) {
	p := &problems{Error{Name: name}}
	l := &Lock{Name: name, Kind: KindRequirements, Python: env.PythonFullVersion}
	sum := sha256.Sum256(data)
	l.SHA256 = hex.EncodeToString(sum[:])
	switch {
	case len(data) > MaxBytes:
		p.add(0, "it is larger than %d MiB", MaxBytes>>20)
	case !utf8.Valid(data):
		p.add(0, "it is not UTF-8 text; tools on Windows may write UTF-16: save it as UTF-8")
	case strings.ContainsRune(string(data), 0):
		p.add(0, "there is a NUL in it; is this a text file?")
	case foreign(name) != "":
		p.add(0, "%s", foreign(name))
	case strings.HasSuffix(strings.ToLower(name), ".toml"):
		l.Kind = KindPylock
		readPylock(l, p, string(data), env)
	default:
		readRequirements(l, p, string(data), env)
	}
	l.check(p)
	if err := p.err(); err != nil {
		return nil, err
	}
	return l, nil
}

// foreign says what to do with a tool's own lock file, or "".
func foreign(name string) string {
	switch filepath.Base(name) {
	case "uv.lock":
		return "this is uv's own format; write 'uv export --format pylock.toml --no-emit-project -o pylock.toml' and take that"
	case "poetry.lock":
		return "this is Poetry's own format; write 'poetry export -o requirements.txt' and take that"
	case "pdm.lock":
		return "this is PDM's own format; write 'pdm export -f pylock -o pylock.toml' and take that"
	case "Pipfile.lock":
		return "this is Pipenv's own format; write 'pipenv requirements --hash > requirements.txt' and take that"
	case "pyproject.toml":
		return "this says what a project needs and not which files; write 'uv pip compile --generate-hashes pyproject.toml -o requirements.txt' and take that"
	}
	return ""
}

// check looks at the lock as a whole.
func (l *Lock) check(p *problems) {
	lines := map[string]int{}
	for _, pkg := range l.Packages {
		if first, twice := lines[pkg.Name]; twice {
			where := ""
			if first > 0 {
				where = fmt.Sprintf(" (first in line %d)", first)
			}
			p.add(pkg.Line, "%s is asked for a second time%s; one of them must go, or a marker must keep one of them from the image", pkg.Name, where)
			continue
		}
		lines[pkg.Name] = pkg.Line
	}
	switch {
	case len(l.Packages) > 0 || len(p.Problems) > 0:
	case len(l.Skipped) > 0:
		p.add(0, "none of its %d packages is for the image: every marker rules CPython on Linux out", len(l.Skipped))
	default:
		p.add(0, "it names no package")
	}
}

// digestBytes are the algorithms that are accepted, and how long their digests are.
var digestBytes = map[string]int{"sha256": 32, "sha384": 48, "sha512": 64}

// parseHash checks a digest.
func parseHash(algorithm, digest string) (Hash, error) {
	h := Hash{strings.ToLower(algorithm), strings.ToLower(digest)}
	size, ok := digestBytes[h.Algorithm]
	if !ok {
		return h, fmt.Errorf("the hash %.20q is not one that is safe today: SHA-256 is wanted, which uv and pip-compile write", algorithm)
	}
	if b, err := hex.DecodeString(h.Hex); err != nil || len(b) != size {
		return h, fmt.Errorf("%.140q is no %s digest: want %d hexadecimal digits", redact(digest), h.Algorithm, 2*size)
	}
	return h, nil
}

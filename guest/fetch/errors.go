package fetch

import (
	"errors"
	"fmt"
	"strings"

	"github.com/pybox/pybox/guest/nospace"
)

// Sentinels, to be tested with errors.Is.
var (
	// ErrUnavailable: no source delivered the file. The error is a
	// *SourcesError with what each of them did.
	ErrUnavailable = errors.New("the file could not be downloaded")
	// ErrNoSpace: this machine has no room for the file.
	ErrNoSpace = nospace.Err

	// Why a source failed; found inside a *SourcesError.
	ErrStatus   = errors.New("unexpected answer")    // HTTP status other than 200 or 206
	ErrContent  = errors.New("not the file")         // another type, length or digest
	ErrStalled  = errors.New("the transfer stalled") // no or too few bytes in time
	ErrCut      = errors.New("the transfer was cut") // connection ended early
	ErrRedirect = errors.New("the mirror redirects") // a loop, or to a bad address
	ErrConnect  = errors.New("could not be reached") // DNS, TCP, TLS, proxy
	ErrInsecure = errors.New("asked by https only")  // a client's own rule
	// ErrGone is matched beside ErrStatus where the source has not the file.
	ErrGone = errors.New("not there")
)

// ErrDigest: the file has the right length, and another digest. It matches ErrContent.
var ErrDigest = fmt.Errorf("%w of the digest", ErrContent)

// errBadAddress: an answer that leads on to what is no address, which may have a secret
// in it all the same.
var errBadAddress = fmt.Errorf("%w to what is no address", ErrRedirect)

// missing is the error of an answer that says that the file is not there.
type missing struct{ error }

func (m missing) Unwrap() []error { return []error{m.error, ErrGone} }

// Attempt is what one source did.
type Attempt struct {
	Source string // its label
	URL    string // without a password
	Err    error
}

// SourcesError says for each source that was tried what was asked and what
// came. It matches ErrUnavailable and each attempt's error.
type SourcesError struct {
	File     string
	Bytes    int64 // 0 where unknown
	Attempts []Attempt
	// Advice is what to do where the usual advice, another mirror, is none.
	Advice string
}

// Error implements error: one paragraph, a line for each source, and what to do.
func (e *SourcesError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "could not download %s", e.File)
	if e.Bytes > 0 {
		fmt.Fprintf(&b, " (%d bytes)", e.Bytes)
	}
	if len(e.Attempts) == 0 {
		b.WriteString(": no source is set up")
	}
	for _, a := range e.Attempts {
		fmt.Fprintf(&b, "\n  %s, %s: %v", a.Source, a.URL, a.Err)
	}
	b.WriteString("\n" + or(e.Advice, "check the network and HTTPS_PROXY, or name a Debian mirror with --mirror or PYBOX_DEBIAN_MIRROR"))
	return b.String()
}

// Unwrap makes errors.Is find ErrUnavailable and every attempt's error.
func (e *SourcesError) Unwrap() []error {
	errs := []error{ErrUnavailable}
	for _, a := range e.Attempts {
		errs = append(errs, a.Err)
	}
	return errs
}

// diskError turns "no space" and "over quota" into ErrNoSpace with advice.
func diskError(err error, dir string, need int64) error {
	if nospace.Is(err) {
		return nospace.Explain(err, "what remains of a download", dir, need, "set PYBOX_CACHE to a folder on another disk")
	}
	return fmt.Errorf("write the download cache: %w", err)
}

package debian

import (
	"bytes"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/clearsign"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
)

// MaxReleaseBytes bounds an InRelease file (trixie's has 140 kB).
const MaxReleaseBytes = 8 << 20

// maxReleaseFiles bounds the files that a release lists (trixie: 1,300).
const maxReleaseFiles = 100_000

// ErrSignature marks a release file that none of the trusted keys signed, or
// that is out of date.
var ErrSignature = errors.New("the archive's release file is not trustworthy")

// Release is what PyBox uses of a verified InRelease file
// (https://wiki.debian.org/DebianRepository/Format).
type Release struct {
	Codename   string
	Date       time.Time
	ValidUntil time.Time // zero where the suite never expires
	Files      map[string]ReleaseFile
}

// ReleaseFile is one file of a release: its size in bytes and lower-case hex
// SHA-256.
type ReleaseFile struct {
	Bytes  int64
	SHA256 string
}

// VerifyRelease checks the signature of an InRelease file against keys at the
// time now and parses only the text that was signed. A file whose Valid-Until
// has passed matches ErrSignature too: replaying an old list is how a mirror
// would keep a machine on a vulnerable version.
func VerifyRelease(inRelease []byte, keys openpgp.EntityList, now time.Time) (*Release, error) {
	if len(inRelease) > MaxReleaseBytes {
		return nil, formatErr("a release file of more than %d bytes", MaxReleaseBytes)
	}
	block, rest := clearsign.Decode(inRelease)
	if block == nil {
		return nil, formatErr("the release file is not a clear-signed message")
	}
	if len(bytes.TrimSpace(rest)) != 0 || !bytes.HasPrefix(inRelease, []byte("-----BEGIN PGP SIGNED MESSAGE-----")) {
		return nil, formatErr("the release file has text outside its signature")
	}
	cfg := &packet.Config{Time: func() time.Time { return now }}
	if _, err := block.VerifySignature(keys, cfg); err != nil {
		return nil, fmt.Errorf("%w: signature: %w", ErrSignature, err)
	}
	rel, err := parseRelease(block.Plaintext)
	if err != nil {
		return nil, err
	}
	if !rel.ValidUntil.IsZero() && now.After(rel.ValidUntil) {
		return nil, fmt.Errorf("%w: %s expired on %s (this machine's clock says %s)", ErrSignature,
			rel.Codename, rel.ValidUntil.Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	}
	return rel, nil
}

func parseRelease(text []byte) (*Release, error) {
	var rel *Release
	err := ReadParagraphs(bytes.NewReader(text), func(p Paragraph) (err error) {
		if rel != nil {
			return formatErr("a release file with more than one paragraph")
		}
		rel, err = newRelease(p)
		return err
	})
	if err == nil && rel == nil {
		err = formatErr("an empty release file")
	}
	return rel, err
}

func newRelease(p Paragraph) (*Release, error) {
	rel := &Release{Codename: p["Codename"], Files: map[string]ReleaseFile{}}
	var err error
	if rel.Date, err = parseDate(p["Date"]); err != nil {
		return nil, err
	}
	if v := p["Valid-Until"]; v != "" {
		if rel.ValidUntil, err = parseDate(v); err != nil {
			return nil, err
		}
	}
	for line := range strings.Lines(p["SHA256"]) {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		if len(f) != 3 || !isSHA256(f[0]) || path.Clean(f[2]) != f[2] || path.IsAbs(f[2]) {
			return nil, formatErr("release file: bad SHA256 line %.80q", line)
		}
		n, err := strconv.ParseInt(f[1], 10, 64)
		if err != nil || n < 0 {
			return nil, formatErr("release file: bad size in %.80q", line)
		}
		if len(rel.Files) == maxReleaseFiles {
			return nil, formatErr("a release file with more than %d files", maxReleaseFiles)
		}
		rel.Files[f[2]] = ReleaseFile{Bytes: n, SHA256: f[0]}
	}
	if len(rel.Files) == 0 {
		return nil, formatErr("a release file without SHA-256 sums")
	}
	return rel, nil
}

// parseDate reads the date form of release files, RFC 1123 with "UTC".
func parseDate(s string) (time.Time, error) {
	t, err := time.Parse(time.RFC1123, s)
	if err != nil {
		return t, formatErr("release file: bad date %.40q", s)
	}
	if name, off := t.Zone(); off != 0 || name != "UTC" && name != "GMT" {
		return t, formatErr("release file: date %.40q is not in UTC", s)
	}
	return t.UTC(), nil
}

func isSHA256(s string) bool {
	if len(s) != 64 {
		return false
	}
	for i := range len(s) {
		if b := s[i]; !(b >= '0' && b <= '9' || b >= 'a' && b <= 'f') {
			return false
		}
	}
	return true
}

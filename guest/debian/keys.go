package debian

import (
	"bytes"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/ProtonMail/go-crypto/openpgp"
)

//go:embed keys/*.asc
var keyFiles embed.FS

// archiveKeys are the keys that sign Debian 13 (trixie), as published on
// https://ftp-master.debian.org/keys.html and shipped in the package
// debian-archive-keyring. The fingerprints are checked when the ring is loaded,
// so that a changed key file cannot pass unnoticed in a review of this list.
var archiveKeys = map[string]string{
	// Debian Archive Automatic Signing Key (13/trixie): trixie, trixie-updates.
	"keys/trixie-automatic.asc": "04B54C3CDCA79751B16BC6B5225629DF75B188BD",
	// Debian Security Archive Automatic Signing Key (13/trixie): trixie-security.
	"keys/trixie-security-automatic.asc": "5E04A1E3223A19A20706E20F9904613D4CCE68C6",
	// Debian Stable Release Key (13/trixie): trixie, at point releases.
	"keys/trixie-stable.asc": "41587F7DB8C774BCCF131416762F67A0B2C39DE4",
}

// ArchiveKeys returns the keys that PyBox trusts to sign Debian's archive.
func ArchiveKeys() (openpgp.EntityList, error) {
	var ring openpgp.EntityList
	for file, want := range archiveKeys {
		f, err := keyFiles.Open(file)
		if err != nil {
			return nil, err
		}
		keys, err := openpgp.ReadArmoredKeyRing(f)
		f.Close()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		if len(keys) != 1 {
			return nil, fmt.Errorf("%s: %d keys, want one", file, len(keys))
		}
		got := strings.ToUpper(hex.EncodeToString(keys[0].PrimaryKey.Fingerprint))
		if got != want {
			return nil, fmt.Errorf("%s: fingerprint %s, want %s", file, got, want)
		}
		ring = append(ring, keys[0])
	}
	return ring, nil
}

// ErrKeyring marks a file that is no keyring.
var ErrKeyring = errors.New("unusable keyring")

// maxKeyringBytes bounds a keyring; Debian's own has 60 kB.
const maxKeyringBytes = 4 << 20

// ReadKeyring reads the public keys in a file, armored or not (RFC 9580), for an
// archive that signs its lists with keys of its own. Errors about the content match
// ErrKeyring.
func ReadKeyring(file string) (openpgp.EntityList, error) {
	if st, err := os.Stat(file); err == nil && !st.Mode().IsRegular() { // a FIFO would wait for a writer
		return nil, fmt.Errorf("%w: %s is no regular file", ErrKeyring, file)
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("read keyring: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxKeyringBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read keyring: %w", err)
	}
	ring, err := parseKeyring(b)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrKeyring, file, err)
	}
	return ring, nil
}

func parseKeyring(b []byte) (openpgp.EntityList, error) {
	if len(b) > maxKeyringBytes {
		return nil, fmt.Errorf("more than %d bytes", maxKeyringBytes)
	}
	read := openpgp.ReadKeyRing
	if bytes.HasPrefix(bytes.TrimSpace(b), []byte("-----BEGIN ")) {
		read = openpgp.ReadArmoredKeyRing
	}
	ring, err := read(bytes.NewReader(b))
	switch {
	case err != nil:
		return nil, fmt.Errorf("want public OpenPGP keys as gpg --export writes them: %w", err)
	case len(ring) == 0:
		return nil, errors.New("it holds no key")
	}
	return ring, nil
}

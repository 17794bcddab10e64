package fetch

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/pybox/pybox/guest/debian"
)

// snapshotBase is Debian's archive of everything that it ever published.
const snapshotBase = "https://snapshot.debian.org/archive"

// Variables that name places for every command that downloads.
const (
	mirrorVariable   = "PYBOX_DEBIAN_MIRROR"
	snapshotVariable = "PYBOX_DEBIAN_SNAPSHOT"
)

// DefaultSources are the places to ask, in order: the mirror that was given, or
// else that of $PYBOX_DEBIAN_MIRROR; the mirrors that this machine's apt uses; the
// snapshot archive as it was at a time. It fails when a given place is no address.
func DefaultSources(mirror string, at time.Time) ([]Source, error) {
	label := "the mirror that was given"
	if mirror == "" {
		mirror, label = os.Getenv(mirrorVariable), "$"+mirrorVariable
	}
	var list []Source
	if mirror != "" {
		s, err := Mirror(label, mirror)
		if err != nil {
			return nil, err
		}
		list = append(list, s)
	}
	snapshot, err := Snapshot(at)
	if err != nil {
		return nil, err
	}
	return append(append(list, AptSources(AptMirrors("/etc/apt"))...), snapshot), nil
}

// Source is a place that may have a file.
type Source struct {
	// Label says in a few words what it is, for progress and errors.
	Label string
	// bases maps an archive's name to the address that its paths are below.
	bases map[string]string
	// exact is the address of the one file that this source has.
	exact string
}

// One makes a source of the address of a single file: whatever an item's archive and
// path say, this is where it is.
func One(label, address string) Source { return Source{Label: label, exact: address} }

// Addresses are those that are asked, sorted and without passwords.
func (s Source) Addresses() []string {
	var out []string
	if s.exact != "" {
		out = append(out, redact(s.exact))
	}
	for _, base := range s.bases {
		out = append(out, redact(base))
	}
	slices.Sort(out)
	return out
}

// url is the address of a file, or "" where the source has not that archive.
func (s Source) url(archive, path string) string {
	if s.exact != "" {
		return s.exact
	}
	base := s.bases[archive]
	if base == "" {
		return ""
	}
	u, err := url.Parse(base)
	if err != nil {
		return ""
	}
	return u.JoinPath(path).String()
}

// Mirror makes a source of the address of a Debian mirror: either the base of
// one archive (its path ends in "/debian" or "/debian-security"; the other
// archive is taken to be its sibling), or the folder above both.
func Mirror(label, address string) (Source, error) {
	u, err := parseBase(address)
	if err != nil {
		return Source{}, fmt.Errorf("mirror %q: want an http or https address such as http://HOST/debian", redact(address))
	}
	parent := u
	if archiveOf(u.Path) != "" {
		parent = u.JoinPath("..")
	}
	s := Source{Label: label, bases: map[string]string{}}
	for _, a := range []string{debian.ArchiveMain, debian.ArchiveSecurity} {
		s.bases[a] = parent.JoinPath(a).String()
	}
	return s, nil
}

// At makes a source that has one archive, whose paths are below an address.
func At(label, archive, address string) (Source, error) {
	u, err := parseBase(address)
	if err != nil {
		return Source{}, fmt.Errorf("%s %q: want an http or https address", label, redact(address))
	}
	return Source{Label: label, bases: map[string]string{archive: u.String()}}, nil
}

// AptSources makes sources of the bases that AptMirrors found. Addresses that
// stand there come before those derived from a sibling, since a host may serve
// only one of the archives.
func AptSources(bases []string) []Source {
	var listed, derived []Source
	for _, base := range bases {
		u, err := url.Parse(base)
		if err != nil {
			continue
		}
		own := archiveOf(u.Path)
		full, err := Mirror("this machine's apt mirror", base)
		if err != nil || own == "" {
			continue
		}
		for archive, b := range full.bases {
			s := Source{Label: full.Label, bases: map[string]string{archive: b}}
			if archive == own {
				listed = append(listed, s)
			} else {
				derived = append(derived, s)
			}
		}
	}
	return append(listed, derived...)
}

// Snapshot makes a source of the snapshot archive as it was at a time; the
// service answers with the state at or before it. $PYBOX_DEBIAN_SNAPSHOT names a copy
// of the service instead, such as https://HOST/archive.
func Snapshot(at time.Time) (Source, error) {
	base, label := snapshotBase, "Debian's snapshot archive"
	if own := os.Getenv(snapshotVariable); own != "" {
		base, label = own, "$"+snapshotVariable
	}
	u, err := parseBase(base)
	if err != nil {
		return Source{}, fmt.Errorf("%s %q: want an http or https address such as %s", label, base, snapshotBase)
	}
	t := at.UTC().Format("20060102T150405Z")
	return Source{Label: label, bases: map[string]string{
		debian.ArchiveMain:     u.JoinPath(debian.ArchiveMain, t).String(),
		debian.ArchiveSecurity: u.JoinPath(debian.ArchiveSecurity, t).String(),
	}}, nil
}

// parseBase reads an address that paths are put behind.
func parseBase(address string) (*url.URL, error) {
	u, err := url.Parse(strings.TrimRight(address, "/"))
	if err != nil {
		return nil, err
	}
	if u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.RawQuery != "" || u.Fragment != "" {
		return nil, errors.New("no address to put a path behind")
	}
	return u, nil
}

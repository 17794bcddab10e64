package ociimage

import (
	"fmt"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
)

// Kind says where an image comes from.
type Kind string

// Kinds of sources.
const (
	// Registry: REGISTRY/REPOSITORY[:TAG]@sha256:…, as docker pull takes it.
	Registry Kind = "registry"
	// Layout: a folder in the OCI image layout, oci:PATH@sha256:….
	Layout Kind = "oci-layout"
	// Archive: a tar of such a folder or one that docker save wrote,
	// tar:PATH@sha256:….
	Archive Kind = "archive"
)

// What a reference to a folder or a file begins with.
const (
	layoutPrefix  = "oci:"
	archivePrefix = "tar:"
)

const (
	digestPrefix = "sha256:"
	maxRefBytes  = 4096
)

// Source is one image, named by its digest.
type Source struct {
	Kind Kind
	// Where is REGISTRY/REPOSITORY without tag and digest, or the path of a
	// folder or file.
	Where string
	// Digest is that of an index, a manifest or (of an Archive alone) a
	// configuration, one of which docker calls the image's ID: "sha256:" and 64
	// hexadecimal digits in lower case.
	Digest string
}

// String is the reference as ParseSource takes it.
func (s Source) String() string {
	switch s.Kind {
	case Layout:
		return layoutPrefix + s.Where + "@" + s.Digest
	case Archive:
		return archivePrefix + s.Where + "@" + s.Digest
	}
	return s.Where + "@" + s.Digest
}

// ParseSource parses what a person names an image by: REF@sha256:…,
// oci:FOLDER@sha256:… or tar:FILE@sha256:…. Errors match ErrReference; without a
// digest the error says how to find it.
func ParseSource(ref string) (Source, error) {
	s := Source{Kind: Registry}
	rest := ref
	if p, ok := strings.CutPrefix(ref, layoutPrefix); ok {
		s.Kind, rest = Layout, p
	} else if p, ok := strings.CutPrefix(ref, archivePrefix); ok {
		s.Kind, rest = Archive, p
	}
	if len(ref) > maxRefBytes || strings.ContainsFunc(ref, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return Source{}, fmt.Errorf("%w: %.80q", ErrReference, ref)
	}
	at := strings.LastIndexByte(rest, '@')
	if at < 0 {
		return Source{}, noDigest(s.Kind, rest)
	}
	s.Where, s.Digest = rest[:at], rest[at+1:]
	if !isDigest(s.Digest) {
		if s.Kind != Registry && !strings.HasPrefix(s.Digest, digestPrefix) {
			return Source{}, noDigest(s.Kind, rest) // a path with an @ in it
		}
		return Source{}, fmt.Errorf("%w: %.120q is no digest; one is sha256: and 64 digits of 0-9 and a-f", ErrReference, s.Digest)
	}
	if s.Where == "" {
		return Source{}, fmt.Errorf("%w: nothing stands before the digest in %.120q", ErrReference, ref)
	}
	if s.Kind != Registry {
		return s, nil
	}
	if strings.Contains(s.Where, "://") {
		return Source{}, fmt.Errorf("%w: %.120q: leave out what ends in ://, such as https://", ErrReference, ref)
	}
	d, err := name.NewDigest(s.Where + "@" + s.Digest)
	if err != nil {
		return Source{}, fmt.Errorf("%w: %w", ErrReference, err)
	}
	s.Where = d.Context().Name()
	return s, nil
}

// noDigest says how to find the digest that is missing.
func noDigest(k Kind, where string) error {
	how := fmt.Sprintf("find its digest with \"docker buildx imagetools inspect %[1]s\" or \"crane digest %[1]s\" and name the image as %[1]s@sha256:…", where)
	switch k {
	case Layout:
		how = fmt.Sprintf("its index.json lists the digests of what it holds; name the image as %s%s@sha256:…", layoutPrefix, where)
	case Archive:
		how = fmt.Sprintf("\"docker image inspect --format {{.Id}} IMAGE\" prints the digest of what the same docker saves; name the image as %s%s@sha256:…", archivePrefix, where)
	}
	return fmt.Errorf("%w: %.200q has no digest, and what a name alone stands for can change; %s", ErrReference, where, how)
}

// isDigest holds for a SHA-256 digest as OCI writes it.
func isDigest(s string) bool {
	hex, ok := strings.CutPrefix(s, digestPrefix)
	if !ok || len(hex) != 64 {
		return false
	}
	for i := range len(hex) {
		if b := hex[i]; !(b >= '0' && b <= '9' || b >= 'a' && b <= 'f') {
			return false
		}
	}
	return true
}

package images

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/pybox/pybox/vm"
)

// Schema names the format of a record. A reader refuses any other.
const Schema = "pybox.image-record/v1"

// Kinds of images.
const (
	// KindBuilt: made of an image of the bundle and wheels, by a lock file.
	KindBuilt = "built"
	// KindImported: flattened out of an OCI image.
	KindImported = "imported"
)

// Bounds of a record.
const (
	maxRecordBytes = 4 << 20
	maxNameBytes   = 40
	maxTextBytes   = 2048
	maxPackages    = 20_000
	maxLayers      = 1_000
	maxNotes       = 200
	maxImageBytes  = 16 << 30
	maxDisks       = vm.MaxDisks
)

// errRecord marks a record that is malformed or breaks a rule of its format.
var errRecord = errors.New("invalid record of an image")

func recordErr(format string, a ...any) error {
	return fmt.Errorf("%w: %s", errRecord, fmt.Sprintf(format, a...))
}

// Record says what an image is. It is trusted no more than any file of the store:
// Validate bounds it, and its texts may have come from wheels and registries.
type Record struct {
	Schema string `json:"schema"`
	Name   string `json:"name"`
	// SHA256 and Bytes are the content's.
	SHA256 string `json:"sha256"`
	Bytes  int64  `json:"bytes"`
	// Arch is the architecture of guests that can run it, "amd64" or "arm64".
	Arch string `json:"arch"`
	// Kind is KindBuilt or KindImported; the part of that name is set, and the
	// other is not.
	Kind string `json:"kind"`
	// CreatedAt is when it was put into the store. It is not in the image, which
	// is the same whenever it is made.
	CreatedAt time.Time `json:"created_at"`
	// Python is the full version of its interpreter, "" where it is not known.
	Python   string    `json:"python,omitempty"`
	Built    *Built    `json:"built,omitempty"`
	Imported *Imported `json:"imported,omitempty"`
	// Packages are the Python packages: those that were added to the base, or all
	// that an imported image has, as far as they are known.
	Packages []Package `json:"packages"`
	// Notes are sentences that its maker had for people.
	Notes []string `json:"notes,omitempty"`
}

// Built is where a KindBuilt comes from. Together with the name and the wheels it
// decides every byte of the image.
type Built struct {
	// Base is the image of the bundle that it was built upon.
	Base Base `json:"base"`
	// Lock is the digest of the lock file, LockKind its format.
	LockSHA256 string `json:"lock_sha256"`
	LockKind   string `json:"lock_kind"`
	// Bytecode tells whether the packages' byte code is in it. Without it every
	// import compiles.
	Bytecode bool `json:"bytecode"`
}

// Base is an image of the bundle.
type Base struct {
	Name   string `json:"name"`
	SHA256 string `json:"sha256"`
}

// Imported is where a KindImported comes from.
type Imported struct {
	// Source is how it came: "registry", "oci-layout" or "archive"; Reference what
	// was asked for, digest included.
	Source    string `json:"source"`
	Reference string `json:"reference"`
	// IndexDigest is "" where the reference was not that of an index, and
	// ManifestDigest where an archive has no manifest. Digests have their algorithm
	// before them: "sha256:…".
	IndexDigest    string  `json:"index_digest,omitempty"`
	ManifestDigest string  `json:"manifest_digest,omitempty"`
	ConfigDigest   string  `json:"config_digest"`
	Platform       string  `json:"platform"`
	Layers         []Layer `json:"layers"`
}

// Layer is one layer of an OCI image.
type Layer struct {
	// Digest is that of the layer as it was stored, "" where that is not known;
	// DiffID that of its plain tar.
	Digest string `json:"digest,omitempty"`
	DiffID string `json:"diff_id"`
	// Bytes is its size as it was stored.
	Bytes int64 `json:"bytes"`
}

// Package is a Python package in an image.
type Package struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	// Bytes is the size of its files without byte code, 0 where it is not known.
	Bytes int64 `json:"bytes,omitempty"`
	// Wheel is the name of the file that it was installed from, SHA256 that file's
	// digest and URL where it was fetched, "" for a file of this machine. They are
	// those of a built image alone.
	Wheel  string `json:"wheel,omitempty"`
	SHA256 string `json:"sha256,omitempty"`
	URL    string `json:"url,omitempty"`
}

// CheckName reports whether an image of one's own can be called name. The error
// matches ErrName.
func CheckName(name string) error {
	switch {
	case name == "" || len(name) > maxNameBytes || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" || name[0] == '-':
		return fmt.Errorf("%w: %.80q: want 1 to %d of a-z, 0-9 and -, and no - at its beginning", ErrName, name, maxNameBytes)
	case Reserved(name):
		return fmt.Errorf("%w: %q is the name of an image of PyBox's own", ErrName, name)
	}
	return nil
}

// Reserved tells whether name is that of an image that bundles have or will have.
func Reserved(name string) bool { return slices.Contains([]string{"stdlib", "data"}, name) }

// ParseRecord parses and validates the bytes of a record.
func ParseRecord(b []byte) (*Record, error) {
	if len(b) > maxRecordBytes {
		return nil, recordErr("longer than %d bytes", maxRecordBytes)
	}
	// The schema comes first: another one may have any keys.
	var head struct {
		Schema string `json:"schema"`
	}
	if err := json.Unmarshal(b, &head); err == nil && head.Schema != Schema {
		return nil, errSchema(head.Schema)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	var r Record
	if err := d.Decode(&r); err != nil {
		return nil, recordErr("%v", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, recordErr("there is something after its end")
	}
	if err := r.Validate(); err != nil {
		return nil, err
	}
	return &r, nil
}

func errSchema(got string) error {
	return recordErr("its schema is %.40q and this PyBox reads %q", got, Schema)
}

// Encode gives the bytes of a record that is valid.
func (r *Record) Encode() ([]byte, error) {
	if r.Packages == nil {
		r.Packages = []Package{}
	}
	if err := r.Validate(); err != nil {
		return nil, err
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(r); err != nil {
		return nil, fmt.Errorf("encode the record of an image: %w", err)
	}
	if b.Len() > maxRecordBytes {
		return nil, recordErr("longer than %d bytes", maxRecordBytes)
	}
	return b.Bytes(), nil
}

// Validate reports the first rule that r breaks.
func (r *Record) Validate() error {
	switch {
	case r.Schema != Schema:
		return errSchema(r.Schema)
	case CheckName(r.Name) != nil:
		return recordErr("name %.80q", r.Name)
	case !isSHA256(r.SHA256):
		return recordErr("digest %.80q", r.SHA256)
	case r.Bytes <= 0 || r.Bytes > maxImageBytes:
		return recordErr("%d bytes", r.Bytes)
	case r.Arch != vm.ArchAMD64 && r.Arch != vm.ArchARM64:
		return recordErr("architecture %.40q", r.Arch)
	case r.CreatedAt.IsZero():
		return recordErr("no time of its making")
	case !isTextOrNone(r.Python):
		return recordErr("Python %.80q", r.Python)
	case len(r.Packages) > maxPackages:
		return recordErr("%d packages", len(r.Packages))
	case len(r.Notes) > maxNotes:
		return recordErr("%d notes", len(r.Notes))
	}
	for _, p := range r.Packages {
		if err := p.validate(); err != nil {
			return err
		}
	}
	for _, n := range r.Notes {
		if !isText(n) {
			return recordErr("note %.80q", n)
		}
	}
	return r.validateOrigin()
}

func (p Package) validate() error {
	switch {
	case !isText(p.Name) || !isText(p.Version) || p.Bytes < 0:
		return recordErr("package %.80q %.80q", p.Name, p.Version)
	case !isTextOrNone(p.Wheel) || !isTextOrNone(p.URL) || p.SHA256 != "" && !isSHA256(p.SHA256):
		return recordErr("package %.80q: its wheel %.80q of %.80q", p.Name, p.Wheel, p.URL)
	}
	return nil
}

func isTextOrNone(s string) bool { return s == "" || isText(s) }

func (r *Record) validateOrigin() error {
	switch {
	case r.Kind == KindBuilt && r.Built != nil && r.Imported == nil:
		return r.Built.validate()
	case r.Kind == KindImported && r.Imported != nil && r.Built == nil:
		return r.Imported.validate()
	}
	return recordErr("kind %.40q does not go with its parts", r.Kind)
}

func (b *Built) validate() error {
	switch {
	case !isText(b.Base.Name) || !isSHA256(b.Base.SHA256):
		return recordErr("base %.80q, %.80q", b.Base.Name, b.Base.SHA256)
	case !isSHA256(b.LockSHA256) || !isText(b.LockKind):
		return recordErr("lock %.80q, %.80q", b.LockKind, b.LockSHA256)
	}
	return nil
}

func (i *Imported) validate() error {
	switch {
	case !isText(i.Source) || !isText(i.Reference) || !isText(i.Platform):
		return recordErr("source %.80q, %.80q, %.80q", i.Source, i.Reference, i.Platform)
	case !isDigestOrNone(i.IndexDigest) || !isDigestOrNone(i.ManifestDigest) || !isDigest(i.ConfigDigest):
		return recordErr("digests %.80q, %.80q, %.80q", i.IndexDigest, i.ManifestDigest, i.ConfigDigest)
	case len(i.Layers) > maxLayers:
		return recordErr("%d layers", len(i.Layers))
	}
	for _, l := range i.Layers {
		if !isDigestOrNone(l.Digest) || !isDigest(l.DiffID) || l.Bytes < 0 {
			return recordErr("layer %.80q of %d bytes", l.DiffID, l.Bytes)
		}
	}
	return nil
}

// isText holds for a short text that a terminal may be shown.
func isText(s string) bool {
	return s != "" && len(s) <= maxTextBytes && utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}

func isDigest(s string) bool {
	sum, ok := strings.CutPrefix(s, "sha256:")
	return ok && isSHA256(sum)
}

func isDigestOrNone(s string) bool { return s == "" || isDigest(s) }

func isSHA256(s string) bool { return len(s) == 64 && strings.Trim(s, "0123456789abcdef") == "" }

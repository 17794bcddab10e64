// Package ociimage takes container images in and gives PyBox's own out: an image
// from a registry, a folder in the OCI image layout or a tar of docker save becomes
// the file tree of a box's image, and a tree becomes a tar in the OCI image layout
// (https://github.com/opencontainers/image-spec).
//
// Images are named by digest alone. Every step from that digest to the last byte is
// verified: index, manifest, configuration, layers as they were stored and as they
// unpack. Nothing in them is trusted beyond that, since who made an image may have
// made it badly on purpose: counts, sizes and ratios are bounded, nothing is ever
// written through a link, and what a box does not need (set-id bits, devices,
// extended attributes) stays behind. It starts no program and runs nothing of an
// image; what the image's configuration asks for is reported, not done.
//
// It does not write disks (package erofs) and keeps no images (the host does).
package ociimage

import (
	"errors"
	"log/slog"
	"net/http"

	"github.com/pybox/pybox/guest/fetch"
	"github.com/pybox/pybox/guest/mapped"
	"github.com/pybox/pybox/guest/tree"
)

// Sentinels, to be tested with errors.Is. What could not be downloaded matches
// fetch.ErrUnavailable, and a tree that breaks its limits tree.ErrTooBig.
var (
	// ErrReference: no image is named, or not by digest.
	ErrReference = errors.New("image reference")
	// ErrDigest: some bytes are not those that a digest stands for.
	ErrDigest = errors.New("wrong digest")
	// ErrFormat: an index, manifest, configuration, archive or layer is malformed
	// or of a kind that is not taken.
	ErrFormat = errors.New("unusable image format")
	// ErrPlatform: the image is for another system or processor.
	ErrPlatform = errors.New("wrong platform")
	// ErrTooBig: something is larger, or there is more of it, than is taken.
	ErrTooBig = errors.New("image too big")
	// ErrContent: a layer holds an entry that is refused.
	ErrContent = errors.New("refused image content")
	// ErrPython: the image has no Python that a box could start.
	ErrPython = errors.New("no usable Python in the image")
	// ErrNotFound: the folder, file or registry has not what the digest names. From a
	// registry it matches fetch.ErrUnavailable too.
	ErrNotFound = errors.New("no such image")
)

// Options say what to import.
type Options struct {
	Source Source
	// Arch is the guest's architecture, "amd64" or "arm64".
	Arch string
	// CacheDir is where downloads are kept, as from fetch.CacheDir.
	CacheDir string
	// TempDir is the folder for files without a name that hold what layers unpack to;
	// "": the system's, which is memory on some machines.
	TempDir string
	// Username and Password are for the registry; both empty: anonymous. They are
	// sent to it and to the token service that it names, over TLS only.
	Username, Password string
	// Transport makes the requests; nil: one with the environment's proxies.
	Transport http.RoundTripper
	// Progress is told about each layer that is downloaded; may be nil.
	Progress func(fetch.Progress)
	// Log gets failed attempts; nil discards them.
	Log *slog.Logger
	// Limits bound the tree; zero: tree.DefaultLimits.
	Limits tree.Limits

	// fetcher changes how downloads are made; tests shorten pauses.
	fetcher func(*fetch.Fetcher)
}

// Result is an imported image.
type Result struct {
	// Tree has what a box needs: see package layout, and usr/bin/python3. The bytes of
	// its files are there until Close.
	Tree *tree.Tree
	// Python is what usr/bin/python3 leads to.
	Python     Interpreter
	Provenance Provenance
	// Notes are sentences about what was changed or left out, for the person.
	Notes []string
	// Ignored are the settings of the image's configuration that a box does not
	// follow, such as `Entrypoint ["/start.sh"]`.
	Ignored []string

	data *mapped.Bytes
}

// Interpreter is an image's Python.
type Interpreter struct {
	Path    string `json:"path"`              // of the program itself, no link
	Version string `json:"version,omitempty"` // such as "3.13"; "" where its name does not tell
}

// Provenance says where an image came from. Its digests are all verified.
type Provenance struct {
	Kind Kind `json:"kind"`
	// Reference is what was asked for, digest included; of a folder or file it has
	// no path, which says nothing about the content.
	Reference string `json:"reference"`
	// IndexDigest is "" where the digest was that of a single image.
	IndexDigest string `json:"index_digest,omitempty"`
	// ManifestDigest is "" for a docker save tar without manifests.
	ManifestDigest string  `json:"manifest_digest,omitempty"`
	ConfigDigest   string  `json:"config_digest"`
	Platform       string  `json:"platform"` // such as "linux/arm64"
	Layers         []Layer `json:"layers"`
}

// Layer is one layer, lowest first.
type Layer struct {
	// Digest is that of the layer as it was stored, "" where only DiffID is known.
	Digest string `json:"digest,omitempty"`
	DiffID string `json:"diff_id"` // of the plain tar
	Bytes  int64  `json:"bytes"`   // as stored
}

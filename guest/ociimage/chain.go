package ociimage

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Bounds of what describes an image.
const (
	maxManifestBytes = 4 << 20 // what registries take
	maxConfigBytes   = 8 << 20
	maxManifests     = 1000
	maxIndexDepth    = 3
	maxLayers        = 127 // docker's own
	maxLayerBytes    = 8 << 30
	maxStoredBytes   = 16 << 30 // of all layers
	maxMediaType     = 256
)

// store is where the parts of images are. What it returns is not verified.
type store interface {
	// small returns a blob or manifest of at most max bytes. The error matches
	// ErrNotFound where it is not there. Where there is more of it the error matches
	// ErrTooBig or, from a registry, fetch.ErrContent.
	small(ctx context.Context, digest string, manifest bool, max int64) ([]byte, error)
	// layers makes layers readable, in order.
	layers(ctx context.Context, list []stored) ([]opener, error)
	io.Closer
}

// opener opens a layer as it was stored.
type opener func() (io.ReadCloser, error)

// stored is a layer as a manifest lists it.
type stored struct {
	Layer
	file string // of a docker save tar without manifests
}

// found is an image whose description is verified.
type found struct {
	provenance Provenance
	config     *v1.ConfigFile
	layers     []stored
}

// document is an index or the manifest of an image; which of them, the lists tell.
type document struct {
	SchemaVersion int
	MediaType     types.MediaType
	Config        *v1.Descriptor
	Layers        []v1.Descriptor
	Manifests     []v1.Descriptor
	FSLayers      json.RawMessage // of the first schema
}

// find goes from a digest to the image for arch behind it.
func find(ctx context.Context, st store, digest, arch string) (*found, error) {
	f := &found{provenance: Provenance{Platform: "linux/" + arch}}
	m, err := f.descend(ctx, st, v1.Descriptor{Digest: hashOf(digest)}, arch, 0)
	if err != nil {
		return nil, err
	}
	if f.layers, err = listLayers(m); err != nil {
		return nil, err
	}
	b, err := fetchSmall(ctx, st, *m.Config, false, maxConfigBytes)
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	f.provenance.ConfigDigest = m.Config.Digest.String()
	return f, f.configure(b, arch)
}

// descend follows indexes until a manifest.
func (f *found) descend(ctx context.Context, st store, d v1.Descriptor, arch string, depth int) (*document, error) {
	b, err := fetchSmall(ctx, st, d, true, maxManifestBytes)
	if err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	doc, err := parseDocument(b)
	if err != nil {
		return nil, err
	}
	if doc.Manifests == nil {
		f.provenance.ManifestDigest = d.Digest.String()
		return doc, nil
	}
	if depth == maxIndexDepth {
		return nil, fmt.Errorf("%w: indexes inside of indexes, more than %d deep", ErrFormat, maxIndexDepth)
	}
	if depth == 0 {
		f.provenance.IndexDigest = d.Digest.String()
	}
	next, err := choose(doc.Manifests, arch)
	if err != nil {
		return nil, err
	}
	return f.descend(ctx, st, *next, arch, depth+1)
}

// parseDocument parses an index or manifest and judges its form.
func parseDocument(b []byte) (*document, error) {
	d, err := decodeDocument(b)
	if err != nil {
		return nil, err
	}
	isIndex, isImage := d.Manifests != nil, d.Config != nil || d.Layers != nil
	switch {
	case d.SchemaVersion == 1 || d.FSLayers != nil:
		return nil, fmt.Errorf("%w: a manifest of Docker's first schema, which has no digests to verify; push the image again with a present docker", ErrFormat)
	case d.SchemaVersion != 2:
		return nil, fmt.Errorf("%w: schema version %d of a manifest, want 2", ErrFormat, d.SchemaVersion)
	case isIndex && isImage:
		// One digest would stand for two things (CVE-2021-41190).
		return nil, fmt.Errorf("%w: it is an index and an image at once", ErrFormat)
	case isIndex && d.MediaType != "" && !d.MediaType.IsIndex(),
		!isIndex && d.MediaType != "" && !d.MediaType.IsImage():
		return nil, fmt.Errorf("%w: its media type %.80q is not that of what it holds", ErrFormat, d.MediaType)
	case !isIndex && d.Config == nil:
		return nil, fmt.Errorf("%w: it has neither manifests nor a configuration", ErrFormat)
	}
	return d, nil
}

// choose picks the first image for arch, or else the first index whose platform is
// not said or the same.
func choose(list []v1.Descriptor, arch string) (*v1.Descriptor, error) {
	var seen []string
	var index *v1.Descriptor
	for i := range list {
		d := &list[i]
		fits := d.Platform == nil || platformFits(d.Platform, arch)
		switch {
		case d.MediaType.IsIndex():
			if fits && index == nil {
				index = d
			}
		case d.MediaType != "" && !d.MediaType.IsImage():
		case d.Platform == nil: // one image alone need not say what it is for
			if len(list) == 1 {
				return d, nil
			}
		case fits:
			return d, nil
		case d.Platform.OS != "unknown": // what is attached to an image
			seen = append(seen, platformName(d.Platform))
		}
	}
	if index != nil {
		return index, nil
	}
	slices.Sort(seen)
	has := strings.Join(slices.Compact(seen), ", ")
	if has == "" {
		has = "no image that says what it is for"
	}
	return nil, fmt.Errorf("%w: the index has nothing for linux/%s, which the virtual machine needs; it has %.400s", ErrPlatform, arch, has)
}

// platformFits tells whether the guest's processor runs it. Variants above the
// first may use instructions that the processor lacks.
func platformFits(p *v1.Platform, arch string) bool {
	base := map[string]string{"amd64": "v1", "arm64": "v8"}[arch]
	return p.OS == "linux" && p.Architecture == arch && (p.Variant == "" || p.Variant == base)
}

func platformName(p *v1.Platform) string {
	s := fmt.Sprintf("%.20q", p.OS+"/"+p.Architecture)
	if p.Variant != "" {
		s = fmt.Sprintf("%.30q", p.OS+"/"+p.Architecture+"/"+p.Variant)
	}
	return strings.Trim(s, `"`)
}

// listLayers judges what a manifest lists.
func listLayers(m *document) ([]stored, error) {
	if !m.Config.MediaType.IsConfig() {
		return nil, fmt.Errorf("%w: it is not a container image: its configuration is %.120q", ErrFormat, m.Config.MediaType)
	}
	if len(m.Layers) == 0 {
		return nil, fmt.Errorf("%w: 0 layers, want 1 to %d", ErrTooBig, maxLayers)
	}
	var total int64
	list := make([]stored, 0, len(m.Layers))
	for i, l := range m.Layers {
		switch {
		case !l.MediaType.IsDistributable():
			return nil, fmt.Errorf("%w: layer %d is of the kind that may not be distributed (%.80q) and is not in the registry", ErrFormat, i+1, l.MediaType)
		case !slices.Contains(layerTypes, l.MediaType):
			return nil, fmt.Errorf("%w: layer %d is %.*q", ErrFormat, i+1, maxMediaType, l.MediaType)
		case !isDigest(l.Digest.String()):
			return nil, fmt.Errorf("%w: layer %d has the digest %.100q, want SHA-256", ErrFormat, i+1, l.Digest)
		case l.Size <= 0 || l.Size > maxLayerBytes:
			return nil, fmt.Errorf("%w: layer %d has %d bytes, want 1 to %d", ErrTooBig, i+1, l.Size, int64(maxLayerBytes))
		}
		if total += l.Size; total > maxStoredBytes {
			return nil, fmt.Errorf("%w: the layers have more than %d bytes together", ErrTooBig, int64(maxStoredBytes))
		}
		list = append(list, stored{Layer: Layer{Digest: l.Digest.String(), Bytes: l.Size}})
	}
	return list, nil
}

// layerTypes are the kinds of layers. How one is compressed, its first bytes tell.
var layerTypes = []types.MediaType{
	types.OCILayer, types.OCILayerZStd, types.OCIUncompressedLayer,
	types.DockerLayer, types.DockerUncompressedLayer,
	"application/vnd.docker.image.rootfs.diff.tar.zstd", // of buildkit
}

// configure takes an image's configuration in.
func (f *found) configure(b []byte, arch string) error {
	c, err := decodeConfig(b)
	if err != nil {
		return err
	}
	if p := (&v1.Platform{OS: c.OS, Architecture: c.Architecture, Variant: c.Variant}); !platformFits(p, arch) {
		return fmt.Errorf("%w: the image is for %s, and the virtual machine runs linux/%s", ErrPlatform, platformName(p), arch)
	}
	if t := c.RootFS.Type; t != "layers" {
		return fmt.Errorf("%w: root file system of type %.40q", ErrFormat, t)
	}
	if n := len(c.RootFS.DiffIDs); n != len(f.layers) {
		return fmt.Errorf("%w: the configuration has %d layers and the manifest %d", ErrFormat, n, len(f.layers))
	}
	for i, d := range c.RootFS.DiffIDs {
		if !isDigest(d.String()) {
			return fmt.Errorf("%w: layer %d has the diff id %.100q, want SHA-256", ErrFormat, i+1, d)
		}
		f.layers[i].DiffID = d.String()
	}
	f.config = c
	return nil
}

// fetchSmall reads a blob and verifies it. A size of 0 is one that nobody told.
func fetchSmall(ctx context.Context, st store, d v1.Descriptor, manifest bool, max int64) ([]byte, error) {
	digest := d.Digest.String()
	switch {
	case !isDigest(digest):
		return nil, fmt.Errorf("%w: digest %.100q, want SHA-256", ErrFormat, digest)
	case d.Size < 0 || d.Size > max:
		return nil, fmt.Errorf("%w: it has %d bytes, at most %d are taken", ErrTooBig, d.Size, max)
	}
	if d.Size > 0 {
		max = d.Size
	}
	b, err := st.small(ctx, digest, manifest, max)
	if err != nil {
		return nil, err
	}
	if d.Size > 0 && int64(len(b)) != d.Size {
		return nil, fmt.Errorf("%w: %s has %d bytes instead of %d", ErrDigest, digest, len(b), d.Size)
	}
	return b, checkDigest(b, digest)
}

// checkDigest compares a SHA-256.
func checkDigest(b []byte, digest string) error {
	sum := sha256.Sum256(b)
	if got := digestPrefix + hex.EncodeToString(sum[:]); got != digest {
		return fmt.Errorf("%w: what came for %s has the digest %s; nothing of it was used", ErrDigest, digest, got)
	}
	return nil
}

// hashOf splits a digest that isDigest holds for.
func hashOf(digest string) v1.Hash {
	return v1.Hash{Algorithm: "sha256", Hex: strings.TrimPrefix(digest, digestPrefix)}
}

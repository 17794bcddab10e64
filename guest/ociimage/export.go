package ociimage

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"regexp"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/pybox/pybox/guest/erofs"
	"github.com/pybox/pybox/guest/tree"
)

// Meta is what Export says about an image.
type Meta struct {
	// Name is what docker load calls the image: pybox/NAME:latest; "": nothing.
	Name string
	Arch string // "amd64" or "arm64"
	// Annotations of the manifest, such as the provenance.
	Annotations map[string]string
}

// Exported is what Export wrote.
type Exported struct {
	ManifestDigest string // to import it by
	ConfigDigest   string // of the tree and the architecture alone; docker's image ID, but for containerd's store
	Bytes          int64  // of the tar
}

// repositoryName is what a registry takes for one part of a name.
var repositoryName = regexp.MustCompile(`^[a-z0-9]+(?:[._-][a-z0-9]+)*$`)

// Export writes t as a tar in the OCI image layout with one layer, which docker load
// takes as well. Equal trees and metadata give equal bytes; so the layer is not
// compressed. Importing it by its manifest's digest gives an equal tree.
func Export(ctx context.Context, t *tree.Tree, m Meta, w io.Writer) (*Exported, error) {
	if m.Arch != "amd64" && m.Arch != "arm64" {
		return nil, fmt.Errorf("%w: architecture %.40q", ErrPlatform, m.Arch)
	}
	if m.Name != "" && !repositoryName.MatchString(m.Name) {
		return nil, fmt.Errorf("%w: name %.80q", ErrReference, m.Name)
	}
	sum := sha256.New()
	sized := &countingWriter{w: sum}
	if err := writeLayer(ctx, sized, t); err != nil {
		return nil, err
	}
	layer := v1.Descriptor{MediaType: types.OCIUncompressedLayer, Size: sized.n,
		Digest: hashOf(digestPrefix + hex.EncodeToString(sum.Sum(nil)))}
	parts, err := describe(layer, m)
	if err != nil {
		return nil, err
	}
	out := &countingWriter{w: w}
	if err := writeArchive(ctx, out, t, layer, parts); err != nil {
		return nil, fmt.Errorf("export: %w", err)
	}
	return &Exported{ManifestDigest: parts.manifest.Digest.String(), ConfigDigest: parts.config.Digest.String(), Bytes: out.n}, nil
}

// parts are the documents of an image.
type parts struct {
	config, manifest v1.Descriptor
	files            []part
}

type part struct {
	name string
	data []byte
}

// add encodes a document as a blob.
func (p *parts) add(t types.MediaType, v any) (v1.Descriptor, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return v1.Descriptor{}, err
	}
	sum := sha256.Sum256(b)
	d := v1.Descriptor{MediaType: t, Size: int64(len(b)), Digest: hashOf(digestPrefix + hex.EncodeToString(sum[:]))}
	p.files = append(p.files, part{blobPath(d.Digest.String()), b})
	return d, nil
}

// file encodes a document that has a name of its own.
func (p *parts) file(name string, v any) error {
	b, err := json.Marshal(v)
	p.files = append(p.files, part{name, b})
	return err
}

// exportPath is the PATH of an exported image. What boxes start comes first in it, so
// that an import takes the same interpreter.
const exportPath = "PATH=/usr/bin:/usr/local/bin:/bin"

// describe makes the documents. Their only time is the one of all images' files.
func describe(layer v1.Descriptor, m Meta) (*parts, error) {
	p := &parts{}
	var err error
	if p.config, err = p.add(types.OCIConfigJSON, v1.ConfigFile{
		Architecture: m.Arch, OS: "linux", Created: v1.Time{Time: erofs.Time},
		Config: v1.Config{Cmd: []string{"/" + interpreter}, Env: []string{exportPath}},
		RootFS: v1.RootFS{Type: "layers", DiffIDs: []v1.Hash{layer.Digest}},
	}); err != nil {
		return nil, err
	}
	if p.manifest, err = p.add(types.OCIManifestSchema1, v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Config: p.config, Layers: []v1.Descriptor{layer}, Annotations: m.Annotations,
	}); err != nil {
		return nil, err
	}
	listed := p.manifest
	listed.Platform = &v1.Platform{OS: "linux", Architecture: m.Arch}
	saved := savedImage{Config: blobPath(p.config.Digest.String()), Layers: []string{blobPath(layer.Digest.String())}}
	if m.Name != "" {
		tag := "pybox/" + m.Name + ":latest"
		saved.RepoTags = []string{tag}
		listed.Annotations = map[string]string{"io.containerd.image.name": "docker.io/" + tag, "org.opencontainers.image.ref.name": "latest"}
	}
	index := v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: []v1.Descriptor{listed}}
	return p, errors.Join(
		p.file("oci-layout", map[string]string{"imageLayoutVersion": "1.0.0"}),
		p.file("index.json", index),
		p.file(manifestJSON, []savedImage{saved}))
}

// writeArchive writes the outer tar, in a fixed order.
func writeArchive(ctx context.Context, w io.Writer, t *tree.Tree, layer v1.Descriptor, p *parts) error {
	out := tar.NewWriter(w)
	for _, f := range p.files {
		if err := out.WriteHeader(member(f.name, int64(len(f.data)))); err != nil {
			return err
		}
		if _, err := out.Write(f.data); err != nil {
			return err
		}
	}
	if err := out.WriteHeader(member(blobPath(layer.Digest.String()), layer.Size)); err != nil {
		return err
	}
	if err := writeLayer(ctx, out, t); err != nil {
		return err
	}
	return out.Close()
}

func member(name string, size int64) *tar.Header {
	return &tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o644, ModTime: erofs.Time, Format: tar.FormatPAX}
}

// writeLayer writes the tree as a tar, sorted, with one time.
func writeLayer(ctx context.Context, w io.Writer, t *tree.Tree) error {
	out := tar.NewWriter(w)
	for _, n := range t.Nodes() {
		if err := ctx.Err(); err != nil {
			return err
		}
		h := &tar.Header{Name: n.Path, Mode: int64(n.Mode.Perm()), Uid: int(n.UID), Gid: int(n.GID), ModTime: erofs.Time, Format: tar.FormatPAX}
		if n.Mode&fs.ModeSticky != 0 {
			h.Mode |= 0o1000
		}
		switch n.Kind {
		case tree.Dir:
			h.Typeflag, h.Name = tar.TypeDir, n.Path+"/"
		case tree.Symlink:
			h.Typeflag, h.Linkname = tar.TypeSymlink, n.Target
		case tree.File:
			h.Typeflag, h.Size = tar.TypeReg, int64(len(n.Data))
		}
		if strings.HasPrefix(n.Path, whiteout) || strings.Contains(n.Path, "/"+whiteout) {
			return fmt.Errorf("%w: %.200q would remove a file instead of being one", ErrContent, n.Path)
		}
		if err := out.WriteHeader(h); err != nil {
			return fmt.Errorf("%.200q: %w", n.Path, err)
		}
		if n.Kind == tree.File {
			if _, err := out.Write(n.Data); err != nil {
				return err
			}
		}
	}
	return out.Close()
}

// countingWriter counts what passes.
type countingWriter struct {
	w io.Writer
	n int64
}

func (c *countingWriter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

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
	"os"
	"path"
	"slices"
	"strings"
)

// Bounds of an archive.
const (
	maxMembers   = 20_000
	maxSaved     = 1000 // images in one docker save tar
	maxMember    = 512  // bytes of a member's name; what is asked for has a fourth of it
	manifestJSON = "manifest.json"
)

// tarFile is a tar with the files of an OCI image layout, or of what docker save
// wrote before it wrote that: manifest.json, a configuration and the layers as tars
// of their own.
type tarFile struct {
	file    *os.File
	name    string
	members map[string]section
}

// section is where the bytes of a member are.
type section struct{ offset, size int64 }

// openArchive finds out where everything is, in one pass over the tar's headers.
func openArchive(ctx context.Context, name string) (_ *tarFile, err error) {
	st, err := os.Stat(name)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%w: %s is no regular file", ErrFormat, name)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	var head [4]byte
	if _, err := f.ReadAt(head[:], 0); err == nil && compressionOf(head[:]) != plain {
		return nil, fmt.Errorf("%w: %s is compressed as a whole; unpack it first, with gunzip or unzstd", ErrFormat, name)
	}
	t := &tarFile{file: f, name: name, members: map[string]section{}}
	return t, t.index(ctx)
}

// Close implements store.
func (t *tarFile) Close() error { return t.file.Close() }

// index lists the regular files, and the links to them that docker save made for
// layers that two images share.
func (t *tarFile) index(ctx context.Context) error {
	links := map[string]string{}
	r := tar.NewReader(t.file)
	for n := 0; ; n++ {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err := errors.Join(err, ctx.Err()); err != nil {
			return fmt.Errorf("%w: %s: %w", ErrFormat, t.name, err)
		}
		if n == maxMembers {
			return fmt.Errorf("%w: %s has more than %d members", ErrTooBig, t.name, maxMembers)
		}
		if err := checkRecords(h); err != nil {
			return fmt.Errorf("%s: %w", t.name, err)
		}
		if len(h.Name) > maxMember || len(h.Linkname) > maxMember {
			continue // nothing that is ever looked for
		}
		p := strings.Clone(path.Clean(h.Name)) // archive/tar cuts it out of all records
		switch {
		case h.Typeflag == tar.TypeSymlink || h.Typeflag == tar.TypeLink:
			links[p] = path.Join(path.Dir(p), h.Linkname)
			if h.Typeflag == tar.TypeLink {
				links[p] = strings.Clone(path.Clean(h.Linkname))
			}
			continue
		case h.Typeflag != tar.TypeReg || isSparse(h):
			continue
		}
		at, err := t.file.Seek(0, io.SeekCurrent) // archive/tar reads no further ahead
		if err != nil {
			return err
		}
		if _, ok := t.members[p]; ok {
			return fmt.Errorf("%w: %s has %.100q twice", ErrFormat, t.name, p)
		}
		t.members[p] = section{offset: at, size: h.Size}
	}
	for p, target := range links { // one step: docker made no chains
		if s, ok := t.members[target]; ok {
			if _, ok := t.members[p]; !ok {
				t.members[p] = s
			}
		}
	}
	return nil
}

func (t *tarFile) reader(s section) *io.SectionReader {
	return io.NewSectionReader(t.file, s.offset, s.size)
}

// small implements store.
func (t *tarFile) small(_ context.Context, digest string, _ bool, max int64) ([]byte, error) {
	s, ok := t.members[blobPath(digest)]
	if !ok {
		return nil, fmt.Errorf("%w: %s is not in %s", ErrNotFound, digest, t.name)
	}
	return readSmall(t.reader(s), s.size, max)
}

// layers implements store.
func (t *tarFile) layers(ctx context.Context, list []stored) ([]opener, error) {
	out := make([]opener, 0, len(list))
	for _, l := range list {
		p := l.file
		if p == "" {
			p = blobPath(l.Digest)
		}
		s, ok := t.members[p]
		switch {
		case !ok:
			return nil, fmt.Errorf("%w: the layer %.120q is not in %s", ErrNotFound, p, t.name)
		case l.Digest != "" && s.size != l.Bytes:
			return nil, fmt.Errorf("%w: %s has %d bytes instead of %d", ErrDigest, l.Digest, s.size, l.Bytes)
		}
		open := func() (io.ReadCloser, error) { return io.NopCloser(t.reader(s)), nil }
		if l.Digest != "" { // that of the plain tar is verified when it is read
			if err := verifyLayer(ctx, open, l); err != nil {
				return nil, err
			}
		}
		out = append(out, open)
	}
	return out, nil
}

// find looks for an index, a manifest or a configuration by its digest.
func (t *tarFile) find(ctx context.Context, digest, arch string) (*found, error) {
	saved, err := t.saved()
	if err != nil {
		return nil, err
	}
	for _, s := range saved {
		if configDigest(s.Config) == digest {
			return t.fromSaved(s, digest, arch)
		}
	}
	f, err := find(ctx, t, digest, arch)
	if errors.Is(err, ErrNotFound) && f == nil {
		return nil, fmt.Errorf("%w%s", err, t.holds(saved))
	}
	return f, err
}

// savedImage is an entry of docker save's manifest.json.
type savedImage struct {
	Config   string   `json:"Config"`
	RepoTags []string `json:"RepoTags"`
	Layers   []string `json:"Layers"`
}

// saved lists the images of a docker save tar; none where it is not one.
func (t *tarFile) saved() ([]savedImage, error) {
	s, ok := t.members[manifestJSON]
	if !ok {
		return nil, nil
	}
	b, err := readSmall(t.reader(s), s.size, maxManifestBytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", manifestJSON, err)
	}
	var raw json.RawMessage
	if err := unmarshal(b, &raw); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrFormat, manifestJSON, err)
	}
	var list []savedImage
	err = elements(raw, "images", maxSaved, '[', func(d *json.Decoder) error {
		var s savedImage
		err := d.Decode(&s)
		list = append(list, s)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", manifestJSON, err)
	}
	return list, nil
}

// configDigest is the digest in the name of a configuration's file: HEX.json,
// blobs/sha256/HEX, or sha256:HEX. It is only a name until the bytes are verified.
func configDigest(file string) string {
	d := digestPrefix + strings.TrimPrefix(strings.TrimSuffix(path.Base(file), ".json"), digestPrefix)
	if !isDigest(d) {
		return ""
	}
	return d
}

// holds says what else could have been asked for.
func (t *tarFile) holds(saved []savedImage) string {
	var out []string
	for _, s := range saved[:min(len(saved), 10)] {
		if d := configDigest(s.Config); d != "" {
			out = append(out, strings.TrimSpace(d+" "+escape(strings.Join(s.RepoTags, " "), 100)))
		}
	}
	if len(out) == 0 {
		return ""
	}
	return "; it holds " + strings.Join(out, ", ")
}

// fromSaved takes an image whose configuration, and with it the digests of the plain
// layers, is all that a digest vouches for.
func (t *tarFile) fromSaved(s savedImage, digest, arch string) (*found, error) {
	m, ok := t.members[path.Clean(s.Config)]
	if !ok {
		return nil, fmt.Errorf("%w: the configuration %.120q is not in %s", ErrNotFound, s.Config, t.name)
	}
	b, err := readSmall(t.reader(m), m.size, maxConfigBytes)
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	if err := checkDigest(b, digest); err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	if n := len(s.Layers); n == 0 || n > maxLayers {
		return nil, fmt.Errorf("%w: %d layers, want 1 to %d", ErrTooBig, n, maxLayers)
	}
	f := &found{provenance: Provenance{Platform: "linux/" + arch, ConfigDigest: digest}}
	for _, file := range s.Layers {
		p := path.Clean(file)
		f.layers = append(f.layers, stored{Layer: Layer{Bytes: t.members[p].size}, file: p})
	}
	return f, f.configure(b, arch)
}

// verifyLayer reads all of a layer as it was stored: no byte of it is unpacked before
// its digest is right.
func verifyLayer(ctx context.Context, open opener, l stored) error {
	f, err := open()
	if err != nil {
		return err
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.Copy(h, io.LimitReader(&contextReader{ctx: ctx, r: f}, l.Bytes+1))
	if err != nil {
		return err
	}
	if got := digestPrefix + hex.EncodeToString(h.Sum(nil)); n != l.Bytes || got != l.Digest {
		return fmt.Errorf("%w: the %d bytes of layer %s have the digest %s; nothing of it was used", ErrDigest, n, l.Digest, got)
	}
	return nil
}

// contextReader reads until ctx ends.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (c *contextReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}

// isSparse tells whether a member is not stored as it is. archive/tar hides it but
// for what the header says.
func isSparse(h *tar.Header) bool {
	if h.Typeflag == tar.TypeGNUSparse {
		return true
	}
	return slices.ContainsFunc([]string{"GNU.sparse.major", "GNU.sparse.map", "GNU.sparse.size", "GNU.sparse.realsize", "GNU.sparse.numblocks", "GNU.sparse.name"},
		func(k string) bool { _, ok := h.PAXRecords[k]; return ok })
}

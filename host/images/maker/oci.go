package maker

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/csv"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/pybox/pybox/guest/erofs"
	"github.com/pybox/pybox/guest/mapped"
	"github.com/pybox/pybox/guest/nospace"
	"github.com/pybox/pybox/guest/ociimage"
	"github.com/pybox/pybox/guest/tree"
	"github.com/pybox/pybox/host/images"
)

// The name and password for a registry that wants them.
const (
	envUser     = "PYBOX_REGISTRY_USER"
	envPassword = "PYBOX_REGISTRY_PASSWORD"
)

// Import is what a person wants to have imported.
type Import struct {
	Name string
	// Reference is as ociimage.ParseSource takes it.
	Reference string
	// Replace puts the image in the place of one with its name.
	Replace bool
}

// Import makes an image of an OCI image, and gives its record.
func (m *Maker) Import(ctx context.Context, i Import) (*images.Record, error) {
	source, err := ociimage.ParseSource(i.Reference)
	if err != nil {
		return nil, requestErr("%w", err)
	}
	bun, commit, err := m.begin(i.Name, i.Replace)
	if err != nil {
		return nil, err
	}
	st, err := m.Store.Stage(ctx)
	if err != nil {
		return nil, err
	}
	defer st.Close()
	r, err := ociimage.Import(ctx, ociimage.Options{
		Source: source, Arch: bun.Manifest.Arch, CacheDir: m.Cache, TempDir: st.Dir(), Username: m.Getenv(envUser), Password: m.Getenv(envPassword),
		Transport: m.Transport, Progress: m.Events.Progress, Log: m.log(),
	})
	if err != nil {
		return nil, m.explain(err)
	}
	defer r.Close()
	m.Events.line("writing %d files and folders", r.Tree.Len())
	if err := write(ctx, st, r.Tree); err != nil {
		return nil, m.explain(err)
	}
	rec := imported(ctx, i.Name, bun.Manifest.Arch, r)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return m.Store.Commit(ctx, st, rec, commit)
}

func write(ctx context.Context, st *images.Stage, t *tree.Tree) (err error) {
	f, err := os.OpenFile(st.Path(), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return erofs.Write(&interruptible{ctx: ctx, WriteSeeker: f}, t)
}

// interruptible writes until ctx ends.
type interruptible struct {
	ctx context.Context
	io.WriteSeeker
}

func (i *interruptible) Write(p []byte) (int, error) {
	if err := i.ctx.Err(); err != nil {
		return 0, err
	}
	return i.WriteSeeker.Write(p)
}

// reading reads until ctx ends.
type reading struct {
	ctx context.Context
	r   io.Reader
}

func (r *reading) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}

// imported is the record of what was imported; of use only while ctx has not ended.
func imported(ctx context.Context, name, arch string, r *ociimage.Result) images.Record {
	p := r.Provenance
	rec := images.Record{
		Name: name, Arch: arch, Kind: images.KindImported, Python: r.Python.Version,
		Imported: &images.Imported{
			Source: string(p.Kind), Reference: clean(p.Reference), IndexDigest: p.IndexDigest, ManifestDigest: p.ManifestDigest,
			ConfigDigest: p.ConfigDigest, Platform: clean(p.Platform),
		},
		Packages: packagesIn(ctx, r.Tree),
	}
	for _, l := range p.Layers {
		rec.Imported.Layers = append(rec.Imported.Layers, images.Layer{Digest: l.Digest, DiffID: l.DiffID, Bytes: l.Bytes})
	}
	notes := r.Notes
	if len(r.Ignored) > 0 {
		notes = append(notes, "a box does not follow these settings of the image: "+strings.Join(r.Ignored, ", "))
	}
	rec.Notes = cleanAll(notes)
	return rec
}

// limits bound an image that is written out: those of the largest that are made.
var limits = tree.Limits{Entries: 500_000, Bytes: 8 << 30}

// mostPackages bounds the packages that are listed of an image.
const mostPackages = 5000

// packagesIn finds the Python packages in a tree by the folders that their
// installation left ("Recording installed projects").
func packagesIn(ctx context.Context, t *tree.Tree) []images.Package {
	var list []images.Package
	for _, n := range t.Nodes() {
		stem, ok := strings.CutSuffix(path.Base(n.Path), ".dist-info")
		parent := path.Base(path.Dir(n.Path))
		if !ok || n.Kind != tree.Dir || parent != "site-packages" && parent != "dist-packages" || len(list) == mostPackages {
			continue
		}
		name, version, ok := strings.Cut(stem, "-")
		if name, version = clean(name), clean(version); ok && name != "" && version != "" {
			list = append(list, images.Package{Name: name, Version: version, Bytes: recorded(ctx, t.Lookup(n.Path+"/RECORD"))})
		}
	}
	slices.SortFunc(list, func(a, b images.Package) int {
		return cmp.Or(cmp.Compare(strings.ToLower(a.Name), strings.ToLower(b.Name)), cmp.Compare(a.Version, b.Version))
	})
	return slices.Compact(list)
}

// mostRecord bounds a package's record. One of ten thousand files has a MiB.
const mostRecord = 16 << 20

// recorded is the size of a package by its own record: 0 where there is none that can
// be believed.
func recorded(ctx context.Context, n *tree.Node) (sum int64) {
	if n == nil || n.Kind != tree.File || len(n.Data) > mostRecord {
		return 0
	}
	const most = 1 << 40
	r := csv.NewReader(&reading{ctx: ctx, r: bytes.NewReader(n.Data)})
	r.FieldsPerRecord, r.ReuseRecord = 3, true
	for {
		row, err := r.Read()
		if err != nil {
			return sum
		}
		size, err := strconv.ParseInt(row[2], 10, 64)
		if err != nil || strings.HasSuffix(row[0], ".pyc") {
			continue
		}
		if sum += size; size < 0 || sum > most {
			return 0
		}
	}
}

// Exported is what was written out.
type Exported struct {
	// Reference is what the image can be imported by, Digest the part after "@".
	Reference string `json:"reference"`
	Digest    string `json:"digest"`
	Bytes     int64  `json:"bytes"`
}

// Export writes an image, of the store or of the bundle, as an OCI image layout in a
// tar file, which must not be there yet. The file has its name once it is whole; what
// was written of one that will not be is gone, or begins with ".pybox-export-" where
// this process was killed on a system or a file system that knows files by name alone.
func (m *Maker) Export(ctx context.Context, name, file string) (_ *Exported, err error) {
	if file == "-" {
		return nil, requestErr("an image is written to a file, not to standard output")
	}
	if _, err := os.Lstat(file); err == nil {
		return nil, requestErr("%s is there already; nothing is overwritten", file)
	}
	img, err := m.open(ctx, name)
	if err != nil {
		return nil, err
	}
	defer img.close()
	t, err := erofs.Read(img.data, limits)
	if err != nil {
		return nil, err
	}
	out, err := newOutFile(filepath.Dir(file))
	if err != nil {
		return nil, requestErr("no file can be made there: %w", err)
	}
	defer out.discard()
	m.Events.line("writing %d files and folders", t.Len())
	var e *ociimage.Exported
	err = mapped.Guard(func() (err error) {
		e, err = ociimage.Export(ctx, t, img.meta, &interruptible{ctx: ctx, WriteSeeker: out})
		return err
	})
	if err != nil {
		return nil, m.explainExport(err, file)
	}
	switch err := out.publish(file); {
	case errors.Is(err, fs.ErrExist):
		return nil, requestErr("%s is there already; nothing is overwritten", file)
	case err != nil:
		return nil, m.explainExport(err, file)
	}
	return &Exported{Reference: "tar:" + file + "@" + e.ManifestDigest, Digest: e.ManifestDigest, Bytes: e.Bytes}, nil
}

// content is an image's, mapped into memory.
type content struct {
	data  []byte
	meta  ociimage.Meta
	close func()
}

// open maps an image and verifies it.
func (m *Maker) open(ctx context.Context, name string) (*content, error) {
	b, err := m.Bundle()
	if err != nil {
		return nil, err
	}
	for _, i := range b.Manifest.Images {
		if i.Name == name {
			c, err := load(ctx, b.Path(i.File), i.SHA256, i.Bytes)
			if err != nil {
				return nil, err
			}
			c.meta = ociimage.Meta{Name: name, Arch: b.Manifest.Arch}
			return c, nil
		}
	}
	r, err := m.Store.Get(name)
	if err != nil {
		return nil, err
	}
	c, err := load(ctx, m.Store.Path(r), r.SHA256, r.Bytes)
	if err != nil {
		return nil, err
	}
	said, whole := annotations(r)
	if !whole {
		m.Events.line("the %s of the image are too many to be listed in the file's annotations; 'pybox image inspect' lists them", count(len(r.Packages), "package"))
	}
	c.meta = ociimage.Meta{Name: name, Arch: r.Arch, Annotations: said}
	return c, nil
}

// load maps a file, and makes sure that it is what it has to be. Files of a bundle
// and of the store are replaced, never changed.
func load(ctx context.Context, file, sum string, size int64) (*content, error) {
	m, err := mapped.Open(file)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", images.ErrDamaged, err)
	}
	c := &content{data: m.Data(), close: func() { _ = m.Close() }}
	h := sha256.New()
	err = mapped.Guard(func() error {
		_, err := io.Copy(h, &reading{ctx: ctx, r: bytes.NewReader(c.data)})
		return err
	})
	if err != nil {
		c.close()
		if errors.Is(err, mapped.ErrFault) {
			err = fmt.Errorf("%w: %w", images.ErrDamaged, err)
		}
		return nil, err
	}
	if got := h.Sum(nil); hex.EncodeToString(got) != sum || int64(len(c.data)) != size {
		c.close()
		return nil, fmt.Errorf("%w: %s has the SHA-256 %x, expected %s", images.ErrDamaged, file, got, sum)
	}
	return c, nil
}

// annotationProvenance has the provenance of an image in the manifest of an export.
const annotationProvenance = "io.pybox.provenance"

// mostAnnotation bounds it: registries take manifests of 4 MiB.
const mostAnnotation = 1 << 20

// annotations say where an image comes from. They do not depend on when it was made.
// Where they are not whole the packages are left out, which the rest has room without.
func annotations(r *images.Record) (_ map[string]string, whole bool) {
	p := struct {
		Kind     string           `json:"kind"`
		SHA256   string           `json:"sha256"`
		Python   string           `json:"python,omitempty"`
		Built    *images.Built    `json:"built,omitempty"`
		Imported *images.Imported `json:"imported,omitempty"`
		Packages []images.Package `json:"packages"`
		LeftOut  int              `json:"packages_left_out,omitempty"`
	}{Kind: r.Kind, SHA256: r.SHA256, Python: r.Python, Built: r.Built, Imported: r.Imported, Packages: r.Packages}
	b, err := json.Marshal(p)
	if whole = err == nil && len(b) <= mostAnnotation; !whole {
		p.Packages, p.LeftOut = nil, len(r.Packages)
		if b, err = json.Marshal(p); err != nil || len(b) > mostAnnotation {
			return nil, false
		}
	}
	return map[string]string{annotationProvenance: string(b)}, whole
}

func (m *Maker) explainExport(err error, file string) error {
	return nospace.Explain(err, "the exported image", filepath.Dir(file), 0, "")
}

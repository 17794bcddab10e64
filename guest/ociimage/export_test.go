package ociimage

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	ggcrlayout "github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/pybox/pybox/guest/layout"
	"github.com/pybox/pybox/guest/tree"
)

func shaOf(b []byte) (string, int, error) {
	sum := sha256.Sum256(b)
	return digestPrefix + hex.EncodeToString(sum[:]), len(b), nil
}

// sample is a tree with all that an image of PyBox may have.
func sample(t testing.TB) *tree.Tree {
	t.Helper()
	tr := tree.New(tree.DefaultLimits)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, l := range merged {
		must(tr.Alias(l, "usr/"+l))
	}
	for _, d := range layout.Dirs() {
		must(tr.Mkdir(d, tree.Attr{Mode: 0o755}))
	}
	must(tr.Mkdir("var/tmp", tree.Attr{Mode: 0o777 | fs.ModeSticky}))
	must(tr.WriteFile("usr/bin/python3.13", []byte(program("amd64")), tree.Attr{Mode: 0o755}))
	must(tr.Symlink("usr/bin/python3", "python3.13", tree.Attr{}))
	must(tr.Symlink("etc/localtime", "/usr/share/zoneinfo/Etc/UTC", tree.Attr{}))
	must(tr.WriteFile("srv/empty", nil, tree.Attr{Mode: 0o600, UID: 1000, GID: 65535}))
	must(tr.WriteFile("srv/ü/"+strings.Repeat("long", 60), bytes.Repeat([]byte("x"), 5000), tree.Attr{Mode: 0o644}))
	must(tr.WriteFile("srv/\xff", []byte("no UTF-8"), tree.Attr{Mode: 0o644}))
	must(tr.Link("srv/linked", "srv/empty"))
	return tr
}

func exported(t testing.TB, tr *tree.Tree, m Meta) (*Exported, []byte) {
	t.Helper()
	var b bytes.Buffer
	e, err := Export(t.Context(), tr, m, &b)
	if err != nil {
		t.Fatal(err)
	}
	if e.Bytes != int64(b.Len()) {
		t.Errorf("%d bytes, said to be %d", b.Len(), e.Bytes)
	}
	return e, b.Bytes()
}

func TestRoundTrip(t *testing.T) {
	tr := sample(t)
	meta := Meta{Name: "mine", Arch: "amd64", Annotations: map[string]string{"org.example.lock": "sha256:1"}}
	e, b := exported(t, tr, meta)
	file := filepath.Join(t.TempDir(), "x.tar")
	if err := os.WriteFile(file, b, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, digest := range []string{e.ManifestDigest, e.ConfigDigest} {
		r, err := imp(t, options(t, Source{Archive, file, digest}))
		if err != nil {
			t.Fatal(err)
		}
		equal(t, r.Tree, tr)
		if len(r.Notes) != 0 {
			t.Errorf("%q", r.Notes)
		}
	}
	if _, again := exported(t, sample(t), meta); !bytes.Equal(again, b) {
		t.Error("the same tree gave other bytes")
	}
	if other, _ := exported(t, tr, Meta{Arch: "amd64", Annotations: map[string]string{"org.example.lock": "sha256:2"}}); other.ManifestDigest == e.ManifestDigest || other.ConfigDigest != e.ConfigDigest {
		t.Error("the annotations are not in the manifest alone")
	}
}

// TestRoundTripKeepsPython: what boxes start is the same after an export, whatever else
// the image has.
func TestRoundTripKeepsPython(t *testing.T) {
	for name, members := range map[string][]tar.Header{
		"conda's before another": {python("usr/local/bin/python3.12"), m("l usr/local/bin/python3 python3.12"), python("opt/conda/bin/python3.13"), m("l opt/conda/bin/python3 python3.13")},
		"Debian's after it":      {python("usr/bin/python3.11"), m("l usr/bin/python3 python3.11"), python("opt/conda/bin/python3.13"), m("l opt/conda/bin/python3 python3.13")},
		"a virtual environment's": {python("usr/local/bin/python3.12"), m("l usr/local/bin/python3 python3.12"), m("d usr/local/lib/python3.12/site-packages"), python("bin/python3.9"), m("l bin/python3 python3.9"),
			m("l opt/conda/bin/python3 /usr/local/bin/python3"), m("f opt/conda/pyvenv.cfg home = /usr/local/bin"), m("d opt/conda/lib/python3.12/site-packages")},
	} {
		t.Run(name, func(t *testing.T) {
			tr, in, notes, err := fitted(t, []string{"PATH=/opt/conda/bin:/usr/local/bin:/usr/bin"}, members...)
			if err != nil || len(notes) == 0 {
				t.Fatal(err, notes)
			}
			e, b := exported(t, tr, Meta{Arch: "amd64"})
			file := filepath.Join(t.TempDir(), "x.tar")
			if err := os.WriteFile(file, b, 0o644); err != nil {
				t.Fatal(err)
			}
			r, err := imp(t, options(t, Source{Archive, file, e.ManifestDigest}))
			if err != nil {
				t.Fatal(err)
			}
			if r.Python != in || len(r.Notes) != 0 {
				t.Errorf("%+v instead of %+v, notes %q", r.Python, in, r.Notes)
			}
			equal(t, r.Tree, tr)
		})
	}
}

// TestOthersRead: what reads docker's and OCI's formats reads it.
func TestOthersRead(t *testing.T) {
	e, b := exported(t, sample(t), Meta{Name: "mine", Arch: "amd64"})
	tag, err := name.NewTag("pybox/mine:latest")
	if err != nil {
		t.Fatal(err)
	}
	img, err := tarball.Image(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b)), nil }, &tag)
	if err != nil {
		t.Fatal(err)
	}
	checkImage(t, img)
	if id, err := img.ConfigName(); err != nil || id.String() != e.ConfigDigest {
		t.Errorf("%v, %v", id, err)
	}
	dir := t.TempDir()
	extract(t, b, dir)
	r, err := imp(t, options(t, Source{Layout, dir, e.ManifestDigest}))
	if err != nil {
		t.Fatal(err)
	}
	equal(t, r.Tree, sample(t))
	checkLayout(t, dir, e)
}

func TestRefusedExports(t *testing.T) {
	tr := sample(t)
	for name, c := range map[string]struct {
		meta Meta
		want error
	}{
		"no architecture": {Meta{}, ErrPlatform}, "a name with a slash": {Meta{Arch: "amd64", Name: "a/b"}, ErrReference}, "a name in capitals": {Meta{Arch: "amd64", Name: "A"}, ErrReference},
	} {
		if _, err := Export(t.Context(), tr, c.meta, io.Discard); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Export(ctx, tr, Meta{Arch: "amd64"}, io.Discard); !errors.Is(err, context.Canceled) {
		t.Errorf("after its end: %v", err)
	}
	full := errors.New("no space")
	if _, err := Export(t.Context(), tr, Meta{Arch: "amd64"}, brokenWriter{full}); !errors.Is(err, full) {
		t.Errorf("a full disk: %v", err)
	}
	if err := tr.WriteFile("srv/.wh.x", nil, tree.Attr{}); err != nil {
		t.Fatal(err)
	}
	if _, err := Export(t.Context(), tr, Meta{Arch: "amd64"}, io.Discard); !errors.Is(err, ErrContent) {
		t.Errorf("a file that is a mark of removal: %v", err)
	}
}

type brokenWriter struct{ err error }

func (b brokenWriter) Write([]byte) (int, error) { return 0, b.err }

// extract unpacks the files of a tar.
func extract(t testing.TB, b []byte, dir string) {
	t.Helper()
	r := tar.NewReader(bytes.NewReader(b))
	for {
		h, err := r.Next()
		if err == io.EOF {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		p := filepath.Join(dir, h.Name)
		body, err := io.ReadAll(r)
		if err = errors.Join(err, os.MkdirAll(filepath.Dir(p), 0o755)); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, body, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// checkLayout reads a folder with the library and compares.
func checkLayout(t testing.TB, dir string, e *Exported) {
	t.Helper()
	x, err := ggcrlayout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	m, err := x.IndexManifest()
	if err != nil || len(m.Manifests) != 1 || m.Manifests[0].Digest.String() != e.ManifestDigest || m.Manifests[0].Platform.Architecture != "amd64" {
		t.Fatalf("%+v, %v", m, err)
	}
	img, err := x.Image(m.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	checkImage(t, img)
}

// checkImage compares the one layer with what the image says about it.
func checkImage(t testing.TB, img v1.Image) {
	t.Helper()
	cf, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	ls, err := img.Layers()
	if err != nil || len(ls) != 1 {
		t.Fatalf("%d layers, %v", len(ls), err)
	}
	rc, err := ls[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer rc.Close()
	got, _, err := v1.SHA256(rc)
	if err != nil || got != cf.RootFS.DiffIDs[0] {
		t.Errorf("the layer is %v instead of %v, %v", got, cf.RootFS.DiffIDs[0], err)
	}
}

// TestMemory: neither the layers nor the files of an image are held in memory, nor
// what upper layers replace.
func TestMemory(t *testing.T) {
	const size = 32 << 20
	big := func(b byte) []byte {
		noise := make([]byte, size)
		x := uint32(b)
		for i := range noise { // what no compressor makes smaller
			x = x*1664525 + 1013904223
			noise[i] = byte(x >> 24)
		}
		return lines(t, "f big "+string(noise))
	}
	dir := layoutOf(t, image(t, "amd64", packed{"", types.OCIUncompressedLayer}, nil, pythonLayer(t, "amd64"), big(1), big(2), big(3)))
	index, err := ggcrlayout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	m, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	allocated := func() uint64 {
		var s runtime.MemStats
		runtime.ReadMemStats(&s)
		return s.TotalAlloc
	}
	before := allocated()
	r, err := imp(t, options(t, Source{Layout, dir, m.Manifests[0].Digest.String()}))
	if err != nil {
		t.Fatal(err)
	}
	if got := allocated() - before; got > size/2 {
		t.Errorf("%d bytes were allocated for an image with files of %d bytes", got, r.Tree.Bytes())
	}
	if n := r.Tree.Lookup("big"); n == nil || len(n.Data) != size {
		t.Error("the file is not there")
	}
	if err := errors.Join(r.Close(), r.Close()); err != nil {
		t.Error(err)
	}
	if _, err := Import(t.Context(), Options{Source: Source{Layout, dir, m.Manifests[0].Digest.String()}, Arch: "amd64", TempDir: filepath.Join(dir, "none")}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a folder for what is unpacked: %v", err)
	}
}

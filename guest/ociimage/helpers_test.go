package ociimage

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/pybox/pybox/guest/fetch"
	"github.com/pybox/pybox/guest/internal/guesttest"
	"github.com/pybox/pybox/guest/tree"
)

var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// program is an ELF file that a checker of arch takes for one that can be started.
func program(arch string) string {
	return string(guesttest.ELF{Machine: machines[arch]}.Bytes())
}

// m is a member of a layer, in a line: "d etc 755 0:0" is a folder, "f etc/x text" a
// file, "l a b" a symbolic link from a to b, "h a b" a hard link, "w a" an empty file.
func m(line string) tar.Header {
	f := strings.SplitN(line, " ", 3)
	h := tar.Header{Name: f[1], Mode: 0o644, Format: tar.FormatPAX}
	rest := ""
	if len(f) > 2 {
		rest = f[2]
	}
	switch f[0] {
	case "d":
		h.Typeflag, h.Mode = tar.TypeDir, 0o755
		if rest != "" {
			if _, err := fmt.Sscanf(rest, "%o %d:%d", &h.Mode, &h.Uid, &h.Gid); err != nil {
				panic(err)
			}
		}
	case "f", "w":
		h.Typeflag, h.Size = tar.TypeReg, int64(len(rest))
		h.PAXRecords = map[string]string{"TEST.body": rest + " "}
	case "l":
		h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, rest, 0o777
	case "h":
		h.Typeflag, h.Linkname = tar.TypeLink, rest
	default:
		panic(line)
	}
	return h
}

// layer is the plain tar of a layer.
func layer(t testing.TB, members ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range members {
		body := strings.TrimSuffix(h.PAXRecords["TEST.body"], " ")
		h.PAXRecords = maps.Clone(h.PAXRecords) // members are used again
		delete(h.PAXRecords, "TEST.body")
		if err := w.WriteHeader(&h); err != nil {
			t.Fatalf("%s: %v", h.Name, err)
		}
		if _, err := io.WriteString(w, body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// lines is a layer of m's lines.
func lines(t testing.TB, list ...string) []byte {
	t.Helper()
	var hs []tar.Header
	for _, l := range list {
		hs = append(hs, m(l))
	}
	return layer(t, hs...)
}

// pythonLayer has what Import asks for: an interpreter of arch.
func pythonLayer(t testing.TB, arch string) []byte {
	t.Helper()
	h := m("f usr/bin/python3.13 " + program(arch))
	h.Mode = 0o755
	return layer(t, h, m("l usr/bin/python3 python3.13"))
}

// packed is how a layer is stored.
type packed struct {
	suffix string // of guesttest.Compress: "", ".gz" or ".zst"
	media  types.MediaType
}

var gz = packed{".gz", types.OCILayer}

// image is an image of arch with layers, lowest first.
func image(t testing.TB, arch string, how packed, config func(*v1.ConfigFile), layers ...[]byte) v1.Image {
	t.Helper()
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	cf, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	cf = cf.DeepCopy()
	cf.Architecture, cf.OS = arch, "linux"
	if config != nil {
		config(cf)
	}
	if img, err = mutate.ConfigFile(img, cf); err != nil {
		t.Fatal(err)
	}
	for _, l := range layers {
		img, err = mutate.Append(img, mutate.Addendum{Layer: &storedLayer{
			Layer: static.NewLayer(guesttest.Compress(t, l, how.suffix), how.media), plain: l}})
		if err != nil {
			t.Fatal(err)
		}
	}
	return img
}

// storedLayer is a layer whose plain bytes are known beside the stored ones.
type storedLayer struct {
	v1.Layer
	plain []byte
}

func (s *storedLayer) DiffID() (v1.Hash, error) {
	h, _, err := v1.SHA256(bytes.NewReader(s.plain))
	return h, err
}

func (s *storedLayer) Uncompressed() (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(s.plain)), nil
}

func digestOf(t testing.TB, i interface{ Digest() (v1.Hash, error) }) string {
	t.Helper()
	h, err := i.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return h.String()
}

// options import s into a cache of the test's own, without pauses between tries.
func options(t testing.TB, s Source) Options {
	t.Helper()
	return Options{Source: s, Arch: "amd64", CacheDir: t.TempDir(), fetcher: func(f *fetch.Fetcher) {
		f.Tries, f.Backoff, f.StallAfter = 2, time.Millisecond, 5*time.Second
	}}
}

// listing shows a tree, but for the folders that every image has.
func listing(t *tree.Tree) string {
	var out []string
	for _, n := range t.Nodes() {
		s := n.Path
		switch n.Kind {
		case tree.Dir:
			s += "/"
		case tree.File:
			s += "=" + string(n.Data)
		case tree.Symlink:
			s += "->" + n.Target
		}
		if n.Path != "." {
			out = append(out, s)
		}
	}
	return strings.Join(out, " ")
}

// equal compares trees node by node.
func equal(t testing.TB, got, want *tree.Tree) {
	t.Helper()
	g, w := got.Nodes(), want.Nodes()
	if len(g) != len(w) {
		t.Fatalf("%d entries, want %d:\n%s\n%s", len(g), len(w), listing(got), listing(want))
	}
	for i := range g {
		a, b := *g[i], *w[i]
		if !bytes.Equal(a.Data, b.Data) {
			t.Errorf("%s differs", a.Path)
		}
		a.Data, b.Data = nil, nil
		if fmt.Sprint(a) != fmt.Sprint(b) {
			t.Errorf("got %+v, want %+v", a, b)
		}
	}
}

func mode(t testing.TB, tr *tree.Tree, p string) fs.FileMode {
	t.Helper()
	n := tr.Lookup(p)
	if n == nil {
		t.Fatalf("%s is not there", p)
	}
	return n.Mode
}

func encode(t testing.TB, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func contains(list []string, part string) bool {
	return slices.ContainsFunc(list, func(s string) bool { return strings.Contains(s, part) })
}

// imp is Import, closed at the end of the test.
func imp(t testing.TB, o Options) (*Result, error) {
	t.Helper()
	o.TempDir = t.TempDir()
	r, err := Import(t.Context(), o)
	if err == nil {
		t.Cleanup(func() { _ = r.Close() })
	}
	if left, e := os.ReadDir(o.TempDir); e != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, e)
	}
	return r, err
}

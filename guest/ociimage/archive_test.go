package ociimage

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	ggcrlayout "github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/sys/unix"

	"github.com/pybox/pybox/guest/internal/guesttest"
)

// written is the name of a file with b in it.
func written(t testing.TB, b []byte) string {
	t.Helper()
	p := filepath.Join(t.TempDir(), "x.tar")
	if err := os.WriteFile(p, b, 0o644); err != nil {
		t.Fatal(err)
	}
	return p
}

// writeTar writes members as a file and returns its name.
func writeTar(t testing.TB, members map[string][]byte, links map[string]string) string {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	add := func(h *tar.Header, body []byte) {
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(body); err != nil {
			t.Fatal(err)
		}
	}
	for n, body := range members {
		add(&tar.Header{Typeflag: tar.TypeReg, Name: n, Size: int64(len(body)), Mode: 0o644}, body)
	}
	for n, target := range links {
		add(&tar.Header{Typeflag: tar.TypeSymlink, Name: n, Linkname: target}, nil)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	p := filepath.Join(t.TempDir(), "saved.tar")
	if err := os.WriteFile(p, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	return p
}

// layoutOf writes an image or index as an OCI image layout.
func layoutOf(t testing.TB, what any) string {
	t.Helper()
	dir := t.TempDir()
	p, err := ggcrlayout.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	switch x := what.(type) {
	case v1.Image:
		err = p.AppendImage(x)
	case v1.ImageIndex:
		err = p.AppendIndex(x)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// tarOf packs a folder.
func tarOf(t testing.TB, dir string) string {
	t.Helper()
	members := map[string][]byte{}
	err := filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, p)
		if err != nil {
			return err
		}
		members["./"+rel], err = os.ReadFile(p)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return writeTar(t, members, nil)
}

// TestImportFromLayout: a folder and its tar, by the digest of the index and that of
// one image, give what a registry gives.
func TestImportFromLayout(t *testing.T) {
	x := both(t, gz)
	s := newServer(t)
	want, err := imp(t, options(t, s.push(t, x)))
	if err != nil {
		t.Fatal(err)
	}
	dir := layoutOf(t, x)
	for _, where := range []Source{{Kind: Layout, Where: dir}, {Kind: Archive, Where: tarOf(t, dir)}} {
		for _, digest := range []string{want.Provenance.IndexDigest, want.Provenance.ManifestDigest} {
			where.Digest = digest
			got, err := imp(t, options(t, where))
			if err != nil {
				t.Fatalf("%s: %v", where, err)
			}
			equal(t, got.Tree, want.Tree)
			p := got.Provenance
			if p.Kind != where.Kind || p.Reference != digest || p.ManifestDigest != want.Provenance.ManifestDigest || p.ConfigDigest != want.Provenance.ConfigDigest {
				t.Errorf("%+v", p)
			}
			if strings.Contains(string(encode(t, p)), dir) {
				t.Error("a path of this machine is in the provenance")
			}
		}
	}
}

// TestImportSaved: what docker save writes, old and new, by the image's ID.
func TestImportSaved(t *testing.T) {
	base, top := pythonLayer(t, "amd64"), lines(t, "f a 1")
	img := image(t, "amd64", gz, nil, base, top)
	config, err := img.RawConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	id, err := img.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	byLibrary := filepath.Join(t.TempDir(), "x.tar")
	tag, err := name.NewTag("some/image:1")
	if err != nil {
		t.Fatal(err)
	}
	if err := tarball.WriteToFile(byLibrary, tag, img); err != nil {
		t.Fatal(err)
	}
	manifest := encode(t, []savedImage{{Config: id.Hex + ".json", RepoTags: []string{"a:1"}, Layers: []string{"1/layer.tar", "./2/layer.tar"}}})
	for where, file := range map[string]string{
		"of the library": byLibrary,
		"by hand":        writeTar(t, map[string][]byte{manifestJSON: manifest, id.Hex + ".json": config, "1/layer.tar": base, "2/layer.tar": top}, nil),
		"with links": writeTar(t, map[string][]byte{manifestJSON: manifest, id.Hex + ".json": config, "0/layer.tar": base, "2/layer.tar": top},
			map[string]string{"1/layer.tar": "../0/layer.tar"}),
		"compressed layers": writeTar(t, map[string][]byte{manifestJSON: manifest, id.Hex + ".json": config,
			"1/layer.tar": guesttest.Compress(t, base, ".gz"), "2/layer.tar": guesttest.Compress(t, top, ".zst")}, nil),
	} {
		r, err := imp(t, options(t, Source{Archive, file, id.String()}))
		if err != nil {
			t.Errorf("%s: %v", where, err)
			continue
		}
		if n := r.Tree.Lookup("a"); n == nil || string(n.Data) != "1" {
			t.Errorf("%s: %s", where, listing(r.Tree))
		}
		if p := r.Provenance; p.ConfigDigest != id.String() || p.ManifestDigest != "" || len(p.Layers) != 2 || p.Layers[0].DiffID == "" || p.Layers[0].Digest != "" {
			t.Errorf("%s: %+v", where, p)
		}
	}
}

func TestRefusedArchives(t *testing.T) {
	base := pythonLayer(t, "amd64")
	img := image(t, "amd64", gz, nil, base)
	config, err := img.RawConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	id, err := img.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	manifest := encode(t, []savedImage{{Config: id.Hex + ".json", RepoTags: []string{"a:\x1b[2J"}, Layers: []string{"l.tar"}}})
	good := func() map[string][]byte {
		return map[string][]byte{manifestJSON: manifest, id.Hex + ".json": config, "l.tar": base}
	}
	with := func(name string, b []byte) map[string][]byte {
		g := good()
		g[name] = b
		return g
	}
	without := func(name string) map[string][]byte {
		g := good()
		delete(g, name)
		return g
	}
	if _, err := imp(t, options(t, Source{Archive, writeTar(t, good(), nil), id.String()})); err != nil {
		t.Fatal(err)
	}
	other := lines(t, "f a 1")
	whole := func(b []byte) string {
		p := filepath.Join(t.TempDir(), "x")
		if err := os.WriteFile(p, b, 0o644); err != nil {
			t.Fatal(err)
		}
		return p
	}
	read := func(p string) []byte {
		b, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	manyMembers := map[string][]byte{}
	for _, l := range many("", maxMembers+1) {
		manyMembers[l] = nil
	}
	for name, c := range map[string]struct {
		file   string
		digest string
		want   error
		says   string
	}{
		"another digest":             {writeTar(t, good(), nil), someDigest, ErrNotFound, "it holds " + id.String() + ` a:\x1b[2J`},
		"another layer":              {writeTar(t, with("l.tar", other), nil), id.String(), ErrDigest, "unpacks to"},
		"another configuration":      {writeTar(t, with(id.Hex+".json", append(config[:len(config):len(config)], ' ')), nil), id.String(), ErrDigest, "nothing of it was used"},
		"no layer":                   {writeTar(t, without("l.tar"), nil), id.String(), ErrNotFound, "l.tar"},
		"no configuration":           {writeTar(t, without(id.Hex+".json"), nil), id.String(), ErrNotFound, id.Hex},
		"no manifest":                {writeTar(t, without(manifestJSON), nil), id.String(), ErrNotFound, "is not in"},
		"a manifest that is none":    {writeTar(t, with(manifestJSON, []byte("{}")), nil), id.String(), ErrFormat, "manifest.json"},
		"a member of many records":   {written(t, layer(t, withRecords("f x 1", maxPAXBytes))), id.String(), ErrTooBig, "records"},
		"a member of a long name":    {written(t, lines(t, "f x/"+strings.Repeat("y/", maxMember)+"z 1")), id.String(), ErrNotFound, ""},
		"a manifest of many":         {writeTar(t, with(manifestJSON, encode(t, make([]savedImage, 1001))), nil), id.String(), ErrTooBig, "more than 1000 images"},
		"more layers in the list":    {writeTar(t, with(manifestJSON, encode(t, []savedImage{{Config: id.Hex + ".json", Layers: []string{"l.tar", "l.tar"}}})), nil), id.String(), ErrFormat, "2"},
		"no layers in the list":      {writeTar(t, with(manifestJSON, encode(t, []savedImage{{Config: id.Hex + ".json"}})), nil), id.String(), ErrTooBig, "0 layers"},
		"a path outside of the tar":  {writeTar(t, with(manifestJSON, encode(t, []savedImage{{Config: id.Hex + ".json", Layers: []string{"../../etc/passwd"}}})), nil), id.String(), ErrNotFound, "passwd"},
		"compressed as a whole":      {whole(guesttest.Compress(t, read(writeTar(t, good(), nil)), ".gz")), id.String(), ErrFormat, "gunzip"},
		"no tar":                     {whole([]byte(strings.Repeat("x", 4096))), id.String(), ErrFormat, "tar"},
		"cut off":                    {whole(read(writeTar(t, map[string][]byte{"a": make([]byte, 5000)}, nil))[:3000]), id.String(), ErrFormat, "EOF"},
		"empty":                      {whole(nil), id.String(), ErrNotFound, "is not in"},
		"not there":                  {"/nonexistent/x.tar", id.String(), ErrNotFound, "no such file"},
		"a folder":                   {t.TempDir(), id.String(), ErrFormat, "no regular file"},
		"a FIFO":                     {fifo, id.String(), ErrFormat, "no regular file"},
		"a member twice":             {whole(lines(t, "f a 1", "f ./a 2")), id.String(), ErrFormat, "twice"},
		"too many members":           {writeTar(t, manyMembers, nil), id.String(), ErrTooBig, "members"},
		"a link to what is no layer": {writeTar(t, without("l.tar"), map[string]string{"l.tar": "/etc/passwd"}), id.String(), ErrNotFound, "l.tar"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := imp(t, options(t, Source{Archive, c.file, c.digest}))
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "\x1b") {
				t.Errorf("got %v, want %v with %q", err, c.want, c.says)
			}
		})
	}
}

func TestRefusedLayouts(t *testing.T) {
	img := image(t, "amd64", gz, nil, pythonLayer(t, "amd64"))
	digest := digestOf(t, img)
	ls, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	blob := "blobs/sha256/" + strings.TrimPrefix(digestOf(t, ls[0]), digestPrefix)
	manifest := "blobs/sha256/" + strings.TrimPrefix(digest, digestPrefix)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		change func(dir string)
		want   error
	}{
		"no layout": {func(d string) { must(os.Remove(filepath.Join(d, "oci-layout"))) }, ErrFormat},
		"no layer":  {func(d string) { must(os.Remove(filepath.Join(d, blob))) }, ErrNotFound},
		"a longer layer": {func(d string) {
			f, err := os.OpenFile(filepath.Join(d, blob), os.O_APPEND|os.O_WRONLY, 0)
			must(err)
			_, err = f.WriteString("x")
			must(errors.Join(err, f.Close()))
		}, ErrDigest},
		"another layer": {func(d string) {
			b, err := os.ReadFile(filepath.Join(d, blob))
			must(err)
			b[len(b)/2] ^= 1
			must(os.WriteFile(filepath.Join(d, blob), b, 0o644))
		}, ErrDigest},
		"another manifest": {func(d string) { must(os.WriteFile(filepath.Join(d, manifest), []byte("{}"), 0o644)) }, ErrDigest},
		"a huge manifest":  {func(d string) { must(os.Truncate(filepath.Join(d, manifest), 5<<20)) }, ErrTooBig},
		"no manifest":      {func(d string) { must(os.Remove(filepath.Join(d, manifest))) }, ErrNotFound},
		"a FIFO": {func(d string) {
			must(os.Remove(filepath.Join(d, blob)))
			must(unix.Mkfifo(filepath.Join(d, blob), 0o600))
		}, ErrFormat},
		"a link out of the folder": {func(d string) {
			out := filepath.Join(t.TempDir(), "out")
			must(os.Rename(filepath.Join(d, blob), out))
			must(os.Symlink(out, filepath.Join(d, blob)))
		}, nil},
		"no folder": {func(d string) { must(os.RemoveAll(d)) }, ErrNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			dir := layoutOf(t, img)
			o := options(t, Source{Layout, dir, digest})
			if _, err := imp(t, o); err != nil {
				t.Fatalf("before: %v", err)
			}
			c.change(dir)
			if _, err := imp(t, o); err == nil || c.want != nil && !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
		})
	}
}

// FuzzArchive opens hostile archives.
func FuzzArchive(f *testing.F) {
	f.Add(lines(f, "f manifest.json [{\"Config\":\"a.json\",\"Layers\":[\"b\"]}]", "f a.json {}", "l b ../c"))
	f.Add(lines(f, "f blobs/sha256/"+strings.TrimPrefix(someDigest, digestPrefix)+" {}", "h x y"))
	f.Add(sparseTar(f))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, b []byte) {
		p := filepath.Join(dir, "x.tar")
		if err := os.WriteFile(p, b, 0o600); err != nil {
			t.Fatal(err)
		}
		a, err := openArchive(t.Context(), p)
		if err != nil {
			return
		}
		defer a.Close()
		for n, s := range a.members {
			if s.offset < 0 || s.size < 0 || s.offset > int64(len(b)) {
				t.Fatalf("%q is at %+v", n, s)
			}
		}
		if _, err := a.find(t.Context(), someDigest, "amd64"); err == nil {
			t.Fatal("found what nothing has the digest of")
		}
	})
}

// TestMembersHoldLittle: of a member's header nothing stays in memory but its names.
func TestMembersHoldLittle(t *testing.T) {
	file := filepath.Join(t.TempDir(), "x.tar")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for i := range 40 {
		for _, line := range []string{fmt.Sprintf("f é%d ", i), fmt.Sprintf("h l%d é", i)} {
			one := layer(t, withRecords(line, maxPAXBytes-1000))
			if _, err := f.Write(one[:len(one)-1024]); err != nil {
				t.Fatal(err)
			}
		}
	}
	held := func() uint64 {
		var s runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&s)
		return s.HeapAlloc
	}
	before := held()
	a, err := openArchive(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if after := held(); after > before+4<<20 || len(a.members) != 40 {
		t.Errorf("%d members hold %d KiB", len(a.members), (after-before)>>10)
	}
	runtime.KeepAlive(a)
}

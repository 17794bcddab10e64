package ociimage

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"slices"

	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// memory is a store of what is put into it under any digest, true or not.
type memory map[string][]byte

func (s memory) small(_ context.Context, digest string, _ bool, max int64) ([]byte, error) {
	b, ok := s[digest]
	if !ok {
		return nil, fmt.Errorf("%w: %s", ErrNotFound, digest)
	}
	return b[:min(int64(len(b)), max+1)], nil
}

func (s memory) layers(context.Context, []stored) ([]opener, error) {
	return nil, errors.ErrUnsupported
}

func (s memory) Close() error { return nil }

// put stores a document under its own digest.
func (s memory) put(b []byte, t types.MediaType) v1.Descriptor {
	h, n, err := v1.SHA256(strings.NewReader(string(b)))
	if err != nil {
		panic(err)
	}
	s[h.String()] = b
	return v1.Descriptor{MediaType: t, Digest: h, Size: n}
}

// chain is the description of a good image, to be spoilt.
type chain struct {
	config   v1.ConfigFile
	manifest v1.Manifest
	index    *v1.IndexManifest
	raw      func(b []byte) []byte // changes the manifest's bytes
}

func goodChain() *chain {
	h := hashOf(someDigest)
	return &chain{
		config: v1.ConfigFile{OS: "linux", Architecture: "amd64", RootFS: v1.RootFS{Type: "layers", DiffIDs: []v1.Hash{h, h}}},
		manifest: v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Layers: []v1.Descriptor{
			{MediaType: types.OCILayer, Size: 10, Digest: h}, {MediaType: types.OCILayerZStd, Size: 20, Digest: h}}},
	}
}

// store puts everything in its place and returns the digest of the whole.
func (c *chain) store(t testing.TB, s memory) string {
	if c.manifest.Config.Digest.Hex == "" {
		media := c.manifest.Config.MediaType
		c.manifest.Config = s.put(encode(t, c.config), types.OCIConfigJSON)
		if media != "" {
			c.manifest.Config.MediaType = media
		}
	}
	b := encode(t, c.manifest)
	if c.raw != nil {
		b = c.raw(b)
	}
	d := s.put(b, types.OCIManifestSchema1)
	if c.index == nil {
		return d.Digest.String()
	}
	for i := range c.index.Manifests {
		if c.index.Manifests[i].Digest.Hex == "" {
			c.index.Manifests[i].Digest, c.index.Manifests[i].Size = d.Digest, d.Size
		}
	}
	return s.put(encode(t, c.index), types.OCIImageIndex).Digest.String()
}

// indexOf lists the same manifest for platforms, written as os/architecture/variant;
// "" is one that says nothing.
func indexOf(platforms ...string) *v1.IndexManifest {
	x := &v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex}
	for _, p := range platforms {
		d := v1.Descriptor{MediaType: types.OCIManifestSchema1}
		if f := strings.Split(p, "/"); p != "" {
			d.Platform = &v1.Platform{OS: f[0], Architecture: f[1]}
			if len(f) > 2 {
				d.Platform.Variant = f[2]
			}
		}
		x.Manifests = append(x.Manifests, d)
	}
	return x
}

func TestFind(t *testing.T) {
	for name, change := range map[string]func(*chain){
		"an image":                     func(*chain) {},
		"without a media type":         func(c *chain) { c.manifest.MediaType = "" },
		"Docker's types":               dockerTypes,
		"of an index":                  func(c *chain) { c.index = indexOf("linux/arm64/v8", "windows/amd64", "linux/amd64", "unknown/unknown") },
		"of an index, with a variant":  func(c *chain) { c.index = indexOf("linux/amd64/v3", "linux/amd64/v1") },
		"of an index that says little": func(c *chain) { c.index = indexOf("") },
		"of a list of Docker's":        func(c *chain) { c.index = indexOf("linux/amd64"); c.index.MediaType = types.DockerManifestList },
		"of an index without a type":   func(c *chain) { c.index = indexOf("linux/amd64"); c.index.MediaType = "" },
	} {
		t.Run(name, func(t *testing.T) {
			c, s := goodChain(), memory{}
			change(c)
			digest := c.store(t, s)
			f, err := find(t.Context(), s, digest, "amd64")
			if err != nil {
				t.Fatal(err)
			}
			p := f.provenance
			if (p.IndexDigest != "") != (c.index != nil) || c.index != nil && p.IndexDigest != digest || c.index == nil && p.ManifestDigest != digest {
				t.Errorf("%+v", p)
			}
			if p.ConfigDigest != c.manifest.Config.Digest.String() || p.Platform != "linux/amd64" || len(f.layers) != 2 ||
				f.layers[1].Bytes != 20 || f.layers[1].DiffID != someDigest || f.layers[1].Digest != someDigest {
				t.Errorf("%+v, %+v", p, f.layers)
			}
		})
	}
}

func dockerTypes(c *chain) {
	c.manifest.MediaType = types.DockerManifestSchema2
	c.manifest.Config.MediaType = types.DockerConfigJSON
	c.manifest.Layers[0].MediaType, c.manifest.Layers[1].MediaType = types.DockerLayer, types.DockerUncompressedLayer
}

// TestFindNested: an index may point to another, but not for ever.
func TestFindNested(t *testing.T) {
	for depth, ok := range map[int]bool{1: true, 3: true, 4: false} {
		c, s := goodChain(), memory{}
		c.index = indexOf("linux/amd64")
		digest := c.store(t, s)
		for range depth - 1 {
			d := v1.Descriptor{MediaType: types.OCIImageIndex, Digest: hashOf(digest), Size: int64(len(s[digest]))}
			x := &v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: []v1.Descriptor{d}}
			digest = s.put(encode(t, x), types.OCIImageIndex).Digest.String()
		}
		_, err := find(t.Context(), s, digest, "amd64")
		if ok && err != nil || !ok && !errors.Is(err, ErrFormat) {
			t.Errorf("%d deep: %v", depth, err)
		}
	}
}

func TestRefusedChains(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*chain)
		want   error
		says   string
	}{
		"another processor":          {func(c *chain) { c.config.Architecture = "arm64" }, ErrPlatform, "linux/arm64"},
		"another system":             {func(c *chain) { c.config.OS = "windows" }, ErrPlatform, "windows/amd64"},
		"a later processor":          {func(c *chain) { c.config.Variant = "v3" }, ErrPlatform, "linux/amd64/v3"},
		"no platform":                {func(c *chain) { c.config.OS = "" }, ErrPlatform, "/amd64"},
		"an index for others":        {func(c *chain) { c.index = indexOf("linux/arm64", "linux/386", "unknown/unknown", "linux/386") }, ErrPlatform, "it has linux/386, linux/arm64"},
		"an index of nothing":        {func(c *chain) { c.index = indexOf("", ""); c.index.Manifests[0].MediaType = "text/plain" }, ErrPlatform, "no image that says"},
		"an empty index":             {func(c *chain) { c.index = indexOf(); c.index.Manifests = []v1.Descriptor{} }, ErrPlatform, "nothing for linux/amd64"},
		"a platform with an escape":  {func(c *chain) { c.index = indexOf("linux/\x1b[2J") }, ErrPlatform, `\x1b`},
		"an index of the wrong type": {func(c *chain) { c.index = indexOf("linux/amd64"); c.index.MediaType = types.OCIManifestSchema1 }, ErrFormat, "media type"},
		"a manifest of another type": {func(c *chain) { c.manifest.MediaType = types.OCIImageIndex }, ErrFormat, "media type"},
		"too large an index":         {func(c *chain) { c.index = indexOf(make([]string, 1001)...) }, ErrTooBig, "more than 1000 manifests"},
		"an index's digest of SHA-512": {func(c *chain) {
			c.index = indexOf("linux/amd64")
			c.index.Manifests[0].Digest = v1.Hash{Algorithm: "sha512", Hex: strings.Repeat("0", 128)}
		}, ErrFormat, "SHA-256"},
		"an index to nothing": {func(c *chain) { c.index = indexOf("linux/amd64"); c.index.Manifests[0].Digest = hashOf(someDigest) }, ErrNotFound, someDigest},
		"a wrong size in the index": {func(c *chain) {
			c.index = indexOf("linux/amd64")
			c.index.Manifests[0].Size = 5
			c.index.Manifests[0].Digest = manifestOf(c)
		}, ErrDigest, "instead of 5"},
		"a huge size in the index": {func(c *chain) {
			c.index = indexOf("linux/amd64")
			c.index.Manifests[0].Size = 5 << 20
			c.index.Manifests[0].Digest = manifestOf(c)
		}, ErrTooBig, "5242880"},
		"Docker's first schema":       {func(c *chain) { c.manifest.SchemaVersion = 1 }, ErrFormat, "first schema"},
		"Docker's first schema, else": {func(c *chain) { c.raw = replace(`{`, `{"fsLayers":[],`) }, ErrFormat, "first schema"},
		"a later schema":              {func(c *chain) { c.manifest.SchemaVersion = 3 }, ErrFormat, "version 3"},
		"two things at once":          {func(c *chain) { c.raw = replace(`{`, `{"manifests":[],`) }, ErrFormat, "at once"},
		"nothing":                     {func(c *chain) { c.raw = func([]byte) []byte { return []byte(`{"schemaVersion":2}`) } }, ErrFormat, "neither"},
		"no JSON":                     {func(c *chain) { c.raw = func([]byte) []byte { return []byte("<html>") } }, ErrFormat, "invalid character"},
		"empty":                       {func(c *chain) { c.raw = func([]byte) []byte { return nil } }, ErrFormat, "EOF"},
		"two documents":               {func(c *chain) { c.raw = func(b []byte) []byte { return append(b, "{}"...) } }, ErrFormat, "after its end"},
		"a digest that is none":       {func(c *chain) { c.raw = replace(`"digest":"sha256:0a`, `"digest":"sha256:../`) }, ErrFormat, "hash"},
		"a layer of SHA-512": {func(c *chain) {
			c.manifest.Layers[0].Digest = v1.Hash{Algorithm: "sha512", Hex: strings.Repeat("0", 128)}
		}, ErrFormat, "layer 1"},
		"an artifact": {func(c *chain) { c.manifest.Config.MediaType = "application/vnd.example.chart+json" }, ErrFormat, "not a container image"},
		"a configuration of SHA-512": {func(c *chain) {
			c.manifest.Config = v1.Descriptor{MediaType: types.OCIConfigJSON, Digest: v1.Hash{Algorithm: "sha512", Hex: strings.Repeat("0", 128)}}
		}, ErrFormat, "SHA-256"},
		"a huge configuration": {func(c *chain) {
			c.manifest.Config = v1.Descriptor{MediaType: types.OCIConfigJSON, Digest: hashOf(someDigest), Size: 9 << 20}
		}, ErrTooBig, "9437184"},
		"a negative size": {func(c *chain) {
			c.manifest.Config = v1.Descriptor{MediaType: types.OCIConfigJSON, Digest: hashOf(someDigest), Size: -1}
		}, ErrTooBig, "-1"},
		"no layers":                {func(c *chain) { c.manifest.Layers = nil }, ErrTooBig, "0 layers"},
		"many layers":              {func(c *chain) { c.manifest.Layers = slices.Repeat(c.manifest.Layers, 64) }, ErrTooBig, "more than 127 layers"},
		"a foreign layer":          {func(c *chain) { c.manifest.Layers[1].MediaType = types.DockerForeignLayer }, ErrFormat, "layer 2 is of the kind that may not be distributed"},
		"a restricted layer":       {func(c *chain) { c.manifest.Layers[1].MediaType = types.OCIRestrictedLayer }, ErrFormat, "may not be distributed"},
		"another restricted layer": {func(c *chain) { c.manifest.Layers[1].MediaType = types.OCIUncompressedRestrictedLayer }, ErrFormat, "may not be distributed"},
		"another kind of layer":    {func(c *chain) { c.manifest.Layers[1].MediaType = "application/x-squashfs" }, ErrFormat, "squashfs"},
		"an empty layer":           {func(c *chain) { c.manifest.Layers[0].Size = 0 }, ErrTooBig, "layer 1 has 0 bytes"},
		"a huge layer":             {func(c *chain) { c.manifest.Layers[0].Size = 9 << 30 }, ErrTooBig, "layer 1"},
		"huge layers together": {func(c *chain) {
			h := c.manifest.Layers[0]
			h.Size = 8 << 30
			c.manifest.Layers = []v1.Descriptor{h, h, h}
		}, ErrTooBig, "together"},
		"fewer diff ids": {func(c *chain) { c.config.RootFS.DiffIDs = c.config.RootFS.DiffIDs[:1] }, ErrFormat, "the configuration has 1 layers and the manifest 2"},
		"a diff id of SHA-512": {func(c *chain) {
			c.config.RootFS.DiffIDs[0] = v1.Hash{Algorithm: "sha512", Hex: strings.Repeat("0", 128)}
		}, ErrFormat, "diff id"},
		"another root file system": {func(c *chain) { c.config.RootFS.Type = "diffs" }, ErrFormat, "diffs"},
	} {
		t.Run(name, func(t *testing.T) {
			ch, s := goodChain(), memory{}
			c.change(ch)
			_, err := find(t.Context(), s, ch.store(t, s), "amd64")
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want %v with %q", err, c.want, c.says)
			}
			if err != nil && strings.ContainsFunc(err.Error(), func(r rune) bool { return r < ' ' }) {
				t.Errorf("control characters in %q", err)
			}
		})
	}
}

// manifestOf is the digest that a chain's manifest will have.
func manifestOf(c *chain) v1.Hash {
	s := memory{}
	c.manifest.Config = s.put(encode(&testing.T{}, c.config), types.OCIConfigJSON)
	h, _, err := v1.SHA256(strings.NewReader(string(encode(&testing.T{}, c.manifest))))
	if err != nil {
		panic(err)
	}
	c.manifest.Config = v1.Descriptor{}
	return h
}

func replace(old, with string) func([]byte) []byte {
	return func(b []byte) []byte { return []byte(strings.Replace(string(b), old, with, 1)) }
}

// TestLies: at no level are other bytes taken for those of a digest.
func TestLies(t *testing.T) {
	c, good := goodChain(), memory{}
	c.index = indexOf("linux/amd64")
	digest := c.store(t, good)
	if _, err := find(t.Context(), good, digest, "amd64"); err != nil {
		t.Fatal(err)
	}
	for d, b := range good {
		for name, lie := range map[string][]byte{
			"other bytes": []byte(strings.Replace(string(b), "linux", "Linux", 1)), "one byte more": append(b[:len(b):len(b)], ' '), "one less": b[:len(b)-1], "none": {},
		} {
			s := memory{}
			for k, v := range good {
				s[k] = v
			}
			s[d] = lie
			if string(lie) == string(b) {
				s[d] = []byte(strings.Replace(string(b), `"schemaVersion":2`, `"schemaVersion": 2`, 1))
			}
			if _, err := find(t.Context(), s, digest, "amd64"); !errors.Is(err, ErrDigest) {
				t.Errorf("%s of %.40s: %v", name, b, err)
			}
		}
	}
}

// TestCountsBeforeDecoding: a list that is too long is given up at its bound, not when
// all of it is in memory.
func TestCountsBeforeDecoding(t *testing.T) {
	long := func(one string) string { return strings.Repeat(one+",", 1<<20/(len(one)+1)) + one }
	parse := func(b []byte) error {
		_, err := parseDocument(b)
		return err
	}
	configure := func(b []byte) error { return (&found{layers: make([]stored, 1)}).configure(b, "amd64") }
	config := `{"os":"linux","architecture":"amd64","rootfs":{"type":"layers","diff_ids":["` + someDigest + `"]},`
	for name, c := range map[string]struct {
		doc  string
		read func([]byte) error
		want error
	}{
		"manifests":   {`{"schemaVersion":2,"manifests":[` + long("{}") + `]}`, parse, ErrTooBig},
		"layers":      {`{"schemaVersion":2,"config":{},"layers":[` + long("{}") + `]}`, parse, ErrTooBig},
		"annotations": {`{"schemaVersion":2,"config":{},"layers":[{"annotations":{` + long(`"":""`) + `}}]}`, parse, nil},
		"features":    {`{"schemaVersion":2,"manifests":[{"platform":{"os.features":[` + long(`""`) + `]}}]}`, parse, nil},
		"diff ids":    {`{"os":"linux","architecture":"amd64","rootfs":{"type":"layers","diff_ids":[` + long(`"`+someDigest+`"`) + `]}}`, configure, ErrTooBig},
		"history":     {config + `"history":[` + long("{}") + `]}`, configure, nil},
		"labels":      {config + `"config":{"Labels":{` + long(`"":""`) + `}}}`, configure, nil},
		"variables":   {config + `"config":{"Env":[` + long(`""`) + `]}}`, configure, ErrTooBig},
		"words":       {config + `"config":{"Cmd":[` + long(`""`) + `]}}`, configure, ErrTooBig},
		"volumes":     {config + `"config":{"Volumes":{` + long(`"":{}`) + `}}}`, configure, ErrTooBig},
	} {
		t.Run(name, func(t *testing.T) {
			b := []byte(c.doc)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			err := c.read(b)
			runtime.ReadMemStats(&after)
			if !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
			if got := after.TotalAlloc - before.TotalAlloc; got > 10*uint64(len(b)) {
				t.Errorf("%d MiB were allocated for %d MiB", got>>20, len(b)>>20)
			}
		})
	}
}

// TestSettings: what is taken of a configuration.
func TestSettings(t *testing.T) {
	c, err := decodeConfig([]byte(`{"os":"linux","architecture":"arm64","variant":"v8","rootfs":{"type":"layers","diff_ids":null},"created":5,
		"config":{"Env":["A=1","B"],"Cmd":["x"],"Entrypoint":null,"Volumes":{"/d":{}},"ExposedPorts":{"80":{},"81":null},"User":"u","WorkingDir":"/w","StopSignal":"S","Healthcheck":{"Test":[1]}}}`))
	if err != nil {
		t.Fatal(err)
	}
	want := v1.Config{Env: []string{"A=1", "B"}, Cmd: []string{"x"}, Volumes: map[string]struct{}{"/d": {}}, ExposedPorts: map[string]struct{}{"80": {}, "81": {}},
		User: "u", WorkingDir: "/w", StopSignal: "S", Healthcheck: &v1.HealthConfig{}}
	if !reflect.DeepEqual(c.Config, want) || c.Variant != "v8" || c.RootFS.Type != "layers" || c.RootFS.DiffIDs != nil {
		t.Errorf("%+v", c)
	}
	for _, bad := range []string{`{"config":{"Env":"x"}}`, `{"config":{"Env":[1]}}`, `{"config":{"Volumes":["x"]}}`, `{"config":{"Cmd":{"x":1}}}`, `{"rootfs":{"diff_ids":["x"]}}`, `{"config":[]}`} {
		if _, err := decodeConfig([]byte(bad)); !errors.Is(err, ErrFormat) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

// FuzzDocument parses hostile indexes, manifests and configurations.
func FuzzDocument(f *testing.F) {
	c, s := goodChain(), memory{}
	c.index = indexOf("linux/amd64", "linux/arm64/v8", "")
	c.store(f, s)
	for _, b := range s {
		f.Add(b)
	}
	f.Add([]byte(`{"schemaVersion":2,"manifests":[{"platform":{}}]}`))
	f.Add([]byte(`{"schemaVersion":2,"config":{},"layers":[{"size":-1}]}`))
	f.Add([]byte(strings.Repeat(`{"config":`, 1000)))
	f.Fuzz(func(t *testing.T, b []byte) {
		known := func(err error) {
			t.Helper()
			for _, want := range []error{ErrFormat, ErrPlatform, ErrTooBig} {
				if errors.Is(err, want) {
					return
				}
			}
			if err != nil {
				t.Fatalf("an error of no kind: %v", err)
			}
		}
		d, err := parseDocument(b)
		known(err)
		var layers []stored
		if err == nil && d.Manifests != nil {
			m, err := choose(d.Manifests, "arm64")
			known(err)
			if err == nil && m.Platform != nil && !platformFits(m.Platform, "arm64") {
				t.Fatalf("chose %+v", m.Platform)
			}
		} else if err == nil {
			layers, err = listLayers(d)
			known(err)
			for _, l := range layers {
				if !isDigest(l.Digest) || l.Bytes <= 0 || l.Bytes > maxLayerBytes {
					t.Fatalf("layer %+v", l)
				}
			}
		}
		fd := &found{layers: make([]stored, 2)}
		known(fd.configure(b, "arm64"))
		if fd.config != nil {
			for _, s := range append(ignored(fd.config), searchPath(fd.config)...) {
				if len(s) > 4*maxTextBytes && !strings.Contains(s, "/") {
					t.Fatalf("%d bytes of text", len(s))
				}
			}
		}
	})
}

// Package kernel builds the Linux kernel that PyBox's guest runs: from Debian's
// patched source, pinned by its SHA-256, with PyBox's own configuration (package
// kernel/config) and nothing loadable. It drives the kernel's own build with the
// host's compiler, so it works on Linux only; a build without that is served by
// a release's kernel.
//
// Results are kept by content: the key covers source, requests, architecture,
// tools and this builder, and the same key gives the same bytes, wherever and
// whenever it is built.
package kernel

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"

	"github.com/pybox/pybox/kernel/config"
)

// Sentinels, to be tested with errors.Is.
var (
	// ErrUnhonoured: the source does not give what the fragments ask for. The
	// message lists every such symbol.
	ErrUnhonoured = errors.New("the kernel's configuration does not honour every request")
	// ErrMake: the kernel's own build failed; the message shows the end of its
	// log and names the file.
	ErrMake = errors.New("make failed")
	// ErrTools: programs that a build needs are missing.
	ErrTools = errors.New("tools for building a kernel are missing")
	// ErrNotCached: the kernel has not been built yet.
	ErrNotCached = errors.New("no such kernel has been built here")
	// ErrSource: the source is not what was pinned, or not a kernel source.
	ErrSource = errors.New("unusable kernel source")
)

// builderVersion is part of every key. Raise it when the same inputs shall give
// other bytes.
const builderVersion = "1"

// metaSchema names the format of meta.json.
const metaSchema = "pybox.kernel/v1"

// arch is what the kernel's build calls an architecture, and what it makes.
type arch struct {
	name    string // in Go's terms
	make    string // ARCH=
	target  string // what is made: the form that vm.CheckKernel accepts
	image   string // where it then lies
	triplet string // of the cross compiler
}

var arches = []arch{
	{name: "amd64", make: "x86_64", target: "bzImage", image: "arch/x86/boot/bzImage", triplet: "x86_64-linux-gnu-"},
	{name: "arm64", make: "arm64", target: "Image", image: "arch/arm64/boot/Image", triplet: "aarch64-linux-gnu-"},
}

func findArch(name string) (arch, error) {
	for _, a := range arches {
		if a.name == name {
			return a, nil
		}
	}
	return arch{}, fmt.Errorf("no kernel for architecture %q: want one of %v", name, config.Arches())
}

// cross is the prefix of compiler and linker: none where the host is its own
// target.
func (a arch) cross() string {
	if a.name == runtime.GOARCH {
		return ""
	}
	return a.triplet
}

// Source is a Debian package linux-source-6.12.
type Source struct {
	// SHA256 is the package file's digest in lower-case hex, checked before it
	// is unpacked.
	SHA256 string
	// Open returns the path of the package file and fetches it when needed. It
	// is called only when the source is not unpacked yet.
	Open func(ctx context.Context) (path string, err error)
	// Version is Debian's, such as "6.12.118-1". For people only.
	Version string
}

// Meta describes a built kernel. It lies beside it as meta.json.
type Meta struct {
	Schema string `json:"schema"`
	Key    string `json:"key"`
	Arch   string `json:"arch"`
	// Version is what `uname -r` says in the guest, such as "6.12.118-pybox".
	Version       string `json:"version"`
	SourceVersion string `json:"source_version"`
	SourceSHA256  string `json:"source_sha256"`
	ConfigSHA256  string `json:"config_sha256"`
	KernelSHA256  string `json:"kernel_sha256"`
	KernelBytes   int64  `json:"kernel_bytes"`
	// Changes are the requests that it was built with instead of, or beside,
	// PyBox's own, as lines of a fragment sorted by symbol; see Builder.Own.
	Changes []string `json:"changes,omitempty"`
	Tools   Tools    `json:"tools"`
	// BuildSeconds is how long the build took, CPUSeconds what it used; both
	// shrink when an earlier build's objects were reused. They depend on the
	// machine, unlike everything above.
	BuildSeconds float64 `json:"build_seconds"`
	CPUSeconds   float64 `json:"cpu_seconds"`
}

// Tools are the programs whose version shows in the bytes of a kernel.
type Tools struct {
	Compiler string `json:"compiler"`
	Linker   string `json:"linker"`
	// Compressor is empty where the image is not compressed.
	Compressor string `json:"compressor,omitempty"`
}

// Result is a built kernel in the cache.
type Result struct {
	// Dir holds the files kernel, config, System.map and meta.json. Nobody
	// changes them.
	Dir  string
	Meta Meta
	// Cached tells that nothing had to be built.
	Cached bool
}

// Kernel is the path of the bootable image.
func (r Result) Kernel() string { return filepath.Join(r.Dir, "kernel") }

// key is the cache key: every input that shows in the result. changes are those of
// Meta, by which a kernel counts as PyBox's own or not.
func key(a arch, src Source, requests []config.Request, changes []string, t Tools) string {
	h := sha256.New()
	for _, s := range append([]string{metaSchema, builderVersion, a.name, src.SHA256,
		t.Compiler, t.Linker, t.Compressor, string(config.Format(requests))}, changes...) {
		fmt.Fprintf(h, "%d:%s\n", len(s), s)
	}
	return hex.EncodeToString(h.Sum(nil))[:32]
}

// openResult returns the kernel of that key from the cache. It fails when it is
// not there, or when its files are not what meta.json says.
func openResult(dir, wantKey string) (Result, error) {
	r, err := Open(dir)
	if err != nil {
		return Result{}, err
	}
	if r.Meta.Key != wantKey {
		return Result{}, fmt.Errorf("cached kernel %s: meta.json describes another kernel", dir)
	}
	return r, nil
}

// maxMetaBytes bounds meta.json, whose longest part is Meta.Changes.
const maxMetaBytes = 1 << 20

// Open returns the kernel in a folder that Build made. It fails when there is none,
// which matches fs.ErrNotExist, or when its files are not what meta.json says.
func Open(dir string) (Result, error) {
	f, err := os.Open(filepath.Join(dir, "meta.json"))
	if err != nil {
		return Result{}, fmt.Errorf("open built kernel: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxMetaBytes))
	if err != nil {
		return Result{}, fmt.Errorf("open built kernel: %w", err)
	}
	r := Result{Dir: dir, Cached: true}
	if err := json.Unmarshal(b, &r.Meta); err != nil {
		return Result{}, fmt.Errorf("cached kernel %s: meta.json: %w", dir, err)
	}
	if r.Meta.Schema != metaSchema {
		return Result{}, fmt.Errorf("cached kernel %s: meta.json has the schema %.40q, want %q", dir, r.Meta.Schema, metaSchema)
	}
	for name, want := range map[string]string{"kernel": r.Meta.KernelSHA256, "config": r.Meta.ConfigSHA256} {
		got, err := fileSHA256(filepath.Join(dir, name))
		if err != nil {
			return Result{}, err
		}
		if got != want {
			return Result{}, fmt.Errorf("cached kernel %s: %s is damaged: its SHA-256 is %s, built was %s", dir, name, got, want)
		}
	}
	return r, nil
}

func fileSHA256(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("hash: %w", err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("hash %s: %w", path, err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

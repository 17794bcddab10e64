// Package build makes a guest bundle: it fetches the locked packages, puts the
// root file system together, writes it as an image, and describes everything in
// a manifest. Equal inputs give equal bytes on every host. It needs no
// privileges and no tools.
package build

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/renameio/v2"

	"github.com/pybox/pybox/guest/bundle"
	"github.com/pybox/pybox/guest/debian"
	"github.com/pybox/pybox/guest/erofs"
	"github.com/pybox/pybox/guest/fetch"
	"github.com/pybox/pybox/guest/nospace"
	"github.com/pybox/pybox/guest/rootfs"
	"github.com/pybox/pybox/kernel/config"
	"github.com/pybox/pybox/vm"
)

// Names of files in a bundle.
const (
	kernelName = "kernel"
	rootName   = "root.erofs"
)

// rootSet is the lock file's set that the root is made of.
const rootSet = "root"

// Bounds of inputs.
const (
	maxKernelBytes = 256 << 20
	maxAgentBytes  = 256 << 20
)

// Sentinels, to be tested with errors.Is.
var (
	// ErrInput marks an input file that cannot go into a bundle.
	ErrInput = errors.New("unusable input")
	// ErrOptions marks Options that no manifest may hold. Nothing was done.
	ErrOptions = errors.New("unusable options")
)

// kernelArgs boot the root read-only and hand over to the agent, with the words
// that belong to our kernel's configuration.
func kernelArgs() []string {
	return append([]string{"root=/dev/vda", "rootfstype=erofs", "ro", "init=/sbin/init", "quiet"}, config.BootArgs()...)
}

// Options say what goes into a bundle.
type Options struct {
	// Arch is the guest's architecture, "amd64" or "arm64".
	Arch string
	// Kernel is the kernel's file: a bzImage on amd64, an uncompressed Image
	// on arm64. KernelKind is one of the bundle package's constants.
	Kernel, KernelKind, KernelVersion string
	// Agent is the agent's static program for Arch.
	Agent, AgentVersion string
	ProtocolVersion     uint32
	Lock                *debian.Lock
	// Fetch gets packages; see *fetch.Fetcher.
	Fetch interface {
		GetAll(ctx context.Context, items []fetch.Item) ([]string, error)
	}
	// Out is the folder to make or update. Files in it that belong to no
	// bundle are left alone.
	Out string
	// Stage is told what was done and how long it took; may be nil.
	Stage func(name string, took time.Duration)
}

// Build makes the bundle and opens it. The manifest is written last, so a build
// that was cut off leaves no bundle that passes for a whole one. A full disk
// matches nospace.Err.
func Build(ctx context.Context, o Options) (_ *bundle.Bundle, err error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	defer func() {
		err = nospace.Explain(err, "the guest bundle", o.Out, 0, "choose a folder on another disk with --out")
	}()
	b := builder{Options: o, m: o.manifest()}
	if err := os.MkdirAll(o.Out, 0o755); err != nil {
		return nil, fmt.Errorf("build guest bundle: %w", err)
	}
	manifest := filepath.Join(o.Out, bundle.ManifestName)
	if err := os.Remove(manifest); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("build guest bundle: %w", err)
	}
	for _, s := range []struct {
		name string
		do   func(context.Context) error
	}{{"kernel", b.kernel}, {"packages", b.fetch}, {"root", b.root}} {
		start := time.Now()
		if err := s.do(ctx); err != nil {
			return nil, fmt.Errorf("build guest bundle: %s: %w", s.name, err)
		}
		if o.Stage != nil {
			o.Stage(s.name, time.Since(start))
		}
	}
	raw, err := b.m.Encode()
	if err != nil {
		return nil, err
	}
	if err := renameio.WriteFile(manifest, raw, 0o644); err != nil {
		return nil, fmt.Errorf("build guest bundle: %w", err)
	}
	return bundle.Open(o.Out)
}

// manifest is what is known of the bundle beforehand.
func (o Options) manifest() bundle.Manifest {
	return bundle.Manifest{
		Schema: bundle.Schema, Arch: o.Arch, KernelArgs: kernelArgs(), LockSHA256: o.Lock.SHA256(),
		Kernel: bundle.Kernel{Kind: o.KernelKind, Version: o.KernelVersion},
		Agent:  bundle.Agent{Version: o.AgentVersion, ProtocolVersion: o.ProtocolVersion},
	}
}

// Validate finds before the work what the manifest would refuse after it. Errors
// match ErrOptions.
func (o Options) Validate() error {
	m := o.manifest()
	digest := strings.Repeat("0", 2*sha256.Size)
	m.Kernel.File = bundle.File{File: kernelName, SHA256: digest, Bytes: 1}
	m.Root = bundle.File{File: rootName, SHA256: digest, Bytes: 1}
	m.Agent.SHA256 = digest
	if err := m.Validate(); err != nil {
		return fmt.Errorf("%w: %w", ErrOptions, err)
	}
	return nil
}

type builder struct {
	Options
	m        bundle.Manifest
	packages []rootfs.Package
}

func (b *builder) kernel(context.Context) error {
	if err := vm.CheckKernel(b.Kernel, b.Arch); err != nil {
		return fmt.Errorf("%w: %w", ErrInput, err)
	}
	raw, err := readBounded(b.Kernel, maxKernelBytes)
	if err != nil {
		return err
	}
	f, err := b.write(kernelName, func(w *os.File) error {
		_, err := w.Write(raw)
		return err
	})
	b.m.Kernel.File = f
	return err
}

func (b *builder) fetch(ctx context.Context) error {
	set, err := b.Lock.Set(rootSet, b.Arch)
	if err != nil {
		return err
	}
	files, err := b.Fetch.GetAll(ctx, Items(set))
	if err != nil {
		return err
	}
	for i, p := range set.Packages {
		b.packages = append(b.packages, rootfs.Package{Entry: p, File: files[i]})
	}
	return nil
}

// Items are the files of a set, for a Fetcher.
func Items(s *debian.Set) []fetch.Item {
	items := make([]fetch.Item, len(s.Packages))
	for i, p := range s.Packages {
		items[i] = fetch.Item{Archive: p.Archive, Path: p.Path, Bytes: p.Bytes, SHA256: p.SHA256}
	}
	return items
}

func (b *builder) root(ctx context.Context) error {
	agent, err := readBounded(b.Agent, maxAgentBytes)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(agent)
	b.m.Agent.SHA256 = hex.EncodeToString(sum[:])
	t, err := rootfs.Build(ctx, b.Arch, b.packages, agent)
	if err != nil {
		return err
	}
	b.m.Root, err = b.write(rootName, func(w *os.File) error { return erofs.Write(w, t, b.Out) })
	return err
}

// write makes a file of the bundle atomically and describes it.
func (b *builder) write(name string, fill func(*os.File) error) (bundle.File, error) {
	out, err := renameio.NewPendingFile(filepath.Join(b.Out, name), renameio.WithStaticPermissions(0o644))
	if err != nil {
		return bundle.File{}, err
	}
	defer out.Cleanup()
	if err := fill(out.File); err != nil {
		return bundle.File{}, err
	}
	if _, err := out.Seek(0, io.SeekStart); err != nil {
		return bundle.File{}, err
	}
	h := sha256.New()
	n, err := io.Copy(h, out)
	if err != nil {
		return bundle.File{}, err
	}
	f := bundle.File{File: name, SHA256: hex.EncodeToString(h.Sum(nil)), Bytes: n}
	return f, out.CloseAtomicallyReplace()
}

func readBounded(name string, max int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var b bytes.Buffer
	if _, err := io.Copy(&b, io.LimitReader(f, max+1)); err != nil {
		return nil, err
	}
	if int64(b.Len()) > max {
		return nil, fmt.Errorf("%w: %s has more than %d bytes", ErrInput, name, max)
	}
	return b.Bytes(), nil
}

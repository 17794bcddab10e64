// Package build makes a guest bundle: it fetches the locked packages, puts the
// root file system and those of the boxes' images together, writes them as disk
// images, and describes everything in a manifest. The boxes' images get the byte
// code of what is in them, which takes two passes: a compiler runs the plain image.
//
// Equal inputs give equal bytes on every host. It needs no privileges, and no
// tools but what the compiler boots machines with.
package build

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/renameio/v2"

	"github.com/pybox/pybox/guest/bundle"
	"github.com/pybox/pybox/guest/bytecode"
	"github.com/pybox/pybox/guest/cloud"
	"github.com/pybox/pybox/guest/debian"
	"github.com/pybox/pybox/guest/erofs"
	"github.com/pybox/pybox/guest/fetch"
	"github.com/pybox/pybox/guest/image"
	"github.com/pybox/pybox/guest/nospace"
	"github.com/pybox/pybox/guest/rootfs"
	"github.com/pybox/pybox/guest/tree"
	"github.com/pybox/pybox/guest/unpack"
	"github.com/pybox/pybox/kernel/config"
	"github.com/pybox/pybox/vm"
)

// makers make the trees of the images that there are, by their names.
var makers = map[string]func(ctx context.Context, arch string, packages []unpack.Package) (*tree.Tree, error){
	"data":   image.Data,
	"stdlib": image.Stdlib,
}

// ImageNames are the images that a bundle can have, sorted.
func ImageNames() []string { return slices.Sorted(maps.Keys(makers)) }

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

// kernelArgs boot the root read-only and hand over to init, with the words that
// belong to the kernel's configuration.
func (o Options) kernelArgs() []string {
	if o.readyMade() {
		return cloud.KernelArgs(o.Arch)
	}
	return append([]string{"root=/dev/vda", "rootfstype=erofs", "ro", "init=/sbin/init", "quiet"}, config.BootArgs()...)
}

// Options say what goes into a bundle.
type Options struct {
	// Arch is the guest's architecture, "amd64" or "arm64".
	Arch string
	// KernelKind is one of the bundle package's constants. For KernelOwn and
	// KernelCustom, Kernel is the kernel's file, a bzImage on amd64 and an
	// uncompressed Image on arm64, and KernelVersion what it is. For KernelDebianCloud both are empty:
	// the kernel and its initial RAM file system come out of the lock's set
	// debian.SetKernelCloud, and the version is the package's.
	Kernel, KernelKind, KernelVersion string
	// KernelConfigSHA256 is the digest of the configuration that Kernel was built
	// with, for the manifest; "" where that is not known.
	KernelConfigSHA256 string
	// Init is the static program of the guest's PID 1 for Arch.
	Init string
	// Agent is the agent's static program for Arch.
	Agent, AgentVersion string
	ProtocolVersion     uint32
	// Images are the names of the boxes' images to make, out of ImageNames.
	Images []string
	Lock   *debian.Lock
	// Fetch gets packages; see *fetch.Fetcher.
	Fetch interface {
		GetAll(ctx context.Context, items []fetch.Item) ([]string, error)
	}
	// Compiler makes the byte code of images; nil leaves it out, and then every
	// run of a program compiles what it imports. Where it runs guests of another
	// architecture than Arch, CompileWith must be the folder of a bundle for that
	// one, whose kernel and root it boots.
	Compiler    bytecode.Compiler
	CompileWith string
	// BytecodeCache is the folder that byte code is kept in from build to build.
	BytecodeCache string
	// Progress is told about what takes long, in lines; may be nil.
	Progress func(line string)
	// Out is the folder to make or update. Files in it that belong to no
	// bundle are left alone.
	Out string
	// RoomAdvice says how to choose another disk where Out's is full; "": --out.
	RoomAdvice string
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
		err = nospace.Explain(err, "the guest bundle", o.Out, 0, cmp.Or(o.RoomAdvice, "choose a folder on another disk with --out"))
	}()
	b := builder{Options: o, m: o.manifest()}
	if err := os.MkdirAll(o.Out, 0o755); err != nil {
		return nil, fmt.Errorf("build guest bundle: %w", err)
	}
	manifest := filepath.Join(o.Out, bundle.ManifestName)
	if err := os.Remove(manifest); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("build guest bundle: %w", err)
	}
	for _, s := range b.stages() {
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

// readyMade tells whether the kernel is Debian's.
func (o Options) readyMade() bool { return o.KernelKind == bundle.KernelDebianCloud }

// manifest is what is known of the bundle beforehand.
func (o Options) manifest() bundle.Manifest {
	m := bundle.Manifest{
		Schema: bundle.Schema, Arch: o.Arch, KernelArgs: o.kernelArgs(), LockSHA256: o.Lock.SHA256(),
		Kernel: bundle.Kernel{Kind: o.KernelKind, Version: o.KernelVersion, ConfigSHA256: o.KernelConfigSHA256},
		Agent:  bundle.Agent{Version: o.AgentVersion, ProtocolVersion: o.ProtocolVersion},
	}
	if o.readyMade() {
		// That there is one is Validate's concern.
		if p, err := o.cloudPackage(); err == nil {
			m.Kernel.Version = p.Version
		}
	}
	return m
}

// cloudPackage is the one package of Debian's ready-made kernel for the guest.
func (o Options) cloudPackage() (debian.Entry, error) {
	set, err := o.Lock.Set(debian.SetKernelCloud, o.Arch)
	if err != nil {
		return debian.Entry{}, err
	}
	if len(set.Packages) != 1 {
		return debian.Entry{}, fmt.Errorf("the lock file's set %s for %s has %d packages, want 1", debian.SetKernelCloud, o.Arch, len(set.Packages))
	}
	return set.Packages[0], nil
}

// validateKernel holds the three options of the kernel to one another.
func (o Options) validateKernel() error {
	if !o.readyMade() {
		return nil // Kernel is looked at when it is read
	}
	if o.Kernel != "" || o.KernelVersion != "" || o.KernelConfigSHA256 != "" {
		return fmt.Errorf("%w: Debian's kernel comes out of the lock file: give no kernel file and no version with it", ErrOptions)
	}
	if _, err := o.cloudPackage(); err != nil {
		return fmt.Errorf("%w: %w", ErrOptions, err)
	}
	return nil
}

// Validate finds before the work what the manifest would refuse after it. Errors
// match ErrOptions.
func (o Options) Validate() error {
	if err := o.validateKernel(); err != nil {
		return err
	}
	m := o.manifest()
	digest := strings.Repeat("0", 2*sha256.Size)
	m.Kernel.File = bundle.File{File: bundle.KernelName, SHA256: digest, Bytes: 1}
	m.Root = bundle.File{File: bundle.RootName, SHA256: digest, Bytes: 1}
	m.Agent.SHA256 = digest
	for _, name := range o.Images {
		if makers[name] == nil {
			return fmt.Errorf("%w: there is no image %.80q; there are: %s", ErrOptions, name, strings.Join(ImageNames(), ", "))
		}
		m.Images = append(m.Images, newImage(name, bundle.File{File: imageFile(name), SHA256: digest, Bytes: 1}))
	}
	if err := m.Validate(); err != nil {
		return fmt.Errorf("%w: %w", ErrOptions, err)
	}
	return nil
}

func imageFile(name string) string { return name + bundle.ImageSuffix }

func newImage(name string, f bundle.File) bundle.Image {
	return bundle.Image{Name: name, File: f, Serial: bundle.ImageSerial(f.SHA256)}
}

type builder struct {
	Options
	m        bundle.Manifest
	packages map[string][]unpack.Package // by set
}

// stage is one step of a build.
type stage struct {
	name string
	do   func(context.Context) error
}

func (b *builder) stages() []stage {
	s := []stage{{"kernel", b.kernel}, {"packages", b.fetch}, {"root", b.root}}
	if b.readyMade() {
		s = []stage{{"packages", b.fetch}, {"kernel", b.cloudKernel}, {"root", b.root}}
	}
	for _, name := range b.Images {
		s = append(s, stage{name, func(ctx context.Context) error { return b.image(ctx, name) }})
	}
	return s
}

func (b *builder) kernel(context.Context) error {
	if err := vm.CheckKernel(b.Kernel, b.Arch); err != nil {
		return fmt.Errorf("%w: %w", ErrInput, err)
	}
	raw, err := readBounded(b.Kernel, maxKernelBytes)
	if err != nil {
		return err
	}
	b.m.Kernel.File, err = b.writeBytes(bundle.KernelName, raw)
	return err
}

// cloudKernel makes kernel and initial RAM file system out of Debian's package.
func (b *builder) cloudKernel(ctx context.Context) error {
	init, err := readBounded(b.Init, maxAgentBytes)
	if err != nil {
		return err
	}
	k, err := cloud.Build(ctx, b.Arch, b.packages[debian.SetKernelCloud][0], init)
	if err != nil {
		return err
	}
	if b.m.Kernel.File, err = b.writeBytes(bundle.KernelName, k.Image); err != nil {
		return err
	}
	if err := vm.CheckKernel(filepath.Join(b.Out, bundle.KernelName), b.Arch); err != nil {
		return fmt.Errorf("%w: %w", ErrInput, err)
	}
	f, err := b.writeBytes(bundle.InitramfsName, k.Initramfs)
	b.m.Initramfs = &f
	return err
}

func (b *builder) fetch(ctx context.Context) (err error) {
	sets := append([]string{debian.SetRoot}, b.Images...)
	if b.readyMade() {
		sets = append(sets, debian.SetKernelCloud)
	}
	b.packages, err = b.getSets(ctx, b.Arch, sets...)
	return err
}

// getSets gets the packages of sets, all at once, and returns them by set.
func (b *builder) getSets(ctx context.Context, arch string, names ...string) (map[string][]unpack.Package, error) {
	var items []fetch.Item
	var sets []*debian.Set
	for _, name := range names {
		set, err := b.Lock.Set(name, arch)
		if err != nil {
			return nil, err
		}
		sets = append(sets, set)
		items = append(items, Items(set)...)
	}
	files, err := b.Fetch.GetAll(ctx, items)
	if err != nil {
		return nil, err
	}
	out := map[string][]unpack.Package{}
	for _, set := range sets {
		for i, p := range set.Packages {
			out[set.Name] = append(out[set.Name], unpack.Package{Entry: p, File: files[i]})
		}
		files = files[len(set.Packages):]
	}
	return out, nil
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
	init, err := readBounded(b.Init, maxAgentBytes)
	if err != nil {
		return err
	}
	agent, err := readBounded(b.Agent, maxAgentBytes)
	if err != nil {
		return err
	}
	b.m.Agent.SHA256, b.m.InitSHA256 = digest(agent), digest(init)
	t, err := rootfs.Build(ctx, b.Arch, b.packages[debian.SetRoot], init, agent)
	if err != nil {
		return err
	}
	b.m.Root, err = b.write(bundle.RootName, func(w *os.File) error { return erofs.Write(w, t) })
	return err
}

func (b *builder) image(ctx context.Context, name string) error {
	t, err := makers[name](ctx, b.Arch, b.packages[name])
	if err != nil {
		return err
	}
	if b.Compiler != nil {
		if err := b.addBytecode(ctx, name, t); err != nil {
			return err
		}
	}
	f, err := b.write(imageFile(name), func(w *os.File) error { return erofs.Write(w, t) })
	if err != nil {
		return err
	}
	b.m.Images = append(b.m.Images, newImage(name, f))
	return nil
}

// addBytecode adds the byte code of the image's Python sources to its tree.
func (b *builder) addBytecode(ctx context.Context, name string, t *tree.Tree) error {
	o := bytecode.Options{
		Arch: b.Arch, Interpreter: version(b.packages[name], interpreter), Compiler: b.Compiler,
		Cache: b.BytecodeCache, TempDir: b.Out, Progress: b.Progress, Machine: b.machine,
		Group: func(source string) string { return strconv.FormatBool(image.IsStandard(source)) },
	}
	if host := b.Compiler.Arch(); host != b.Arch && b.CompileWith != "" {
		o.Foreign = func(ctx context.Context) (*tree.Tree, error) {
			p, err := b.getSets(ctx, host, name)
			if err != nil {
				return nil, err
			}
			return makers[name](ctx, host, p[name])
		}
	}
	return bytecode.Add(ctx, t, o)
}

// interpreter is the package of the program that byte code is made by and for.
const interpreter = "python" + image.Python + "-minimal"

func version(packages []unpack.Package, name string) string {
	for _, p := range packages {
		if p.Name == name {
			return p.Version
		}
	}
	return ""
}

// machine is the guest to compile in: the one that is being made, whose kernel and
// root are written already, or that of CompileWith.
func (b *builder) machine(ctx context.Context) (bytecode.Machine, error) {
	dir, m := b.Out, &b.m
	if host := b.Compiler.Arch(); host != b.Arch {
		with, err := bundle.Open(b.CompileWith)
		if err != nil {
			return bytecode.Machine{}, err
		}
		if with.Manifest.Arch != host {
			return bytecode.Machine{}, fmt.Errorf("%w: the bundle in %s is for %s, and this machine runs guests of %s", ErrInput, b.CompileWith, with.Manifest.Arch, host)
		}
		if err := with.Verify(ctx); err != nil {
			return bytecode.Machine{}, err
		}
		dir, m = with.Dir(), &with.Manifest
	}
	out := bytecode.Machine{
		Kernel: filepath.Join(dir, m.Kernel.File.File), Root: filepath.Join(dir, m.Root.File), KernelArgs: m.KernelArgs,
	}
	if m.Initramfs != nil {
		out.Initramfs = filepath.Join(dir, m.Initramfs.File)
	}
	return out, nil
}

func (b *builder) writeBytes(name string, data []byte) (bundle.File, error) {
	return b.write(name, func(w *os.File) error {
		_, err := w.Write(data)
		return err
	})
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

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
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

package kernel

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/pybox/pybox/kernel/config"
	"github.com/pybox/pybox/vm"
)

// Builder configures and builds kernels in a cache folder. Several builders,
// also in several processes, may share the folder: the builds of one
// architecture take turns.
type Builder struct {
	// Cache is the folder that holds everything, about 2.5 GB after a first
	// build. It is made when missing.
	Cache string
	// Source is what to build.
	Source Source
	// Own are requests that go before PyBox's own, sorted by symbol, as from
	// config.ReadFragments. They are part of a kernel's key.
	Own []config.Request
	// Jobs bounds the processes that compile at a time; 0 means one per CPU.
	Jobs int
	// Clean builds without the objects of an earlier build, which are
	// otherwise reused by make's own rules.
	Clean bool
	// Progress receives lines for a person; nil discards.
	Progress io.Writer
}

// Configured is a source tree's configuration with PyBox's requests.
type Configured struct {
	// Config is the complete configuration, File where it lies.
	Config config.Config
	File   string
	// Version is what `uname -r` will say.
	Version string
}

func (b *Builder) say(format string, a ...any) {
	if b.Progress != nil {
		fmt.Fprintf(b.Progress, "kernel: "+format+"\n", a...)
	}
}

// requests are PyBox's own for an architecture with those of b.Own.
func (b *Builder) requests(archName string) (all, replaced []config.Request, err error) {
	base, err := config.For(archName)
	if err != nil {
		return nil, nil, err
	}
	all, replaced = config.Override(base, b.Own)
	return all, replaced, nil
}

// changes are the lines of b.Own that say something else than PyBox does.
func (b *Builder) changes(archName string) ([]string, error) {
	base, err := config.For(archName)
	if err != nil {
		return nil, err
	}
	same := map[string]bool{}
	for _, r := range base {
		same[r.Line()] = true
	}
	var list []string
	for _, r := range b.Own {
		if !same[r.Line()] {
			list = append(list, r.Line())
		}
	}
	return list, nil
}

func (b *Builder) jobs() int {
	if b.Jobs > 0 {
		return b.Jobs
	}
	return runtime.NumCPU()
}

// Configure makes the configuration of an architecture without building it. It
// fails with ErrUnhonoured, and a list, when a request is not honoured or names
// a symbol that the source does not know, and with a *Missing, as Build and
// Compare do, when this host lacks a tool.
func (b *Builder) Configure(ctx context.Context, archName string) (_ Configured, err error) {
	defer func() { err = b.explain(err) }()
	w, err := b.open(ctx, archName)
	if err != nil {
		return Configured{}, err
	}
	defer w.close()
	return w.configure(ctx)
}

// Build returns the kernel of an architecture, from the cache when it is there.
// A full disk matches nospace.Err, here and in Configure and Compare.
func (b *Builder) Build(ctx context.Context, archName string) (_ Result, err error) {
	defer func() { err = b.explain(err) }()
	k, tools, err := b.key(ctx, archName)
	if err != nil {
		return Result{}, err
	}
	dir := filepath.Join(b.Cache, k)
	if r, ok := b.cached(dir, k); ok {
		return r, nil
	}
	w, err := b.open(ctx, archName)
	if err != nil {
		return Result{}, err
	}
	defer w.close()
	// Another process may have built it while this one waited for the lock.
	if r, ok := b.cached(dir, k); ok {
		return r, nil
	}
	// What is left here is damaged, and the lock keeps others from storing now.
	if err := os.RemoveAll(dir); err != nil {
		return Result{}, fmt.Errorf("remove damaged kernel: %w", err)
	}
	meta := Meta{Schema: metaSchema, Key: k, Arch: archName, Tools: tools,
		SourceVersion: b.Source.Version, SourceSHA256: b.Source.SHA256}
	if meta.Changes, err = b.changes(archName); err != nil {
		return Result{}, err
	}
	return w.build(ctx, dir, meta)
}

// Cached gives the kernel that Build would return at once, and ErrNotCached where it
// would have to make one. It changes nothing.
func (b *Builder) Cached(ctx context.Context, archName string) (Result, error) {
	k, _, err := b.key(ctx, archName)
	if errors.Is(err, ErrTools) { // what it would be built by is part of its key
		return Result{}, fmt.Errorf("%w: %w", ErrNotCached, err)
	}
	if err != nil {
		return Result{}, err
	}
	if r, ok := b.cached(filepath.Join(b.Cache, k), k); ok {
		return r, nil
	}
	return Result{}, ErrNotCached
}

// key names what Build would make here, and by which tools.
func (b *Builder) key(ctx context.Context, archName string) (string, Tools, error) {
	a, err := findArch(archName)
	if err != nil {
		return "", Tools{}, err
	}
	requests, _, err := b.requests(archName)
	if err != nil {
		return "", Tools{}, err
	}
	tools, err := toolVersions(ctx, a)
	if err != nil {
		return "", Tools{}, err
	}
	changes, err := b.changes(archName)
	if err != nil {
		return "", Tools{}, err
	}
	return key(a, b.Source, requests, changes, tools), tools, nil
}

// cached looks for a finished kernel. One that is damaged counts as not there.
func (b *Builder) cached(dir, k string) (Result, bool) {
	r, err := openResult(dir, k)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		b.say("%v; it will be built again", err)
	}
	return r, err == nil
}

// Compare lists what our configuration lacks of the protective symbols that are
// on by default. It measures against two configurations: the source's plain
// defaults, and the defaults around our own requests, which open further
// prompts. allow excuses losses (see config.AllowList).
func (b *Builder) Compare(ctx context.Context, archName string, allow []config.Allowed) (_ config.Losses, err error) {
	defer func() { err = b.explain(err) }()
	w, err := b.open(ctx, archName)
	if err != nil {
		return config.Losses{}, err
	}
	defer w.close()
	ours, err := w.configure(ctx)
	if err != nil {
		return config.Losses{}, err
	}
	var defaults []config.Config
	for _, with := range []string{"", w.requestsFile()} {
		c, err := w.defaults(ctx, with)
		if err != nil {
			return config.Losses{}, err
		}
		defaults = append(defaults, c)
	}
	return config.Lost(archName, ours.Config, allow, defaults...), nil
}

// RemoveScratch removes unpacked sources, objects and what interrupted builds left
// from the cache folder, and keeps the finished kernels. It waits for builds that
// run, of any process, and keeps others from beginning meanwhile.
func (b *Builder) RemoveScratch(ctx context.Context) error {
	var names []string
	for _, a := range arches {
		names = append(names, workLock(a.name))
	}
	for _, name := range append(names, sourceLock) {
		l, err := b.acquire(ctx, name)
		if err != nil {
			return err
		}
		defer l.release()
	}
	scratch := []string{"source", "work"}
	entries, err := os.ReadDir(b.Cache)
	if err != nil {
		return fmt.Errorf("remove scratch files: %w", err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), tempPrefix) {
			scratch = append(scratch, e.Name())
		}
	}
	for _, name := range scratch {
		if err := os.RemoveAll(filepath.Join(b.Cache, name)); err != nil {
			return fmt.Errorf("remove scratch files: %w", err)
		}
	}
	return nil
}

// workdir is one architecture's objects for one source, locked.
type workdir struct {
	b        *Builder
	arch     arch
	dir      string
	source   sourceTree
	requests []config.Request
	lock     buildLock
}

// tempPrefix begins the names of what is not finished.
const tempPrefix = ".new-"

// open locks and prepares the folder in which an architecture is configured and
// built.
func (b *Builder) open(ctx context.Context, archName string) (*workdir, error) {
	a, err := findArch(archName)
	if err != nil {
		return nil, err
	}
	requests, replaced, err := b.requests(archName)
	if err != nil {
		return nil, err
	}
	// make would fail too, but not say which package has what it lacks.
	if err := CheckTools(ctx, archName); err != nil {
		return nil, err
	}
	for _, r := range replaced {
		b.say("%s (%s) gives way to a request of yours", r.Line(), r.Pos)
	}
	w := &workdir{b: b, arch: a, requests: requests}
	if w.lock, err = b.acquire(ctx, workLock(archName)); err != nil {
		return nil, err
	}
	if err := w.prepare(ctx); err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

// prepare makes the source and the folder ready, under the lock: that also keeps
// the source from being removed.
func (w *workdir) prepare(ctx context.Context) (err error) {
	if w.source, err = w.b.unpacked(ctx); err != nil {
		return err
	}
	w.dir = filepath.Join(w.b.Cache, "work", w.arch.name+"-"+w.b.Source.SHA256[:16])
	if w.b.Clean {
		return w.empty()
	}
	return w.makeDir()
}

// empty drops the objects of earlier builds.
func (w *workdir) empty() error {
	if err := os.RemoveAll(w.dir); err != nil {
		return fmt.Errorf("remove earlier objects: %w", err)
	}
	return w.makeDir()
}

func (w *workdir) makeDir() error {
	if err := os.MkdirAll(w.dir, 0o755); err != nil {
		return fmt.Errorf("make build folder: %w", err)
	}
	return nil
}

// ownTools drops objects that other tools made. make itself notices a change of
// its commands and of the compiler's version, but not of the linker's or the
// compressor's, and what is stored under a key must come from the tools in it.
func (w *workdir) ownTools(t Tools) error {
	want, err := json.Marshal(t)
	if err != nil {
		return fmt.Errorf("describe tools: %w", err)
	}
	mark := filepath.Join(w.dir, "pybox.tools")
	if have, err := os.ReadFile(mark); err == nil && bytes.Equal(have, want) {
		return nil
	}
	if err := w.empty(); err != nil {
		return err
	}
	if err := os.WriteFile(mark, want, 0o644); err != nil {
		return fmt.Errorf("describe tools: %w", err)
	}
	return nil
}

func (w *workdir) close() { w.lock.release() }

func (w *workdir) requestsFile() string { return filepath.Join(w.dir, "pybox.requests") }

// configure writes .config and checks it.
func (w *workdir) configure(ctx context.Context) (Configured, error) {
	if err := os.WriteFile(w.requestsFile(), config.Format(w.requests), 0o644); err != nil {
		return Configured{}, fmt.Errorf("write requests: %w", err)
	}
	// kconfig itself refuses requests for symbols that it does not know, which
	// for "is not set" nothing else would notice.
	run := w.command("configure", w.dir, "allnoconfig")
	run.env = append(run.env, "KCONFIG_ALLCONFIG="+w.requestsFile(),
		"KCONFIG_WARN_UNKNOWN_SYMBOLS=1", "KCONFIG_WERROR=1")
	if _, err := run.do(ctx); err != nil {
		return Configured{}, unknownSymbols(err, w.requests)
	}
	c := Configured{File: filepath.Join(w.dir, ".config")}
	var err error
	if c.Config, err = readConfig(c.File); err != nil {
		return Configured{}, err
	}
	if bad := config.Unhonoured(w.requests, c.Config); len(bad) > 0 {
		return Configured{}, unhonoured(bad)
	}
	if c.Version, err = w.release(ctx); err != nil {
		return Configured{}, err
	}
	return c, nil
}

// unknownSymbols turns kconfig's complaint into ours.
func unknownSymbols(err error, requests []config.Request) error {
	var me *makeError
	if !errors.As(err, &me) {
		return err
	}
	at := map[string]string{}
	for _, r := range requests {
		at[r.Symbol] = r.Pos
	}
	var list []string
	for _, line := range me.tail {
		if _, name, ok := strings.Cut(line, "warning: unknown symbol: "); ok {
			pos := cmp.Or(at[name], "a request")
			list = append(list, pos+": CONFIG_"+name+": this source knows no such symbol")
		}
	}
	if len(list) == 0 {
		return err
	}
	return fmt.Errorf("%w: %d of them:\n  %s\n"+whereRequestsAre, ErrUnhonoured, len(list), strings.Join(list, "\n  "))
}

// whereRequestsAre ends a complaint about requests, each told with its file and line.
const whereRequestsAre = "base.config and those of architectures are in kernel/config"

func unhonoured(bad []config.Mismatch) error {
	var list strings.Builder
	for _, m := range bad {
		fmt.Fprintf(&list, "\n  %s", m)
	}
	return fmt.Errorf("%w: %d of them:%s\nlook at what these symbols depend on (Kconfig files of the source); "+whereRequestsAre,
		ErrUnhonoured, len(bad), list.String())
}

func readConfig(file string) (config.Config, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	defer f.Close()
	return config.Parse(file, f)
}

// release asks the build for the version that `uname -r` will show.
func (w *workdir) release(ctx context.Context) (string, error) {
	run := w.command("release", w.dir, "kernelrelease")
	run.capture = true
	out, err := run.do(ctx)
	if err != nil {
		return "", err
	}
	version := strings.TrimSpace(string(out.stdout))
	if version == "" || strings.ContainsAny(version, " \n/") || len(version) > 64 {
		return "", fmt.Errorf("%w: the version is %.80q", ErrSource, version)
	}
	return version, nil
}

// defaults returns the source's default configuration around the requests in
// the file with ("" for none).
func (w *workdir) defaults(ctx context.Context, with string) (config.Config, error) {
	dir, err := os.MkdirTemp(filepath.Dir(w.dir), "defaults-")
	if err != nil {
		return nil, fmt.Errorf("make folder: %w", err)
	}
	defer os.RemoveAll(dir)
	run := w.command("defaults", dir, "alldefconfig")
	if with != "" {
		run.env = append(run.env, "KCONFIG_ALLCONFIG="+with)
	}
	if _, err := run.do(ctx); err != nil {
		return nil, err
	}
	return readConfig(filepath.Join(dir, ".config"))
}

// build configures, compiles, and moves the result to dir at once.
func (w *workdir) build(ctx context.Context, dir string, meta Meta) (Result, error) {
	if err := w.ownTools(meta.Tools); err != nil {
		return Result{}, err
	}
	c, err := w.configure(ctx)
	if err != nil {
		return Result{}, err
	}
	w.b.say("building %s %s with %s, %d jobs", w.arch.name, c.Version, meta.Tools.Compiler, w.b.jobs())
	run := w.command("build", w.dir, "-j"+strconv.Itoa(w.b.jobs()), w.arch.target)
	run.progress = w.b.say
	out, err := run.do(ctx)
	if err != nil {
		return Result{}, err
	}
	meta.Version = c.Version
	meta.BuildSeconds, meta.CPUSeconds = out.wall.Seconds(), out.cpu.Seconds()
	if err := vm.CheckKernel(filepath.Join(w.dir, w.arch.image), w.arch.name); err != nil {
		return Result{}, fmt.Errorf("the build gave a kernel that cannot be booted: %w", err)
	}
	r, err := w.store(dir, meta)
	if err != nil {
		return Result{}, err
	}
	w.b.say("built %s in %.0f s (%.0f CPU seconds), %d bytes", meta.Version, meta.BuildSeconds, meta.CPUSeconds, r.Meta.KernelBytes)
	return r, nil
}

// store copies what was built beside its place and renames it into place, so
// that a result is whole or not there.
func (w *workdir) store(dir string, meta Meta) (Result, error) {
	tmp, err := os.MkdirTemp(w.b.Cache, tempPrefix)
	if err != nil {
		return Result{}, fmt.Errorf("store kernel: %w", err)
	}
	defer os.RemoveAll(tmp)
	for name, from := range map[string]string{"kernel": w.arch.image, "config": ".config", "System.map": "System.map"} {
		if err := copyFile(filepath.Join(tmp, name), filepath.Join(w.dir, from)); err != nil {
			return Result{}, err
		}
	}
	if meta.KernelSHA256, err = fileSHA256(filepath.Join(tmp, "kernel")); err != nil {
		return Result{}, err
	}
	if meta.ConfigSHA256, err = fileSHA256(filepath.Join(tmp, "config")); err != nil {
		return Result{}, err
	}
	st, err := os.Stat(filepath.Join(tmp, "kernel"))
	if err != nil {
		return Result{}, fmt.Errorf("store kernel: %w", err)
	}
	meta.KernelBytes = st.Size()
	b, err := json.MarshalIndent(meta, "", "  ")
	if err != nil {
		return Result{}, fmt.Errorf("store kernel: %w", err)
	}
	if err := os.WriteFile(filepath.Join(tmp, "meta.json"), append(b, '\n'), 0o644); err != nil {
		return Result{}, fmt.Errorf("store kernel: %w", err)
	}
	if err := os.Chmod(tmp, 0o755); err != nil { // MkdirTemp makes it 0700
		return Result{}, fmt.Errorf("store kernel: %w", err)
	}
	if err := os.Rename(tmp, dir); err != nil {
		return Result{}, fmt.Errorf("store kernel: %w", err)
	}
	return Result{Dir: dir, Meta: meta}, nil
}

func copyFile(to, from string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return fmt.Errorf("copy built file: %w", err)
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("copy built file: %w", err)
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	if _, err := io.Copy(out, in); err != nil {
		return fmt.Errorf("copy built file: %w", err)
	}
	// A crash after the rename must not leave an empty kernel under its name.
	return out.Sync()
}

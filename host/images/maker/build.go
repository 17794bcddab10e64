package maker

import (
	"context"
	"errors"
	"fmt"

	"github.com/pybox/pybox/guest/bundle"
	"github.com/pybox/pybox/guest/bytecode"
	"github.com/pybox/pybox/guest/pyindex"
	"github.com/pybox/pybox/guest/pylock"
	"github.com/pybox/pybox/guest/userimage"
	"github.com/pybox/pybox/host/compile"
	"github.com/pybox/pybox/host/images"
	"github.com/pybox/pybox/vm"
)

// Build is what a person wants to have built.
type Build struct {
	Name string
	// Lock is the path of the lock file.
	Lock string
	// Base names the image of the bundle to build on.
	Base string
	// IndexURL and FindLinks are those of package pyindex.
	IndexURL  string
	FindLinks []string
	// Offline asks no index: wheels are in the folders of FindLinks, or in the cache
	// where the lock names the files.
	Offline bool
	// NoBytecode leaves the byte code out, and with it the VM that compiles it.
	NoBytecode bool
	// Replace puts the image in the place of one with its name.
	Replace bool
}

// Build makes an image of a lock file's wheels, and gives its record.
func (m *Maker) Build(ctx context.Context, b Build) (*images.Record, error) {
	bun, commit, err := m.begin(b.Name, b.Replace)
	if err != nil {
		return nil, err
	}
	base, err := find(bun, b.Base)
	if err != nil {
		return nil, err
	}
	on := userimage.Base{Name: base.Name, File: bun.Path(base.File), SHA256: base.SHA256, Bytes: base.Bytes}
	py, err := userimage.Identify(on, bun.Manifest.Arch)
	if err != nil {
		return nil, err
	}
	lock, err := readLock(b.Lock, py)
	if err != nil {
		return nil, err
	}
	wheels, err := m.wheels(ctx, b, lock, py)
	if err != nil {
		return nil, err
	}
	st, err := m.Store.Stage(ctx)
	if err != nil {
		return nil, err
	}
	defer st.Close()
	o := userimage.Options{
		Name: b.Name, Arch: bun.Manifest.Arch,
		Base: on,
		Lock: userimage.Lock{Kind: lock.Kind, SHA256: lock.SHA256}, Wheels: wheels, Out: st.Path(),
		Machine: machine(bun), BytecodeCache: m.bytecodeCache(), Progress: func(s string) { m.Events.line("%s", s) },
	}
	notes, err := m.addCompiler(&o, bun, b.NoBytecode)
	if err != nil {
		return nil, err
	}
	m.Events.line("putting %s and %s together", b.Base, count(len(wheels), "wheel"))
	r, err := userimage.Build(ctx, o)
	if err != nil {
		return nil, m.explainBuild(err)
	}
	return m.Store.Commit(ctx, st, built(b.Name, r, notes), commit)
}

// addCompiler has the byte code compiled, where that was not forbidden and this
// machine runs guests of that architecture.
func (m *Maker) addCompiler(o *userimage.Options, b *bundle.Bundle, not bool) (notes []string, err error) {
	if not {
		return nil, nil // the record says so
	}
	c, err := m.Compiler()
	if err != nil {
		return nil, err
	}
	if c.Arch() != b.Manifest.Arch {
		return []string{fmt.Sprintf("without byte code: it is compiled in a guest, and this machine compiles for %s alone", c.Arch())}, nil
	}
	o.Compiler = c
	return nil, nil
}

// explainBuild says what else a person can do.
func (m *Maker) explainBuild(err error) error {
	switch {
	case errors.Is(err, bytecode.ErrArch), errors.Is(err, bytecode.ErrArchive), errors.Is(err, bytecode.ErrIncomplete), errors.Is(err, vm.ErrHost), errors.Is(err, compile.ErrFailed):
		return fmt.Errorf("%w; without byte code the image works too, only slower: --no-bytecode: %w", ErrBytecode, err)
	}
	return m.explain(err)
}

func readLock(name string, py userimage.Interpreter) (*pylock.Lock, error) {
	b, err := readBounded(name, pylock.MaxBytes)
	if err != nil {
		return nil, requestErr("--lock: %w", err)
	}
	return pylock.Parse(name, b, py.Environment)
}

// wheels brings the wheels of a lock into the cache.
func (m *Maker) wheels(ctx context.Context, b Build, lock *pylock.Lock, py userimage.Interpreter) ([]userimage.Wheel, error) {
	client, err := pyindex.New(pyindex.Options{
		IndexURL: b.IndexURL, FindLinks: b.FindLinks, Offline: b.Offline, Cache: m.Cache, HTTP: m.HTTP, Log: m.log(),
	})
	if err != nil {
		return nil, requestErr("%w", err)
	}
	m.Events.line("looking for %s", count(len(lock.Packages), "package"))
	chosen, err := client.Choose(ctx, lock, py.Target)
	if err != nil {
		return nil, err
	}
	var bytes int64
	for _, c := range chosen {
		bytes += c.Bytes
	}
	if m.Events.Expect != nil {
		m.Events.Expect(bytes)
	}
	paths, err := client.Fetch(ctx, chosen, m.Events.Progress)
	if err != nil {
		return nil, m.explain(err)
	}
	wheels := make([]userimage.Wheel, len(chosen))
	for i, c := range chosen {
		wheels[i] = userimage.Wheel{Path: paths[i], File: c.File, SHA256: c.SHA256, URL: c.URL, Extras: c.Extras, Yanked: c.Yanked}
	}
	return wheels, nil
}

// built is the record of what was built.
func built(name string, r *userimage.Result, notes []string) images.Record {
	p := r.Provenance
	rec := images.Record{
		Name: name, Arch: p.Arch, Kind: images.KindBuilt, Python: p.Python,
		Built: &images.Built{
			Base:       images.Base{Name: p.Base.Name, SHA256: p.Base.SHA256},
			LockSHA256: p.Lock.SHA256, LockKind: p.Lock.Kind, Bytecode: p.Bytecode,
		},
		Notes: cleanAll(append(notes, r.Notes...)),
	}
	for _, w := range p.Packages {
		rec.Packages = append(rec.Packages, images.Package{
			Name: w.Name, Version: w.Version, Bytes: w.Bytes, Wheel: w.Wheel, SHA256: w.SHA256, URL: w.URL,
		})
	}
	return rec
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

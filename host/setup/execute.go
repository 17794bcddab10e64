package setup

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/gofrs/flock"
	"github.com/google/renameio/v2"

	"github.com/pybox/pybox/guest/build"
	"github.com/pybox/pybox/guest/bundle"
	"github.com/pybox/pybox/guest/bytecode"
	"github.com/pybox/pybox/guest/fetch"
	"github.com/pybox/pybox/guest/nospace"
	"github.com/pybox/pybox/host/compile"
	"github.com/pybox/pybox/host/home"
	"github.com/pybox/pybox/vm"
)

// lockPoll is how often a lock that another process has is tried.
const lockPoll = 50 * time.Millisecond

// Events tell how a plan is being done. Each may be nil; Progress is called from
// several goroutines.
type Events struct {
	Progress func(fetch.Progress)
	// Line is told about what takes long, Stage what was done and how long it took.
	Line  func(string)
	Stage func(name string, took time.Duration)
}

// Result is what came of a plan.
type Result struct {
	// Bundle is the ID of the installed bundle, Dir its folder.
	Bundle string `json:"bundle"`
	Dir    string `json:"dir"`
	// Nothing: another setup had done it meanwhile.
	Nothing bool `json:"nothing_was_to_do"`
	// Running: a VM runs, with the bundle that it was started with.
	Running bool `json:"vm_runs"`
}

// Execute does what the plan says. It may be cut off at any moment and repeated.
// Errors match ErrProblems, ErrChanged, nospace.Err, fetch.ErrUnavailable, one of
// the packages build, bundle and bytecode, or ctx's.
func (p *Plan) Execute(ctx context.Context, e Events) (*Result, error) {
	if len(p.Problems) > 0 {
		return nil, ErrProblems
	}
	if p.Nothing {
		return p.result(nil)
	}
	madeHome, madeCache := missing(p.Home), missing(p.Cache)
	h, err := home.Open(p.Home)
	if err != nil {
		return nil, p.explain(err)
	}
	if p.Origin != OriginFolder {
		unlock, err := p.lockWork(ctx, e)
		if err != nil {
			return nil, err
		}
		defer unlock()
		if done, err := p.doneMeanwhile(ctx); done != nil || err != nil {
			return done, err
		}
	}
	// Before anything is made: a setup that is cut off has made it all the same.
	rec, err := p.claim(h, madeHome, madeCache)
	if err != nil {
		return nil, err
	}
	dir := p.From
	if p.Origin != OriginFolder {
		before := p.bytecode()
		dir, err = p.prepare(ctx, e)
		for name := range p.bytecode() {
			if !before[name] {
				rec.Cache = append(rec.Cache, name)
			}
		}
		if err != nil {
			return nil, errors.Join(err, p.remember(h, rec))
		}
	}
	start := time.Now()
	b, err := p.install(ctx, dir)
	if err != nil {
		return nil, err
	}
	e.stage("install", time.Since(start))
	rec.Bundle, rec.Origin, rec.At = b.ID(), p.Origin, p.o.Now().UTC()
	rec.Bytecode, rec.Version, rec.Images = !p.o.NoBytecode, p.Version, nil
	if p.Origin == OriginDebian {
		rec.Images = p.o.Images
	}
	if err := p.remember(h, rec); err != nil {
		return nil, err
	}
	if err := p.sweep(); err != nil {
		return nil, err
	}
	return p.result(b)
}

func missing(dir string) bool {
	_, err := os.Stat(dir)
	return errors.Is(err, fs.ErrNotExist)
}

func (p *Plan) result(b *bundle.Bundle) (*Result, error) {
	r := &Result{Nothing: b == nil}
	st, err := look(p.Home)
	if err != nil {
		return nil, err
	}
	if b == nil {
		b = st.current
	}
	if b == nil {
		return nil, ErrChanged
	}
	r.Bundle, r.Dir, r.Running = b.ID(), b.Dir(), st.running
	return r, nil
}

// lockWork lets one setup at a time work in the cache.
func (p *Plan) lockWork(ctx context.Context, e Events) (unlock func(), err error) {
	dir := filepath.Dir(p.lockFile())
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, p.explain(err)
	}
	l := flock.New(p.lockFile())
	ok, err := l.TryLock()
	if err == nil && !ok {
		e.line("another setup is at work; waiting for it")
		_, err = l.TryLockContext(ctx, lockPoll)
	}
	if err != nil {
		_ = l.Close()
		return nil, p.explain(fmt.Errorf("wait for another setup (%s): %w", p.lockFile(), err))
	}
	return func() { _ = l.Close() }, nil
}

// doneMeanwhile returns a result when another setup did the same before this one had
// its turn.
func (p *Plan) doneMeanwhile(ctx context.Context) (*Result, error) {
	st, err := look(p.Home)
	if err != nil {
		return nil, err
	}
	now := *p // what is found out now is not part of the plan
	t, err := now.target(ctx)
	if err != nil {
		return nil, err
	}
	if t.id != p.Bundle {
		return nil, fmt.Errorf("%w (%s)", ErrChanged, p.From)
	}
	o := p.o
	// A replacement that was asked for has been done once what is there is not what
	// was there.
	o.Replace = o.Replace && !p.replaced(st)
	if d := decide(ctx, o, st, t); d.nothing {
		return p.result(nil)
	}
	return nil, nil
}

func (p *Plan) replaced(st *state) bool {
	for _, k := range p.Kept {
		if st.current != nil && k.Path == st.current.Dir() {
			return false
		}
	}
	return st.current != nil
}

// prepare makes the bundle in the cache, or finds one that an earlier setup made
// and could not install, and returns its folder.
func (p *Plan) prepare(ctx context.Context, e Events) (string, error) {
	out := filepath.Join(p.workDir(), "bundle")
	if b, err := bundle.Open(out); err == nil && (p.Bundle == "" || b.ID() == p.Bundle) && b.Verify(ctx) == nil {
		return out, nil
	}
	if p.Origin == OriginArchive {
		return out, p.extract(ctx, out, e)
	}
	return out, p.build(ctx, out, e)
}

func (p *Plan) extract(ctx context.Context, out string, e Events) error {
	start := time.Now()
	if err := os.RemoveAll(out); err != nil {
		return p.explain(err)
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return p.explain(err)
	}
	f, err := os.Open(p.From)
	if err != nil {
		return err
	}
	defer f.Close()
	a, err := bundle.OpenArchive(bufio.NewReaderSize(f, 1<<20))
	if err != nil {
		return fmt.Errorf("--from %s: %w", p.From, err)
	}
	if a.ID() != p.Bundle {
		return fmt.Errorf("%w (%s)", ErrChanged, p.From)
	}
	if _, err := a.Extract(ctx, out); err != nil {
		if ctx.Err() == nil { // nothing of it can be used again
			err = errors.Join(err, os.RemoveAll(p.workDir()))
		}
		return p.explain(fmt.Errorf("--from %s: %w", p.From, err))
	}
	e.stage("unpack", time.Since(start))
	return nil
}

func (p *Plan) build(ctx context.Context, out string, e Events) error {
	if err := os.MkdirAll(out, 0o755); err != nil {
		return p.explain(err)
	}
	o := build.Options{
		Arch: p.Arch, KernelKind: bundle.KernelDebianCloud,
		Init: filepath.Join(p.workDir(), "pybox-init"), Agent: filepath.Join(p.workDir(), "pybox-agent"),
		AgentVersion: p.Version, ProtocolVersion: p.o.ProtocolVersion, Images: p.o.Images, Lock: p.o.Lock,
		Fetch: p.fetcher(e.Progress), Progress: e.Line, Out: out, RoomAdvice: placeFix, Stage: e.Stage,
	}
	for name, b := range map[string][]byte{o.Init: p.progs.Init, o.Agent: p.progs.Agent} {
		if err := renameio.WriteFile(name, b, 0o644); err != nil {
			return p.explain(err)
		}
	}
	if !p.o.NoBytecode {
		var err error
		if o.Compiler, err = p.o.Compiler(); err != nil {
			return err
		}
		o.BytecodeCache = filepath.Join(p.Cache, bytecodeDir)
	}
	_, err := p.o.Build(ctx, o)
	switch {
	case errors.Is(err, bytecode.ErrArch), errors.Is(err, vm.ErrHost), errors.Is(err, compile.ErrFailed):
		return fmt.Errorf("%w\nwithout byte code the bundle works too, only slower: --no-bytecode", err)
	}
	return p.explain(err)
}

// install copies the bundle in dir into the state folder. Everything about it is
// looked at again: what is in dir may have been changed since.
func (p *Plan) install(ctx context.Context, dir string) (*bundle.Bundle, error) {
	src, err := bundle.Open(dir)
	if err != nil {
		return nil, err
	}
	if p.Bundle != "" && src.ID() != p.Bundle {
		return nil, fmt.Errorf("%w (%s)", ErrChanged, dir)
	}
	if err := fits(&src.Manifest, p.o); err != nil {
		return nil, err
	}
	b, err := bundle.Install(ctx, p.Home, dir)
	if err != nil {
		return nil, p.explain(err)
	}
	if b.ID() != src.ID() {
		return nil, fmt.Errorf("%w (%s)", ErrChanged, dir)
	}
	return b, nil
}

// claim adds to what is remembered what this setup is about to make beside the bundle,
// and gives it.
func (p *Plan) claim(h *home.Home, madeHome, madeCache bool) (record, error) {
	rec := readRecord(h)
	rec.Schema, rec.MadeHome, rec.MadeCache = recordSchema, rec.MadeHome || madeHome, rec.MadeCache || madeCache
	for _, d := range p.Downloads {
		if !d.Cached {
			rec.Cache = append(rec.Cache, download(d.SHA256))
		}
	}
	if p.Origin == OriginDebian && !p.o.NoBytecode && missing(filepath.Join(p.Cache, accelerationName)) {
		rec.Cache = append(rec.Cache, accelerationName)
	}
	return rec, p.remember(h, rec)
}

// download is where the cache has a file, below it.
func download(sha256 string) string { return "sha256/" + sha256[:2] + "/" + sha256 }

// bytecode are the files of byte code in the cache, below it.
func (p *Plan) bytecode() map[string]bool {
	names := map[string]bool{}
	entries, _ := os.ReadDir(filepath.Join(p.Cache, bytecodeDir)) // none: nothing to tell apart
	for _, e := range entries {
		names[bytecodeDir+"/"+e.Name()] = true
	}
	return names
}

// remember writes down what was made.
func (p *Plan) remember(h *home.Home, rec record) error {
	slices.Sort(rec.Cache)
	rec.Cache = slices.Compact(rec.Cache)
	if err := h.WriteJSON(h.Path(recordName), rec); err != nil {
		return p.explain(fmt.Errorf("what setup has to remember of its work: %w", err))
	}
	return nil
}

// sweep removes the working folders: this setup's and those of others that were cut
// off.
func (p *Plan) sweep() error {
	if p.Origin == OriginFolder {
		return nil
	}
	entries, err := os.ReadDir(filepath.Dir(p.workDir()))
	if err != nil {
		return p.explain(err)
	}
	for _, d := range entries {
		if d.IsDir() && isKey(d.Name()) {
			if err := os.RemoveAll(filepath.Join(filepath.Dir(p.workDir()), d.Name())); err != nil {
				return p.explain(err)
			}
		}
	}
	return nil
}

func isKey(s string) bool {
	if len(s) != keyDigits {
		return false
	}
	for i := range len(s) {
		if b := s[i]; !(b >= '0' && b <= '9' || b >= 'a' && b <= 'f') {
			return false
		}
	}
	return true
}

func (p *Plan) fetcher(progress func(fetch.Progress)) *fetch.Fetcher {
	log := p.o.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &fetch.Fetcher{Dir: p.Cache, Sources: p.o.Sources, Client: p.o.Client, Progress: progress, Log: log}
}

// explain says what to do about a disk that takes no more or nothing at all.
func (p *Plan) explain(err error) error {
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) {
		return fmt.Errorf("%w; %s", err, placeFix)
	}
	return nospace.Explain(err, "the guest bundle", p.Cache, 0, placeFix)
}

func (e Events) line(s string) {
	if e.Line != nil {
		e.Line(s)
	}
}

func (e Events) stage(name string, took time.Duration) {
	if e.Stage != nil {
		e.Stage(name, took)
	}
}

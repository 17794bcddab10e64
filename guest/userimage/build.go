package userimage

import (
	"bytes"
	"cmp"
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
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/pybox/pybox/guest/bytecode"
	"github.com/pybox/pybox/guest/erofs"
	"github.com/pybox/pybox/guest/image"
	"github.com/pybox/pybox/guest/nospace"
	"github.com/pybox/pybox/guest/pytag"
	"github.com/pybox/pybox/guest/tree"
	"github.com/pybox/pybox/guest/wheel"
)

// maxWheels bounds the packages of an image.
const maxWheels = 2000

// maxLeft is how many sources that cannot be compiled are named.
const maxLeft = 3

// item is one of the wheels.
type item struct {
	Wheel
	read      *wheel.Wheel
	dist      dist
	installed *wheel.Installed
}

// builder makes one image.
type builder struct {
	Options
	base  *base
	plain *tree.Tree // the base without the wheels
	items []item     // sorted by the packages' names once they are read
	notes []string
}

func (b *builder) progress(format string, a ...any) {
	if b.Progress != nil {
		b.Progress(fmt.Sprintf(format, a...))
	}
}

func (b *builder) note(format string, a ...any) { b.notes = append(b.notes, fmt.Sprintf(format, a...)) }

// dir is where what is needed for the time being goes.
func (b *builder) dir() string { return filepath.Dir(b.Out) }

func (b *builder) build(ctx context.Context) (*Result, error) {
	var err error
	if b.base, err = openBase(ctx, b.Base, b.Arch); err != nil {
		return nil, err
	}
	defer b.base.close()
	defer b.closeWheels()
	if err := b.readWheels(ctx); err != nil {
		return nil, err
	}
	notes, err := checkComplete(ctx, b.base, b.packages())
	if err != nil {
		return nil, err
	}
	b.notes = append(b.notes, notes...)
	if err := b.install(ctx); err != nil {
		return nil, err
	}
	if err := b.noteLibraries(ctx); err != nil {
		return nil, err
	}
	if err := b.compile(ctx); err != nil {
		return nil, err
	}
	r := &Result{File: b.Out, Provenance: b.provenance(), Notes: b.notes}
	if err := b.addProvenance(r.Provenance); err != nil {
		return nil, err
	}
	b.progress("writing the image")
	r.SHA256, r.Bytes, err = b.write(ctx)
	return r, err
}

// readWheels reads all wheels, several at once, and sorts them by name: the order in
// the lock does not matter.
func (b *builder) readWheels(ctx context.Context) error {
	if len(b.Wheels) > maxWheels {
		return fmt.Errorf("%w: %d, at most %d", ErrTooMany, len(b.Wheels), maxWheels)
	}
	b.progress("unpacking %d wheels", len(b.Wheels))
	b.items = make([]item, len(b.Wheels))
	budget := wheel.NewBudget(limits.Entries, limits.Bytes)
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i, w := range b.Wheels {
		g.Go(func() (err error) {
			if err := b.usable(w); err != nil {
				return err
			}
			r, err := wheel.Read(gctx, wheel.Source{Path: w.Path, File: w.File, SHA256: w.SHA256}, wheel.Options{TempDir: b.dir(), Budget: budget})
			if err == nil {
				b.items[i] = item{Wheel: w, read: r, dist: dist{Metadata: r.Metadata, wheel: r.File, extras: w.Extras}}
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nospace.Explain(err, "what is in the wheels", b.dir(), 0, "")
	}
	slices.SortFunc(b.items, func(x, y item) int { return cmp.Compare(x.dist.key(), y.dist.key()) })
	for i := 1; i < len(b.items); i++ {
		if x, y := b.items[i-1], b.items[i]; x.dist.key() == y.dist.key() {
			return fmt.Errorf("%w: %s is there twice, as %.200q and %.200q", ErrIncomplete, x.dist.key(), x.File, y.File)
		}
	}
	return nil
}

func (b *builder) packages() []dist {
	out := make([]dist, len(b.items))
	for i := range b.items {
		out[i] = b.items[i].dist
	}
	return out
}

// usable makes sure, once more, that a wheel is for the guest.
func (b *builder) usable(w Wheel) error {
	name, err := pytag.Parse(w.File)
	if err != nil {
		return fmt.Errorf("%w: %w", wheel.ErrWheel, err)
	}
	if why := b.base.target.Why(name); why != "" {
		return fmt.Errorf("wheel %.200q: %w: it is %s", w.File, wheel.ErrWheel, why)
	}
	return nil
}

func (b *builder) closeWheels() {
	for _, i := range b.items {
		if i.read != nil {
			_ = i.read.Close()
		}
	}
}

// install puts the wheels into the tree.
func (b *builder) install(ctx context.Context) error {
	b.plain = b.base.tree.Clone()
	in := wheel.NewInstaller(b.base.tree)
	for n := range b.items {
		i := &b.items[n]
		if err := ctx.Err(); err != nil {
			return err
		}
		var err error
		if i.installed, err = in.Install(i.read); err != nil {
			return err
		}
		if i.Yanked != "" {
			b.note("%s was withdrawn from the index: %.200q", i.dist, i.Yanked)
		}
		if m := i.installed.Hides; len(m) > 0 {
			b.note("%s takes the place of what the image %s has: %s", i.dist, b.base.Name, some(m))
		}
		if m := i.installed.Hidden; len(m) > 0 {
			b.note("%s has modules that Python finds in its own library first: %s", i.dist, some(m))
		}
	}
	return image.CheckLayout(b.base.tree)
}

// some names a few.
func some(names []string) string {
	if n := len(names) - maxLeft; n > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxLeft], ", "), n)
	}
	return strings.Join(names, ", ")
}

// compile adds the byte code of what the wheels brought. It is kept for each wheel, for
// whatever images that comes into, so no code of another may run where it is made.
func (b *builder) compile(ctx context.Context) error {
	if b.Compiler == nil {
		return nil
	}
	var left []string
	owner := map[string]string{}
	for _, i := range b.items {
		for _, p := range i.read.Paths() {
			owner[p] = i.SHA256
		}
	}
	err := bytecode.Add(ctx, b.base.tree, bytecode.Options{
		Arch: b.Arch, Interpreter: b.base.debianPython, Compiler: b.Compiler, Cache: b.BytecodeCache, TempDir: b.dir(),
		Group:   func(source string) string { return owner[source] },
		Apart:   b.plain,
		Machine: b.Machine, Left: func(source string) { left = append(left, "/"+source) }, Progress: b.Progress,
	})
	if err != nil {
		return nospace.Explain(err, "the image whose byte code is compiled", b.dir(), 0, "")
	}
	if len(left) > 0 {
		b.note("Python cannot compile %d of the sources, which is common for templates and tests: %s", len(left), some(left))
	}
	return nil
}

func (b *builder) provenance() Provenance {
	p := Provenance{
		Schema: Schema, Name: b.Name, Arch: b.Arch, Python: b.base.python,
		Base: ProvenanceBase{Name: b.base.Name, SHA256: b.base.SHA256}, Lock: ProvenanceLock(b.Lock),
		Bytecode: b.Compiler != nil, Packages: []Package{},
	}
	for _, i := range b.items {
		url := i.URL
		if strings.HasPrefix(url, "file:") {
			url = ""
		}
		extras := slices.Clone(i.Extras)
		slices.Sort(extras)
		p.Packages = append(p.Packages, Package{
			Name: i.dist.Name, Version: i.dist.Version, Extras: extras, Summary: i.dist.Summary,
			Wheel: i.File, URL: url, SHA256: i.SHA256, Files: i.installed.Files, Bytes: i.installed.Bytes,
		})
	}
	return p
}

func (b *builder) addProvenance(p Provenance) error {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(p); err != nil {
		return fmt.Errorf("provenance of the image: %w", err)
	}
	return b.base.tree.WriteFile(ProvenancePath, text.Bytes(), tree.Attr{Mode: 0o644})
}

// ctxFile ends a long writing when ctx does.
type ctxFile struct {
	ctx context.Context
	io.WriteSeeker
}

func (c ctxFile) Write(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.WriteSeeker.Write(p)
}

// write writes the image and returns its digest and size.
func (b *builder) write(ctx context.Context) (digest string, size int64, err error) {
	defer func() {
		err = nospace.Explain(err, "the image", b.dir(), b.base.tree.Bytes(), "")
	}()
	f, err := os.OpenFile(b.Out, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return "", 0, err
	}
	defer func() {
		if err = errors.Join(err, f.Close()); err != nil {
			_ = os.Remove(b.Out)
		}
	}()
	if err := erofs.Write(ctxFile{ctx, f}, b.base.tree); err != nil {
		return "", 0, err
	}
	if err := f.Sync(); err != nil {
		return "", 0, err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return "", 0, err
	}
	h := sha256.New()
	size, err = io.Copy(h, f)
	return hex.EncodeToString(h.Sum(nil)), size, err
}

package bytecode

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pybox/pybox/guest/bundle"
	"github.com/pybox/pybox/guest/erofs"
	"github.com/pybox/pybox/guest/image"
	"github.com/pybox/pybox/guest/layout"
	"github.com/pybox/pybox/guest/nospace"
	"github.com/pybox/pybox/guest/tree"
)

// Sentinels, to be tested with errors.Is.
var (
	// ErrIncomplete: some sources could not be compiled.
	ErrIncomplete = errors.New("sources without byte code")
	// ErrArch: the compiler is of another architecture than the image, and
	// nothing was given that would bridge that.
	ErrArch = errors.New("byte code for another architecture")
)

// Compiler compiles images.
type Compiler interface {
	// Arch is the architecture of the guests that it can run, "amd64" or
	// "arm64".
	Arch() string
	// Version differs wherever the byte code of equal sources, made by the same
	// interpreter, could.
	Version() string
	// Compile compiles every source on the search path of an image's
	// interpreter that has no byte code yet, and writes the results to w as a
	// tar archive of regular files, by their paths in the image. What it records of
	// a run, if anything, is beside them: layout.Preread, and below layout.Seeds
	// what matplotlib knows of fonts. ctx bounds it. A source that cannot be compiled
	// has an empty file in the place of its byte code. Where the image has the folder
	// layout.Sources, the sources below it are compiled as if they stood at the root,
	// no others, and nothing is recorded. On an error, what was written is of no use.
	Compile(ctx context.Context, j Job, w io.Writer) error
}

// Job is what a Compiler is given.
type Job struct {
	Machine Machine
	// Image is the erofs file of the image, Serial the number that its disk
	// has to have in the guest.
	Image, Serial string
	// MaxBytes bounds the archive.
	MaxBytes int64
	// Progress takes lines about how far it is: printable ASCII of at most 200
	// bytes, whatever the guest says. Never nil.
	Progress func(line string)
}

// Machine is the guest that a Compiler boots; its architecture is the compiler's.
type Machine struct {
	// Kernel, Initramfs ("": none) and Root are files on this host.
	Kernel, Initramfs, Root string
	KernelArgs              []string
}

// Options say what to compile and with what.
type Options struct {
	// Arch is the image's architecture.
	Arch string
	// Interpreter is the exact version of the image's Python.
	Interpreter string
	Compiler    Compiler
	// Cache is the folder that byte code is kept in.
	Cache string
	// TempDir takes the image that is compiled, for the time being.
	TempDir string
	// Group parts the sources: those of one name are kept together in the cache, so
	// that images which have only some of them in common share those. nil: all are one.
	Group func(source string) string
	// Machine is asked for when something has to be compiled.
	Machine func(context.Context) (Machine, error)
	// Foreign makes the same image for the compiler's architecture, where that is
	// not Arch; nil: that is impossible.
	Foreign func(context.Context) (*tree.Tree, error)
	// Apart is an image for Arch whose own packages may run. Where it is set, what is
	// compiled lies on it as data, away from the search path: no code of t runs, which
	// could change what is made of the sources of others and kept for them; nothing is
	// recorded, and t keeps the record that it has.
	Apart *tree.Tree
	// Left is told, in order, which sources have no byte code since they cannot be
	// compiled, as packages of a person's choice have them in templates and tests, or
	// since there is no place for it; nil: what cannot be compiled is an error.
	Left func(source string)
	// Progress is told what takes long; may be nil.
	Progress func(line string)
}

// Add adds to the image t the byte code of all sources that have none yet, and what
// was recorded on a run of it (see package layout), out of the cache or by compiling
// and running it. A record that t has already is replaced. Errors match ErrIncomplete,
// ErrArch, ErrArchive or nospace.Err, or come from the compiler.
func Add(ctx context.Context, t *tree.Tree, o Options) error {
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	w := work{Options: o, versions: []string{cacheFormat, o.Compiler.Version(), o.Interpreter}, done: newFound()}
	if o.Apart == nil {
		removeRecord(t)
		w.recordKey = recordKey(w.versions, t)
	}
	all := sources(t)
	if err := w.load(all); err != nil {
		return fmt.Errorf("cache of byte code: %w", err)
	}
	if len(w.missing) > 0 || o.Apart == nil && w.record == nil {
		if err := w.compile(ctx, t); err != nil {
			return err
		}
	}
	for p, b := range byTarget(w.done.code) {
		if err := t.WriteFile(p, b, tree.Attr{Mode: 0o644}); err != nil {
			return err
		}
	}
	if o.Left != nil {
		for _, p := range slices.Sorted(slices.Values(append(slices.Collect(maps.Keys(w.done.left)), placeless(t)...))) {
			o.Left(p)
		}
	}
	return addRecord(t, o.Arch, w.record)
}

// complete makes sure that f has the byte code of every source that has to have it:
// where Left is set, of all that are not said to be impossible.
func (o Options) complete(f *found, sources map[string][]byte) error {
	var lack []string
	for p := range sources {
		if f.code[p] == nil && (o.Left == nil || !f.left[p]) {
			lack = append(lack, p)
		}
	}
	return incomplete(lack)
}

// work is what one Add has and lacks.
type work struct {
	Options
	versions  []string
	recordKey string
	done      *found // of sources
	missing   []unit
	record    map[string][]byte // by path in the image; nil: not known
}

// load takes what the cache has.
func (w *work) load(all map[string][]byte) error {
	for _, u := range units(w.versions, all, w.Group) {
		have, err := load(w.Cache, u, w.complete)
		if err := w.lacks(err); err != nil {
			return err
		}
		if err != nil {
			w.missing = append(w.missing, u)
		}
		if err == nil {
			w.done.add(have)
		}
	}
	if w.Apart != nil {
		return nil
	}
	have, err := loadArchive(w.Cache, w.recordKey, nil)
	if err == nil {
		w.record = have.record
	}
	return w.lacks(err)
}

// lacks returns err unless it means that something has to be made.
func (w *work) lacks(err error) error {
	if errors.Is(err, errDamaged) {
		w.Progress(fmt.Sprintf("%v; compiling it again", err))
		return nil
	}
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// compile makes what is missing, and keeps it.
func (w *work) compile(ctx context.Context, t *tree.Tree) error {
	var img *tree.Tree
	var from map[string][]byte
	var err error
	if w.Apart != nil {
		img, from, err = w.apart(w.missing)
	} else if img, err = w.workpiece(ctx, t, w.done.code, w.missing); err == nil {
		from = sources(img)
	}
	if err != nil {
		return err
	}
	fresh, err := w.run(ctx, img, from)
	if err != nil {
		return err
	}
	wanted := map[string][]byte{}
	for _, u := range w.missing {
		maps.Copy(wanted, u.sources)
	}
	if err := w.complete(fresh, wanted); err != nil {
		return fmt.Errorf("compile byte code: %w", err)
	}
	if w.Apart != nil && len(fresh.record) > 0 {
		return fmt.Errorf("compile byte code: %w", archiveErr("it has a record of a run, and nothing was to run"))
	}
	for _, u := range w.missing {
		part := fresh.of(u.sources)
		w.done.add(part)
		if err := w.keep(u.key, part.files()); err != nil {
			return err
		}
	}
	if w.Apart != nil {
		return nil
	}
	w.record = fresh.record
	return w.keep(w.recordKey, fresh.record)
}

func (w *work) keep(key string, files map[string][]byte) error {
	err := nospace.Explain(store(w.Cache, key, files), "the compiled byte code", w.Cache, 0, "choose a cache folder on another disk with PYBOX_CACHE")
	if err != nil {
		return fmt.Errorf("keep byte code: %w", err)
	}
	return nil
}

// run has the compiler run img, for byte code of the given sources.
func (o Options) run(ctx context.Context, img *tree.Tree, from map[string][]byte) (*found, error) {
	file, serial, err := o.writeImage(img)
	if err != nil {
		return nil, fmt.Errorf("image to compile: %w", err) // who chose TempDir explains a full disk
	}
	defer os.Remove(file)
	m, err := o.Machine(ctx)
	if err != nil {
		return nil, err
	}
	archive := &bounded{left: MaxArchiveBytes}
	job := Job{Machine: m, Image: file, Serial: serial, MaxBytes: MaxArchiveBytes, Progress: o.Progress}
	if err := o.Compiler.Compile(ctx, job, archive); err != nil {
		return nil, fmt.Errorf("compile byte code: %w", err)
	}
	fresh, err := read(&archive.buf, from)
	if err != nil {
		return nil, fmt.Errorf("compile byte code: %w", err)
	}
	return fresh, nil
}

// apart is the image Apart with what is missing lying beside, and these sources.
func (o Options) apart(missing []unit) (*tree.Tree, map[string][]byte, error) {
	if o.Arch != o.Compiler.Arch() {
		return nil, nil, fmt.Errorf("%w: the image is for %s and this machine runs guests of %s", ErrArch, o.Arch, o.Compiler.Arch())
	}
	img, from := o.Apart.Clone(), map[string][]byte{}
	for _, u := range missing {
		for p, b := range u.sources {
			if err := img.WriteFile(path.Join(layout.Sources, p), b, tree.Attr{Mode: 0o644}); err != nil {
				return nil, nil, err
			}
		}
		maps.Copy(from, u.sources)
	}
	return img, from, nil
}

// workpiece is the image that a guest of the compiler's architecture can run and
// that has the missing sources: t itself, or its like for that architecture with
// t's sources added, or in the place of its own where they name the architecture. Byte code that is known is in it, so that it is not made
// twice.
func (o Options) workpiece(ctx context.Context, t *tree.Tree, code map[string][]byte, missing []unit) (*tree.Tree, error) {
	img := t.Clone()
	if o.Arch != o.Compiler.Arch() {
		if o.Foreign == nil {
			return nil, fmt.Errorf("%w: the image is for %s and this machine runs guests of %s", ErrArch, o.Arch, o.Compiler.Arch())
		}
		var err error
		if img, err = o.Foreign(ctx); err != nil {
			return nil, err
		}
	}
	have := sources(img)
	for _, u := range missing {
		for p, b := range u.sources {
			old, there := have[p]
			switch {
			case !there:
				if err := img.WriteFile(p, b, tree.Attr{Mode: 0o644}); err != nil {
					return nil, err
				}
			case !bytes.Equal(old, b) && isNative(p, b) && !image.IsStandard(p):
				img.Remove(p)
				if err := img.WriteFile(p, b, tree.Attr{Mode: 0o644}); err != nil {
					return nil, err
				}
			case !bytes.Equal(old, b):
				return nil, fmt.Errorf("%w: %s differs from architecture to architecture; build the image on %s", ErrArch, p, o.Arch)
			}
		}
	}
	for p, pyc := range code {
		if source, there := have[p]; !there || check(pyc, source) != nil {
			continue // the image is foreign and has no such source
		}
		if err := img.WriteFile(Target(p), pyc, tree.Attr{Mode: 0o644}); err != nil {
			return nil, err
		}
	}
	return img, nil
}

// writeImage writes img into a new file and returns that and its serial number.
func (o Options) writeImage(img *tree.Tree) (name, serial string, err error) {
	f, err := os.CreateTemp(o.TempDir, ".compile-*.erofs")
	if err != nil {
		return "", "", err
	}
	defer func() {
		if cerr := f.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			os.Remove(f.Name())
		}
	}()
	// The monitor of the machine may run as somebody else; images are no secret.
	if err := f.Chmod(0o644); err != nil {
		return "", "", err
	}
	if err := erofs.Write(f, img); err != nil {
		return "", "", err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return "", "", err
	}
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", "", err
	}
	name, err = filepath.Abs(f.Name())
	return name, bundle.ImageSerial(hex.EncodeToString(h.Sum(nil))), err
}

// incomplete is an error that names sources which lack byte code, or nil.
func incomplete(lack []string) error {
	if len(lack) == 0 {
		return nil
	}
	slices.Sort(lack)
	const most = 20
	more := ""
	if n := len(lack) - most; n > 0 {
		lack, more = lack[:most], fmt.Sprintf(" and %d more", n)
	}
	return fmt.Errorf("%w: %s%s", ErrIncomplete, strings.Join(lack, ", "), more)
}

// bounded keeps what is written, up to its bound.
type bounded struct {
	buf  bytes.Buffer
	left int64
}

// Write implements io.Writer.
func (b *bounded) Write(p []byte) (int, error) {
	if int64(len(p)) > b.left {
		return 0, archiveErr("longer than %d bytes", int64(MaxArchiveBytes))
	}
	b.left -= int64(len(p))
	return b.buf.Write(p)
}

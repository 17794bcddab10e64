// Package maker makes images of one's own and puts them into the store of package
// images: out of an image of the bundle and the wheels of a lock file, or out of an
// OCI image. It also writes them out as OCI images. What there is to do is done by
// the packages below guest; here it is put in order, and nothing reaches the store
// before all of it has succeeded.
package maker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/pybox/pybox/guest/bundle"
	"github.com/pybox/pybox/guest/bytecode"
	"github.com/pybox/pybox/guest/fetch"
	"github.com/pybox/pybox/guest/nospace"
	"github.com/pybox/pybox/host/images"
)

// Sentinels, to be tested with errors.Is. Other errors match those of the packages
// images, pylock, pyindex, userimage, ociimage, compile and nospace.
var (
	// ErrRequest: what was asked for makes no sense or cannot be had.
	ErrRequest = errors.New("the request cannot be met")
	// ErrBytecode: the byte code could not be compiled.
	ErrBytecode = errors.New("the byte code could not be compiled")
)

func requestErr(format string, a ...any) error {
	return fmt.Errorf("%w: %w", ErrRequest, fmt.Errorf(format, a...))
}

// Events tell how the work goes. Each may be nil; Progress is called from several
// goroutines.
type Events struct {
	// Expect is told how many bytes will be downloaded, Progress of each file.
	Expect   func(bytes int64)
	Progress func(fetch.Progress)
	// Line is told what takes long.
	Line func(string)
}

func (e Events) line(format string, a ...any) {
	if e.Line != nil {
		e.Line(fmt.Sprintf(format, a...))
	}
}

// Maker makes images for one store. Its methods are safe for concurrent use; whose
// image of a name is first is in the store then.
type Maker struct {
	Store *images.Store
	// Bundle opens the installed bundle: its images are those to build on, its kernel
	// and root compile byte code, and guests have its architecture.
	Bundle func() (*bundle.Bundle, error)
	// Cache is the folder of downloads, as from fetch.CacheDir.
	Cache string
	// Compiler makes what compiles byte code.
	Compiler func() (bytecode.Compiler, error)
	// HTTP and Transport make the requests to indexes and registries; nil: those
	// packages' own.
	HTTP      *http.Client
	Transport http.RoundTripper
	// Getenv is os.Getenv.
	Getenv func(string) string
	Events Events
	// Log may be nil.
	Log *slog.Logger
	// Now is the host's wall clock; nil is time.Now.
	Now func() time.Time
}

// bytecodeDir is the folder of byte code in the cache, as setup's.
const bytecodeDir = "bytecode"

// begin opens the bundle and makes sure that an image of that name can be made.
func (m *Maker) begin(name string, replace bool) (*bundle.Bundle, images.Commit, error) {
	c := images.Commit{Replace: replace, Now: m.Now}
	if err := images.CheckName(name); err != nil {
		return nil, c, err
	}
	b, err := m.Bundle()
	if err != nil {
		return nil, c, err
	}
	for _, i := range b.Manifest.Images {
		if i.Name == name {
			return nil, c, fmt.Errorf("%w: %q is the name of an image of the guest bundle", images.ErrName, name)
		}
	}
	c.Bundled = len(b.Manifest.Images)
	return b, c, m.Store.Admit(name, c)
}

// explain says what to do about a full disk.
func (m *Maker) explain(err error) error {
	return nospace.Explain(err, "the image", m.Store.Dir(), 0, "choose a state folder on another disk with PYBOX_HOME")
}

func find(b *bundle.Bundle, name string) (bundle.Image, error) {
	var names []string
	for _, i := range b.Manifest.Images {
		if i.Name == name {
			return i, nil
		}
		names = append(names, i.Name)
	}
	slices.Sort(names)
	next := ""
	if images.Reserved(name) {
		next = fmt.Sprintf("; 'pybox setup --yes --with %s' installs one that has it", name)
	}
	return bundle.Image{}, requestErr("the installed guest bundle has no image %.40q to build on; it has: %s%s", name, strings.Join(names, ", "), next)
}

// machine is the guest in which byte code is compiled: the bundle's, verified.
func machine(b *bundle.Bundle) func(context.Context) (bytecode.Machine, error) {
	return func(ctx context.Context) (bytecode.Machine, error) {
		if err := b.Verify(ctx); err != nil {
			return bytecode.Machine{}, err
		}
		m := b.Manifest
		out := bytecode.Machine{Kernel: b.Path(m.Kernel.File), Root: b.Path(m.Root), KernelArgs: m.KernelArgs}
		if m.Initramfs != nil {
			out.Initramfs = b.Path(*m.Initramfs)
		}
		return out, nil
	}
}

// readBounded reads a file of a person's, of at most limit bytes.
func readBounded(name string, limit int64) ([]byte, error) {
	st, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no file", name)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(b)) > limit {
		return nil, fmt.Errorf("%s has more than %d bytes", name, limit)
	}
	return b, nil
}

func (m *Maker) log() *slog.Logger {
	if m.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return m.Log
}

func (m *Maker) bytecodeCache() string { return filepath.Join(m.Cache, bytecodeDir) }

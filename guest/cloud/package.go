package cloud

import (
	"context"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/pybox/pybox/guest/deb"
	"github.com/pybox/pybox/guest/unpack"
)

// limits bound a package and the modules of it that are loaded, in bytes where nothing
// else is said.
type limits struct {
	kernel  int64
	count   int   // of modules
	module  int64 // one, as it is in the package
	modules int64 // all, as they are there
	builtin int64 // the list of what is built in
	plain   int64 // one module as the kernel is given it
	modinfo uint64
}

// defaultLimits are several times what Debian's packages have: a kernel of 31 MB
// (arm64) and 800 modules, of which the largest is 1 MB.
var defaultLimits = limits{
	kernel: 256 << 20, count: 20_000, module: 32 << 20, modules: 512 << 20, builtin: 4 << 20,
	plain: 8 << 20, modinfo: 1 << 20,
}

// contents is what is taken out of a package.
type contents struct {
	most    limits
	kernel  []byte
	release string            // as uname -r
	modules map[string]module // by name
	builtin map[string]bool   // names of modules that are part of the kernel
	bytes   int64             // of modules
}

// module is one file of the package. Its bytes may be compressed.
type module struct {
	path string
	data []byte
}

// read takes the kernel and all modules out of p.
func read(ctx context.Context, p unpack.Package, arch string, most limits) (*contents, error) {
	f, err := os.Open(p.File)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	c := &contents{most: most, modules: map[string]module{}}
	info, err := deb.Read(f, deb.DefaultLimits, func(e *deb.Entry) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		if e.Type != deb.File {
			return nil // a link leads to what is there anyhow, or nowhere
		}
		return c.take(e.Path, e.Size, e.Body)
	})
	switch {
	case err != nil:
		return nil, err
	case info.Package != p.Name || info.Version != p.Version || info.Architecture != arch:
		return nil, fmt.Errorf("%w: the file says it is %.80q %.80q for %.20q", unpack.ErrPackage, info.Package, info.Version, info.Architecture)
	case c.kernel == nil:
		return nil, kernelErr("it has no boot/vmlinuz-…")
	case c.builtin == nil:
		return nil, kernelErr("it has no list of what is built in (modules.builtin)")
	}
	return c, nil
}

// take looks at one file of the package. Of modules Debian has those below /lib in
// one release and below /usr/lib in another.
func (c *contents) take(p string, size int64, body io.Reader) error {
	if release, ok := strings.CutPrefix(p, "boot/vmlinuz-"); ok {
		if c.kernel != nil {
			return kernelErr("it has two kernels")
		}
		var err error
		if c.kernel, err = readAll(p, size, c.most.kernel, body); err != nil {
			return err
		}
		return c.is(release)
	}
	rest, ok := strings.CutPrefix(strings.TrimPrefix(p, "usr/"), "lib/modules/")
	if !ok {
		return nil
	}
	release, file, _ := strings.Cut(rest, "/")
	switch {
	case file == "modules.builtin":
		b, err := readAll(p, size, c.most.builtin, body)
		if err != nil {
			return err
		}
		c.builtin = parseBuiltin(string(b))
		return c.is(release)
	case strings.HasPrefix(file, "kernel/") && isModule(file):
		if err := c.is(release); err != nil {
			return err
		}
		return c.takeModule(p, size, body)
	}
	return nil
}

func (c *contents) takeModule(p string, size int64, body io.Reader) error {
	b, err := readAll(p, size, c.most.module, body)
	if err != nil {
		return err
	}
	name := moduleName(p)
	if c.bytes += size; c.bytes > c.most.modules || len(c.modules) == c.most.count {
		return kernelErr("it has more than %d modules or %d bytes of them", c.most.count, c.most.modules)
	}
	if other, dup := c.modules[name]; dup {
		return kernelErr("two modules of the name %.80q: %.200q and %.200q", name, other.path, p)
	}
	c.modules[name] = module{path: p, data: b}
	return nil
}

// is holds every part to one release.
func (c *contents) is(release string) error {
	switch {
	case c.release == "":
		c.release = release
	case c.release != release:
		return kernelErr("it has parts of two kernels, %.80q and %.80q", c.release, release)
	}
	return nil
}

func readAll(p string, size, most int64, r io.Reader) ([]byte, error) {
	if size > most {
		return nil, kernelErr("%.200q has %d bytes, more than %d", p, size, most)
	}
	b := make([]byte, size)
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, fmt.Errorf("%.200q: %w", p, err)
	}
	return b, nil
}

// parseBuiltin reads modules.builtin
// (https://docs.kernel.org/kbuild/kbuild.html#modules-builtin): a line for each
// thing that could have been a module and is not, such as "kernel/fs/fuse/fuse.ko".
func parseBuiltin(text string) map[string]bool {
	names := map[string]bool{}
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); isModule(line) {
			names[moduleName(line)] = true
		}
	}
	return names
}

// isModule holds for "x.ko" and the compressed forms that kbuild makes
// (MODULE_COMPRESS), also those that plain does not read.
func isModule(p string) bool {
	_, suffix, ok := strings.Cut(path.Base(p), ".ko")
	return ok && slices.Contains([]string{"", ".xz", ".zst", ".gz"}, suffix)
}

// moduleName is what the kernel calls the module in a file: "-" is "_" to it
// (kernel/module, and kmod's path_to_modname).
func moduleName(p string) string {
	name, _, _ := strings.Cut(path.Base(p), ".ko")
	return strings.ReplaceAll(name, "-", "_")
}

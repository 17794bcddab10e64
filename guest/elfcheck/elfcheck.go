// Package elfcheck makes sure that programs in a file tree can be started: that
// the interpreter and every shared library that an ELF file asks for is in the
// tree, where the dynamic loader of glibc would find it without a cache
// (ld.so(8)). It also finds what a program needs, so that an image can leave
// out the rest. Libraries that a program opens by name at run time (dlopen) it
// cannot see.
package elfcheck

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/pybox/pybox/guest/tree"
)

// Sentinels, to be tested with errors.Is.
var (
	// ErrMissing: a library or interpreter is not in the tree.
	ErrMissing = errors.New("missing library")
	// ErrArch: a file is for another machine.
	ErrArch = errors.New("wrong architecture")
	// ErrELF: an ELF file is damaged.
	ErrELF = errors.New("malformed ELF file")
)

const (
	maxNeeded    = 256
	maxPathBytes = 4096
)

// Checker looks for libraries in one tree.
type Checker struct {
	tree    *tree.Tree
	machine elf.Machine
	dirs    []string
}

// target is what an architecture is called elsewhere.
type target struct {
	triplet string
	machine elf.Machine
}

var targets = map[string]target{
	"amd64": {"x86_64-linux-gnu", elf.EM_X86_64},
	"arm64": {"aarch64-linux-gnu", elf.EM_AARCH64},
}

// New returns a Checker for a tree of an architecture, "amd64" or "arm64".
func New(t *tree.Tree, arch string) (*Checker, error) {
	a, ok := targets[arch]
	if !ok {
		return nil, fmt.Errorf("%w: %q", ErrArch, arch)
	}
	// Debian's glibc is built with these as its system folders.
	return &Checker{tree: t, machine: a.machine, dirs: []string{
		"lib/" + a.triplet, "usr/lib/" + a.triplet, "lib", "usr/lib"}}, nil
}

// object is what the loader reads of an ELF file.
type object struct {
	interp  string
	needed  []string
	runpath []string // RPATH or RUNPATH, $ORIGIN replaced
}

// All checks every ELF file of the tree. It reports everything that is missing
// at once, in the order of paths.
func (c *Checker) All() error {
	var errs []error
	for _, n := range c.tree.Nodes() {
		if n.Kind != tree.File || !IsELF(n.Data) {
			continue
		}
		if _, err := c.direct(n); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Closure returns, sorted, the paths of the given programs and libraries and of
// everything that they need to be started: libraries, the interpreter, and the
// symbolic links on the way to them.
func (c *Checker) Closure(roots ...string) ([]string, error) {
	keep := map[string]bool{}
	queue := slices.Clone(roots)
	for len(queue) > 0 {
		p := queue[0]
		queue = queue[1:]
		n, links, err := c.tree.Resolve(p)
		if err != nil {
			return nil, err
		}
		for _, l := range links {
			keep[l.Path] = true
		}
		if keep[n.Path] {
			continue
		}
		keep[n.Path] = true
		if n.Kind != tree.File || !IsELF(n.Data) {
			continue
		}
		more, err := c.direct(n)
		if err != nil {
			return nil, err
		}
		queue = append(queue, more...)
	}
	out := make([]string, 0, len(keep))
	for p := range keep {
		out = append(out, p)
	}
	slices.Sort(out)
	return out, nil
}

// Program makes sure that n is an ELF program for the tree's architecture whose
// interpreter, where it needs one, is in the tree. Libraries are not looked for: a
// loader with a cache, or that of another C library, finds them in other places.
func (c *Checker) Program(n *tree.Node) error {
	o, err := read(n, c.machine)
	if err != nil {
		return err
	}
	if o.interp == "" {
		return nil
	}
	if p, _, err := c.tree.Resolve(o.interp); err != nil || p.Kind != tree.File {
		return fmt.Errorf("%w: interpreter %.200q", ErrMissing, o.interp)
	}
	return nil
}

// Missing returns the libraries that n, which is an ELF file, needs and the loader
// would not find by itself. A program that has loaded one of that name from elsewhere
// does without.
func (c *Checker) Missing(n *tree.Node) ([]string, error) {
	o, err := read(n, c.machine)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(o.needed, func(lib string) bool { return c.find(lib, o.runpath) != "" }), nil
}

// IsELF tells whether b starts like an ELF file.
func IsELF(b []byte) bool { return bytes.HasPrefix(b, []byte(elf.ELFMAG)) }

// CheckStatic makes sure that b is an ELF program for arch that needs no
// interpreter and no libraries.
func CheckStatic(b []byte, arch string) error {
	a, ok := targets[arch]
	if !ok {
		return fmt.Errorf("%w: %q", ErrArch, arch)
	}
	o, err := read(&tree.Node{Path: ".", Data: b}, a.machine)
	if err != nil {
		return err
	}
	if o.interp != "" || len(o.needed) > 0 {
		return fmt.Errorf("%w: it is dynamically linked and needs %s; build it with CGO_ENABLED=0", ErrMissing,
			strings.Join(append(o.needed, o.interp), " "))
	}
	return nil
}

// direct returns where the interpreter and the libraries of n are.
func (c *Checker) direct(n *tree.Node) ([]string, error) {
	o, err := read(n, c.machine)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", n.Path, err)
	}
	var found []string
	if o.interp != "" {
		if _, _, err := c.tree.Resolve(o.interp); err != nil {
			return nil, fmt.Errorf("%s: %w: interpreter %s", n.Path, ErrMissing, o.interp)
		}
		found = append(found, o.interp)
	}
	for _, lib := range o.needed {
		p := c.find(lib, o.runpath)
		if p == "" {
			return nil, fmt.Errorf("%s: %w: %s", n.Path, ErrMissing, lib)
		}
		found = append(found, p)
	}
	return found, nil
}

func (c *Checker) find(lib string, runpath []string) string {
	if strings.Contains(lib, "/") {
		return c.file(lib)
	}
	for _, d := range slices.Concat(runpath, c.dirs) {
		if p := c.file(path.Join(d, lib)); p != "" {
			return p
		}
	}
	return ""
}

// file returns p when it is an ELF file of the right machine: the loader passes
// over others.
func (c *Checker) file(p string) string {
	n, _, err := c.tree.Resolve(p)
	if err != nil || n.Kind != tree.File {
		return ""
	}
	if _, err := read(n, c.machine); err != nil {
		return ""
	}
	return p
}

// read parses the parts of an ELF file that the loader uses. debug/elf is made
// to stand damaged input, but a tree's files may be hostile: a panic there must
// not end a daemon.
func read(n *tree.Node, want elf.Machine) (o object, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", ErrELF, r)
		}
	}()
	f, err := elf.NewFile(bytes.NewReader(n.Data))
	if err != nil {
		return o, fmt.Errorf("%w: %w", ErrELF, err)
	}
	defer f.Close()
	if f.Machine != want {
		return o, fmt.Errorf("%w: it is for %v instead of %v", ErrArch, f.Machine, want)
	}
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		b, err := io.ReadAll(io.LimitReader(p.Open(), maxPathBytes))
		if err != nil {
			return o, fmt.Errorf("%w: interpreter: %w", ErrELF, err)
		}
		o.interp = string(bytes.TrimRight(b, "\x00"))
	}
	if o.needed, err = f.ImportedLibraries(); err != nil {
		return o, fmt.Errorf("%w: needed libraries: %w", ErrELF, err)
	}
	if len(o.needed) > maxNeeded {
		return o, fmt.Errorf("%w: it needs %d libraries", ErrELF, len(o.needed))
	}
	for _, tag := range []elf.DynTag{elf.DT_RUNPATH, elf.DT_RPATH} {
		dirs, err := f.DynString(tag)
		if err != nil {
			return o, fmt.Errorf("%w: %v: %w", ErrELF, tag, err)
		}
		for d := range strings.SplitSeq(strings.Join(dirs, ":"), ":") {
			if d = strings.NewReplacer("$ORIGIN", "/"+path.Dir(n.Path), "${ORIGIN}", "/"+path.Dir(n.Path)).Replace(d); d != "" {
				o.runpath = append(o.runpath, d)
			}
		}
	}
	return o, nil
}

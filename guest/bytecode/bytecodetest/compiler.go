// Package bytecodetest has a compiler for tests that need no virtual machine.
package bytecodetest

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	goerofs "github.com/erofs/go-erofs"

	"github.com/pybox/pybox/guest/bytecode"
	"github.com/pybox/pybox/guest/layout"
)

// Compiler makes byte code with right headers and nothing behind them for every
// source of an image that has none. It implements bytecode.Compiler.
type Compiler struct {
	GuestArch string
	// Jobs are those that it was given.
	Jobs []bytecode.Job
	// Compiled are the paths of the sources that it made byte code for.
	Compiled []string
	// Record are files that it adds to what it made, by their paths; may be nil.
	Record map[string]string
	// Err is what Compile returns in the end.
	Err error
	// Skip tells which sources "cannot be compiled", Lose those of which nothing is
	// handed back; both may be nil.
	Skip, Lose func(source string) bool
	// Look looks at the image of a job; may be nil.
	Look func(img fs.FS) error
	// Change changes files on their way out; may be nil.
	Change func(h *tar.Header, pyc []byte) []byte
}

// Arch implements bytecode.Compiler.
func (c *Compiler) Arch() string { return c.GuestArch }

// Version implements bytecode.Compiler.
func (c *Compiler) Version() string { return "test" }

// Compile implements bytecode.Compiler.
func (c *Compiler) Compile(ctx context.Context, j bytecode.Job, w io.Writer) error {
	c.Jobs = append(c.Jobs, j)
	f, err := os.Open(j.Image)
	if err != nil {
		return err
	}
	defer f.Close()
	img, err := goerofs.Open(f)
	if err != nil {
		return err
	}
	if c.Look != nil {
		if err := c.Look(img); err != nil {
			return err
		}
	}
	j.Progress("compiling")
	out := tar.NewWriter(w)
	dirs, root := []string{"usr/lib", "usr/local/lib"}, ""
	if _, err := fs.Stat(img, layout.Sources); err == nil {
		dirs, root = []string{layout.Sources}, layout.Sources+"/"
	}
	for _, dir := range dirs {
		if err := c.walk(img, dir, root, out); err != nil {
			return err
		}
	}
	for _, p := range slices.Sorted(maps.Keys(c.Record)) {
		h := &tar.Header{Name: p, Typeflag: tar.TypeReg, Size: int64(len(c.Record[p]))}
		if err := out.WriteHeader(h); err != nil {
			return err
		}
		if _, err := io.WriteString(out, c.Record[p]); err != nil {
			return err
		}
	}
	if err := out.Close(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return c.Err
}

// walk compiles what is below a folder, which need not be there, with paths from root.
func (c *Compiler) walk(img fs.FS, dir, root string, out *tar.Writer) error {
	if _, err := fs.Stat(img, dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return fs.WalkDir(img, dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || path.Ext(p) != ".py" {
			return err
		}
		name := strings.TrimPrefix(p, root)
		if _, err := fs.Stat(img, bytecode.Target(p)); err == nil || c.Lose != nil && c.Lose(name) {
			return nil
		}
		if c.Skip != nil && c.Skip(name) {
			return out.WriteHeader(&tar.Header{Name: bytecode.Target(name), Typeflag: tar.TypeReg})
		}
		c.Compiled = append(c.Compiled, name)
		source, err := fs.ReadFile(img, p)
		if err != nil {
			return err
		}
		return c.add(out, name, source)
	})
}

func (c *Compiler) add(out *tar.Writer, source string, text []byte) error {
	pyc := fmt.Appendf(bytecode.Header(text), "c byte code of %s", source)
	h := &tar.Header{Name: bytecode.Target(source), Typeflag: tar.TypeReg}
	if c.Change != nil {
		pyc = c.Change(h, pyc)
	}
	h.Size = int64(len(pyc))
	if err := out.WriteHeader(h); err != nil {
		return err
	}
	_, err := out.Write(pyc)
	return err
}

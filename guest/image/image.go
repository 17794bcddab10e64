// Package image makes the read-only file systems that boxes run on, out of
// Debian packages: Python, its libraries, and the few files that a program looks
// for in /etc. There is no shell, no package manager and no setuid program, and
// everything belongs to root. It makes trees only: package erofs writes them.
package image

import (
	"context"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/pybox/pybox/guest/elfcheck"
	"github.com/pybox/pybox/guest/layout"
	"github.com/pybox/pybox/guest/tree"
	"github.com/pybox/pybox/guest/unpack"
)

// Python is the minor version of the interpreter of all images; its programs,
// folders and byte code bear it in their names.
const Python = "3.13"

const library = "usr/lib/python" + Python

// IsStandard tells whether a path in an image is that of a file of the standard
// library, which all images have alike.
func IsStandard(p string) bool { return strings.HasPrefix(p, library+"/") }

// dropped are files of the packages that no image wants: Python's own tests, and
// a start-up file that only looks for Ubuntu's crash reporter, on every start. Of
// programs, an image has those of Python alone (see isDropped).
var dropped = []string{
	library + "/test", library + "/sitecustomize.py", "etc/python" + Python,
}

// droppedModules are the extension modules that only those tests import.
var droppedModules = []string{"_ctypes_test", "_test*", "_xxtestfuzz", "xxlimited*", "xxsubtype"}

// Stdlib puts the tree of the image "stdlib" together for arch, "amd64" or
// "arm64", from packages sorted by name. It fails where a library of any program
// or extension module is missing, where a link leads to nothing, and where the
// tree breaks the layout of a box's image.
func Stdlib(ctx context.Context, arch string, packages []unpack.Package) (*tree.Tree, error) {
	t, err := python(ctx, arch, packages, isDropped)
	if err != nil {
		return nil, err
	}
	return t, check(t, arch)
}

// python is the tree that every image begins with: Python, and the packages without
// what drop holds for.
func python(ctx context.Context, arch string, packages []unpack.Package, drop func(unpack.Package, string) bool) (*tree.Tree, error) {
	t, err := skeleton().Tree()
	if err != nil {
		return nil, err
	}
	if err := t.Symlink(interpreter, "python"+Python, tree.Attr{}); err != nil {
		return nil, err
	}
	_, err = unpack.All(ctx, t, arch, packages, drop)
	return t, err
}

// interpreter is a link that no package here may bring: python3 itself is one that
// packages of a person's choice depend on.
const interpreter = "usr/bin/python3"

// isDropped tells what stays out of an image. A package that a person added comes
// with its programs and all.
func isDropped(pkg unpack.Package, p string) bool {
	if pkg.Added {
		return p == interpreter
	}
	for _, d := range dropped {
		if p == d || strings.HasPrefix(p, d+"/") {
			return true
		}
	}
	switch path.Dir(p) {
	case "usr/bin", "usr/sbin":
		return !strings.HasSuffix(p, Python)
	case library + "/lib-dynload":
		return isTestModule(path.Base(p))
	}
	return false
}

// isTestModule tells by the file name of an extension module.
func isTestModule(file string) bool {
	module, _, _ := strings.Cut(file, ".")
	for _, pattern := range droppedModules {
		if ok, _ := path.Match(pattern, module); ok {
			return true
		}
	}
	return false
}

// check makes sure that what is in the tree works together and in a box.
func check(t *tree.Tree, arch string) error {
	if err := CheckLayout(t); err != nil {
		return err
	}
	if _, _, err := t.Resolve(interpreter); err != nil {
		return fmt.Errorf("%w: no interpreter: %w", layout.Err, err)
	}
	c, err := elfcheck.New(t, arch)
	if err != nil {
		return err
	}
	if err := c.All(); err != nil {
		return err
	}
	if d := t.Dangling(); len(d) > 0 {
		return fmt.Errorf("%w: links to nothing: %s", layout.Err, strings.Join(d, ", "))
	}
	return nil
}

// CheckLayout is layout.Check for a tree.
func CheckLayout(t *tree.Tree) error {
	return layout.Check(func(p string) (fs.FileMode, error) {
		n := t.Lookup(p)
		switch {
		case n == nil:
			return 0, fs.ErrNotExist
		case n.Kind == tree.Dir:
			return fs.ModeDir | n.Mode, nil
		case n.Kind == tree.Symlink:
			return fs.ModeSymlink | n.Mode, nil
		}
		return n.Mode, nil
	})
}

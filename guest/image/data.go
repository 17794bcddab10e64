package image

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/pybox/pybox/guest/layout"
	"github.com/pybox/pybox/guest/tree"
	"github.com/pybox/pybox/guest/unpack"
)

// packagesDir is where Debian's packages of Python modules are.
const packagesDir = "usr/lib/python3/dist-packages"

// dataDropped are files of the packages of "data" that it does without: what a
// browser or another program would use, and links to headers that are not there.
var dataDropped = []string{
	packagesDir + "/matplotlib/backends/web_backend",
	packagesDir + "/numpy/_core/include", packagesDir + "/numpy/_core/lib", packagesDir + "/numpy/random/lib",
	packagesDir + "/numpy/f2py/src",
	"usr/lib/tmpfiles.d", "usr/share/fonts/X11", "usr/share/gcc", "usr/share/gdb", "usr/share/glib-2.0", "usr/share/libc-bin",
}

// testsKept are files in folders of tests that other modules import.
var testsKept = []string{
	packagesDir + "/numpy/_core/tests/__init__.py", packagesDir + "/numpy/_core/tests/_natype.py",
}

// blasDir is the folder of OpenBLAS below that of the libraries, and blasNames what
// programs are linked to: Debian's alternatives system makes links to the best that
// is installed, which here is the only one.
const blasDir = "openblas-pthread"

var blasNames = []string{"libblas.so.3", "liblapack.so.3", "libopenblas.so.0"}

// Data puts the tree of the image "data" together: Stdlib's, and numpy, pandas and
// matplotlib. It fails as Stdlib does.
func Data(ctx context.Context, arch string, packages []unpack.Package) (*tree.Tree, error) {
	t, err := python(ctx, arch, packages, isDroppedFromData)
	if err != nil {
		return nil, err
	}
	triplet := layout.Triplet(arch)
	if triplet == "" {
		return nil, fmt.Errorf("%w: for %.20q", layout.Err, arch)
	}
	for _, name := range blasNames {
		if err := t.Symlink(path.Join("usr/lib", triplet, name), path.Join(blasDir, name), tree.Attr{}); err != nil {
			return nil, err
		}
	}
	return t, check(t, arch)
}

// isDroppedFromData tells what stays out of "data".
func isDroppedFromData(pkg unpack.Package, p string) bool {
	if isDropped(pkg, p) {
		return true
	}
	if pkg.Added {
		return false
	}
	return isTest(p) || slices.ContainsFunc(dataDropped, func(d string) bool { return p == d || strings.HasPrefix(p, d+"/") })
}

// isTest holds for the tests of the modules, a quarter of all: they are in folders of
// the name tests.
func isTest(p string) bool {
	rest, ok := strings.CutPrefix(p, packagesDir+"/")
	return ok && strings.Contains("/"+rest+"/", "/tests/") && !slices.Contains(testsKept, p) && !isAbove(p, testsKept)
}

// isAbove tells whether a folder is on the way to one of the files.
func isAbove(p string, files []string) bool {
	return slices.ContainsFunc(files, func(f string) bool { return strings.HasPrefix(f, p+"/") })
}

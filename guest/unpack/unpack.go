// Package unpack puts the files of Debian packages into a file tree, as far as
// every image of PyBox treats them alike: /usr is merged, everything belongs to
// root, documentation stays behind but for the copyright files, and a file that
// two packages have is an error. Maintainer scripts never run; what they would
// have done, the packages that make an image do.
package unpack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/pybox/pybox/guest/deb"
	"github.com/pybox/pybox/guest/debian"
	"github.com/pybox/pybox/guest/tree"
)

// VersionsPath is a file with a line "name version" for each package of an image,
// sorted by name: what is in it can be told without starting a program.
const VersionsPath = "etc/pybox/versions"

// Merged are the links of a merged /usr (https://wiki.debian.org/UsrMerge), each
// to the folder of its name below usr.
var Merged = []string{"bin", "sbin", "lib", "lib64"}

// dropped are the folders of packages that no image wants: help for people and
// for other packages, headers, state, and character sets that only iconv reads.
var dropped = []string{
	"usr/include",
	"usr/lib/aarch64-linux-gnu/gconv", "usr/lib/x86_64-linux-gnu/gconv",
	"usr/lib/binfmt.d",
	"usr/share/applications", "usr/share/bash-completion", "usr/share/binfmts", "usr/share/bug",
	"usr/share/doc-base", "usr/share/info", "usr/share/lintian", "usr/share/locale", "usr/share/man",
	"usr/share/pixmaps",
	"var",
}

// ErrPackage marks a package file that is not the package it should be.
var ErrPackage = errors.New("unexpected package")

// Package is a locked package and where its file is.
type Package struct {
	debian.Entry
	File string
}

// NewTree returns a tree with the folders and links of a merged /usr.
func NewTree() (*tree.Tree, error) {
	t := tree.New(tree.DefaultLimits)
	for _, l := range Merged {
		if err := t.Alias(l, "usr/"+l); err != nil {
			return nil, fmt.Errorf("merged /usr: %w", err)
		}
	}
	return t, nil
}

// All adds the files of packages, which are sorted by name, for arch ("amd64" or
// "arm64"), and VersionsPath. Paths for which drop (may be nil) holds stay out.
// Errors match ErrPackage or those of the packages deb and tree.
//
// It returns the paths, folders aside, that packages which a person added brought
// along. Those are wanted whole, so whoever trims the tree leaves them alone; only a
// link of theirs that leads to nothing, as into documentation, stays out.
func All(ctx context.Context, t *tree.Tree, arch string, packages []Package, drop func(p Package, path string) bool) (added []string, err error) {
	var versions strings.Builder
	for _, p := range packages {
		paths, err := one(ctx, t, p, arch, drop)
		if err != nil {
			return nil, fmt.Errorf("package %s %s: %w", p.Name, p.Version, err)
		}
		if p.Added {
			added = append(added, paths...)
		}
		fmt.Fprintf(&versions, "%s %s\n", p.Name, p.Version)
	}
	added = slices.DeleteFunc(added, func(path string) bool {
		if _, _, err := t.Resolve(path); err == nil {
			return false
		}
		t.Remove(path)
		return true
	})
	return added, t.WriteFile(VersionsPath, []byte(versions.String()), tree.Attr{Mode: 0o644})
}

// one adds the files of a package and returns their paths.
func one(ctx context.Context, t *tree.Tree, p Package, arch string, drop func(Package, string) bool) (paths []string, err error) {
	f, err := os.Open(p.File)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := deb.Read(f, deb.DefaultLimits, func(e *deb.Entry) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		c, err := t.Canonical(e.Path)
		if err != nil {
			return err
		}
		if c == "." || isDropped(c) || drop != nil && drop(p, c) {
			return nil
		}
		if e.Type != deb.Dir {
			paths = append(paths, c)
		}
		return add(t, c, e)
	})
	if err != nil {
		return nil, err
	}
	if info.Package != p.Name || info.Version != p.Version || info.Architecture != arch && info.Architecture != debian.ArchAll {
		return nil, fmt.Errorf("%w: the file says it is %.80q %.80q for %.20q", ErrPackage, info.Package, info.Version, info.Architecture)
	}
	return paths, nil
}

// add adds an entry under its canonical path. Everything belongs to root.
func add(t *tree.Tree, c string, e *deb.Entry) error {
	a := tree.Attr{Mode: e.Mode}
	switch e.Type {
	case deb.Dir:
		if n := t.Lookup(c); n != nil && n.Kind == tree.Dir {
			return nil // ours, or another package's
		}
		return t.Mkdir(c, tree.Attr{Mode: 0o755})
	case deb.File:
		b, err := io.ReadAll(e.Body)
		if err != nil {
			return err
		}
		return t.WriteFile(c, b, a)
	case deb.Symlink:
		return t.Symlink(c, e.Target, a)
	case deb.Link:
		return t.Link(c, e.Target)
	}
	return fmt.Errorf("%w: %q", deb.ErrRefused, e.Path)
}

func isDropped(p string) bool {
	if isBelow(p, "usr/share/doc") {
		return !IsCopyright(p)
	}
	return slices.ContainsFunc(dropped, func(d string) bool { return isBelow(p, d) })
}

func isBelow(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }

// IsCopyright holds for usr/share/doc, usr/share/doc/PACKAGE, which may be a link
// to another package's folder, and usr/share/doc/PACKAGE/copyright, which must go
// wherever the program goes.
func IsCopyright(p string) bool {
	rest, ok := strings.CutPrefix(p, "usr/share/doc/")
	if !ok {
		return p == "usr/share/doc"
	}
	_, name, deeper := strings.Cut(rest, "/")
	return !deeper || name == "copyright"
}

// RemoveEmptyDirs removes, deepest first, the folders that hold nothing, but for
// those that keep holds for.
func RemoveEmptyDirs(t *tree.Tree, keep func(path string) bool) {
	children := map[string]int{}
	nodes := t.Nodes()
	for _, n := range nodes {
		children[path.Dir(n.Path)]++
	}
	for _, n := range slices.Backward(nodes) {
		if n.Kind == tree.Dir && n.Path != "." && !keep(n.Path) && children[n.Path] == 0 {
			t.Remove(n.Path)
			children[path.Dir(n.Path)]--
		}
	}
}

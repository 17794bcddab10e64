// Package rootfs makes the read-only root file system of the guest itself: the
// OCI runtime from Debian with exactly the libraries that it is linked to, the
// agent, and a handful of files and mount points. There is no shell, no package
// manager and no init system; the kernel starts the agent as PID 1.
//
// Debian's maintainer scripts never run. What they would have done for these
// packages, the files of skeleton.go do.
package rootfs

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
	"github.com/pybox/pybox/guest/elfcheck"
	"github.com/pybox/pybox/guest/tree"
)

// AgentPath is where the agent's program is; /sbin/init leads to it.
const AgentPath = "usr/sbin/pybox-agent"

// VersionsPath is a file with a line "name version" for each package in the
// root, sorted by name. The agent reports them without starting a program.
const VersionsPath = "etc/pybox/versions"

// programs are what the guest starts besides the agent.
var programs = []string{"usr/bin/crun"}

// opened are libraries that no ELF header asks for: glibc opens libgcc_s when a
// thread is cancelled or exits by itself, and ends the process without it.
var opened = []string{"libgcc_s.so.1"}

// dropped are the folders of packages that never come into the tree.
var dropped = []string{
	"usr/share/bash-completion", "usr/share/bug", "usr/share/doc-base", "usr/share/info", "usr/share/lintian",
	"usr/share/locale", "usr/share/man", "usr/lib/x86_64-linux-gnu/gconv", "usr/lib/aarch64-linux-gnu/gconv",
	"usr/include", "var",
}

// ErrPackage marks a package file that is not the package it should be.
var ErrPackage = errors.New("unexpected package")

// Package is a locked package and where its file is.
type Package struct {
	debian.Entry
	File string
}

// Build puts the root's tree together for arch, "amd64" or "arm64", from
// packages sorted by name. It fails when a program's library is missing or a
// link leads to nothing.
func Build(ctx context.Context, arch string, packages []Package, agent []byte) (*tree.Tree, error) {
	if err := elfcheck.CheckStatic(agent, arch); err != nil {
		return nil, fmt.Errorf("the agent's program: %w", err)
	}
	t, err := skeleton()
	if err != nil {
		return nil, err
	}
	for _, p := range packages {
		if err := unpack(ctx, t, p, arch); err != nil {
			return nil, fmt.Errorf("package %s %s: %w", p.Name, p.Version, err)
		}
	}
	if err := trim(t, arch); err != nil {
		return nil, err
	}
	if err := addAgent(t, agent); err != nil {
		return nil, err
	}
	if err := addVersions(t, packages); err != nil {
		return nil, err
	}
	return t, check(t, arch)
}

func addVersions(t *tree.Tree, packages []Package) error {
	var b strings.Builder
	for _, p := range packages {
		fmt.Fprintf(&b, "%s %s\n", p.Name, p.Version)
	}
	return t.WriteFile(VersionsPath, []byte(b.String()), tree.Attr{Mode: 0o644})
}

// unpack adds the files of a package.
func unpack(ctx context.Context, t *tree.Tree, p Package, arch string) error {
	f, err := os.Open(p.File)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := deb.Read(f, deb.DefaultLimits, func(e *deb.Entry) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		return add(t, e)
	})
	if err != nil {
		return err
	}
	if info.Package != p.Name || info.Version != p.Version || info.Architecture != arch && info.Architecture != debian.ArchAll {
		return fmt.Errorf("%w: the file says it is %.80q %.80q for %.20q", ErrPackage, info.Package, info.Version, info.Architecture)
	}
	return nil
}

func add(t *tree.Tree, e *deb.Entry) error {
	c, err := t.Canonical(e.Path)
	if err != nil {
		return err
	}
	if c == "." || isDropped(c) {
		return nil
	}
	// Everything in the root belongs to root.
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

// isDropped drops folders, and of documentation all but the copyright files,
// which must go wherever the programs go.
func isDropped(p string) bool {
	for _, d := range dropped {
		if p == d || strings.HasPrefix(p, d+"/") {
			return true
		}
	}
	return false
}

func addAgent(t *tree.Tree, agent []byte) error {
	if err := t.WriteFile(AgentPath, agent, tree.Attr{Mode: 0o755}); err != nil {
		return err
	}
	return t.Symlink(path.Join(path.Dir(AgentPath), "init"), path.Base(AgentPath), tree.Attr{})
}

// trim removes every file of the packages that nothing needs.
func trim(t *tree.Tree, arch string) error {
	c, err := elfcheck.New(t, arch)
	if err != nil {
		return err
	}
	roots := slices.Clone(programs)
	for _, n := range t.Nodes() {
		if n.Kind != tree.Dir && slices.Contains(opened, path.Base(n.Path)) {
			roots = append(roots, n.Path)
		}
	}
	needed, err := c.Closure(roots...)
	if err != nil {
		return fmt.Errorf("what the root's programs need: %w", err)
	}
	keep := map[string]bool{}
	for _, p := range needed {
		keep[p] = true
	}
	for _, p := range skeletonPaths() {
		keep[p] = true
	}
	nodes := t.Nodes()
	for _, n := range nodes {
		if n.Kind != tree.Dir && !keep[n.Path] && !isCopyright(n.Path) {
			t.Remove(n.Path)
		}
	}
	removeEmptyDirs(t, keep)
	return nil
}

// isCopyright holds for usr/share/doc/PACKAGE and usr/share/doc/PACKAGE/copyright:
// the former may be a link to another package's folder.
func isCopyright(p string) bool {
	rest, ok := strings.CutPrefix(p, "usr/share/doc/")
	if !ok {
		return false
	}
	_, name, deeper := strings.Cut(rest, "/")
	return !deeper || name == "copyright"
}

// removeEmptyDirs removes folders, deepest first, that only held what is gone.
func removeEmptyDirs(t *tree.Tree, keep map[string]bool) {
	children := map[string]int{}
	nodes := t.Nodes()
	for _, n := range nodes {
		children[path.Dir(n.Path)]++
	}
	for _, n := range slices.Backward(nodes) {
		if n.Kind == tree.Dir && n.Path != "." && !keep[n.Path] && children[n.Path] == 0 {
			t.Remove(n.Path)
			children[path.Dir(n.Path)]--
		}
	}
}

// check makes sure that what is in the tree works together.
func check(t *tree.Tree, arch string) error {
	c, err := elfcheck.New(t, arch)
	if err != nil {
		return err
	}
	if err := c.All(); err != nil {
		return fmt.Errorf("the guest's root: %w", err)
	}
	if d := t.Dangling(); len(d) > 0 {
		return fmt.Errorf("the guest's root has links to nothing: %s", strings.Join(d, ", "))
	}
	return nil
}

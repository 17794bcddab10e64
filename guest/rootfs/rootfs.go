// Package rootfs makes the read-only root file system of the guest itself: the
// OCI runtime from Debian with exactly the libraries that it is linked to, the
// agent, and a handful of files and mount points. There is no package manager and
// no init system; the kernel starts the agent as PID 1. Nothing in it is a shell
// by its name: busybox is there for a person who looks inside, and nothing that
// the guest does by itself starts it.
//
// Debian's maintainer scripts never run. What they would have done for these
// packages, the files of skeleton.go do.
package rootfs

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/pybox/pybox/guest/elfcheck"
	"github.com/pybox/pybox/guest/tree"
	"github.com/pybox/pybox/guest/unpack"
)

// Where the guest's own programs are: PID 1, and the agent that it starts.
const (
	InitPath  = "usr/sbin/init"
	AgentPath = "usr/sbin/pybox-agent"
)

// programs are what is started in the guest besides the agent: the OCI runtime by
// the agent, and busybox by a person alone. Busybox is called by its own name,
// without a link for each of its applets, so no other program finds one by chance.
var programs = []string{"usr/bin/busybox", "usr/bin/crun"}

// opened are libraries that no ELF header asks for: glibc opens libgcc_s when a
// thread is cancelled or exits by itself, and ends the process without it.
var opened = []string{"libgcc_s.so.1"}

// Build puts the root's tree together for arch, "amd64" or "arm64", from
// packages sorted by name. It fails when a program's library is missing or a
// link leads to nothing.
func Build(ctx context.Context, arch string, packages []unpack.Package, init, agent []byte) (*tree.Tree, error) {
	if err := elfcheck.CheckStatic(init, arch); err != nil {
		return nil, fmt.Errorf("the program of PID 1: %w", err)
	}
	if err := elfcheck.CheckStatic(agent, arch); err != nil {
		return nil, fmt.Errorf("the agent's program: %w", err)
	}
	t, err := skeleton.Tree()
	if err != nil {
		return nil, err
	}
	added, err := unpack.All(ctx, t, arch, packages, nil)
	if err != nil {
		return nil, err
	}
	if err := trim(t, arch, added); err != nil {
		return nil, err
	}
	for _, p := range []struct {
		path string
		text []byte
	}{{InitPath, init}, {AgentPath, agent}} {
		if err := t.WriteFile(p.path, p.text, tree.Attr{Mode: 0o755}); err != nil {
			return nil, err
		}
	}
	return t, check(t, arch)
}

// trim removes every file of the packages that nothing needs. What a person added is
// needed.
func trim(t *tree.Tree, arch string, added []string) error {
	c, err := elfcheck.New(t, arch)
	if err != nil {
		return err
	}
	roots := slices.Concat(programs, added)
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
	for _, p := range skeleton.Paths() {
		keep[p] = true
	}
	nodes := t.Nodes()
	for _, n := range nodes {
		if n.Kind != tree.Dir && !keep[n.Path] && !unpack.IsCopyright(n.Path) {
			t.Remove(n.Path)
		}
	}
	unpack.RemoveEmptyDirs(t, func(p string) bool { return keep[p] })
	return nil
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

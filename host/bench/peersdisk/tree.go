package main

import (
	"context"
	"fmt"
	"path"
	"slices"

	"github.com/pybox/pybox/guest/elfcheck"
	"github.com/pybox/pybox/guest/tree"
	"github.com/pybox/pybox/guest/unpack"
)

// programs are what the benchmark starts, and what those start themselves.
var programs = []string{
	"usr/bin/containerd", "usr/bin/containerd-shim-runc-v2", "usr/bin/crun", "usr/bin/ctr",
	"usr/bin/docker", "usr/sbin/dockerd", "usr/sbin/runc",
}

// kept are files that are no programs: the configuration that Debian ships. glibc opens
// libgcc_s by its name.
var kept = []string{"etc/containerd/config.toml"}

const opened = "libgcc_s.so.1"

// skeleton is the tree before any package: what is mounted over, and what base-files
// and base-passwd would have made.
var skeleton = unpack.Skeleton{
	Folders: []unpack.Folder{
		{Path: "dev", Attr: tree.Attr{Mode: 0o755}},
		{Path: "etc/cni/net.d", Attr: tree.Attr{Mode: 0o755}},
		{Path: "etc/docker", Attr: tree.Attr{Mode: 0o755}},
		{Path: "images", Attr: tree.Attr{Mode: 0o755}},
		{Path: "proc", Attr: tree.Attr{Mode: 0o555}},
		{Path: "root", Attr: tree.Attr{Mode: 0o700}},
		{Path: "run", Attr: tree.Attr{Mode: 0o755}},
		{Path: "sys", Attr: tree.Attr{Mode: 0o555}},
		{Path: "tmp", Attr: tree.Attr{Mode: 0o755}},
		{Path: "var", Attr: tree.Attr{Mode: 0o755}},
	},
	Files: []unpack.TextFile{
		{Path: "etc/group", Text: "root:x:0:\ndocker:x:999:\nnogroup:x:65534:\n"},
		{Path: "etc/hosts", Text: "127.0.0.1 localhost\n"},
		{Path: "etc/nsswitch.conf", Text: "passwd: files\ngroup: files\nhosts: files\n"},
		{Path: "etc/passwd", Text: "root:x:0:0:root:/root:/nonexistent\nnobody:x:65534:65534:nobody:/nonexistent:/nonexistent\n"},
		{Path: "etc/resolv.conf", Text: ""},
		{Path: "usr/lib/os-release", Text: "NAME=\"PyBox peers\"\nPRETTY_NAME=\"PyBox peers (from Debian 13 packages)\"\nID=pybox\nID_LIKE=debian\nVERSION_ID=\"1\"\n"},
	},
}

// disk puts the tree together for arch from packages sorted by name. It fails where a
// library of a program is missing.
func disk(ctx context.Context, arch string, packages []unpack.Package) (*tree.Tree, error) {
	t, err := skeleton.Tree()
	if err != nil {
		return nil, err
	}
	if _, err := unpack.All(ctx, t, arch, packages, nil); err != nil {
		return nil, err
	}
	c, err := elfcheck.New(t, arch)
	if err != nil {
		return nil, err
	}
	roots := slices.Clone(programs)
	for _, n := range t.Nodes() {
		if n.Kind != tree.Dir && path.Base(n.Path) == opened {
			roots = append(roots, n.Path)
		}
	}
	needed, err := c.Closure(roots...)
	if err != nil {
		return nil, fmt.Errorf("what the peers need: %w", err)
	}
	trim(t, slices.Concat(needed, kept, skeleton.Paths()))
	return t, nil
}

// trim removes what is neither to be kept nor a licence.
func trim(t *tree.Tree, keep []string) {
	all := map[string]bool{}
	for _, p := range keep {
		all[p] = true
	}
	for _, n := range t.Nodes() {
		if n.Kind != tree.Dir && !all[n.Path] && !unpack.IsCopyright(n.Path) {
			t.Remove(n.Path)
		}
	}
	unpack.RemoveEmptyDirs(t, func(p string) bool { return all[p] })
}

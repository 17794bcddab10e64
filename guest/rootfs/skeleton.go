package rootfs

import (
	"fmt"

	"github.com/pybox/pybox/guest/tree"
	"github.com/pybox/pybox/guest/unpack"
)

// mountPoints are folders that the agent mounts something on, and those that
// programs expect to be there.
var mountPoints = []struct {
	path string
	attr tree.Attr
}{
	{"box", tree.Attr{Mode: 0o755}},
	{"dev", tree.Attr{Mode: 0o755}},
	{"proc", tree.Attr{Mode: 0o555}},
	{"root", tree.Attr{Mode: 0o700}},
	{"run", tree.Attr{Mode: 0o755}},
	{"sys", tree.Attr{Mode: 0o555}},
	{"tmp", tree.Attr{Mode: 0o755}}, // a tmpfs of mode 1777 is mounted here
	{"var/lib", tree.Attr{Mode: 0o755}},
}

// files are what base-files, base-passwd and friends would have made.
var files = []struct{ path, text string }{
	{"etc/group", "root:x:0:\nnogroup:x:65534:\n"},
	{"etc/hostname", "pybox\n"},
	{"etc/hosts", "127.0.0.1 localhost\n::1 localhost\n"},
	{"etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n"},
	{"etc/passwd", "root:x:0:0:root:/root:/nonexistent\nnobody:x:65534:65534:nobody:/nonexistent:/nonexistent\n"},
	{"usr/lib/os-release", "NAME=\"PyBox guest\"\nPRETTY_NAME=\"PyBox guest (from Debian 13 packages)\"\nID=pybox\nID_LIKE=debian\nVERSION_ID=\"1\"\n"},
}

var links = []struct{ path, target string }{
	{"etc/os-release", "../usr/lib/os-release"},
	{"var/run", "../run"},
	{"var/tmp", "../tmp"},
}

// skeleton is the tree before any package.
func skeleton() (*tree.Tree, error) {
	t, err := unpack.NewTree()
	if err != nil {
		return nil, err
	}
	for _, m := range mountPoints {
		if err := t.Mkdir(m.path, m.attr); err != nil {
			return nil, fmt.Errorf("skeleton: %w", err)
		}
	}
	for _, f := range files {
		if err := t.WriteFile(f.path, []byte(f.text), tree.Attr{Mode: 0o644}); err != nil {
			return nil, fmt.Errorf("skeleton: %w", err)
		}
	}
	for _, l := range links {
		if err := t.Symlink(l.path, l.target, tree.Attr{}); err != nil {
			return nil, fmt.Errorf("skeleton: %w", err)
		}
	}
	return t, nil
}

// skeletonPaths are the paths that trimming leaves alone.
func skeletonPaths() []string {
	out := []string{unpack.VersionsPath}
	for _, l := range unpack.Merged {
		out = append(out, l, "usr/"+l)
	}
	for _, m := range mountPoints {
		out = append(out, m.path)
	}
	for _, f := range files {
		out = append(out, f.path)
	}
	for _, l := range links {
		out = append(out, l.path)
	}
	return out
}

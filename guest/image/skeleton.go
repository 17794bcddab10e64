package image

import (
	"fmt"

	"github.com/pybox/pybox/guest/layout"
	"github.com/pybox/pybox/guest/tree"
	"github.com/pybox/pybox/guest/unpack"
)

// folders are those, besides the ones of package layout, that programs expect.
var folders = []struct {
	path string
	attr tree.Attr
}{
	{"root", tree.Attr{Mode: 0o700}},
	{"run", tree.Attr{Mode: 0o755}},
	{"var/lib", tree.Attr{Mode: 0o755}},
}

// files are what base-files, base-passwd, netbase and tzdata would have made.
// Their names say what a box is: a machine called "box" without a network, whose
// user "box" has 1000 for its number.
var files = []struct{ path, text string }{
	{"etc/group", "root:x:0:\nbox:x:1000:\nnogroup:x:65534:\n"},
	{"etc/hostname", "box\n"},
	{"etc/hosts", "127.0.0.1 localhost box\n"},
	{"etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\nservices: files\nprotocols: files\n"},
	{"etc/passwd", "root:x:0:0:root:/root:/nonexistent\nbox:x:1000:1000:box:/tmp:/nonexistent\nnobody:x:65534:65534:nobody:/nonexistent:/nonexistent\n"},
	{"etc/timezone", "Etc/UTC\n"},
	{"usr/lib/os-release", "NAME=\"PyBox box\"\nPRETTY_NAME=\"PyBox box (from Debian 13 packages)\"\nID=pybox\nID_LIKE=debian\nVERSION_ID=\"1\"\n"},
}

var links = []struct{ path, target string }{
	{"etc/localtime", "../usr/share/zoneinfo/Etc/UTC"},
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
	for _, d := range layout.Dirs() {
		if err := t.Mkdir(d, tree.Attr{Mode: 0o755}); err != nil {
			return nil, fmt.Errorf("skeleton: %w", err)
		}
	}
	for _, d := range folders {
		if err := t.Mkdir(d.path, d.attr); err != nil {
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

package rootfs

import (
	"github.com/pybox/pybox/guest/tree"
	"github.com/pybox/pybox/guest/unpack"
)

// skeleton is the tree before any package.
var skeleton = unpack.Skeleton{Folders: mountPoints, Files: files, Links: links}

// mountPoints are folders that the agent mounts something on, and those that
// programs expect to be there.
var mountPoints = []unpack.Folder{
	{Path: "box", Attr: tree.Attr{Mode: 0o755}},
	{Path: "dev", Attr: tree.Attr{Mode: 0o755}},
	{Path: "proc", Attr: tree.Attr{Mode: 0o555}},
	{Path: "root", Attr: tree.Attr{Mode: 0o700}},
	{Path: "run", Attr: tree.Attr{Mode: 0o755}},
	{Path: "sys", Attr: tree.Attr{Mode: 0o555}},
	{Path: "tmp", Attr: tree.Attr{Mode: 0o755}}, // a tmpfs of mode 1777 is mounted here
	{Path: "var/lib", Attr: tree.Attr{Mode: 0o755}},
}

// files are what base-files, base-passwd and friends would have made.
var files = []unpack.TextFile{
	{Path: "etc/group", Text: "root:x:0:\nnogroup:x:65534:\n"},
	{Path: "etc/hostname", Text: "pybox\n"},
	{Path: "etc/hosts", Text: "127.0.0.1 localhost\n::1 localhost\n"},
	{Path: "etc/nsswitch.conf", Text: "passwd: files\ngroup: files\nhosts: files\n"},
	{Path: "etc/passwd", Text: "root:x:0:0:root:/root:/nonexistent\nnobody:x:65534:65534:nobody:/nonexistent:/nonexistent\n"},
	{Path: "usr/lib/os-release", Text: "NAME=\"PyBox guest\"\nPRETTY_NAME=\"PyBox guest (from Debian 13 packages)\"\nID=pybox\nID_LIKE=debian\nVERSION_ID=\"1\"\n"},
}

var links = []unpack.Link{
	{Path: "etc/os-release", Target: "../usr/lib/os-release"},
	{Path: "var/run", Target: "../run"},
	{Path: "var/tmp", Target: "../tmp"},
}

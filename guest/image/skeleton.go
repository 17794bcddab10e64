package image

import (
	"slices"

	"github.com/pybox/pybox/guest/layout"
	"github.com/pybox/pybox/guest/tree"
	"github.com/pybox/pybox/guest/unpack"
)

// skeleton is the tree before any package.
func skeleton() unpack.Skeleton {
	var mounts []unpack.Folder
	for _, d := range layout.Dirs() {
		mounts = append(mounts, unpack.Folder{Path: d, Attr: tree.Attr{Mode: 0o755}})
	}
	return unpack.Skeleton{Folders: slices.Concat(mounts, folders), Files: files, Links: links}
}

// folders are those, besides the ones of package layout, that programs expect.
var folders = []unpack.Folder{
	{Path: "root", Attr: tree.Attr{Mode: 0o700}},
	{Path: "run", Attr: tree.Attr{Mode: 0o755}},
	{Path: "var/lib", Attr: tree.Attr{Mode: 0o755}},
}

// files are what base-files, base-passwd, netbase and tzdata would have made.
// Their names say what a box is: a machine called "box" without a network, whose
// user "box" has 1000 for its number.
var files = []unpack.TextFile{
	{Path: "etc/group", Text: "root:x:0:\nbox:x:1000:\nnogroup:x:65534:\n"},
	{Path: "etc/hostname", Text: "box\n"},
	{Path: "etc/hosts", Text: "127.0.0.1 localhost box\n"},
	{Path: "etc/nsswitch.conf", Text: "passwd: files\ngroup: files\nhosts: files\nservices: files\nprotocols: files\n"},
	{Path: "etc/passwd", Text: "root:x:0:0:root:/root:/nonexistent\nbox:x:1000:1000:box:/tmp:/nonexistent\nnobody:x:65534:65534:nobody:/nonexistent:/nonexistent\n"},
	{Path: "etc/timezone", Text: "Etc/UTC\n"},
	{Path: "usr/lib/os-release", Text: "NAME=\"PyBox box\"\nPRETTY_NAME=\"PyBox box (from Debian 13 packages)\"\nID=pybox\nID_LIKE=debian\nVERSION_ID=\"1\"\n"},
}

var links = []unpack.Link{
	{Path: "etc/localtime", Target: "../usr/share/zoneinfo/Etc/UTC"},
	{Path: "etc/os-release", Target: "../usr/lib/os-release"},
	{Path: "var/run", Target: "../run"},
	{Path: "var/tmp", Target: "../tmp"},
}

package ociimage

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/pybox/pybox/guest/tree"
)

// Whiteouts (https://github.com/opencontainers/image-spec/blob/main/layer.md).
const (
	whiteout       = ".wh."
	whiteoutMeta   = ".wh..wh." // of AUFS, but for the next
	whiteoutOpaque = ".wh..wh..opq"
)

// Owners that a box can show; others are nobody there.
const (
	maxID  = 65535
	nobody = 65534
)

// Bounds of names.
const (
	// maxDepth is how many names a path may have. Package erofs reads folders that lie
	// a little deeper; what is between is for the step that a merged /usr adds, and for
	// a file that is put beside what the image has.
	maxDepth = 99
	// maxNameBytes is how much memory the paths and the targets of links may take in
	// all. Real images need a tenth of it.
	maxNameBytes = 128 << 20
	// maxPAXBytes are the records of one member. A file capability has 20 bytes.
	maxPAXBytes = 256 << 10
)

// merged are the links of a merged /usr (https://wiki.debian.org/UsrMerge). Only
// these are followed, and only as what they are: a path of a later layer may lead
// through "bin", as it may in a Debian package.
var merged = []string{"bin", "sbin", "lib", "lib64"}

// entry is a node of the file system that the layers make together.
type entry struct {
	tree.Attr
	kind     tree.Kind
	at, size int64 // where the bytes of a File are
	target   string
	children map[string]*entry // of a Dir
	layer    int               // that wrote it
	hidden   int               // the layer that hid what lower ones had in it
	path     int               // the length of its path
	lost     lost
}

// text is how many bytes of names the entry needs.
func (e *entry) text() int { return e.path + len(e.target) }

// lost tells what an entry had in its layer and has not any more.
type lost struct{ setID, owner, xattrs bool }

// sink takes the bytes of all files, one after the other. What a later layer replaces
// stays in it.
type sink interface {
	io.Writer
	Size() int64 // what was written so far
}

// flattener stacks layers. It holds everything but the bytes of files in memory, so no
// path leads anywhere but into it.
type flattener struct {
	out    sink
	root   *entry
	layer  int // being read, from 1
	limits tree.Limits
	count  int
	bytes  int64
	names  int // bytes of paths and targets
	left   leftOut
}

// leftOut counts what was changed or left behind.
type leftOut struct {
	devices, setID, owners, xattrs, climbing int
}

func newFlattener(out sink, l tree.Limits) *flattener {
	return &flattener{out: out, root: newDir(0), limits: l, count: 1}
}

func newDir(layer int) *entry {
	return &entry{Attr: tree.Attr{Mode: 0o755}, kind: tree.Dir, children: map[string]*entry{}, layer: layer}
}

// apply puts the next layer on top. Errors match ErrContent, ErrFormat, ErrTooBig or
// those of tree.
func (f *flattener) apply(r io.Reader) error {
	f.layer++
	t := tar.NewReader(r)
	for {
		h, err := t.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return readError(err)
		}
		if err := checkRecords(h); err != nil {
			return fmt.Errorf("%.300q: %w", h.Name, err)
		}
		if h.Typeflag == tar.TypeXGlobalHeader {
			continue
		}
		if err := f.add(h, t); err != nil {
			return fmt.Errorf("%.300q: %w", h.Name, err)
		}
	}
}

// readError marks what archive/tar says, and leaves what the reader below it said.
func readError(err error) error {
	if errors.Is(err, tar.ErrHeader) || errors.Is(err, tar.ErrInsecurePath) || errors.Is(err, tar.ErrFieldTooLong) || err == io.ErrUnexpectedEOF {
		return fmt.Errorf("%w: %w", ErrFormat, err)
	}
	return err
}

// add applies one member of a layer.
func (f *flattener) add(h *tar.Header, body io.Reader) error {
	names, err := split(h.Name)
	if err != nil {
		return err
	}
	if isMeta(names) {
		return nil
	}
	if len(names) == 0 {
		if h.Typeflag != tar.TypeDir {
			return fmt.Errorf("%w: the root is no folder", ErrContent)
		}
		f.root.take(h)
		f.root.layer = f.layer
		return nil
	}
	name := names[len(names)-1]
	if strings.HasPrefix(name, whiteout) {
		return f.white(names[:len(names)-1], name, h.Typeflag)
	}
	for _, n := range names {
		if strings.HasPrefix(n, whiteout) {
			return fmt.Errorf("%w: something inside of what is marked as removed", ErrContent)
		}
	}
	dir, err := f.dir(names[:len(names)-1])
	if err != nil {
		return err
	}
	if h.Typeflag == tar.TypeReg {
		f.remove(dir, name) // whatever it is, the file replaces it
	}
	e, err := f.entry(h, body)
	if err != nil {
		return err
	}
	if e == nil { // left behind; what it stood on is gone all the same
		f.remove(dir, name)
		return nil
	}
	return f.put(dir, name, e)
}

// split takes a member's name apart. Names may begin with "/" or "./", and never lead
// upwards.
func split(name string) ([]string, error) {
	var out []string
	for n := range strings.SplitSeq(name, "/") {
		switch n {
		case "", ".":
		case "..":
			return nil, fmt.Errorf("%w: %w", ErrContent, tree.ErrPath)
		default:
			out = append(out, n)
		}
	}
	if len(out) > 0 {
		if err := tree.CheckPath(strings.Join(out, "/")); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrContent, err)
		}
	}
	if len(out) > maxDepth {
		return nil, fmt.Errorf("%w: it is %d names deep, and at most %d are taken", ErrTooBig, len(out), maxDepth)
	}
	return out, nil
}

// checkRecords bounds what a member brings along beside its bytes.
func checkRecords(h *tar.Header) error {
	n := 0
	for k, v := range h.PAXRecords {
		n += len(k) + len(v)
	}
	if n > maxPAXBytes {
		return fmt.Errorf("%w: its header has records of %d bytes, at most %d are taken", ErrTooBig, n, maxPAXBytes)
	}
	return nil
}

// checkTarget judges the target of a link by itself, as tree will, before it is kept.
func checkTarget(target string) error {
	if target == "" || len(target) > tree.MaxTargetBytes || strings.ContainsFunc(target, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return fmt.Errorf("%w: %w: a link to %.200q", ErrContent, tree.ErrPath, target)
	}
	return nil
}

// isMeta holds for AUFS's own files, which no other file system shows.
func isMeta(names []string) bool {
	return slices.ContainsFunc(names, func(n string) bool {
		return strings.HasPrefix(n, whiteoutMeta) && n != whiteoutOpaque
	})
}

// entry makes an entry of a member, nil for what stays behind.
func (f *flattener) entry(h *tar.Header, body io.Reader) (*entry, error) {
	if isSparse(h) {
		return nil, fmt.Errorf("%w: a sparse file", ErrContent)
	}
	switch h.Typeflag {
	case tar.TypeDir:
		d := newDir(f.layer)
		d.take(h)
		return d, nil
	case tar.TypeReg:
		at := f.out.Size()
		if err := f.keep(h.Size, body); err != nil {
			return nil, err
		}
		e := &entry{kind: tree.File, at: at, size: h.Size, layer: f.layer}
		e.take(h)
		return e, nil
	case tar.TypeSymlink:
		if err := checkTarget(h.Linkname); err != nil {
			return nil, err
		}
		// A copy: archive/tar cuts names out of all records of a member.
		e := &entry{kind: tree.Symlink, target: strings.Clone(h.Linkname), layer: f.layer}
		e.take(h)
		return e, nil
	case tar.TypeLink:
		return f.link(h.Linkname)
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		f.left.devices++
		return nil, nil
	}
	return nil, fmt.Errorf("%w: an entry of type %q", ErrContent, h.Typeflag)
}

// take takes over what a box keeps of a member's header.
func (e *entry) take(h *tar.Header) {
	e.Attr, e.lost = tree.Attr{Mode: fs.FileMode(h.Mode) & fs.ModePerm}, lost{}
	if h.Typeflag == tar.TypeDir && h.Mode&0o1000 != 0 {
		e.Mode |= fs.ModeSticky
	}
	e.lost.setID = h.Mode&0o6000 != 0 && h.Typeflag != tar.TypeSymlink
	for k := range h.PAXRecords {
		e.lost.xattrs = e.lost.xattrs || strings.HasPrefix(k, "SCHILY.xattr.")
	}
	var u, g bool
	e.UID, u = owner(h.Uid)
	e.GID, g = owner(h.Gid)
	e.lost.owner = u || g
}

// add counts what an entry of the image lost. What upper layers removed is no news.
func (l *leftOut) add(e lost) {
	for _, c := range []struct {
		is bool
		n  *int
	}{{e.setID, &l.setID}, {e.owner, &l.owners}, {e.xattrs, &l.xattrs}} {
		if c.is {
			*c.n++
		}
	}
}

func owner(id int) (_ uint32, changed bool) {
	if id < 0 || id > maxID {
		return nobody, true
	}
	return uint32(id), false
}

// keep keeps a file's bytes, of which there may be fewer than its header says.
func (f *flattener) keep(size int64, body io.Reader) error {
	if size > f.limits.Bytes-f.bytes {
		return fmt.Errorf("%w: more than %d bytes of files", ErrTooBig, f.limits.Bytes)
	}
	_, err := io.CopyN(f.out, body, size)
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return readError(err)
}

// link makes an entry with what stands at a path, which may be in a lower layer.
func (f *flattener) link(target string) (*entry, error) {
	names, err := split(target)
	if err != nil {
		return nil, err
	}
	at := f.root
	for i, n := range names {
		if at, err = f.follow(at, n, i); err != nil {
			return nil, err
		}
		if at == nil {
			break
		}
	}
	if at == nil || at.kind == tree.Dir {
		return nil, fmt.Errorf("%w: a hard link to %.200q, which is no file of the image", ErrContent, target)
	}
	if at.size > f.limits.Bytes-f.bytes {
		return nil, fmt.Errorf("%w: more than %d bytes of files", ErrTooBig, f.limits.Bytes)
	}
	e := *at
	e.layer = f.layer
	return &e, nil
}

// follow steps from a folder to an entry in it; nil where there is none. A declared
// link at the root leads on to its folder.
func (f *flattener) follow(dir *entry, name string, depth int) (*entry, error) {
	switch dir.kind {
	case tree.Symlink:
		return nil, fmt.Errorf("%w: %w", ErrContent, tree.ErrLink)
	case tree.File:
		return nil, fmt.Errorf("%w: %w: a file is in the place of a folder", ErrContent, tree.ErrConflict)
	}
	e := dir.children[name]
	if e != nil && depth == 0 && e.isMerged(name) {
		if usr := f.root.children["usr"]; usr != nil && usr.kind == tree.Dir {
			if d := usr.children[name]; d != nil && d.kind == tree.Dir {
				return d, nil
			}
		}
	}
	return e, nil
}

func (e *entry) isMerged(name string) bool {
	return e.kind == tree.Symlink && slices.Contains(merged, name) && strings.TrimPrefix(e.target, "/") == "usr/"+name
}

// dir returns the folder at a path and makes what is missing of it.
func (f *flattener) dir(names []string) (*entry, error) {
	at := f.root
	for i, n := range names {
		next, err := f.follow(at, n, i)
		if err != nil {
			return nil, err
		}
		if next == nil {
			next = newDir(f.layer)
			if err := f.put(at, n, next); err != nil {
				return nil, err
			}
		}
		at = next
	}
	switch at.kind {
	case tree.Symlink:
		return nil, fmt.Errorf("%w: %w: it leads through a link", ErrContent, tree.ErrLink)
	case tree.File:
		return nil, fmt.Errorf("%w: %w: it leads through a file", ErrContent, tree.ErrConflict)
	}
	return at, nil
}

// put puts an entry in a folder. A folder keeps what it holds when it comes again;
// anything else replaces what was there.
func (f *flattener) put(dir *entry, name string, e *entry) error {
	if old := dir.children[name]; old != nil && old.kind == tree.Dir && e.kind == tree.Dir {
		old.Attr, old.lost, old.layer = e.Attr, e.lost, e.layer
		return nil
	}
	f.remove(dir, name)
	e.path = len(name)
	if dir != f.root {
		e.path += dir.path + 1
	}
	if f.names+e.text() > maxNameBytes {
		return fmt.Errorf("%w: more than %d bytes of names", ErrTooBig, maxNameBytes)
	}
	if f.count >= f.limits.Entries {
		return fmt.Errorf("%w: more than %d files and folders", ErrTooBig, f.limits.Entries)
	}
	f.count++
	f.bytes += e.size
	f.names += e.text()
	dir.children[strings.Clone(name)] = e // a copy, as of targets
	return nil
}

// remove takes out an entry with all that is in it.
func (f *flattener) remove(dir *entry, name string) {
	e := dir.children[name]
	if e == nil {
		return
	}
	for n := range e.children {
		f.remove(e, n)
	}
	f.count--
	f.bytes -= e.size
	f.names -= e.text()
	delete(dir.children, name)
}

// white hides what lower layers have. Entries of the same layer stay, wherever in it
// they stand.
func (f *flattener) white(in []string, name string, kind byte) error {
	if kind != tar.TypeReg && kind != tar.TypeLink { // AUFS made them links
		return fmt.Errorf("%w: a mark of removal that is no file", ErrContent)
	}
	hidden := strings.TrimPrefix(name, whiteout)
	if name != whiteoutOpaque && (hidden == "" || hidden == "." || hidden == "..") {
		return fmt.Errorf("%w: a mark of removal for nothing", ErrContent)
	}
	at := f.root
	for i, n := range in {
		if strings.HasPrefix(n, whiteout) {
			return fmt.Errorf("%w: something inside of what is marked as removed", ErrContent)
		}
		next, err := f.follow(at, n, i)
		if err != nil {
			return err
		}
		if next == nil {
			return nil // there is nothing to hide
		}
		at = next
	}
	switch {
	case at.kind == tree.Symlink:
		return fmt.Errorf("%w: %w: it leads through a link", ErrContent, tree.ErrLink)
	case at.kind != tree.Dir:
		return nil
	case name == whiteoutOpaque:
		f.hideIn(at)
	default:
		f.hide(at, hidden)
	}
	return nil
}

// hide takes out an entry as far as it is from lower layers.
func (f *flattener) hide(dir *entry, name string) {
	e := dir.children[name]
	if e == nil {
		return
	}
	if e.kind == tree.Dir {
		f.hideIn(e)
		if e.layer < f.layer && len(e.children) > 0 {
			e.Attr, e.lost, e.layer = tree.Attr{Mode: 0o755}, lost{}, f.layer // a new one, made for what is in it
		}
	}
	if e.layer < f.layer {
		f.remove(dir, name)
	}
}

// hideIn hides all that a folder has from lower layers, once for each layer: after
// that it has nothing more of them.
func (f *flattener) hideIn(dir *entry) {
	if dir.hidden == f.layer {
		return
	}
	dir.hidden = f.layer
	for n := range dir.children {
		f.hide(dir, n)
	}
}

// tree makes a tree of it all. data is what the sink took.
func (f *flattener) tree(ctx context.Context, data []byte) (*tree.Tree, error) {
	t := tree.New(f.limits)
	if err := f.fill(ctx, t, ".", f.root, data); err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, fmt.Errorf("%w: %w", ErrContent, err)
	}
	return t, nil
}

func (f *flattener) fill(ctx context.Context, t *tree.Tree, p string, e *entry, data []byte) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	f.left.add(e.lost)
	switch e.kind {
	case tree.File:
		return t.WriteFile(p, data[e.at:e.at+e.size:e.at+e.size], e.Attr)
	case tree.Symlink:
		target, changed := withinRoot(p, e.target)
		if changed {
			f.left.climbing++
		}
		return t.Symlink(p, target, e.Attr)
	}
	if err := t.Mkdir(p, e.Attr); err != nil {
		return err
	}
	for _, n := range slices.Sorted(maps.Keys(e.children)) { // so that of two faults the same is told
		if err := f.fill(ctx, t, path.Join(p, n), e.children[n], data); err != nil {
			return err
		}
	}
	return nil
}

// withinRoot makes an absolute target of a relative one that begins with more steps
// upwards than there are folders. To the kernel it is the same: above the root is
// the root.
func withinRoot(p, target string) (string, bool) {
	depth, rest, up := strings.Count(p, "/"), target, 0
	for rest == ".." || strings.HasPrefix(rest, "../") {
		rest = strings.TrimLeft(strings.TrimPrefix(rest, ".."), "/")
		up++
	}
	if up <= depth {
		return target, false
	}
	return "/" + rest, true
}

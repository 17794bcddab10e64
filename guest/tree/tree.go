// Package tree holds a file tree in memory while an image is put together from
// packages, and keeps the promise that makes unpacking safe: a path is only
// ever written inside the tree, through real directories or the few directory
// links that the builder itself declared (see Alias), never through a link that
// came out of a package.
//
// A tree has directories, regular files and symbolic links, nothing else. Hard
// links become files of their own that share the bytes in memory: in a
// read-only image the difference is not visible but for the link count.
// Contents are held as slices and must not be changed once handed over. A Tree
// is not safe for concurrent use.
package tree

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
)

// Kinds of nodes.
type Kind uint8

const (
	Dir Kind = iota + 1
	File
	Symlink
)

// Bounds on single names, those of Linux: NAME_MAX and PATH_MAX.
const (
	MaxNameBytes   = 255
	MaxPathBytes   = 4095
	MaxTargetBytes = 4095
)

// maxFollow is how many links a resolution follows, as in Linux (MAXSYMLINKS).
const maxFollow = 40

// Sentinels, to be tested with errors.Is.
var (
	// ErrPath: a path is not relative, clean and within the bounds.
	ErrPath = errors.New("invalid path")
	// ErrLink: a path leads through a link that came with the content, or a
	// link leads out of the tree.
	ErrLink = errors.New("unsafe link")
	// ErrConflict: something else stands at the path already.
	ErrConflict = errors.New("conflicting entries")
	// ErrTooBig: the tree would exceed its limits.
	ErrTooBig = errors.New("file tree too big")
	// ErrNotFound: nothing stands at the path.
	ErrNotFound = errors.New("no such entry")
)

// Attr are a node's permission bits (0 to 0o777, no set-id or sticky bits but
// Sticky) and numeric owner.
type Attr struct {
	Mode     fs.FileMode
	UID, GID uint32
}

// Node is one entry of a tree.
type Node struct {
	// Path is clean, relative to the root and without links: "usr/bin/crun".
	// The root itself is ".".
	Path string
	Kind Kind
	Attr
	Data   []byte // of a File
	Target string // of a Symlink
}

// Limits bound a tree.
type Limits struct {
	Entries int   // nodes
	Bytes   int64 // sum of file contents
}

// DefaultLimits fit the largest image that PyBox makes several times over.
var DefaultLimits = Limits{Entries: 200_000, Bytes: 2 << 30}

// Tree is a file tree. See New.
type Tree struct {
	nodes   map[string]*Node
	aliases map[string]bool // paths of links declared by Alias
	limits  Limits
	bytes   int64
}

// New returns a tree with nothing but its root, owned by 0:0 with mode 0755.
func New(l Limits) *Tree {
	return &Tree{
		nodes:   map[string]*Node{".": {Path: ".", Kind: Dir, Attr: Attr{Mode: 0o755}}},
		aliases: map[string]bool{},
		limits:  l,
	}
}

// Clone returns a copy that can be changed without changing t. The two share the
// contents of files.
func (t *Tree) Clone() *Tree {
	c := *t
	c.aliases = maps.Clone(t.aliases)
	c.nodes = make(map[string]*Node, len(t.nodes))
	for p, n := range t.nodes {
		copied := *n
		c.nodes[p] = &copied
	}
	return &c
}

// CheckPath tells whether p may name an entry: relative, clean, valid for Linux
// and without control characters.
func CheckPath(p string) error {
	if p == "" || len(p) > MaxPathBytes || path.Clean(p) != p || path.IsAbs(p) || p == ".." || strings.HasPrefix(p, "../") {
		return fmt.Errorf("%w: %.200q", ErrPath, p)
	}
	for name := range strings.SplitSeq(p, "/") {
		if len(name) > MaxNameBytes {
			return fmt.Errorf("%w: a name of %d bytes in %.80q", ErrPath, len(name), p)
		}
	}
	for i := range len(p) {
		if p[i] < ' ' || p[i] == 0x7f {
			return fmt.Errorf("%w: control character in %.200q", ErrPath, p)
		}
	}
	return nil
}

// Alias makes a directory and a symbolic link to it through which later paths
// are followed: the merged-/usr links, such as Alias("bin", "usr/bin").
func (t *Tree) Alias(link, dir string) error {
	if err := t.Mkdir(dir, Attr{Mode: 0o755}); err != nil {
		return err
	}
	if err := t.Symlink(link, dir, Attr{}); err != nil {
		return err
	}
	t.aliases[link] = true
	return nil
}

// Canonical returns the path without declared links where an entry named p
// would stand, and refuses one that leads through any other link or through a
// file. The last element is followed only where it is a declared link.
func (t *Tree) Canonical(p string) (string, error) {
	if err := CheckPath(p); err != nil {
		return "", err
	}
	cur := "."
	rest := p
	for hops := 0; rest != ""; {
		name, after, _ := strings.Cut(rest, "/")
		next := path.Join(cur, name)
		n := t.nodes[next]
		switch {
		case t.aliases[next]:
			if hops++; hops > maxFollow {
				return "", fmt.Errorf("%w: a loop at %q", ErrLink, next)
			}
			rest, cur = path.Join(path.Dir(next), n.Target, after), "."
			continue
		case n != nil && after != "" && n.Kind == Symlink:
			return "", fmt.Errorf("%w: %q leads through the link %q", ErrLink, p, next)
		case n != nil && after != "" && n.Kind == File:
			return "", fmt.Errorf("%w: %q leads through the file %q", ErrConflict, p, next)
		}
		cur, rest = next, after
	}
	return cur, nil
}

// Mkdir adds a directory and its parents. One that is there already gets the
// attributes; the target of a declared link stays as it is.
func (t *Tree) Mkdir(p string, a Attr) error {
	viaAlias := t.aliases[p]
	c, err := t.Canonical(p)
	if err != nil {
		return err
	}
	if n := t.nodes[c]; n != nil {
		if n.Kind != Dir {
			return fmt.Errorf("%w: %q is no directory", ErrConflict, c)
		}
		if !viaAlias {
			n.Attr = a
		}
		return nil
	}
	return t.add(&Node{Path: c, Kind: Dir, Attr: a})
}

// WriteFile adds a regular file, which must not be there yet. The tree keeps
// data.
func (t *Tree) WriteFile(p string, data []byte, a Attr) error {
	c, err := t.Canonical(p)
	if err != nil {
		return err
	}
	return t.add(&Node{Path: c, Kind: File, Attr: a, Data: data})
}

// Symlink adds a symbolic link, which must not be there yet. An absolute target
// starts at the tree's root; a relative one must not climb above it.
func (t *Tree) Symlink(p, target string, a Attr) error {
	c, err := t.Canonical(p)
	if err != nil {
		return err
	}
	if target == "" || len(target) > MaxTargetBytes || strings.ContainsFunc(target, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return fmt.Errorf("%w: target %.200q of %q", ErrPath, target, c)
	}
	if climbs(c, target) {
		return fmt.Errorf("%w: %q points out of the tree: %q", ErrLink, c, target)
	}
	a.Mode = 0o777
	return t.add(&Node{Path: c, Kind: Symlink, Attr: a, Target: target})
}

// climbs tells whether a relative target goes above the root by its text.
func climbs(link, target string) bool {
	if path.IsAbs(target) {
		return false
	}
	depth := strings.Count(link, "/")
	for name := range strings.SplitSeq(target, "/") {
		switch name {
		case "", ".":
		case "..":
			if depth--; depth < 0 {
				return true
			}
		default:
			depth++
		}
	}
	return false
}

// Link adds the file p with the bytes and attributes of the file old, which
// must be there.
func (t *Tree) Link(p, old string) error {
	o, err := t.Canonical(old)
	if err != nil {
		return err
	}
	n := t.nodes[o]
	if n == nil || n.Kind != File {
		return fmt.Errorf("%w: %q is a hard link to %q, which is no file in the tree", ErrLink, p, old)
	}
	return t.WriteFile(p, n.Data, n.Attr)
}

func (t *Tree) add(n *Node) error {
	if t.nodes[n.Path] != nil {
		return fmt.Errorf("%w: %q is there already", ErrConflict, n.Path)
	}
	if dir := path.Dir(n.Path); t.nodes[dir] == nil {
		if err := t.Mkdir(dir, Attr{Mode: 0o755}); err != nil {
			return err
		}
	}
	if len(t.nodes) >= t.limits.Entries {
		return fmt.Errorf("%w: more than %d entries", ErrTooBig, t.limits.Entries)
	}
	if t.bytes+int64(len(n.Data)) > t.limits.Bytes {
		return fmt.Errorf("%w: more than %d bytes", ErrTooBig, t.limits.Bytes)
	}
	n.Mode &= fs.ModePerm | fs.ModeSticky
	t.nodes[n.Path] = n
	t.bytes += int64(len(n.Data))
	return nil
}

// Remove takes out an entry and all below it. Removing nothing is no error.
func (t *Tree) Remove(p string) {
	for _, n := range t.below(p) {
		t.bytes -= int64(len(n.Data))
		delete(t.nodes, n.Path)
		delete(t.aliases, n.Path)
	}
}

func (t *Tree) below(p string) []*Node {
	var out []*Node
	for name, n := range t.nodes {
		if name == p || strings.HasPrefix(name, p+"/") {
			out = append(out, n)
		}
	}
	return out
}

// Lookup returns the entry at a path without following links in it.
func (t *Tree) Lookup(p string) *Node { return t.nodes[p] }

// Resolve follows p from the root as the guest's kernel would, every link
// included, and returns what is there and the links that were passed. p may be
// absolute. The error matches ErrNotFound or ErrLink (a loop).
func (t *Tree) Resolve(p string) (n *Node, links []*Node, err error) {
	cur, rest := ".", strings.TrimLeft(p, "/")
	for rest != "" {
		name, after, _ := strings.Cut(rest, "/")
		rest = after
		if name == "" || name == "." {
			continue
		}
		next := path.Join(cur, name)
		if next == ".." { // ".." at the root is the root
			next = "."
		}
		n := t.nodes[next]
		switch {
		case n == nil:
			return nil, links, fmt.Errorf("%w: %q (looking for %q)", ErrNotFound, next, p)
		case n.Kind == File && after != "":
			return nil, links, fmt.Errorf("%w: %q is a file (looking for %q)", ErrNotFound, next, p)
		case n.Kind != Symlink:
			cur = next
			continue
		}
		if links = append(links, n); len(links) > maxFollow {
			return nil, links, fmt.Errorf("%w: too many links at %q", ErrLink, p)
		}
		if path.IsAbs(n.Target) {
			cur = "."
		}
		rest = strings.TrimLeft(n.Target, "/") + "/" + rest
	}
	return t.nodes[cur], links, nil
}

// Nodes returns all entries sorted by path: a directory comes before what is in
// it, and the root first.
func (t *Tree) Nodes() []*Node {
	out := slices.Collect(maps.Values(t.nodes))
	slices.SortFunc(out, func(a, b *Node) int { return strings.Compare(a.Path, b.Path) })
	return out
}

// Len is the number of entries, the root included.
func (t *Tree) Len() int { return len(t.nodes) }

// Bytes is the sum of all file contents.
func (t *Tree) Bytes() int64 { return t.bytes }

// Dangling lists, sorted, the links that lead to nothing.
func (t *Tree) Dangling() []string {
	var out []string
	for _, n := range t.Nodes() {
		if n.Kind != Symlink {
			continue
		}
		if _, _, err := t.Resolve(n.Path); err != nil {
			out = append(out, n.Path+" -> "+n.Target)
		}
	}
	return out
}

package erofs

import (
	"bytes"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	goerofs "github.com/erofs/go-erofs"

	"github.com/pybox/pybox/guest/tree"
)

// source shows a tree to go-erofs, which then takes the contents of files from where
// they are instead of copying them into a file of its own first.
type source struct {
	nodes    map[string]*info
	children map[string][]fs.DirEntry // sorted by name
}

func newSource(t *tree.Tree) *source {
	s := &source{nodes: map[string]*info{}, children: map[string][]fs.DirEntry{}}
	nodes := t.Nodes()
	for _, n := range nodes {
		i := &info{n: n, stat: goerofs.Stat{UID: n.UID, GID: n.GID, Mtime: uint64(Time.Unix())}}
		if n.Kind == tree.Dir {
			i.stat.Nlink = 2 // its name in its parent and its "."
		}
		s.nodes[n.Path] = i
		if n.Path == "." {
			continue
		}
		dir := path.Dir(n.Path)
		s.children[dir] = append(s.children[dir], i)
		if n.Kind == tree.Dir {
			s.nodes[dir].stat.Nlink++ // its ".."
		}
	}
	for _, c := range s.children {
		slices.SortFunc(c, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	}
	return s
}

func (s *source) find(op, name string) (*info, error) {
	if i := s.nodes[name]; i != nil {
		return i, nil
	}
	return nil, &fs.PathError{Op: op, Path: name, Err: fs.ErrNotExist}
}

// Open implements fs.FS; only files are read.
func (s *source) Open(name string) (fs.File, error) {
	i, err := s.find("open", name)
	if err != nil {
		return nil, err
	}
	return file{bytes.NewReader(i.n.Data), i}, nil
}

// Stat implements fs.StatFS.
func (s *source) Stat(name string) (fs.FileInfo, error) {
	i, err := s.find("stat", name)
	if err != nil {
		return nil, err
	}
	return i, nil
}

// ReadDir implements fs.ReadDirFS.
func (s *source) ReadDir(name string) ([]fs.DirEntry, error) {
	_, err := s.find("readdir", name)
	return s.children[name], err
}

// ReadLink is what go-erofs asks for the targets of links.
func (s *source) ReadLink(name string) (string, error) {
	i, err := s.find("readlink", name)
	if err != nil {
		return "", err
	}
	return i.n.Target, nil
}

// file is an open file.
type file struct {
	*bytes.Reader
	i *info
}

func (f file) Stat() (fs.FileInfo, error) { return f.i, nil }
func (f file) Close() error               { return nil }

// info is what there is to know of an entry.
type info struct {
	n    *tree.Node
	stat goerofs.Stat
}

func (i *info) Name() string               { return path.Base(i.n.Path) }
func (i *info) Size() int64                { return int64(len(i.n.Data)) }
func (i *info) ModTime() time.Time         { return Time }
func (i *info) IsDir() bool                { return i.n.Kind == tree.Dir }
func (i *info) Sys() any                   { return &i.stat }
func (i *info) Type() fs.FileMode          { return i.Mode().Type() }
func (i *info) Info() (fs.FileInfo, error) { return i, nil }

func (i *info) Mode() fs.FileMode {
	m := i.n.Mode & (fs.ModePerm | fs.ModeSticky)
	switch i.n.Kind {
	case tree.Dir:
		m |= fs.ModeDir
	case tree.Symlink:
		m |= fs.ModeSymlink
	}
	return m
}

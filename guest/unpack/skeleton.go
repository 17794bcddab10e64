package unpack

import (
	"fmt"

	"github.com/pybox/pybox/guest/tree"
)

// Skeleton is what a tree has before any package is unpacked into it. Paths are
// relative to the root, those of folders above first.
type Skeleton struct {
	Folders []Folder
	Files   []TextFile // of mode 0644
	Links   []Link
}

// Folder is a folder of a Skeleton.
type Folder struct {
	Path string
	Attr tree.Attr
}

// TextFile is a file of a Skeleton.
type TextFile struct{ Path, Text string }

// Link is a symbolic link of a Skeleton.
type Link struct{ Path, Target string }

// Tree makes a tree as NewTree does, with the skeleton in it.
func (s Skeleton) Tree() (*tree.Tree, error) {
	t, err := NewTree()
	if err != nil {
		return nil, err
	}
	for _, d := range s.Folders {
		if err := t.Mkdir(d.Path, d.Attr); err != nil {
			return nil, fmt.Errorf("skeleton: %w", err)
		}
	}
	for _, f := range s.Files {
		if err := t.WriteFile(f.Path, []byte(f.Text), tree.Attr{Mode: 0o644}); err != nil {
			return nil, fmt.Errorf("skeleton: %w", err)
		}
	}
	for _, l := range s.Links {
		if err := t.Symlink(l.Path, l.Target, tree.Attr{}); err != nil {
			return nil, fmt.Errorf("skeleton: %w", err)
		}
	}
	return t, nil
}

// Paths are those of the skeleton, and what every tree of NewTree has.
func (s Skeleton) Paths() []string {
	out := []string{VersionsPath}
	for _, l := range Merged {
		out = append(out, l, "usr/"+l)
	}
	for _, d := range s.Folders {
		out = append(out, d.Path)
	}
	for _, f := range s.Files {
		out = append(out, f.Path)
	}
	for _, l := range s.Links {
		out = append(out, l.Path)
	}
	return out
}

package userimage

import (
	"context"
	"path"
	"slices"
	"strings"

	"github.com/pybox/pybox/guest/elfcheck"
	"github.com/pybox/pybox/guest/tree"
)

// noteLibraries says which shared libraries the compiled parts of packages need that
// nothing in the image has. It is no error: many packages bring more than one uses,
// and what a package has loaded itself needs no path. So a library counts as there
// wherever it lies.
func (b *builder) noteLibraries(ctx context.Context) error {
	c, err := elfcheck.New(b.base.tree, b.Arch)
	if err != nil {
		return err
	}
	there := map[string]bool{}
	for _, n := range b.base.tree.Nodes() {
		if n.Kind != tree.Dir {
			there[path.Base(n.Path)] = true
		}
	}
	for _, i := range b.items {
		var lack []string
		for _, p := range i.read.Paths() {
			if err := ctx.Err(); err != nil {
				return err
			}
			n := b.base.tree.Lookup(p)
			if n == nil || !elfcheck.IsELF(n.Data) {
				continue
			}
			missing, err := c.Missing(n)
			if err != nil {
				continue // nothing that this guest's loader would load
			}
			for _, lib := range missing {
				if !there[path.Base(lib)] {
					lack = append(lack, lib)
				}
			}
		}
		slices.Sort(lack)
		if lack = slices.Compact(lack); len(lack) > 0 {
			b.note("%s has compiled parts that need libraries which the image has not, and may not work: %s", i.dist, some(quoted(lack)))
		}
	}
	return nil
}

// quoted makes names printable.
func quoted(names []string) []string {
	out := make([]string, len(names))
	for i, n := range names {
		out[i] = strings.Map(func(r rune) rune {
			if r <= ' ' || r > '~' {
				return '?'
			}
			return r
		}, n[:min(len(n), 100)])
	}
	return out
}

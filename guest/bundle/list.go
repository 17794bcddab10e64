package bundle

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Installation is what a state folder has of bundles.
type Installation struct {
	// Dir is the folder that they are in.
	Dir string
	// Current and Previous are IDs, "" where there is none or it cannot be read.
	Current, Previous string
	// Bundles are the folders of bundles, Leftovers those of installations that
	// were cut off: names in Dir, sorted.
	Bundles, Leftovers []string
}

// List looks at the bundles in the state folder home, which need not be there. It
// changes nothing.
func List(home string) (Installation, error) {
	i := Installation{Dir: filepath.Join(home, bundlesDir)}
	entries, err := os.ReadDir(i.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return i, nil
	}
	if err != nil {
		return i, fmt.Errorf("look at the installed guest bundles: %w", err)
	}
	for _, e := range entries {
		switch n := e.Name(); {
		case !e.IsDir():
		case isShortID(n):
			i.Bundles = append(i.Bundles, n)
		case strings.HasPrefix(n, tempPrefix):
			i.Leftovers = append(i.Leftovers, n)
		}
	}
	// What cannot be read names no bundle that should be kept.
	i.Current, _ = readID(filepath.Join(i.Dir, currentName))
	i.Previous, _ = readID(filepath.Join(i.Dir, previousName))
	return i, nil
}

// FolderOf is where the bundle of that ID is, or would be.
func (i Installation) FolderOf(id string) string { return filepath.Join(i.Dir, id[:shortID]) }

// Superseded are the folders that Install removes when it makes the bundle of the
// ID next ("": one that is not there yet) the current one: names in Dir, sorted.
func (i Installation) Superseded(next string) []string {
	keep := []string{i.Current, next}
	if next == i.Current || i.Current == "" {
		keep = append(keep, i.Previous)
	}
	gone := slices.Clone(i.Leftovers)
	for _, n := range i.Bundles {
		if !slices.ContainsFunc(keep, func(id string) bool { return strings.HasPrefix(id, n) }) {
			gone = append(gone, n)
		}
	}
	slices.Sort(gone)
	return gone
}

// Package outputs puts what a program left into a folder of the host, or into an
// archive: all of it at once or nothing, without replacing anything, whatever happens
// meanwhile. What it gets is staged beside where it belongs, complete and verified,
// and moved there by renames that replace nothing. Where one of several renames fails
// the others are taken back; where the process is killed between them, the next one
// that opens the same place does the rest of them. Nothing is thrown away that was
// complete.
// Paths below the place go through os.Root; no link is followed and none is made.
package outputs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pybox/pybox/agent/api"
	"github.com/pybox/pybox/host/receipt"
	"github.com/pybox/pybox/host/twins"
)

// ErrList: the list of files is not one that a daemon gives.
var ErrList = errors.New("the list of files cannot be")

// KeptError: everything came, but could not be put where it belongs. It lies whole in
// the folder Path instead.
type KeptError struct {
	Path string
	Err  error
}

func (e *KeptError) Error() string { return e.Err.Error() }

// Unwrap gives the cause.
func (e *KeptError) Unwrap() error { return e.Err }

// HalfError: some of what came is where it belongs and could not be taken back, and the
// rest is in Path; or, where Whole is true, all of it is in Path, which could not be
// given another name. The next Open of the place puts that right.
type HalfError struct {
	Path  string
	Whole bool
	Err   error
}

func (e *HalfError) Error() string { return e.Err.Error() }

// Unwrap gives the cause.
func (e *HalfError) Unwrap() error { return e.Err }

// Place is where results go. It is not safe for concurrent use; any number of
// processes may use the same place at the same time.
type Place struct {
	// Repaired are sentences about results of earlier commands, which were killed
	// while they delivered them here.
	Repaired []string

	path    string // of the folder at, as a person would write it
	at      *folder
	name    string // of what is made there; empty: results go into the folder itself
	archive bool
	means   means
}

// means is what differs between systems, and what tests put in.
type means struct {
	// before is called before everything that changes a file system; its error is
	// what that gives then. nil in earnest.
	before func(what string) error
	// plain leaves the renames out that refuse to replace, as where there are none.
	plain bool
	// mark marks a file as one that came out of a box.
	mark marker
	// foreign: new folders belong to somebody else, as where a server decides that.
	foreign bool
}

// OpenFolder opens the folder path: one that is there, or one that is to be made in one
// that is. It sees that something can be made there, and repairs what earlier commands
// left behind when they were killed. The caller closes the place.
func OpenFolder(path string) (*Place, error) { return means{mark: quarantine()}.openFolder(path) }

// OpenArchive opens the place of a tar archive, which is not there yet; otherwise it is
// OpenFolder.
func OpenArchive(path string) (*Place, error) { return means{mark: quarantine()}.openArchive(path) }

func (m means) openFolder(path string) (*Place, error) {
	st, err := os.Stat(path) // what the person names may be a link
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return m.openNew(path, false)
	case err != nil:
		return nil, fmt.Errorf("%q: %w", path, cause(err))
	case !st.IsDir():
		return nil, fmt.Errorf("%q is a file, want a folder", path)
	}
	p, err := m.open(&Place{path: path})
	if err != nil {
		return nil, err
	}
	if real, err := filepath.EvalSymlinks(path); err == nil && !isDots(filepath.Base(real)) {
		p.repairAbove(filepath.Dir(real))
	}
	return p, nil
}

func (m means) openArchive(path string) (*Place, error) {
	st, err := os.Stat(path)
	switch {
	case err == nil && st.IsDir():
		return nil, fmt.Errorf("%q is a folder, want a file that is not there yet", path)
	case err == nil:
		return nil, fmt.Errorf("%q is there already, and nothing is overwritten", path)
	case !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%q: %w", path, cause(err))
	}
	return m.openNew(path, true)
}

// openNew opens the folder of something that is not there yet.
func (m means) openNew(path string, archive bool) (*Place, error) {
	if path == "" {
		return nil, errors.New("its path is empty")
	}
	if _, err := os.Lstat(path); err == nil {
		return nil, fmt.Errorf("%q is a link that leads nowhere", path)
	}
	above, name := split(path)
	if isDots(name) {
		return nil, fmt.Errorf("%q is not there and has no name that could be made", path)
	}
	switch st, err := os.Stat(above); {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%q: there is no folder %q: make that first", path, above)
	case err != nil:
		return nil, fmt.Errorf("%q: %w", path, cause(err))
	case !st.IsDir():
		return nil, fmt.Errorf("%q: %q is a file", path, above)
	}
	return m.open(&Place{path: above, name: name, archive: archive})
}

// split gives the folder that a path lies in and its name there. It does not look at
// ".." in the path: "link/.." is not always ".".
func split(path string) (above, name string) {
	for len(path) > 1 && strings.HasSuffix(path, "/") {
		path = path[:len(path)-1]
	}
	switch above, name = filepath.Split(path); {
	case above == "":
		above = "."
	case strings.Trim(above, "/") != "":
		above = strings.TrimRight(above, "/")
	}
	return above, name
}

func isDots(name string) bool { return name == "." || name == ".." }

// join is the path of something in a folder, which stays as a person wrote it.
func join(path string, names ...string) string {
	for _, name := range names {
		switch {
		case name == "":
		case path == "." || path == "./":
			path = name
		default:
			path = strings.TrimRight(path, "/") + "/" + name
		}
	}
	return path
}

// open opens the folder of a place and sees that all can be done in it that has to be
// done after the run, which is best seen by doing it.
func (m means) open(p *Place) (_ *Place, err error) {
	p.means = m
	if p.at, err = m.folder(p.path); err != nil {
		return nil, fmt.Errorf("%q: %w", p.path, cause(err))
	}
	p.Repaired = repair(p.path, p.at)
	if err := p.probe(); err != nil {
		p.at.close()
		return nil, err
	}
	return p, nil
}

// probe makes a stage, and in it what there will be of results, and removes it.
func (p *Place) probe() error {
	s, err := newStage(p.at)
	if err != nil {
		return fmt.Errorf("nothing can be made in %q: %w", p.path, cause(err))
	}
	defer func() { _ = s.remove() }() // what is left of it the next one removes
	const name, moved = "probe", "moved"
	if err := p.probeFile(s.files, name); err != nil {
		return fmt.Errorf("no file can be made in %q: %w", p.path, cause(err))
	}
	if p.name != "" && !p.archive { // then a folder is all that is moved
		err = errors.Join(s.files.remove(name), s.files.mkdir(name, modeFolder))
	}
	if err == nil {
		err = s.files.move(name, s.files, moved)
	}
	if err != nil {
		return fmt.Errorf("nothing can be moved in %q without a danger that something is replaced, by a rename or a hard link: %w", p.path, cause(err))
	}
	return nil
}

// probeFile makes a file with the mark that each gets.
func (p *Place) probeFile(in *folder, name string) error {
	w, err := in.create(name, modeFile)
	if err != nil {
		return err
	}
	return errors.Join(p.means.mark.mark(w), w.Close())
}

// Close closes the place.
func (p *Place) Close() error { return p.at.close() }

// String is the path of what is made, or of the folder that results go into.
func (p *Place) String() string { return join(p.path, p.name) }

// Makes tells whether path is what is made, which is not there yet.
func (p *Place) Makes(path string) bool {
	above, name := split(path)
	if p.name == "" || name != p.name {
		return false
	}
	st, err := os.Stat(above)
	if err != nil {
		return false
	}
	at, err := p.at.self.Stat()
	return err == nil && os.SameFile(st, at)
}

// Has tells whether one of the files that were delivered, all under their names, is at
// path now.
func (p *Place) Has(path string, files []receipt.File) bool {
	st, err := os.Stat(path)
	if err != nil {
		return false
	}
	if p.archive {
		files = []receipt.File{{}}
	}
	return slices.ContainsFunc(files, func(f receipt.File) bool {
		is, err := p.at.root.Lstat(join(".", p.name, f.Name))
		return err == nil && os.SameFile(st, is)
	})
}

// Delivery is what came of a run.
type Delivery struct {
	// Run is the id of the run.
	Run string
	// Files are those that were returned, in any order.
	Files []receipt.File
	Open  Opener
	// Publishing is called when everything has come, before the first of it is moved to
	// its place, which nothing should cut off; nil: nobody waits for that.
	Publishing func()
}

// Opener opens the bytes of a file that was returned.
type Opener func(context.Context, receipt.File) (io.ReadCloser, error)

// Deliver puts everything that came where it belongs. ctx ends the reading of what
// comes, and nothing after it. Errors: ErrList; a *KeptError and a *HalfError tell
// where everything lies; after any other one there is nothing of it in the place.
func (p *Place) Deliver(ctx context.Context, d Delivery) error {
	files, err := sorted(d.Files)
	if err != nil {
		return err
	}
	s, err := newStage(p.at)
	if err != nil {
		return fmt.Errorf("making a folder in %q: %w", p.path, cause(err))
	}
	fill := p.fill
	if p.archive {
		fill = p.pack
	}
	if err := fill(ctx, s, files, d.Open); err != nil {
		_ = s.remove() // what is left of it the next one removes
		return err
	}
	if d.Publishing != nil {
		d.Publishing()
	}
	return p.publish(s, d.Run)
}

// sorted gives the files in the order of their names, each folder before what is in
// it. The daemon has checked the names, and they are checked again here.
func sorted(files []receipt.File) ([]receipt.File, error) {
	files = slices.Clone(files)
	slices.SortFunc(files, func(a, b receipt.File) int { return cmp.Compare(a.Name, b.Name) })
	var set twins.Set
	for n, f := range files {
		if err := api.CheckFileName(f.Name); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrList, err)
		}
		if twin, ok := set.Add(f.Name); !ok || n > 0 && files[n-1].Name == f.Name {
			return nil, fmt.Errorf("%w: %q is there twice (%q)", ErrList, f.Name, twin)
		}
		switch {
		case !f.Returned:
			return nil, fmt.Errorf("%w: %q was not returned", ErrList, f.Name)
		case f.Folder:
		case f.SHA256 == nil || f.Bytes < 0 || f.File == "" && f.Bytes > 0:
			return nil, fmt.Errorf("%w: %q has no id or no digest", ErrList, f.Name)
		}
	}
	for _, f := range files {
		if above := fileAbove(files, f.Name); above != "" {
			return nil, fmt.Errorf("%w: %q is a file and the folder of %q", ErrList, above, f.Name)
		}
	}
	return files, nil
}

// fileAbove finds a file where a folder above name would have to be.
func fileAbove(files []receipt.File, name string) string {
	for above := path.Dir(name); above != "."; above = path.Dir(above) {
		n, found := slices.BinarySearchFunc(files, above, func(f receipt.File, name string) int { return cmp.Compare(f.Name, name) })
		if found && !files[n].Folder {
			return above
		}
	}
	return ""
}

// cause is an error without the path that it is about.
func cause(err error) error {
	var p *fs.PathError
	var l *os.LinkError
	switch {
	case errors.As(err, &p):
		return p.Err
	case errors.As(err, &l):
		return l.Err
	}
	return err
}

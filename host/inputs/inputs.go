// Package inputs finds what a person names for a working folder, files and whole
// folders, and reads it when it is sent. It follows a link only where the person
// named one, and holds what it reads to what it found. It knows nothing of limits,
// flags or the daemon.
package inputs

import (
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
	"syscall"

	"github.com/pybox/pybox/agent/api"
	"github.com/pybox/pybox/host/outputs"
	"github.com/pybox/pybox/host/twins"
	"github.com/pybox/pybox/host/units"
)

var (
	// ErrTooMany and ErrTooLarge: Bounds are exceeded.
	ErrTooMany  = errors.New("too many files and folders")
	ErrTooLarge = errors.New("too many bytes")
	// ErrChanged: a file is not what it was when it was found.
	ErrChanged = errors.New("it was changed meanwhile")
)

// here is the NAME that puts what is in a folder into the working folder itself.
const here = "."

// Bounds end the search for more than any run can have.
type Bounds struct {
	Files int   // files and folders
	Bytes int64 // all together
}

// Program is what lies in the working folder anyway.
type Program struct {
	Name string
	// Info is of the file that it was read from; nil: of none. In a folder that is
	// taken whole that file is left out where it would become the program.
	Info fs.FileInfo
}

// Item is a file or a folder of the working folder.
type Item struct {
	// Name is a relative path with "/" between its parts, as agent/api.CheckFileName
	// wants it.
	Name               string
	Folder, Executable bool
	Bytes              int64 // 0 for a folder

	path  string // as a person would write it
	named bool   // by the person, and not found in a folder
	root  *os.Root
	rel   string // below root
	info  fs.FileInfo
}

// Set is all that is taken along, in an order that depends on names alone. Items does
// not change. It is safe for concurrent use but for Close.
type Set struct {
	Items []Item
	Bytes int64 // of all files
	roots []*os.Root
}

// Close closes the folders that the items lie in.
func (s *Set) Close() error {
	var errs []error
	for _, r := range s.roots {
		errs = append(errs, r.Close())
	}
	return errors.Join(errs...)
}

// Reads tells whether a file is among them.
func (s *Set) Reads(info fs.FileInfo) bool {
	return slices.ContainsFunc(s.Items, func(i Item) bool { return !i.Folder && os.SameFile(i.info, info) })
}

// Find finds what args, each PATH[=NAME] as Split reads it, name. Every file was opened
// for reading once. The errors are sentences that name what they are about; those of
// Bounds match ErrTooMany or ErrTooLarge. The caller closes the set.
func Find(ctx context.Context, args []string, p Program, b Bounds) (*Set, error) {
	f := &finder{Set: &Set{}, ctx: ctx, program: p, bounds: b, kinds: map[string]kind{}}
	f.twins.Add(p.Name)
	for _, arg := range args {
		if err := f.take(arg); err != nil {
			return nil, errors.Join(err, f.Close())
		}
	}
	return f.Set, nil
}

// kind is what a name stands for, and what was to become it.
type kind struct {
	folder, implied bool
	path            string
}

type finder struct {
	*Set
	ctx     context.Context
	program Program
	bounds  Bounds
	twins   twins.Set
	kinds   map[string]kind // of the items' names and of the folders above them
}

// take adds what one argument names.
func (f *finder) take(arg string) error {
	given, name, err := Split(arg)
	if err != nil {
		return err
	}
	st, err := os.Stat(given) // what the person names may be a link
	if err != nil {
		return fmt.Errorf("%q: %w", given, cause(err))
	}
	if !st.IsDir() && !st.Mode().IsRegular() {
		return special(given, st.Mode()) // it may be a pipe, which has no path of its own
	}
	real, err := filepath.EvalSymlinks(given)
	if err != nil {
		return fmt.Errorf("%q: %w", given, cause(err))
	}
	if st, err = os.Lstat(real); err != nil {
		return fmt.Errorf("%q: %w", given, cause(err))
	}
	if name == "" {
		if name, err = baseName(given); err != nil {
			return err
		}
	}
	if !st.IsDir() {
		if name == here {
			return fmt.Errorf("%q is a file: only what is in a folder can be put into the working folder as %q", given, here)
		}
		return f.file(given, real, name, st)
	}
	root, err := os.OpenRoot(real)
	if err != nil {
		return fmt.Errorf("%q: %w", given, cause(err))
	}
	f.roots = append(f.roots, root)
	top := Item{Name: name, Folder: true, path: given, root: root, rel: "."}
	if name != here {
		if err := f.add(top); err != nil {
			return err
		}
	}
	return f.walk(top)
}

// baseName is the name of what has none of its own.
func baseName(given string) (string, error) {
	abs, err := filepath.Abs(given)
	if err != nil {
		return "", fmt.Errorf("%q: %w", given, err)
	}
	name := filepath.Base(abs)
	if name == string(filepath.Separator) {
		return "", fmt.Errorf("%q has no name: give it one, %q", given, given+"=NAME")
	}
	return name, nil
}

// file adds a file that was named itself.
func (f *finder) file(given, real, name string, st fs.FileInfo) error {
	if !st.Mode().IsRegular() {
		return special(given, st.Mode())
	}
	root, err := os.OpenRoot(filepath.Dir(real))
	if err != nil {
		return fmt.Errorf("%q: %w", given, cause(err))
	}
	f.roots = append(f.roots, root)
	return f.addFile(Item{Name: name, path: given, named: true, root: root, rel: filepath.Base(real)})
}

// walk adds what is in a folder, sorted by name.
func (f *finder) walk(folder Item) error {
	entries, err := f.list(folder)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if err := f.ctx.Err(); err != nil {
			return context.Cause(f.ctx)
		}
		if outputs.IsStage(entry) {
			continue // results of another command, which come and go
		}
		i := Item{
			Name: path.Join(folder.Name, entry), path: filepath.Join(folder.path, entry),
			root: folder.root, rel: filepath.Join(folder.rel, entry),
		}
		st, err := i.root.Lstat(i.rel)
		if err != nil {
			return fmt.Errorf("%q: %w", i.path, cause(err))
		}
		switch {
		case st.IsDir():
			err = f.folder(i)
		case st.Mode().IsRegular():
			err = f.addFile(i)
		default:
			err = special(i.path, st.Mode())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// folder adds a folder and what is in it.
func (f *finder) folder(i Item) error {
	i.Folder = true
	if err := f.add(i); err != nil {
		return err
	}
	return f.walk(i)
}

// list gives the names in a folder, sorted: not more than fit.
func (f *finder) list(folder Item) ([]string, error) {
	d, err := folder.root.Open(folder.rel)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", folder.path, cause(err))
	}
	defer d.Close()
	var names []string
	for {
		some, err := d.Readdirnames(256)
		names = append(names, some...)
		switch {
		case err == io.EOF:
			slices.Sort(names)
			return names, nil
		case err != nil:
			return nil, fmt.Errorf("%q: %w", folder.path, cause(err))
		case len(f.Items)+len(names) > f.bounds.Files+1: // one of them may be the program
			return nil, f.tooMany(folder.path)
		}
	}
}

func (f *finder) tooMany(path string) error {
	return fmt.Errorf("%w: with %q there are more than %d, and no run takes more", ErrTooMany, path, f.bounds.Files)
}

// addFile adds a regular file, which is opened to see that it can be.
func (f *finder) addFile(i Item) error {
	r, err := i.open()
	if err != nil {
		return fmt.Errorf("%q: %w", i.path, err)
	}
	defer r.Close()
	if i.info, err = r.Stat(); err != nil {
		return fmt.Errorf("%q: %w", i.path, cause(err))
	}
	if !i.info.Mode().IsRegular() {
		return special(i.path, i.info.Mode())
	}
	if !i.named && i.Name == f.program.Name && f.program.Info != nil && os.SameFile(i.info, f.program.Info) {
		return nil // it is there already
	}
	i.Bytes, i.Executable = i.info.Size(), i.info.Mode()&0o111 != 0
	if i.Bytes > f.bounds.Bytes-f.Bytes {
		return fmt.Errorf("%w: with %q it is more than %v", ErrTooLarge, i.path, units.Size(f.bounds.Bytes))
	}
	if err := f.add(i); err != nil {
		return err
	}
	f.Bytes += i.Bytes
	return nil
}

// add adds what has a name that is free.
func (f *finder) add(i Item) error {
	if err := api.CheckFileName(i.Name); err != nil {
		return fmt.Errorf("%q: %w", i.path, sentence(err))
	}
	if len(f.Items) >= f.bounds.Files {
		return f.tooMany(i.path)
	}
	if err := f.free(i); err != nil {
		return err
	}
	f.kinds[i.Name] = kind{folder: i.Folder, path: i.path}
	f.Items = append(f.Items, i)
	return nil
}

// free tells whether nothing is in the way of a name.
func (f *finder) free(i Item) error {
	if twin, ok := f.twins.Add(i.Name); !ok {
		return fmt.Errorf("%q would be %q beside %q, which many systems take for one name: give one of them another, PATH=NAME", i.path, i.Name, twin)
	}
	if f.program.Name == i.Name || strings.HasPrefix(i.Name, f.program.Name+"/") {
		return fmt.Errorf("%q would be %q, and so is the program called: give it another name, PATH=NAME", i.path, i.Name)
	}
	if have, ok := f.kinds[i.Name]; ok && !(have.implied && i.Folder) {
		return fmt.Errorf("%q and %q would both be %q: give one of them another name, PATH=NAME", have.path, i.path, i.Name)
	}
	for above := path.Dir(i.Name); above != here; above = path.Dir(above) {
		have, ok := f.kinds[above]
		switch {
		case !ok:
			f.kinds[above] = kind{folder: true, implied: true, path: i.path}
		case !have.folder:
			return fmt.Errorf("%q would be a file, %q, and the folder of %q: give one of them another name, PATH=NAME", have.path, above, i.path)
		}
	}
	return nil
}

// open opens a file without waiting for anything: not even for the other end of a
// FIFO that has come to its place.
func (i Item) open() (*os.File, error) {
	f, err := i.root.OpenFile(i.rel, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil, cause(err)
	}
	return f, nil
}

// special is the error about what is neither file nor folder.
func special(path string, m fs.FileMode) error {
	what := "something special"
	switch {
	case m&fs.ModeSymlink != 0:
		return fmt.Errorf("%q is a symbolic link: links inside a folder are not taken along; name what it leads to by itself, or take it out", path)
	case m&fs.ModeNamedPipe != 0:
		what = "a pipe"
	case m&fs.ModeSocket != 0:
		what = "a socket"
	case m&fs.ModeDevice != 0:
		what = "a device"
	}
	return fmt.Errorf("%q is %s, want a file or a folder", path, what)
}

// cause is an error without the path that it is about.
func cause(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// sentence is what is wrong with a name, without the words that it is a request.
func sentence(err error) error {
	if m, ok := err.(interface{ Unwrap() []error }); ok {
		if all := m.Unwrap(); len(all) > 1 {
			return all[len(all)-1]
		}
	}
	return err
}

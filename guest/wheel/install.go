package wheel

import (
	"bytes"
	"cmp"
	"encoding/csv"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/pybox/pybox/guest/image"
	"github.com/pybox/pybox/guest/tree"
)

// installerName is what INSTALLER says.
const installerName = "pybox\n"

// most is how many names an error or note has.
const most = 5

// Where the image's own modules are, in the order in which Python looks: Site comes
// between the standard library and Debian's packages.
var (
	standardLibrary = []string{"usr/lib/python" + image.Python, "usr/lib/python" + image.Python + "/lib-dynload"}
	debianPackages  = []string{"usr/lib/python3/dist-packages"}
)

// Installer installs wheels into a tree, which nobody else may change meanwhile. It is
// not safe for concurrent use.
type Installer struct {
	t     *tree.Tree
	owner map[string]string // names of wheels by the paths of their files
	// standard and packaged are the modules that the image had before.
	standard, packaged map[string]bool
}

// NewInstaller returns an installer for a tree that has what wheels are installed
// beside.
func NewInstaller(t *tree.Tree) *Installer {
	return &Installer{t: t, owner: map[string]string{}, standard: modules(t, standardLibrary), packaged: modules(t, debianPackages)}
}

// modules are the names that can be imported from the top of folders.
func modules(t *tree.Tree, dirs []string) map[string]bool {
	out := map[string]bool{}
	for _, n := range t.Nodes() {
		dir, name := path.Split(n.Path)
		dir = strings.TrimSuffix(dir, "/")
		switch {
		case n.Kind == tree.Dir:
		case slices.Contains(dirs, dir):
			if m := isModule(name); m != "" {
				out[m] = true
			}
		case name == "__init__.py" && slices.Contains(dirs, path.Dir(dir)):
			out[path.Base(dir)] = true
		}
	}
	return out
}

// Installed is what came of a wheel.
type Installed struct {
	Files int   // in the tree, what PyBox adds included
	Bytes int64 // of them
	// Hides are the wheel's modules that are found before those of that name in the
	// image, Hidden those that the standard library's hide.
	Hides, Hidden []string
}

// Install adds the files of a wheel, its RECORD, INSTALLER and REQUESTED. The tree
// keeps parts of the wheel, which must not be closed before the tree is done with.
// On an error the tree is of no use. Errors match ErrConflict, ErrClosed or tree's and
// name the wheel.
func (in *Installer) Install(w *Wheel) (*Installed, error) {
	out, err := in.install(w)
	if err != nil {
		return nil, fmt.Errorf("wheel %.200q: %w", w.File, err)
	}
	return out, nil
}

func (in *Installer) install(w *Wheel) (*Installed, error) {
	if w.closed {
		return nil, ErrClosed
	}
	files, err := w.withRecord()
	if err != nil {
		return nil, err
	}
	if err := in.conflicts(files); err != nil {
		return nil, err
	}
	out := &Installed{Files: len(files)}
	for _, f := range files {
		out.Bytes += int64(len(f.data))
		if in.t.Lookup(f.dest) != nil {
			continue // the same bytes, as conflicts has seen
		}
		mode := tree.Attr{Mode: 0o644}
		if f.exec {
			mode.Mode = 0o755
		}
		if err := in.t.WriteFile(f.dest, f.data, mode); err != nil {
			return nil, err
		}
		in.owner[f.dest] = w.File
	}
	for _, m := range w.Modules() {
		if in.standard[m] {
			out.Hidden = append(out.Hidden, m)
		} else if in.packaged[m] {
			out.Hides = append(out.Hides, m)
		}
	}
	return out, nil
}

// conflicts makes sure that no file takes the place of another one. Equal files are
// no conflict: some projects share a file, as of a licence or an old namespace.
func (in *Installer) conflicts(files []file) error {
	var bad []string
	below := map[string]bool{} // what was said to be no folder
	for _, f := range files {
		if dir := in.noFolder(f.dest); dir != "" {
			if !below[dir] {
				below[dir] = true
				bad = append(bad, fmt.Sprintf("/%s is a folder in it and a file in %s", dir, cmp.Or(in.owner[dir], "the image")))
			}
			continue
		}
		n := in.t.Lookup(f.dest)
		if n == nil || n.Kind == tree.File && bytes.Equal(n.Data, f.data) {
			continue
		}
		switch owner := in.owner[f.dest]; {
		case n.Kind == tree.Dir:
			bad = append(bad, fmt.Sprintf("/%s is a folder already", f.dest))
		case owner == "":
			bad = append(bad, fmt.Sprintf("/%s is in the image too, with other content", f.dest))
		default:
			bad = append(bad, fmt.Sprintf("/%s is in %s too, with other content", f.dest, owner))
		}
	}
	if len(bad) == 0 {
		return nil
	}
	more := ""
	if n := len(bad) - most; n > 0 {
		bad, more = bad[:most], fmt.Sprintf(" and %d more", n)
	}
	return fmt.Errorf("%w: %s%s; which one a program gets would depend on the order, so neither is taken: leave one of the two out",
		ErrConflict, strings.Join(bad, ", "), more)
}

// noFolder is the first part of a path that a folder would have to be and is something
// else, or "".
func (in *Installer) noFolder(p string) string {
	for i, c := range p {
		if c != '/' {
			continue
		}
		if n := in.t.Lookup(p[:i]); n == nil {
			return ""
		} else if n.Kind != tree.Dir {
			return p[:i]
		}
	}
	return ""
}

// withRecord returns the files of the wheel and those that an installer adds
// (https://packaging.python.org/en/latest/specifications/recording-installed-packages/).
func (w *Wheel) withRecord() ([]file, error) {
	dir := path.Join(Site, w.distInfo)
	files := append(slices.Clone(w.files),
		file{dest: dir + "/INSTALLER", data: []byte(installerName), digest: digestOf([]byte(installerName))},
		file{dest: dir + "/REQUESTED", digest: digestOf(nil)})
	slices.SortFunc(files, func(a, b file) int { return cmp.Compare(a.dest, b.dest) })
	own := dir + "/RECORD"
	var text bytes.Buffer
	out := csv.NewWriter(&text)
	for _, f := range files {
		if err := out.Write([]string{relative(f.dest), f.digest, fmt.Sprint(len(f.data))}); err != nil {
			return nil, err
		}
	}
	if err := out.Write([]string{relative(own), "", ""}); err != nil {
		return nil, err
	}
	if out.Flush(); out.Error() != nil {
		return nil, out.Error()
	}
	return append(files, file{dest: own, data: text.Bytes()}), nil
}

// relative is how a RECORD names a path: from the folder of packages.
func relative(p string) string {
	if rest, ok := strings.CutPrefix(p, Site+"/"); ok {
		return rest
	}
	rest := strings.TrimPrefix(p, Prefix+"/")
	return strings.Repeat("../", strings.Count(strings.TrimPrefix(Site, Prefix), "/")) + rest
}

package ociimage

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/pybox/pybox/guest/elfcheck"
	"github.com/pybox/pybox/guest/layout"
	"github.com/pybox/pybox/guest/tree"
)

// interpreter is what a box starts.
const interpreter = "usr/bin/python3"

// MinMinor is the oldest Python 3 that is taken, 3.9. The program that a box begins
// with (package runner of the agent) is written for it; what Python was in 3.8 and
// before has no one to mend it.
const MinMinor = 9

// Where a Python is looked for: the image's own PATH, and then these.
var (
	usualPath = []string{"usr/local/bin", "usr/bin", "bin"}
	lastPath  = []string{"opt/venv/bin", "venv/bin", "app/.venv/bin", "opt/conda/bin", "opt/python/bin"}
)

const (
	maxSearch    = 64
	maxTextBytes = 200
)

// pythonName is what the program of an interpreter is called.
var pythonName = regexp.MustCompile(`^(?:python|pypy)(3)\.([0-9]{1,3})[a-z]*$`)

// fitter changes what a box needs to be otherwise.
type fitter struct {
	tree  *tree.Tree
	arch  string
	notes []string
}

func (f *fitter) note(format string, a ...any) {
	f.notes = append(f.notes, fmt.Sprintf(format, a...))
}

// all makes the folders that a box mounts on and finds the Python in the folders of
// search.
func (f *fitter) all(search []string) (Interpreter, error) {
	if err := f.folders(); err != nil {
		return Interpreter{}, err
	}
	return f.python(search)
}

// folders makes real folders of what a box's file systems are mounted on. A link
// would let the image choose where that is; /tmp is one in some images, and all that
// it leads to is empty at the start of a box anyway.
func (f *fitter) folders() error {
	for _, d := range layout.Dirs() {
		n := f.tree.Lookup(d)
		switch {
		case n == nil:
		case n.Kind == tree.Dir:
			if d == "box" && f.holds(d) {
				f.note("what the image has in /%s is not visible: a box's working folder is there", d)
			}
			continue
		case n.Kind == tree.Symlink && d == "tmp":
			f.note("/%s was a link to %s and is a folder now: a box has its own there", d, escape(n.Target, maxTextBytes))
			f.tree.Remove(d)
		default:
			return fmt.Errorf("%w: /%s is no folder, and a box needs one there; make it a folder in the image", layout.Err, d)
		}
		if err := f.tree.Mkdir(d, tree.Attr{Mode: 0o755}); err != nil {
			return err
		}
	}
	// The box's user must get in.
	root := f.tree.Lookup(".")
	root.Mode |= 0o555
	return nil
}

// holds tells whether something is in a folder.
func (f *fitter) holds(dir string) bool {
	return slices.ContainsFunc(f.tree.Nodes(), func(n *tree.Node) bool { return path.Dir(n.Path) == dir })
}

// searchPath are the folders of an image's PATH, relative to the root, and the ones
// that are usual.
func searchPath(c *v1.ConfigFile) []string {
	var dirs []string
	add := func(d string) {
		d = strings.TrimPrefix(path.Clean("/"+d), "/")
		if d != "" && !slices.Contains(dirs, d) && len(dirs) < maxSearch {
			dirs = append(dirs, d)
		}
	}
	for _, kv := range c.Config.Env {
		if p, ok := strings.CutPrefix(kv, "PATH="); ok {
			for d := range strings.SplitSeq(p, ":") {
				if path.IsAbs(d) {
					add(d)
				}
			}
		}
	}
	for _, d := range slices.Concat(usualPath, lastPath) {
		add(d)
	}
	return dirs
}

// candidate is a python3 of the image.
type candidate struct {
	dir  string     // where it was found
	node *tree.Node // the program behind it
}

// python finds the interpreter that the image's own PATH would, and makes
// usr/bin/python3 lead to it.
func (f *fitter) python(search []string) (Interpreter, error) {
	c, err := f.find(search)
	if err != nil {
		return Interpreter{}, err
	}
	in := Interpreter{Path: "/" + c.node.Path, Version: f.version(c.node.Path)}
	if minor, ok := minorOf(in.Version); ok && minor < MinMinor {
		return Interpreter{}, fmt.Errorf("%w: %s is Python %s, and PyBox needs 3.%d or newer", ErrPython, in.Path, in.Version, MinMinor)
	} else if !ok {
		f.note("which version %s is cannot be told by its name; PyBox needs 3.%d or newer", in.Path, MinMinor)
	}
	if err := f.lead(c); err != nil {
		return Interpreter{}, err
	}
	f.unlock(c.node)
	return in, f.venv(c, in)
}

// version is what an interpreter's name tells, or the library beside it.
func (f *fitter) version(program string) string {
	if v := versionOf(program); v != "" {
		return v
	}
	return f.versionBeside(program)
}

// find returns the first usable interpreter.
func (f *fitter) find(search []string) (candidate, error) {
	check, err := elfcheck.New(f.tree, f.arch)
	if err != nil {
		return candidate{}, fmt.Errorf("%w: %w", ErrPlatform, err)
	}
	var seen []string
	var wrong error
	for _, dir := range search {
		n, _, err := f.tree.Resolve(path.Join(dir, "python3"))
		if err != nil || n.Kind != tree.File || n.Mode&0o111 == 0 {
			continue
		}
		if d := hiddenBy(n.Path); d != "" {
			seen = append(seen, fmt.Sprintf("/%s/python3: it lies in /%s, where a box has its own folder", escape(dir, maxTextBytes), d))
			continue
		}
		if err := check.Program(n); err != nil {
			wrong = errors.Join(wrong, err)
			seen = append(seen, fmt.Sprintf("/%s/python3: %v", escape(dir, maxTextBytes), err))
			continue
		}
		for _, s := range seen {
			f.note("passed over %s", s)
		}
		return f.original(candidate{dir: dir, node: n}, check), nil
	}
	switch {
	case errors.Is(wrong, elfcheck.ErrArch):
		return candidate{}, fmt.Errorf("%w: %w: %s", ErrPython, ErrPlatform, strings.Join(seen, "; "))
	case len(seen) > 0:
		return candidate{}, fmt.Errorf("%w: %s", ErrPython, strings.Join(seen, "; "))
	}
	return candidate{}, fmt.Errorf("%w: there is no python3 in /usr/bin, /usr/local/bin or the image's PATH; a box runs Python programs, so take an image that has it, such as python:3-slim", ErrPython)
}

// hiddenBy is the folder that a box mounts over a path; "" where there is none.
func hiddenBy(p string) string {
	top, _, _ := strings.Cut(p, "/")
	if slices.Contains(layout.Dirs(), top) {
		return top
	}
	return ""
}

// original is the interpreter that one in a virtual environment is a copy of, as
// "venv --copies" makes it: a copy is of use only where it is started by its own name,
// and a box starts /usr/bin/python3. Where it cannot be found the copy stays.
func (f *fitter) original(c candidate, check *elfcheck.Checker) candidate {
	home := path.Dir(c.dir)
	env, _, err := f.tree.Resolve(home)
	if err != nil || !strings.HasPrefix(c.node.Path, env.Path+"/") {
		return c
	}
	cfg := f.regular(path.Join(home, venvConfig))
	if cfg == nil {
		return c
	}
	bin := strings.TrimPrefix(path.Clean(homeOf(cfg.Data)), "/")
	for _, name := range []string{path.Base(c.node.Path), "python3"} {
		n := f.regular(path.Join(bin, name))
		if n == nil || n.Mode&0o111 == 0 || strings.HasPrefix(n.Path, env.Path+"/") || hiddenBy(n.Path) != "" || check.Program(n) != nil {
			continue
		}
		if v := versionOf(c.node.Path); v != "" && f.version(n.Path) != v {
			continue
		}
		f.note("/%s is a copy in a virtual environment: boxes start /%s, which it is one of", escape(c.node.Path, maxTextBytes), escape(n.Path, maxTextBytes))
		c.node = n
		return c
	}
	return c
}

// venvConfig is what makes a folder a virtual environment (PEP 405).
const venvConfig = "pyvenv.cfg"

// maxVenvConfig bounds it: real ones have some hundred bytes.
const maxVenvConfig = 64 << 10

// homeOf is the absolute folder that a pyvenv.cfg says its interpreter is in; "" where
// it says none.
func homeOf(cfg []byte) string {
	if len(cfg) > maxVenvConfig {
		return ""
	}
	for line := range strings.Lines(string(cfg)) {
		k, v, ok := strings.Cut(line, "=")
		if v = strings.TrimSpace(v); ok && strings.EqualFold(strings.TrimSpace(k), "home") && path.IsAbs(v) {
			return v
		}
	}
	return ""
}

// lead makes usr/bin/python3 lead to the interpreter. Python finds its library by
// where the program is that a link leads to, not by the link.
func (f *fitter) lead(c candidate) error {
	dir, err := f.realDir(path.Dir(interpreter))
	if err != nil {
		return err
	}
	if d := hiddenBy(dir); d != "" {
		return fmt.Errorf("%w: /%s leads to /%s, where a box has its own folder", ErrPython, path.Dir(interpreter), d)
	}
	link := path.Join(dir, path.Base(interpreter))
	if n, _, err := f.tree.Resolve(link); err == nil && n == c.node {
		return nil
	}
	found := "/" + escape(path.Join(c.dir, "python3"), maxTextBytes)
	switch at := f.tree.Lookup(link); {
	case at != nil && at.Kind == tree.Dir:
		// With it would go what is in it, which may be the interpreter.
		return fmt.Errorf("%w: /%s is a folder, and a box starts it as a program; take it out of the image", ErrPython, interpreter)
	case at == nil:
		f.note("/%s is a link to %s now: a box starts it by that name", interpreter, found)
	case at.Kind == tree.Symlink:
		f.note("boxes start %s, as the image's PATH does: /%s was a link to %s and leads there now", found, interpreter, escape(at.Target, maxTextBytes))
	default:
		f.note("boxes start %s, as the image's PATH does: /%s was something else and is a link to it now", found, interpreter)
	}
	f.tree.Remove(link)
	return f.tree.Symlink(link, "/"+c.node.Path, tree.Attr{})
}

// realDir is the folder at a path, made where nothing is. Images without a merged
// /usr have usr/bin; where that is a link, to bin, the kernel follows it.
func (f *fitter) realDir(p string) (string, error) {
	n, _, err := f.tree.Resolve(p)
	if errors.Is(err, tree.ErrNotFound) && f.tree.Mkdir(p, tree.Attr{Mode: 0o755}) == nil {
		return p, nil
	}
	if err != nil || n.Kind != tree.Dir {
		return "", fmt.Errorf("%w: /%s is no folder", ErrPython, p)
	}
	return n.Path, nil
}

// unlock lets the box's user, who is not root, start the interpreter.
func (f *fitter) unlock(n *tree.Node) {
	f.enter(path.Dir(n.Path))
	if n.Mode&0o005 != 0o005 {
		f.note("/%s can be started by everybody now: a box's program is not root", escape(n.Path, maxTextBytes))
		n.Mode |= 0o055
	}
}

// enter lets everybody into a folder and those above: some images keep their Python
// in /root.
func (f *fitter) enter(p string) {
	for ; p != "."; p = path.Dir(p) {
		if d := f.tree.Lookup(p); d != nil && d.Mode&0o001 == 0 {
			f.note("/%s can be entered by everybody now: Python lies below it, and a box's program is not root", escape(p, maxTextBytes))
			d.Mode |= 0o011
		}
	}
}

// venv makes the packages of a virtual environment visible. Python knows one by the
// folder that it was started from, which is /usr/bin in a box.
func (f *fitter) venv(c candidate, in Interpreter) error {
	home := path.Dir(c.dir)
	if home == "usr" || home == "." || f.regular(path.Join(home, venvConfig)) == nil {
		return nil
	}
	lost := func(why string) error {
		f.note("the packages of the virtual environment /%s are not found by themselves: %s", escape(home, maxTextBytes), why)
		return nil
	}
	if in.Version == "" {
		return lost("they are kept by the version of Python, which is not known")
	}
	n, _, err := f.tree.Resolve(path.Join(home, "lib", "python"+in.Version, "site-packages"))
	if err != nil || n.Kind != tree.Dir {
		return nil // there are none
	}
	line, ok := pythonString("/" + n.Path)
	switch d := hiddenBy(n.Path); {
	case d != "":
		return lost("they lie in /" + d + ", where a box has its own folder")
	case !ok:
		return lost("the name of their folder is no UTF-8")
	}
	base, err := f.baseSite(c.node.Path, in.Version)
	if err != nil {
		return err
	}
	if d := hiddenBy(base); d != "" {
		return lost("the interpreter's own lie in /" + d + ", where a box has its own folder")
	}
	if base == n.Path {
		if f.regular(path.Join(path.Dir(base), "os.py")) != nil {
			f.enter(n.Path)
			return nil // the interpreter's own folder: it looks there
		}
		return lost("its Python is a copy, and what it is a copy of is not where " + venvConfig + " says; make it without --copies")
	}
	f.enter(n.Path)
	p := path.Join(base, "pybox-venv.pth")
	if old := f.tree.Lookup(p); old != nil && old.Kind != tree.Dir {
		f.tree.Remove(p) // of an export that something was put on
	}
	if err := f.tree.WriteFile(p, []byte("import site; site.addsitedir("+line+")\n"), tree.Attr{Mode: 0o644}); err != nil {
		return fmt.Errorf("%w: %w", ErrPython, err)
	}
	f.note("the packages of the virtual environment /%s are found through /%s", escape(home, maxTextBytes), escape(p, maxTextBytes))
	return nil
}

// baseSite is where the interpreter itself looks for packages.
func (f *fitter) baseSite(program, version string) (string, error) {
	prefix := path.Dir(path.Dir(program))
	dirs := []string{path.Join(prefix, "lib", "python"+version, "site-packages")}
	if prefix == "usr" { // Debian's
		dirs = []string{"usr/local/lib/python" + version + "/dist-packages", "usr/lib/python3/dist-packages", dirs[0]}
	}
	for _, d := range dirs {
		if n, _, err := f.tree.Resolve(d); err == nil && n.Kind == tree.Dir {
			return n.Path, nil
		}
	}
	return f.realDir(dirs[0])
}

// pythonString writes a path as a literal of Python, in ASCII. What is no UTF-8 Python
// has as surrogates, which are not worth it.
func pythonString(s string) (_ string, ok bool) {
	return strconv.QuoteToASCII(s), utf8.ValidString(s) // its escapes are Python's as well
}

// regular returns the file at a path, nil where there is none.
func (f *fitter) regular(p string) *tree.Node {
	if n, _, err := f.tree.Resolve(p); err == nil && n.Kind == tree.File {
		return n
	}
	return nil
}

// versionOf reads "3.13" from a program's name, "" where it is not there.
func versionOf(program string) string {
	m := pythonName.FindStringSubmatch(path.Base(program))
	if m == nil {
		return ""
	}
	return m[1] + "." + m[2]
}

// versionBeside finds the version by the one library that lies where the program
// would look for its own.
func (f *fitter) versionBeside(program string) string {
	lib := path.Join(path.Dir(path.Dir(program)), "lib")
	var found string
	for _, n := range f.tree.Nodes() {
		if path.Dir(n.Path) != lib || n.Kind != tree.Dir || f.regular(path.Join(n.Path, "os.py")) == nil {
			continue
		}
		if v := versionOf(n.Path); v != "" {
			if found != "" {
				return ""
			}
			found = v
		}
	}
	return found
}

// minorOf is 13 of "3.13".
func minorOf(version string) (int, bool) {
	s, ok := strings.CutPrefix(version, "3.")
	if !ok {
		return 0, false
	}
	n, err := strconv.Atoi(s)
	return n, err == nil
}

// ignored lists the settings of an image's configuration that no box follows.
func ignored(c *v1.ConfigFile) []string {
	var out []string
	list := func(what string, v []string) {
		if len(v) > 0 {
			out = append(out, escape(fmt.Sprintf("%s %q", what, v), maxTextBytes))
		}
	}
	one := func(what, v string) {
		if v != "" {
			out = append(out, escape(what+" "+v, maxTextBytes))
		}
	}
	var names []string
	for _, kv := range c.Config.Env {
		name, _, _ := strings.Cut(kv, "=")
		names = append(names, name)
	}
	one("Env", strings.Join(names, " "))
	list("Entrypoint", c.Config.Entrypoint)
	list("Cmd", c.Config.Cmd)
	one("User", c.Config.User)
	one("WorkingDir", c.Config.WorkingDir)
	one("StopSignal", c.Config.StopSignal)
	count := func(what string, n int) {
		if n > 0 {
			out = append(out, fmt.Sprintf("%s (%d)", what, n))
		}
	}
	count("Volumes", len(c.Config.Volumes))
	count("ExposedPorts", len(c.Config.ExposedPorts))
	if c.Config.Healthcheck != nil {
		out = append(out, "Healthcheck")
	}
	return out
}

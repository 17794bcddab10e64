package setup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/gofrs/flock"

	"github.com/pybox/pybox/guest/bundle"
	"github.com/pybox/pybox/host/home"
	"github.com/pybox/pybox/host/images"
)

// ErrRunning: a VM runs, and what is to be removed is in use.
var ErrRunning = errors.New("a VM runs with this state folder: 'pybox vm stop' first")

// RemovalSchema names the JSON form of a removal's plan.
const RemovalSchema = "pybox.setup-removal/v1"

// RemovalOptions say what to remove.
type RemovalOptions struct {
	Home, Cache string
	// Receipts removes the records of runs too.
	Receipts bool
	// Command is what a person types to have it done.
	Command string
}

// Removal is what will be removed: what is there by name when the plan is made and
// of PyBox's making by its name and place. It must not be changed.
type Removal struct {
	Schema string `json:"schema"`
	Home   string `json:"home"`
	Cache  string `json:"cache"`
	// Files and then Folders, the innermost first, are removed; a folder only if
	// it is empty by then.
	Files   []Path `json:"files"`
	Folders []Path `json:"folders"`
	Bytes   int64  `json:"bytes"`
	// Kept is what stays, and why.
	Kept     []Path    `json:"kept"`
	Problems []Problem `json:"problems"`
	Command  string    `json:"command"`
}

// known is a kind of file that PyBox makes. Its pattern matches a whole path below
// the folder, with slashes.
type known struct {
	pattern *regexp.Regexp
	what    string
}

func kind(pattern, what string) known {
	return known{regexp.MustCompile("^(?:" + pattern + ")$"), what}
}

// aside is what files are called while they are written.
const aside = `(?:\.%s[0-9]+)`

// replaced matches a file that is written aside and moved into place.
func replaced(name string) string {
	return "(?:" + name + "|" + fmt.Sprintf(aside, name) + ")"
}

// inFolder is replaced for a file in a folder.
func inFolder(folder, name string) string { return folder + "/" + replaced(name) }

const (
	hex2, hex16, hex64 = "[0-9a-f]{2}", "[0-9a-f]{16}", "[0-9a-f]{64}"
	receiptsDir        = "receipts"
)

// inHome are the files that PyBox makes in its state folder, but for the parts of
// bundles and config.toml, which is the person's.
var inHome = []known{
	kind(inFolder("bundles", "(?:current|previous)")+"|bundles/lock", "bundles"),
	kind(replaced(`(?:daemon|last-end|acceleration|setup)\.json`)+`|lock`, "PyBox's own records"),
	kind(`(?:daemon|console)\.log(?:\.1)?|daemon\.err`, "logs"),
	kind(`pybox\.sock`, "socket"),
	kind(`files/body-[0-9]+`, "files on their way to a run"),
	kind(images.Dir+`/lock`, "PyBox's own records"),
}

// receipts are the records of runs.
var receipts = kind(`receipts/\.lock|`+inFolder(receiptsDir, `[^/.][^/]*\.json`), "receipts")

// inCache are the files that setup makes in the cache. All but its own work may be
// others' too, of 'pybox-guest' or of another state folder's setup.
var inCache = []known{
	kind("sha256/"+hex2+"/"+hex64, "downloads"),
	kind("partial/"+hex64+`(?:\.lock)?`, "downloads that are not whole"),
	kind(bytecodeDir+"/"+hex64, "byte code"),
	kind(`acceleration\.json`, "PyBox's own records"),
}

// work is what nobody but setup makes.
var work = kind("setup/lock|setup/"+hex16+"/.*", "setup's work")

// Names in the cache.
const (
	bytecodeDir      = "bytecode"
	accelerationName = "acceleration.json"
)

// claimed tells whether a file of the cache is what setups into this folder added.
func (rec record) claimed(rel string) bool {
	if sum, ok := strings.CutPrefix(rel, "partial/"); ok {
		rel = download(strings.TrimSuffix(sum, ".lock"))
	}
	return slices.Contains(rec.Cache, rel)
}

// PlanRemoval lists what would be removed. It changes nothing.
func PlanRemoval(ctx context.Context, o RemovalOptions) (*Removal, error) {
	r := &Removal{Schema: RemovalSchema, Home: o.Home, Cache: o.Cache, Command: o.Command,
		Files: []Path{}, Folders: []Path{}, Kept: []Path{}, Problems: []Problem{}}
	// A folder may be a link to one on another disk, and a link is not walked into.
	for _, dir := range []*string{&o.Home, &o.Cache} {
		if real, err := filepath.EvalSymlinks(*dir); err == nil {
			*dir = real
		}
	}
	st, err := look(o.Home)
	if err != nil {
		return nil, err
	}
	if st.running {
		r.Problems = append(r.Problems, Problem{"a VM runs with this state folder", "'pybox vm stop' first"})
	}
	if err := r.cache(ctx, o, st.record); err != nil {
		return nil, err
	}
	if st.home == nil {
		return r, nil
	}
	return r, errors.Join(r.socket(st.home), r.state(ctx, o, st.record))
}

// state lists what is in the state folder.
func (r *Removal) state(ctx context.Context, o RemovalOptions, rec record) error {
	kinds := inHome
	if o.Receipts {
		kinds = append(slices.Clone(kinds), receipts)
	}
	parts := map[string]bool{} // of bundles, by their paths below the folder
	err := r.walk(ctx, o.Home, func(rel string, st fs.FileInfo) string {
		for _, k := range kinds {
			if k.pattern.MatchString(rel) {
				return k.what
			}
		}
		if isPart(o.Home, rel, parts) {
			return "bundles"
		}
		return ""
	}, func(rel string) string {
		switch {
		case rel == "config.toml":
			return "yours"
		case rel == receiptsDir || receipts.pattern.MatchString(rel):
			return "receipts; '--receipts' removes them too"
		case strings.HasPrefix(rel, images.Dir+"/"):
			return "images of your own; 'pybox image remove' removes them"
		}
		return "PyBox did not make it"
	})
	if err != nil {
		return err
	}
	// A folder that somebody gave PyBox is theirs; ~/.pybox is PyBox's.
	if rec.MadeHome || filepath.Base(o.Home) == ".pybox" {
		r.Folders = append(r.Folders, Path{Path: o.Home, For: "where it is empty then"})
	}
	return nil
}

// isPart tells whether a path is that of a part of a bundle, whole or cut off. What
// else lies in its folder is somebody's.
func isPart(dir, rel string, known map[string]bool) bool {
	w := strings.Split(rel, "/")
	if len(w) != 3 || w[0] != "bundles" || !isKey(w[1]) && !strings.HasPrefix(w[1], "tmp-") {
		return false
	}
	if _, done := known[w[1]]; !done {
		known[w[1]] = true
		for _, n := range []string{bundle.ManifestName, bundle.KernelName, bundle.InitramfsName, bundle.RootName} {
			known[w[1]+"/"+n] = true
		}
		if b, err := bundle.Open(filepath.Join(dir, w[0], w[1])); err == nil {
			for _, f := range b.Manifest.Files() {
				known[w[1]+"/"+f.File] = true
			}
		}
	}
	return known[w[1]+"/"+w[2]] || strings.HasSuffix(w[2], bundle.ImageSuffix)
}

// cache lists what is in the cache.
func (r *Removal) cache(ctx context.Context, o RemovalOptions, rec record) error {
	if missing(o.Cache) {
		return nil
	}
	of := func(rel string) string {
		for _, k := range inCache {
			if k.pattern.MatchString(rel) {
				return k.what
			}
		}
		return ""
	}
	err := r.walk(ctx, o.Cache, func(rel string, _ fs.FileInfo) string {
		switch {
		case work.pattern.MatchString(rel):
			return work.what
		case rec.claimed(rel):
			return of(rel)
		}
		return ""
	}, func(rel string) string {
		switch {
		case rel == "kernel":
			return "kernels that PyBox's source built; remove it by hand"
		case of(rel) != "":
			return "another setup's, or that of PyBox's source; the cache may be deleted at any time"
		}
		return "PyBox did not make it"
	})
	if err != nil {
		return err
	}
	if rec.MadeCache || filepath.Base(o.Cache) == "pybox" {
		r.Folders = append(r.Folders, Path{Path: o.Cache, For: "where it is empty then"})
	}
	return nil
}

// folders are what PyBox makes in its state folder and in the cache.
var folders = []string{"bundles", "files", images.Dir, receiptsDir, "sha256", "partial", bytecodeDir, workDir}

// walk lists a folder: files that kindOf knows are removed, and so are the folders
// of PyBox's that hold them. Anything else is kept, for the reason that why gives; a
// folder with nothing to remove in it is named alone.
func (r *Removal) walk(ctx context.Context, dir string, kindOf func(rel string, st fs.FileInfo) string, why func(rel string) string) error {
	ours := map[string]bool{} // folders, below dir
	var foreign []string
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return fmt.Errorf("look at what PyBox made: %w", err)
		}
		rel, err := filepath.Rel(dir, name)
		if err != nil || rel == "." {
			return errors.Join(err, ctx.Err())
		}
		rel = filepath.ToSlash(rel)
		if d.IsDir() {
			if slices.Contains(folders, strings.Split(rel, "/")[0]) {
				return ctx.Err()
			}
			foreign = append(foreign, rel)
			return fs.SkipDir
		}
		st, err := d.Info()
		if err != nil {
			return fmt.Errorf("look at what PyBox made: %w", err)
		}
		what := ""
		if st.Mode().IsRegular() || st.Mode().Type() == fs.ModeSocket {
			what = kindOf(rel, st)
		}
		if what == "" {
			foreign = append(foreign, rel)
			return nil
		}
		r.Files = append(r.Files, Path{Path: name, Bytes: st.Size(), For: what})
		r.Bytes += st.Size()
		for up := filepath.Dir(rel); up != "."; up = filepath.Dir(up) {
			ours[up] = true
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, rel := range folders {
		if rel == receiptsDir {
			continue // it goes with the receipts or not at all
		}
		if st, err := os.Lstat(filepath.Join(dir, rel)); err == nil && st.IsDir() {
			ours[rel] = true // empty
		}
	}
	for rel := range ours {
		r.Folders = append(r.Folders, Path{Path: filepath.Join(dir, rel), For: "where it is empty then"})
	}
	slices.SortFunc(r.Folders, func(a, b Path) int { return strings.Compare(b.Path, a.Path) }) // what is in a folder before it
	r.keep(dir, foreign, ours, why)
	return nil
}

// shared are the folders of the cache that others fill as well, and that of images: what
// stays there is one row, however much it is.
var shared = []string{"sha256", "partial", bytecodeDir, images.Dir}

// keep names what stays: each by itself in a folder of PyBox's, and as a whole where
// the folder stays as a whole.
func (r *Removal) keep(dir string, foreign []string, ours map[string]bool, why func(rel string) string) {
	seen := map[string]bool{}
	for _, rel := range foreign {
		top := rel
		for up := filepath.Dir(rel); up != "."; up = filepath.Dir(up) {
			if !ours[up] || slices.Contains(shared, up) {
				top = up
			}
		}
		if !seen[top] {
			seen[top] = true
			r.Kept = append(r.Kept, Path{Path: filepath.Join(dir, top), For: why(rel)})
		}
	}
}

// socket adds the socket that lies in /tmp because of a long path.
func (r *Removal) socket(h *home.Home) error {
	name := h.Socket()
	if filepath.Dir(name) == h.Dir() {
		return nil // part of the folder
	}
	st, err := os.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at the socket: %w", err)
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); ok && int(sys.Uid) == os.Geteuid() && st.Mode().Type() == fs.ModeSocket {
		r.Files = append(r.Files, Path{Path: name, For: "socket"})
		r.Folders = append(r.Folders, Path{Path: filepath.Dir(name), For: "where it is empty then"})
	}
	return nil
}

// Nothing tells whether there is nothing to remove.
func (r *Removal) Nothing() bool { return len(r.Files) == 0 && len(r.Folders) == 0 }

// Execute removes what the plan lists, and returns what of it is still there,
// because there are things in it that PyBox did not make. It may be cut off and
// repeated. The error matches ErrRunning when a VM runs.
func (r *Removal) Execute(ctx context.Context) (left []Path, err error) {
	unlock, err := r.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	// Whoever waits for a lock must not get that of a file without a name: locks go
	// last, and what setup remembers before them. The daemon's was made just now
	// where there was none.
	files := append(slices.Clone(r.Files), Path{Path: home.At(r.Home).Path("lock")})
	slices.SortStableFunc(files, func(a, b Path) int { return rank(a) - rank(b) })
	for _, f := range files {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		st, err := os.Lstat(f.Path)
		if err == nil && (st.Mode().IsRegular() || st.Mode().Type() == fs.ModeSocket) {
			err = os.Remove(f.Path)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("remove what PyBox made: %w", err)
		}
	}
	for _, f := range r.Folders {
		st, err := os.Lstat(f.Path)
		if err == nil && st.IsDir() {
			err = os.Remove(f.Path)
		}
		switch {
		case err == nil, errors.Is(err, fs.ErrNotExist):
		case errors.Is(err, syscall.ENOTEMPTY), errors.Is(err, syscall.EEXIST):
			left = append(left, f)
		default:
			return left, fmt.Errorf("remove what PyBox made: %w", err)
		}
	}
	return left, nil
}

// rank orders files for their removal.
func rank(f Path) int {
	switch name := filepath.Base(f.Path); {
	case name == "lock", name == ".lock":
		return 2
	case name == recordName:
		return 1
	}
	return 0
}

// lock keeps daemons and other setups away.
func (r *Removal) lock(ctx context.Context) (unlock func(), err error) {
	var held []func()
	release := func() {
		for _, f := range held {
			f()
		}
	}
	defer func() {
		if err != nil {
			release()
		}
	}()
	if h, err := home.OpenExisting(r.Home); err == nil {
		l, err := h.Lock()
		if errors.Is(err, home.ErrLocked) {
			return nil, fmt.Errorf("%w (%w)", ErrRunning, err)
		}
		if err != nil {
			return nil, err
		}
		held = append(held, func() { _ = l.Unlock() })
	}
	for _, name := range []string{filepath.Join(r.Cache, workDir, "lock"), filepath.Join(r.Home, "bundles", "lock")} {
		if missing(name) {
			continue
		}
		l := flock.New(name)
		if _, err := l.TryLockContext(ctx, lockPoll); err != nil {
			_ = l.Close()
			return nil, fmt.Errorf("wait for another setup (%s): %w", name, err)
		}
		held = append(held, func() { _ = l.Close() })
	}
	return release, nil
}

// Text writes the plan for a person.
func (r *Removal) Text(w io.Writer, columns int) {
	t := newText(w, columns)
	if r.Nothing() {
		t.item(0, "PyBox setup: there is nothing to remove")
		t.paths("Left alone", r.Kept)
		return
	}
	t.item(0, "PyBox setup: remove what PyBox made, "+size(r.Bytes))
	t.title("Files to remove")
	for _, f := range r.Files {
		t.exact(2, f.Path)
	}
	t.title("Folders to remove, where they are empty then")
	for _, f := range r.Folders {
		t.exact(2, f.Path)
	}
	t.paths("Left alone", r.Kept)
	t.next(r.Problems, r.Command)
}

// TellDone says for a person what was removed and what is still there.
func (r *Removal) TellDone(w io.Writer, left []Path, columns int) {
	t := newText(w, columns)
	t.item(0, fmt.Sprintf("Removed what PyBox made: %d files, %s.", len(r.Files), size(r.Bytes)))
	t.paths("Left alone", r.Kept)
	for _, f := range left {
		t.item(0, f.Path+" is not empty, and stays.")
	}
}

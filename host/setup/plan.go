package setup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/pybox/pybox/guest/build"
	"github.com/pybox/pybox/guest/bundle"
	"github.com/pybox/pybox/guest/bytecode"
	"github.com/pybox/pybox/guest/debian"
	"github.com/pybox/pybox/guest/fetch"
	"github.com/pybox/pybox/host/home"
	"github.com/pybox/pybox/host/setup/programs"
	"github.com/pybox/pybox/vm"
)

// Sentinels, to be tested with errors.Is.
var (
	// ErrRequest marks what was asked for and cannot be had: an image that there
	// is not, a file that is no bundle of ours.
	ErrRequest = errors.New("cannot set up")
	// ErrUnfit marks a bundle that this PyBox or this machine cannot run.
	ErrUnfit = errors.New("this bundle does not fit")
	// ErrProblems: the plan names problems that must be solved first.
	ErrProblems = errors.New("nothing was done: solve what is named above first")
	// ErrChanged: what the plan was made from is not what is there now.
	ErrChanged = errors.New("something changed since the plan was made: plan again")
)

// Options are what a plan is made from.
type Options struct {
	// Home and Cache are the state folder and that of downloads, absolute.
	Home, Cache string
	// Arch is the guest's architecture, which is this machine's.
	Arch string
	// Version is this PyBox's, ProtocolVersion the one it speaks with agents.
	Version         string
	ProtocolVersion uint32
	// From is a bundle's folder or archive; "": it is made of Debian's packages.
	From string
	// Images are the boxes' images that must be in it; a name may be there twice.
	Images []string
	// NoBytecode leaves out what needs a VM to make.
	NoBytecode bool
	// Replace installs also where what is there would do.
	Replace bool

	// Lock has the packages, and Programs the guest's own programs. Neither is
	// needed with From.
	Lock     *debian.Lock
	Programs func(arch string) (programs.Set, error)
	// Sources are where packages are downloaded from, in order. Client may be nil.
	Sources []fetch.Source
	Client  *http.Client
	// Check is a driver's, asked when a VM will be needed.
	Check func(context.Context) []vm.Finding
	// Compiler makes the byte code. It is called when that is to be made, after
	// the state folder was.
	Compiler func() (bytecode.Compiler, error)
	// Build makes a bundle: build.Build, but in tests.
	Build func(context.Context, build.Options) (*bundle.Bundle, error)
	// Command is what a person types to have the plan done.
	Command string
	Log     *slog.Logger
	Now     func() time.Time
}

// PlanSchema names the JSON form of a plan.
const PlanSchema = "pybox.setup-plan/v1"

// Digest stands in paths for what is known when the bundle is made: the first 16
// digits of the SHA-256 of its manifest, which is its folder's name.
const Digest = "{digest}"

// Origins of a bundle.
const (
	OriginDebian  = "debian"
	OriginFolder  = "folder"
	OriginArchive = "archive"
)

// Plan is what will be done. It is plain data but for what carrying it out needs,
// and must not be changed.
type Plan struct {
	Schema  string `json:"schema"`
	Version string `json:"version"`
	Home    string `json:"home"`
	Cache   string `json:"cache"`
	Arch    string `json:"arch"`
	// Origin is one of the constants, From the path that was given.
	Origin string `json:"origin"`
	From   string `json:"from,omitempty"`
	// Bundle is the ID of the bundle, where it is known beforehand.
	Bundle string `json:"bundle,omitempty"`
	// Nothing: there is nothing to do. Why says what was found, and what follows.
	Nothing bool   `json:"nothing_to_do"`
	Why     string `json:"why"`

	Folders   []Path     `json:"folders"`
	Files     []Path     `json:"files"`
	Downloads []Download `json:"downloads"`
	// DownloadBytes is what is not here yet.
	DownloadBytes int64    `json:"download_bytes"`
	Sources       []Source `json:"sources"`
	Steps         []Step   `json:"steps"`
	Space         []Space  `json:"space"`
	// Removes are superseded bundles and what was left of one that was cut off.
	Removes []Path `json:"removes"`
	// Kept is what is there and stays as it is.
	Kept     []Path    `json:"kept"`
	Notes    []string  `json:"notes"`
	Problems []Problem `json:"problems"`
	// Command does it.
	Command string `json:"command"`

	o     Options
	progs programs.Set
	key   string // of the folder that work is done in
}

// Path is a folder or file.
type Path struct {
	Path string `json:"path"`
	// Mode is octal, as of a user whose umask is 022.
	Mode string `json:"mode,omitempty"`
	// Bytes and SHA256 are there where they are known beforehand.
	Bytes  int64  `json:"bytes,omitempty"`
	SHA256 string `json:"sha256,omitempty"`
	For    string `json:"for"`
	// Temporary things are gone when all is done. Perhaps marks what is made only
	// if it turns out to be needed.
	Temporary bool `json:"temporary,omitempty"`
	Perhaps   bool `json:"perhaps,omitempty"`
}

// Download is a package.
type Download struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	Set     string `json:"set"`
	File    string `json:"file"` // its path below the archive's base
	Bytes   int64  `json:"bytes"`
	SHA256  string `json:"sha256"`
	// Cached: it is here, and whole. Have is how many of the bytes are here, those
	// of a download that was cut off included.
	Cached bool  `json:"cached"`
	Have   int64 `json:"have_bytes"`
}

// Source is a place that is asked for downloads.
type Source struct {
	Label     string   `json:"label"`
	Addresses []string `json:"addresses"`
	Proxy     string   `json:"proxy,omitempty"`
}

// Step is something that takes time.
type Step struct {
	Name string `json:"name"`
	Cost string `json:"cost"`
}

// Space is what a disk must have free. Folders on one disk are one row.
type Space struct {
	Folders []string `json:"folders"`
	Need    int64    `json:"need_bytes"`
	Free    int64    `json:"free_bytes"`
}

// Problem keeps the plan from being done.
type Problem struct {
	What string `json:"what"`
	Fix  string `json:"fix"`
}

// Make makes the plan. It reads and changes nothing. Errors match ErrRequest,
// ErrUnfit, one of the packages bundle and home, or ctx's; what keeps a possible
// plan from being done is in its Problems.
func Make(ctx context.Context, o Options) (*Plan, error) {
	for _, name := range o.Images {
		if !slices.Contains(build.ImageNames(), name) && o.From == "" {
			return nil, fmt.Errorf("%w: this version of PyBox has no image %q; it has: %s", ErrRequest, name, strings.Join(build.ImageNames(), ", "))
		}
	}
	st, err := look(o.Home)
	if err != nil {
		return nil, err
	}
	stay := staying(st, o)
	o.Images = once(slices.Concat(o.Images, stay))
	p := &Plan{Schema: PlanSchema, Version: o.Version, Home: o.Home, Cache: o.Cache, Arch: o.Arch, Command: o.Command, o: o,
		Folders: []Path{}, Files: []Path{}, Downloads: []Download{}, Sources: []Source{}, Steps: []Step{},
		Space: []Space{}, Removes: []Path{}, Kept: []Path{}, Notes: []string{}, Problems: []Problem{}}
	target, err := p.target(ctx)
	if err != nil {
		return nil, err
	}
	d := decide(ctx, o, st, target)
	p.Nothing, p.Why = d.nothing, d.why
	p.Notes = append(p.Notes, d.notes...)
	p.keep(st)
	if p.Nothing {
		return p, ctx.Err()
	}
	for _, name := range lost(st, target) {
		p.Notes = append(p.Notes, fmt.Sprintf("The installed bundle has the image %q, and this one has not.", name))
	}
	for _, name := range stay {
		p.Notes = append(p.Notes, fmt.Sprintf("An earlier setup was asked for the image %q: it will be in this bundle too.", name))
	}
	p.installation(st, target)
	switch p.Origin {
	case OriginDebian:
		err = p.downloads(ctx)
		p.needVM(ctx)
	case OriginArchive:
		p.Steps = append(p.Steps, Step{"unpack and verify the archive", "seconds"})
		p.work("the bundle while it is unpacked")
	}
	if err != nil {
		return nil, err
	}
	p.Steps = append(p.Steps, Step{"verify the bundle and move it into place", "seconds"})
	p.places(target)
	if st.running {
		p.Notes = append(p.Notes, "The VM that runs keeps the bundle it was started with: 'pybox vm restart' boots the new one.")
	}
	return p, ctx.Err()
}

// staying are the images of a bundle of setup's own making that nobody asked for now: a
// setup of a newer version, or one that repairs, keeps what an earlier one was asked for.
func staying(st *state, o Options) (names []string) {
	if o.From != "" || !st.isOurs() {
		return nil
	}
	had := st.record.Images
	if st.current != nil {
		for _, i := range st.current.Manifest.Images {
			had = append(had, i.Name)
		}
	}
	for _, name := range had {
		if !slices.Contains(o.Images, name) && slices.Contains(build.ImageNames(), name) {
			names = append(names, name)
		}
	}
	return once(names)
}

// isOurs tells whether setup made the installed bundle, which may be damaged, or gone.
func (st *state) isOurs() bool {
	id := st.bundles.Current
	if st.current != nil {
		id = st.current.ID()
	}
	return st.record.Origin == OriginDebian && (id == "" || id == st.record.Bundle)
}

// lost are the images of the installed bundle that one which is given has not.
func lost(st *state, t target) (names []string) {
	if st.current == nil {
		return nil
	}
	for _, i := range st.current.Manifest.Images {
		if t.id != "" && !slices.ContainsFunc(t.manifest.Images, func(have bundle.Image) bool { return have.Name == i.Name }) {
			names = append(names, i.Name)
		}
	}
	return names
}

// once gives names in their order, each once.
func once(names []string) (out []string) {
	for _, name := range names {
		if !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

// target is the bundle that the plan is about.
type target struct {
	id       string // "": not known yet
	manifest bundle.Manifest
	bytes    int64 // of its files; an upper bound where id is not known
}

// target finds out what is asked for, without the work of making it.
func (p *Plan) target(ctx context.Context) (target, error) {
	if p.o.From != "" {
		return p.fromFile()
	}
	p.Origin = OriginDebian
	var err error
	if p.progs, err = p.o.Programs(p.Arch); err != nil {
		return target{}, fmt.Errorf("%w: %w", ErrRequest, err)
	}
	p.key = workKey(p.o, p.progs)
	t := target{bytes: int64(len(p.progs.Init) + len(p.progs.Agent))}
	t.manifest = bundle.Manifest{
		Schema: bundle.Schema, Arch: p.Arch, LockSHA256: p.o.Lock.SHA256(),
		Kernel: bundle.Kernel{Kind: bundle.KernelDebianCloud, File: bundle.File{File: bundle.KernelName}}, Initramfs: &bundle.File{File: bundle.InitramfsName},
		Root: bundle.File{File: bundle.RootName}, InitSHA256: digestOf(p.progs.Init),
		Agent: bundle.Agent{Version: p.o.Version, ProtocolVersion: p.o.ProtocolVersion, SHA256: digestOf(p.progs.Agent)},
	}
	for _, name := range p.o.Images {
		t.manifest.Images = append(t.manifest.Images, bundle.Image{Name: name, File: bundle.File{File: name + bundle.ImageSuffix}})
	}
	for _, name := range p.sets() {
		set, err := p.o.Lock.Set(name, p.Arch)
		if err != nil {
			return target{}, fmt.Errorf("%w: %w", ErrRequest, err)
		}
		for _, e := range set.Packages {
			t.bytes += e.Bytes * growth(name)
		}
	}
	return t, ctx.Err()
}

func (p *Plan) sets() []string {
	return append([]string{debian.SetKernelCloud, debian.SetRoot}, p.o.Images...)
}

// growth bounds how much larger a set is in a bundle than as packages: those are
// compressed, and most of a kernel's is left out. Measured: 3.4 and 1.2.
func growth(set string) int64 {
	if set == debian.SetKernelCloud {
		return 2
	}
	return 4
}

// downloads lists the packages, and what is here of each.
func (p *Plan) downloads(ctx context.Context) error {
	f := p.fetcher(nil)
	for _, name := range p.sets() {
		set, err := p.o.Lock.Set(name, p.Arch)
		if err != nil {
			return err
		}
		for i, item := range build.Items(set) {
			have, cached, err := f.Have(ctx, item)
			if err != nil {
				return err
			}
			e := set.Packages[i]
			if slices.ContainsFunc(p.Downloads, func(d Download) bool { return d.SHA256 == e.SHA256 }) {
				continue // another set has it too
			}
			p.Downloads = append(p.Downloads, Download{Name: e.Name, Version: e.Version, Set: name, File: e.Path, Bytes: e.Bytes, SHA256: e.SHA256, Have: have, Cached: cached})
			if !cached {
				p.DownloadBytes += item.Bytes - have
				p.download(f, item)
			}
		}
	}
	if slices.ContainsFunc(p.Downloads, func(d Download) bool { return !d.Cached }) {
		p.sources()
		p.Steps = append(p.Steps, Step{"download the packages that are not here", "as long as the network takes"})
	}
	p.Steps = append(p.Steps, Step{"put kernel, root and images together", "some ten seconds for each image"})
	p.work("the bundle while it is made")
	return nil
}

// download adds what one download makes.
func (p *Plan) download(f *fetch.Fetcher, item fetch.Item) {
	final, part := f.Places(item)
	p.folder(p.Cache, 0o755, "PyBox's cache")
	p.folder(filepath.Dir(filepath.Dir(final)), 0o755, "downloads")
	p.folder(filepath.Dir(final), 0o755, "downloads by the first digits of their SHA-256")
	p.folder(filepath.Dir(part), 0o755, "downloads that are not whole yet")
	name := filepath.Base(item.Path)
	p.file(Path{Path: final, Mode: "0644", Bytes: item.Bytes, SHA256: item.SHA256, For: name})
	p.file(Path{Path: part, Mode: "0644", For: name + " while it arrives", Temporary: true})
	p.lock(part+".lock", "so that two do not download "+name)
}

// needVM adds what making byte code takes.
func (p *Plan) needVM(ctx context.Context) {
	if p.o.NoBytecode {
		p.Notes = append(p.Notes, "Without byte code every run compiles what it imports, and is slower by that.")
		return
	}
	cost := "some seconds, unless the cache has it"
	for _, f := range p.o.Check(ctx) {
		switch {
		case f.OK:
		case f.Unknown:
			p.Notes = append(p.Notes, "Whether a VM can be started here was not found out: "+f.Observed+".")
		case f.Advice:
			cost = "some minutes, unless the cache has it: " + f.Observed
		default:
			p.Problems = append(p.Problems, Problem{"no VM can be started here: " + f.Observed, f.Fix})
		}
	}
	p.Steps = append(p.Steps, Step{"compile Python's byte code in a VM that lives for that only ('--no-bytecode' spares it)", cost})
	folder := filepath.Join(p.Cache, bytecodeDir)
	if missing(folder) {
		p.Folders = append(p.Folders, Path{Path: folder, Mode: "0755", For: "compiled byte code, by the digest of its sources", Perhaps: true})
	}
	for _, name := range p.o.Images {
		for _, x := range []struct{ part, what string }{
			{"sources of every architecture", "byte code"},
			{"sources of this architecture", "byte code"},
			{"record", "what programs touch of the image, and its fonts"},
		} {
			p.file(Path{Path: filepath.Join(folder, "{"+name+": "+x.part+"}"), Mode: "0644", For: x.what, Perhaps: true})
		}
	}
	p.file(Path{Path: filepath.Join(p.Home, "acceleration.json"), Mode: "0600", For: "how VMs can be started on this machine", Perhaps: true})
}

// installation adds what the state folder gets.
func (p *Plan) installation(st *state, t target) {
	p.folder(p.Home, 0o700, "PyBox's state folder")
	p.folder(st.bundles.Dir, 0o700, "guest bundles")
	dir := filepath.Join(st.bundles.Dir, Digest)
	if t.id != "" {
		dir = st.bundles.FolderOf(t.id)
	}
	p.folder(dir, 0o700, "the bundle, named by its digest")
	p.Folders = append(p.Folders, Path{Path: filepath.Join(st.bundles.Dir, "tmp-{random}"), Mode: "0700", For: "the bundle while it is copied", Temporary: true})
	p.file(Path{Path: filepath.Join(dir, bundle.ManifestName), Mode: "0644", For: "what the bundle has, with digests"})
	for _, f := range t.manifest.Files() {
		p.file(Path{Path: filepath.Join(dir, f.File), Mode: "0644", Bytes: f.Bytes, SHA256: f.SHA256, For: "a part of the bundle"})
	}
	p.file(Path{Path: filepath.Join(st.bundles.Dir, "current"), Mode: "0644", For: "which bundle the VM boots"})
	if st.bundles.Current != "" && st.bundles.Current != t.id {
		p.file(Path{Path: filepath.Join(st.bundles.Dir, "previous"), Mode: "0644", For: "the one before it, which is kept"})
	}
	p.lock(filepath.Join(st.bundles.Dir, "lock"), "so that two do not install at once")
	p.file(Path{Path: filepath.Join(p.Home, recordName), Mode: "0600", For: "what setup has made"})
	for _, n := range st.bundles.Superseded(t.id) {
		gone := Path{Path: filepath.Join(st.bundles.Dir, n), For: "a superseded bundle, or the rest of one"}
		if t.id == "" && isKey(n) {
			gone.For, gone.Perhaps = "a superseded bundle, unless the new one turns out to be the same", true
		}
		p.Removes = append(p.Removes, gone)
	}
}

// work adds the folder where things are put together.
func (p *Plan) work(what string) {
	// What others put there would be taken for setup's own work.
	for _, dir := range []string{p.Cache, filepath.Join(p.Cache, workDir)} {
		var unsafe *home.UnsafeError
		if st, err := os.Stat(dir); err == nil && st.IsDir() && errors.As(home.CheckOwn(dir), &unsafe) {
			p.Problems = append(p.Problems, Problem{"PyBox's cache is not safe: " + unsafe.Why, "set PYBOX_CACHE to a folder of your own that nobody else may write to"})
			break
		}
	}
	p.folder(filepath.Join(p.Cache, workDir), 0o755, "setup's work")
	p.lock(p.lockFile(), "so that two do not set up at once")
	p.Folders = append(p.Folders, Path{Path: p.workDir(), Mode: "0755", For: what, Temporary: true})
}

// keep lists what is there and stays.
func (p *Plan) keep(st *state) {
	changed := []string{"bundles", recordName, "acceleration.json"}
	for _, n := range st.entries {
		if !slices.Contains(changed, n) {
			p.Kept = append(p.Kept, Path{Path: filepath.Join(p.Home, n), For: "not touched"})
		}
	}
	if b := st.current; b != nil {
		p.Kept = append(p.Kept, Path{Path: b.Dir(), For: "the present bundle"})
	}
}

package setup

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pybox/pybox/guest/build"
	"github.com/pybox/pybox/guest/bundle"
	"github.com/pybox/pybox/guest/bytecode"
	"github.com/pybox/pybox/guest/debian"
	"github.com/pybox/pybox/guest/fetch"
	"github.com/pybox/pybox/host/home"
	"github.com/pybox/pybox/host/setup/programs"
	"github.com/pybox/pybox/vm"
	"golang.org/x/sys/unix"
)

const protocol = 7

// world is a machine with nothing on it, and a mirror.
type world struct {
	t     *testing.T
	dir   string
	o     Options
	serve atomic.Value // http.HandlerFunc that answers in the mirror's place
	built int
}

// deb is what a package of the mirror holds: enough that a download takes pieces.
func deb(name string) []byte { return bytes.Repeat([]byte(name+" "), 20_000) }

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir()}
	w.serve.Store(http.HandlerFunc(w.mirror))
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.serve.Load().(http.HandlerFunc)(rw, r)
	}))
	t.Cleanup(srv.Close)
	lock := &debian.Lock{Schema: debian.LockSchema, Snapshot: "20260501T000000Z"}
	for _, set := range []string{"data", "kernel-cloud", "root", "stdlib"} {
		s := debian.Set{Name: set, Arch: "amd64"}
		for _, name := range []string{set + "-a", set + "-b"} {
			sum := sha256.Sum256(deb(name))
			s.Packages = append(s.Packages, debian.Entry{Name: name, Version: "1-2", Archive: debian.ArchiveMain,
				Path: "pool/main/" + name + ".deb", Bytes: int64(len(deb(name))), SHA256: hex.EncodeToString(sum[:])})
		}
		lock.Sets = append(lock.Sets, s)
	}
	if _, err := lock.Encode(); err != nil {
		t.Fatal(err)
	}
	source, err := fetch.Mirror("a mirror", srv.URL+"/debian")
	if err != nil {
		t.Fatal(err)
	}
	w.o = Options{
		Home: filepath.Join(w.dir, "user", ".pybox"), Cache: filepath.Join(w.dir, "user", ".cache", "pybox"),
		Arch: "amd64", Version: "0.1", ProtocolVersion: protocol, Images: []string{"stdlib"}, Lock: lock,
		Programs: func(string) (programs.Set, error) {
			return programs.Set{Init: []byte("init"), Agent: []byte("agent")}, nil
		},
		Sources: []fetch.Source{source}, Client: fetch.NewClient(), Build: w.build,
		Check:    func(context.Context) []vm.Finding { return nil },
		Compiler: func() (bytecode.Compiler, error) { return nil, nil },
		Command:  "pybox setup --yes", Now: time.Now,
	}
	return w
}

func (w *world) mirror(rw http.ResponseWriter, r *http.Request) {
	name := strings.TrimSuffix(filepath.Base(r.URL.Path), ".deb")
	rw.Header().Set("Content-Type", "application/vnd.debian.binary-package")
	http.ServeContent(rw, r, "", time.Time{}, bytes.NewReader(deb(name)))
}

// build stands for the real builder, which needs real packages: it fetches what it
// would and writes a bundle of the same shape.
func (w *world) build(ctx context.Context, o build.Options) (*bundle.Bundle, error) {
	w.built++
	var items []fetch.Item
	for _, name := range append([]string{"kernel-cloud", "root"}, o.Images...) {
		set, err := o.Lock.Set(name, o.Arch)
		if err != nil {
			return nil, err
		}
		items = append(items, build.Items(set)...)
	}
	if _, err := o.Fetch.GetAll(ctx, items); err != nil {
		return nil, err
	}
	agent, err := os.ReadFile(o.Agent)
	if err != nil {
		return nil, err
	}
	if o.Progress != nil {
		o.Progress("a line")
	}
	first, err := os.ReadFile(o.Init)
	if err != nil {
		return nil, err
	}
	m := bundle.Manifest{Kernel: bundle.Kernel{Kind: o.KernelKind, Version: "6.12"}, Arch: o.Arch, LockSHA256: o.Lock.SHA256(), InitSHA256: digestOf(first),
		Agent: bundle.Agent{Version: o.AgentVersion, SHA256: digestOf(agent), ProtocolVersion: o.ProtocolVersion}}
	return writeBundle(o.Out, m, fmt.Sprint(o.BytecodeCache != ""), o.Images...)
}

// writeBundle makes a bundle of small files in dir; seed makes it differ.
func writeBundle(dir string, m bundle.Manifest, seed string, images ...string) (*bundle.Bundle, error) {
	file := func(name string) (bundle.File, error) {
		b := bytes.Repeat([]byte(name+" "+seed), 1000)
		s := sha256.Sum256(b)
		return bundle.File{File: name, SHA256: hex.EncodeToString(s[:]), Bytes: int64(len(b))}, os.WriteFile(filepath.Join(dir, name), b, 0o644)
	}
	m.Schema = bundle.Schema
	initramfs := bundle.File{}
	var errs [3]error
	m.Kernel.File, errs[0] = file("kernel")
	initramfs, errs[1] = file("initramfs")
	m.Root, errs[2] = file("root.erofs")
	m.Initramfs = &initramfs
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	for _, n := range images {
		f, err := file(n + ".erofs")
		if err != nil {
			return nil, err
		}
		m.Images = append(m.Images, bundle.Image{Name: n, File: f, Serial: bundle.ImageSerial(f.SHA256)})
	}
	raw, err := m.Encode()
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, bundle.ManifestName), raw, 0o644); err != nil {
		return nil, err
	}
	return bundle.Open(dir)
}

// given is a bundle in a folder, as somebody else made it.
func (w *world) given(change func(*bundle.Manifest), images ...string) *bundle.Bundle {
	w.t.Helper()
	m := bundle.Manifest{Kernel: bundle.Kernel{Kind: bundle.KernelOwn, Version: "6.12"}, Arch: "amd64", LockSHA256: strings.Repeat("a", 64),
		Agent: bundle.Agent{Version: "0.1", SHA256: strings.Repeat("b", 64), ProtocolVersion: protocol}}
	if change != nil {
		change(&m)
	}
	if images == nil {
		images = []string{"stdlib"}
	}
	b, err := writeBundle(w.t.TempDir(), m, "given", images...)
	if err != nil {
		w.t.Fatal(err)
	}
	return b
}

func (w *world) tar(b *bundle.Bundle) string {
	w.t.Helper()
	name := filepath.Join(w.t.TempDir(), "b.tar")
	if err := bundle.WriteArchive(w.t.Context(), b, name); err != nil {
		w.t.Fatal(err)
	}
	return name
}

func (w *world) plan() *Plan {
	w.t.Helper()
	p, err := Make(w.t.Context(), w.o)
	if err != nil {
		w.t.Fatal(err)
	}
	return p
}

func (w *world) setUp() *Result {
	w.t.Helper()
	r, err := w.plan().Execute(w.t.Context(), Events{})
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

// entry is a file as it is on the disk.
type entry struct {
	mode fs.FileMode
	sum  string
}

// tree is everything below a folder.
func tree(t *testing.T, dir string) map[string]entry {
	t.Helper()
	all := map[string]entry{}
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == dir {
			return err
		}
		st, err := d.Info()
		if err != nil {
			return err
		}
		e := entry{mode: st.Mode()}
		if st.Mode().IsRegular() {
			b, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			e.sum = digestOf(b)
		}
		all[name] = e
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

var octal = regexp.MustCompile(`^0[0-7]{3}$`)

// checkDone compares what is on the disk before and after with the plan: nothing was
// made, changed or removed that it does not name, and all that it names is there.
func checkDone(t *testing.T, p *Plan, r *Result, before, after map[string]entry) {
	t.Helper()
	planned := map[string]Path{}
	for _, f := range append(slices.Clone(p.Folders), p.Files...) {
		name := strings.ReplaceAll(f.Path, Digest, filepath.Base(r.Dir))
		if _, twice := planned[name]; twice {
			t.Errorf("%s is planned twice", name)
		}
		if !octal.MatchString(f.Mode) || f.For == "" {
			t.Errorf("planned %+v", f)
		}
		planned[name] = f
	}
	for name, now := range after {
		was, there := before[name]
		if there && (was == now || now.mode.IsDir()) {
			continue
		}
		f, ok := planned[name]
		if !ok {
			t.Errorf("%s was made or changed, and is not planned", name)
			continue
		}
		if got := fmt.Sprintf("%04o", now.mode.Perm()); got != f.Mode {
			t.Errorf("%s has mode %s, planned %s", name, got, f.Mode)
		}
		if f.Temporary {
			t.Errorf("%s is still there, planned as temporary", name)
		}
		if f.SHA256 != "" && f.SHA256 != now.sum {
			t.Errorf("%s has another content than planned", name)
		}
	}
	for name, f := range planned {
		if _, there := after[name]; !there && !f.Temporary && !f.Perhaps {
			t.Errorf("%s was planned, and is not there", name)
		}
	}
	for name := range before {
		if _, there := after[name]; there {
			continue
		}
		if !slices.ContainsFunc(p.Removes, func(f Path) bool { return name == f.Path || strings.HasPrefix(name, f.Path+"/") }) {
			t.Errorf("%s was removed, and that is not planned", name)
		}
	}
	for _, f := range p.Removes {
		if _, there := after[f.Path]; there && !f.Perhaps {
			t.Errorf("%s is still there", f.Path)
		}
	}
	for _, f := range p.Kept {
		if before[f.Path] != after[f.Path] || before[f.Path].mode == 0 {
			t.Errorf("%s was to be left alone", f.Path)
		}
	}
}

// TestDoesWhatThePlanSays is the promise of the whole command.
func TestDoesWhatThePlanSays(t *testing.T) {
	w := newWorld(t)
	var origins []string
	step := func(name string, nothing bool, change func()) {
		t.Helper()
		change()
		before := tree(t, w.dir)
		p := w.plan()
		if got := tree(t, w.dir); !maps.Equal(got, before) {
			t.Fatalf("%s: the plan changed something", name)
		}
		if p.Nothing != nothing || len(p.Problems) > 0 {
			t.Fatalf("%s: nothing to do: %v (%s), problems: %v", name, p.Nothing, p.Why, p.Problems)
		}
		r, err := p.Execute(t.Context(), Events{})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if r.Nothing != nothing || p.Bundle != "" && r.Bundle != p.Bundle {
			t.Errorf("%s: %+v", name, r)
		}
		checkDone(t, p, r, before, tree(t, w.dir))
		origins = append(origins, p.Origin)
	}
	touch := func(name, content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(w.o.Home, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	step("first", false, func() {})
	step("again", true, func() { touch("config.toml", "# mine\n"); touch("notes.txt", "mine too") })
	step("replaced by an archive", false, func() { w.o.From = w.tar(w.given(nil)) })
	step("the archive again", true, func() {})
	step("a folder of another", false, func() {
		w.o.From = w.given(func(m *bundle.Manifest) { m.Kernel.Version = "6.13" }).Dir()
	})
	step("what is there will do", true, func() { w.o.From = "" })
	step("replaced as asked", false, func() { w.o.Replace = true })
	step("another version of PyBox", false, func() { w.o.Replace, w.o.Version = false, "0.2" })
	step("repaired", false, func() {
		b, err := bundle.Current(w.o.Home)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(b.Path(b.Manifest.Root), make([]byte, b.Manifest.Root.Bytes), 0o644); err != nil {
			t.Fatal(err)
		}
	})
	step("after the repair", true, func() {})
	if !slices.Contains(origins, OriginFolder) || !slices.Contains(origins, OriginArchive) || !slices.Contains(origins, OriginDebian) {
		t.Errorf("origins: %v", origins)
	}
	for name, want := range map[string]string{"config.toml": "# mine\n", "notes.txt": "mine too"} {
		if got, err := os.ReadFile(filepath.Join(w.o.Home, name)); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

func TestByteCodeLater(t *testing.T) {
	w := newWorld(t)
	w.o.NoBytecode = true
	w.o.Check = func(context.Context) []vm.Finding {
		t.Error("asked for a VM")
		return nil
	}
	first := w.setUp()
	w.o.NoBytecode = false
	w.o.Check = func(context.Context) []vm.Finding { return nil }
	if p := w.plan(); p.Nothing {
		t.Fatal(p.Why)
	}
	if second := w.setUp(); second.Bundle == first.Bundle {
		t.Error("the bundle is the same")
	}
	w.o.NoBytecode = true
	if p := w.plan(); !p.Nothing {
		t.Errorf("less is asked for than there is: %s", p.Why)
	}
}

func TestPlanIsJSON(t *testing.T) {
	w := newWorld(t)
	b, err := json.Marshal(w.plan())
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(b, &got); err != nil || got["schema"] != PlanSchema || got["download_bytes"] == float64(0) {
		t.Errorf("%v: %s", err, b)
	}
	if strings.Contains(string(b), ":null") {
		t.Errorf("a list is null: %s", b)
	}
}

func TestPlanForPeople(t *testing.T) {
	w := newWorld(t)
	p := w.plan()
	for _, columns := range []int{0, 80, 40} {
		var b bytes.Buffer
		p.Text(&b, columns)
		for _, f := range append(slices.Clone(p.Folders), p.ownFiles()...) {
			if filepath.Dir(f.Path) != filepath.Join(w.o.Cache, "sha256") && !strings.Contains(b.String(), f.Mode+"  "+f.Path) {
				t.Errorf("%d columns: no %s", columns, f.Path)
			}
		}
		for _, d := range p.Downloads {
			if !strings.Contains(b.String(), d.SHA256) || !strings.Contains(b.String(), d.Name) {
				t.Errorf("%d columns: no %s", columns, d.Name)
			}
		}
		if !strings.HasSuffix(b.String(), " it:\n  pybox setup --yes\n") {
			t.Errorf("%d columns: its end is %q", columns, b.String()[b.Len()-60:])
		}
		for line := range strings.Lines(b.String()) {
			long := strings.Contains(line, "/") || strings.Contains(line, "sha256 ")
			if n := len(line) - 1; n > max(columns, 80) && !long {
				t.Errorf("%d columns: %q", columns, line)
			}
		}
	}
	w.setUp()
	var b bytes.Buffer
	w.plan().Text(&b, 80)
	if !strings.Contains(b.String(), "there is nothing to do") || strings.Contains(b.String(), "pybox setup --yes") {
		t.Errorf("a second plan: %s", &b)
	}
}

func TestRequestsThatCannotBe(t *testing.T) {
	w := newWorld(t)
	fifo := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	lies := w.given(nil)
	if err := os.WriteFile(filepath.Join(lies.Dir(), bundle.SumsName), []byte("lies\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cut := w.tar(w.given(nil))
	if err := os.Truncate(cut, 12000); err != nil {
		t.Fatal(err)
	}
	newer := w.given(nil)
	if err := os.WriteFile(filepath.Join(newer.Dir(), bundle.ManifestName), []byte(`{"schema": "pybox.bundle/v2"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	parent := filepath.Join(t.TempDir(), "evil.tar")
	whole, err := os.ReadFile(w.tar(w.given(nil)))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(parent, withParentName(t, whole), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*Options)
		want   error
		say    string
	}{
		"an image that there is not": {func(o *Options) { o.Images = []string{"stdlib", "nonsense"} }, ErrRequest, `no image "nonsense"; it has: data, stdlib`},
		"nor in the bundle":          {func(o *Options) { o.Images, o.From = []string{"data"}, w.given(nil).Dir() }, ErrRequest, `no image "data"; it has: stdlib`},
		"no programs": {func(o *Options) {
			o.Programs = func(string) (programs.Set, error) { return programs.Set{}, programs.ErrNone }
		}, programs.ErrNone, "make build"},
		"nothing there":             {func(o *Options) { o.From = "/nothing/there" }, ErrRequest, "no such file"},
		"an address":                {func(o *Options) { o.From = "https://example.org/b.tar" }, ErrRequest, "downloaded first"},
		"a pipe":                    {func(o *Options) { o.From = fifo }, ErrRequest, "neither a file nor a folder"},
		"a text":                    {func(o *Options) { o.From = text }, bundle.ErrArchive, text},
		"an empty folder":           {func(o *Options) { o.From = t.TempDir() }, bundle.ErrNoBundle, "manifest.json"},
		"sums that lie":             {func(o *Options) { o.From = lies.Dir() }, bundle.ErrDamaged, "SHA256SUMS"},
		"an archive that is cut":    {func(o *Options) { o.From = cut }, bundle.ErrArchive, "cut off"},
		"a newer schema":            {func(o *Options) { o.From = newer.Dir() }, bundle.ErrManifest, "pybox.bundle/v2"},
		"another architecture":      {func(o *Options) { o.From = w.given(func(m *bundle.Manifest) { m.Arch = "arm64" }).Dir() }, ErrUnfit, "for arm64"},
		"the same in an archive":    {func(o *Options) { o.From = w.tar(w.given(func(m *bundle.Manifest) { m.Arch = "arm64" })) }, ErrUnfit, "for arm64"},
		"a newer protocol":          {func(o *Options) { o.From = w.given(func(m *bundle.Manifest) { m.Agent.ProtocolVersion++ }).Dir() }, ErrUnfit, "update pybox"},
		"an older protocol":         {func(o *Options) { o.From = w.given(func(m *bundle.Manifest) { m.Agent.ProtocolVersion-- }).Dir() }, ErrUnfit, "older than this PyBox"},
		"a state folder as file":    {func(o *Options) { o.Home = text }, home.ErrUnsafe, "is not a directory"},
		"a state folder of anybody": {func(o *Options) { o.Home = openFolder(t) }, home.ErrUnsafe, "chmod 700"},
	} {
		t.Run(name, func(t *testing.T) {
			o := w.o
			c.change(&o)
			_, err := Make(t.Context(), o)
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.say) {
				t.Errorf("%v, want %v with %q", err, c.want, c.say)
			}
		})
	}
	// What is wrong inside an archive is found when it is unpacked.
	w.o.From = parent
	if _, err := w.plan().Execute(t.Context(), Events{}); !errors.Is(err, bundle.ErrArchive) || !strings.Contains(err.Error(), `"../kernel"`) {
		t.Errorf("an archive with ..: %v", err)
	}
	if left, err := filepath.Glob(filepath.Join(w.o.Cache, workDir, "*", "*")); err != nil || len(left) != 0 {
		t.Errorf("what was unpacked of it is left: %v, %v", left, err)
	}
	if _, err := bundle.Current(w.o.Home); !errors.Is(err, bundle.ErrNoBundle) {
		t.Errorf("installed: %v", err)
	}
}

func openFolder(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "open")
	if err := os.Mkdir(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	return dir
}

// withParentName makes "../kernel" of an archive's third member. Its header is at a
// place that is known: behind those of two small files.
func withParentName(t *testing.T, archive []byte) []byte {
	t.Helper()
	at := bytes.Index(archive, append([]byte("kernel"), make([]byte, 94)...))
	if at < 0 || at%512 != 0 {
		t.Fatalf("no header of the kernel (%d)", at)
	}
	header := archive[at : at+512]
	copy(header, "../kernel")
	copy(header[148:156], "        ")
	sum := 0
	for _, b := range header {
		sum += int(b)
	}
	copy(header[148:156], fmt.Sprintf("%06o\x00 ", sum))
	return archive
}

func TestProblems(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*Options)
		say    string
	}{
		"a cache that is a file":  {func(o *Options) { o.Cache = file }, "has to be a folder"},
		"a cache below a file":    {func(o *Options) { o.Cache = filepath.Join(file, "x") }, "not a directory"},
		"a place for no files":    {func(o *Options) { o.Home = "/proc/pybox" }, "/proc"},
		"a machine without a VM":  {func(o *Options) { o.Check = findings(vm.Finding{Observed: "no qemu", Fix: "install it"}) }, "no qemu"},
		"a proxy that is no URL":  {func(o *Options) { o.Client = proxied("http://user:secret@bad host") }, "does not hold the address"},
		"sizes beyond every disk": {func(o *Options) { o.Lock = hugeLock(t) }, "are needed"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			c.change(&w.o)
			p := w.plan()
			if b, _ := json.Marshal(p.Problems); len(p.Problems) != 1 || !strings.Contains(string(b), c.say) || p.Problems[0].Fix == "" || strings.Contains(string(b), "secret") {
				t.Errorf("%s, want one problem with %q", b, c.say)
			}
			var out bytes.Buffer
			if p.Text(&out, 80); strings.Contains(out.String(), p.Command) {
				t.Error("the command is told all the same")
			}
			if _, err := p.Execute(t.Context(), Events{}); !errors.Is(err, ErrProblems) {
				t.Errorf("done all the same: %v", err)
			}
			if w.built > 0 || !missing(filepath.Join(w.dir, "user")) {
				t.Error("something was done")
			}
		})
	}
}

// TestCacheOfOthers: what others may write to is not taken for setup's own work.
func TestCacheOfOthers(t *testing.T) {
	w := newWorld(t)
	dir := filepath.Join(w.o.Cache, workDir)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if p := w.plan(); len(p.Problems) != 0 {
		t.Errorf("one of its own: %v", p.Problems)
	}
	for _, at := range []string{dir, w.o.Cache} {
		if err := os.Chmod(at, 0o777); err != nil {
			t.Fatal(err)
		}
		if p := w.plan(); len(p.Problems) != 1 || !strings.Contains(p.Problems[0].What, "others may write to "+at) {
			t.Errorf("%s: %v", at, p.Problems)
		}
		if err := os.Chmod(at, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// TestPackageOfTwoSets: it is downloaded and counted once.
func TestPackageOfTwoSets(t *testing.T) {
	w := newWorld(t)
	once := w.plan()
	for i := range w.o.Lock.Sets {
		if s := &w.o.Lock.Sets[i]; s.Name == "stdlib" {
			s.Packages = append(slices.Clone(w.o.Lock.Sets[1].Packages), s.Packages...)
		}
	}
	if twice := w.plan(); len(twice.Downloads) != len(once.Downloads) || twice.DownloadBytes != once.DownloadBytes {
		t.Errorf("%d downloads of %d bytes, want %d of %d", len(twice.Downloads), twice.DownloadBytes, len(once.Downloads), once.DownloadBytes)
	}
}

// TestHostThatIsSlowToTell: what is not known of a machine is no problem of it.
func TestHostThatIsSlowToTell(t *testing.T) {
	w := newWorld(t)
	w.o.Check = findings(vm.Finding{Unknown: true, Observed: "qemu has not said its version"})
	p := w.plan()
	if len(p.Problems) != 0 || !slices.ContainsFunc(p.Notes, func(n string) bool { return strings.Contains(n, "not found out: qemu has not said") }) {
		t.Errorf("problems %v, notes %q", p.Problems, p.Notes)
	}
}

func findings(f vm.Finding) func(context.Context) []vm.Finding {
	return func(context.Context) []vm.Finding { return []vm.Finding{f} }
}

// proxied is a client whose proxy is an address that is none.
func proxied(address string) *http.Client {
	return &http.Client{Transport: &http.Transport{Proxy: func(*http.Request) (*url.URL, error) { return url.Parse(address) }}}
}

func hugeLock(t *testing.T) *debian.Lock {
	t.Helper()
	l := &debian.Lock{Schema: debian.LockSchema, Snapshot: "20260501T000000Z"}
	for _, set := range []string{"data", "kernel-cloud", "root", "stdlib"} {
		s := debian.Set{Name: set, Arch: "amd64"}
		for i := range 1000 {
			name := fmt.Sprintf("%s-%03d", set, i)
			s.Packages = append(s.Packages, debian.Entry{Name: name, Version: "1", Archive: debian.ArchiveMain,
				Path: "pool/main/" + name + ".deb", Bytes: 4 << 30, SHA256: digestOf([]byte(name))})
		}
		l.Sets = append(l.Sets, s)
	}
	if _, err := l.Encode(); err != nil {
		t.Fatal(err)
	}
	return l
}

// TestMirrors: whatever a mirror answers, either all is right or nothing happens,
// and a later setup with a good one goes on.
func TestMirrors(t *testing.T) {
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
	}
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		want   error
	}{
		"404": {status(404), fetch.ErrStatus},
		"500": {status(500), fetch.ErrStatus},
		"a page": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			fmt.Fprint(w, "<html>log in here</html>")
		}, fetch.ErrContent},
		"a cut body": {func(w http.ResponseWriter, r *http.Request) {
			b := deb(strings.TrimSuffix(filepath.Base(r.URL.Path), ".deb"))
			w.Header().Set("Content-Length", fmt.Sprint(len(b)))
			w.Write(b[:100])
		}, fetch.ErrCut},
		"another body": {func(w http.ResponseWriter, r *http.Request) {
			b := bytes.ToUpper(deb(strings.TrimSuffix(filepath.Base(r.URL.Path), ".deb")))
			w.Write(b)
		}, fetch.ErrContent},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.serve.Store(c.answer)
			p := w.plan()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_, err := p.Execute(ctx, Events{})
			if !errors.Is(err, fetch.ErrUnavailable) || !errors.Is(err, c.want) {
				t.Fatalf("%v, want %v", err, c.want)
			}
			if _, err := bundle.Current(w.o.Home); !errors.Is(err, bundle.ErrNoBundle) {
				t.Errorf("installed: %v", err)
			}
			w.serve.Store(http.HandlerFunc(w.mirror))
			if r := w.setUp(); r.Nothing {
				t.Error("nothing was to do")
			}
		})
	}
}

// TestInterrupted: a setup that ends anywhere leaves nothing half, and the next one
// downloads only the rest.
func TestInterrupted(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, err := w.plan().Execute(ctx, Events{Progress: func(p fetch.Progress) {
		if p.Done > 0 {
			cancel()
		}
	}})
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if _, err := bundle.Current(w.o.Home); !errors.Is(err, bundle.ErrNoBundle) {
		t.Errorf("installed: %v", err)
	}
	p := w.plan()
	if p.DownloadBytes == 0 || !slices.ContainsFunc(p.Downloads, func(d Download) bool { return d.Have > 0 }) {
		t.Errorf("%d bytes to go; nothing was kept: %+v", p.DownloadBytes, p.Downloads)
	}
	var asked atomic.Int64
	w.serve.Store(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		w.mirror(rw, r)
	}))
	w.setUp()
	want := 0
	for _, d := range p.Downloads {
		if d.Have < d.Bytes {
			want++
		}
	}
	if got := int(asked.Load()); got != want {
		t.Errorf("%d requests, want %d", got, want)
	}
}

// TestInterruptedBeforeInstall: what was built is not built again.
func TestInterruptedBeforeInstall(t *testing.T) {
	w := newWorld(t)
	p := w.plan()
	ctx, cancel := context.WithCancel(t.Context())
	p.o.Build = func(c context.Context, o build.Options) (*bundle.Bundle, error) {
		b, err := w.build(c, o)
		cancel() // just before it is installed
		return b, err
	}
	if _, err := p.Execute(ctx, Events{}); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	w.setUp()
	if w.built != 1 {
		t.Errorf("built %d times", w.built)
	}
	left, err := os.ReadDir(filepath.Join(w.o.Cache, workDir))
	if err != nil || len(left) != 1 || left[0].Name() != "lock" {
		t.Errorf("left in the cache: %v, %v", left, err)
	}
}

func TestTwoAtOnce(t *testing.T) {
	w := newWorld(t)
	first, second := w.plan(), w.plan()
	inside, waits := make(chan struct{}), make(chan struct{})
	first.o.Build = func(ctx context.Context, o build.Options) (*bundle.Bundle, error) {
		close(inside)
		<-waits
		return w.build(ctx, o)
	}
	results := make(chan *Result, 2)
	errs := make(chan error, 2)
	run := func(p *Plan, e Events) {
		r, err := p.Execute(t.Context(), e)
		errs <- err
		results <- r
	}
	go run(first, Events{})
	<-inside
	go run(second, Events{Line: func(string) { close(waits) }})
	nothing := 0
	for range 2 {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
		if r := <-results; r.Nothing {
			nothing++
		}
	}
	if nothing != 1 || w.built != 1 {
		t.Errorf("%d had nothing to do; built %d times", nothing, w.built)
	}
}

func TestChangedSincePlanned(t *testing.T) {
	w := newWorld(t)
	a, b := w.given(nil), w.given(func(m *bundle.Manifest) { m.Kernel.Version = "6.13" })
	for _, from := range []string{w.tar(a), a.Dir()} {
		w.o.From = from
		p := w.plan()
		if err := os.RemoveAll(from); err != nil {
			t.Fatal(err)
		}
		if filepath.Ext(from) == ".tar" {
			if err := os.Rename(w.tar(b), from); err != nil {
				t.Fatal(err)
			}
		} else if err := os.Rename(b.Dir(), from); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Execute(t.Context(), Events{}); !errors.Is(err, ErrChanged) {
			t.Errorf("%s: %v", from, err)
		}
		if _, err := bundle.Current(w.o.Home); !errors.Is(err, bundle.ErrNoBundle) {
			t.Errorf("%s: installed: %v", from, err)
		}
	}
}

// TestWhileVMRuns: it is installed, and said that the VM does not have it yet.
func TestWhileVMRuns(t *testing.T) {
	w := newWorld(t)
	w.setUp()
	h, err := home.Open(w.o.Home)
	if err != nil {
		t.Fatal(err)
	}
	l, err := h.Lock()
	if err != nil {
		t.Fatal(err)
	}
	w.o.From = w.given(nil).Dir()
	p := w.plan()
	r, err := p.Execute(t.Context(), Events{})
	if err != nil || !r.Running || !strings.Contains(strings.Join(p.Notes, " "), "pybox vm restart") {
		t.Errorf("%+v, %v, %v", r, err, p.Notes)
	}
	var out bytes.Buffer
	if r.Text(&out, 80); !strings.Contains(out.String(), "pybox vm restart") {
		t.Errorf("%s", &out)
	}
	if err := l.Unlock(); err != nil {
		t.Fatal(err)
	}
	if w.plan().Execute(t.Context(), Events{}); len(w.plan().Notes) > 0 {
		t.Errorf("told of a VM that does not run: %v", w.plan().Notes)
	}
}

// TestMoreImages: an image that was asked for once stays in the bundles that later
// setups make, and its packages are in the plan.
func TestMoreImages(t *testing.T) {
	w := newWorld(t)
	w.setUp()
	if p := w.plan(); !p.Nothing {
		t.Errorf("%+v", p)
	}
	images := w.o.Images
	w.o.Images = append(images, "data")
	p := w.plan()
	if p.Nothing || !strings.Contains(p.Why, `no image "data"`) || p.DownloadBytes != int64(len(deb("data-a"))+len(deb("data-b"))) {
		t.Errorf("%+v", p)
	}
	r := w.setUp()
	if b, err := bundle.Open(r.Dir); err != nil || len(b.Manifest.Images) != 2 {
		t.Errorf("%v, %v", b, err)
	}
	w.o.Images = images
	if p := w.plan(); !p.Nothing {
		t.Errorf("the same without data: %+v", p)
	}
	w.o.Version = "0.2"
	p = w.plan()
	if p.Nothing || !slices.ContainsFunc(p.Notes, func(n string) bool { return strings.Contains(n, `the image "data": it will be in this bundle too`) }) {
		t.Errorf("a newer version: %+v", p)
	}
	r = w.setUp()
	if b, err := bundle.Open(r.Dir); err != nil || len(b.Manifest.Images) != 2 || b.Manifest.Images[1].Name != "data" {
		t.Errorf("%v, %v", b, err)
	}
}

// TestRepairKeepsImages: an image that an earlier setup was asked for is in the bundle
// that replaces a damaged one, whatever is damaged.
func TestRepairKeepsImages(t *testing.T) {
	for name, damage := range map[string]func(dir string) error{
		"manifest": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, bundle.ManifestName), []byte("{"), 0o644)
		},
		"image":   func(dir string) error { return os.Truncate(filepath.Join(dir, "data.erofs"), 1) },
		"folder":  os.RemoveAll,
		"current": func(dir string) error { return os.Remove(filepath.Join(filepath.Dir(dir), "current")) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.o.Images = []string{"stdlib", "data"}
			if err := damage(w.setUp().Dir); err != nil {
				t.Fatal(err)
			}
			w.o.Images = []string{"stdlib"}
			b, err := bundle.Open(w.setUp().Dir)
			if err != nil {
				t.Fatal(err)
			}
			if len(b.Manifest.Images) != 2 || b.Manifest.Images[1].Name != "data" {
				t.Errorf("after the repair: %+v", b.Manifest.Images)
			}
		})
	}
}

// TestRepairOfOthers: what setup once made says nothing about a bundle that somebody
// else installed since.
func TestRepairOfOthers(t *testing.T) {
	w := newWorld(t)
	w.o.Images = []string{"stdlib", "data"}
	w.setUp()
	b, err := bundle.Install(t.Context(), w.o.Home, w.given(nil).Dir())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(b.Dir(), bundle.ManifestName), []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	w.o.Images = []string{"stdlib"}
	if b, err := bundle.Open(w.setUp().Dir); err != nil || len(b.Manifest.Images) != 1 {
		t.Errorf("%+v, %v", b, err)
	}
}

// TestFromWithoutImage: a plan says that the bundle which is given lacks an image of the
// one that is there.
func TestFromWithoutImage(t *testing.T) {
	w := newWorld(t)
	w.o.Images = []string{"stdlib", "data"}
	w.setUp()
	w.o.Images = nil
	says := func(given *bundle.Bundle) bool {
		w.o.From = given.Dir()
		return slices.ContainsFunc(w.plan().Notes, func(n string) bool { return strings.Contains(n, `has the image "data", and this one has not`) })
	}
	if !says(w.given(nil)) || says(w.given(nil, "data", "stdlib")) {
		t.Error("the notes do not say whether the image is lost")
	}
}

// TestImageTwice: asked for twice, an image is planned and made once.
func TestImageTwice(t *testing.T) {
	w := newWorld(t)
	w.o.Images = []string{"stdlib", "data", "data", "stdlib"}
	before := tree(t, w.dir)
	p := w.plan()
	r := w.setUp()
	checkDone(t, p, r, before, tree(t, w.dir))
	if b, err := bundle.Open(r.Dir); err != nil || len(b.Manifest.Images) != 2 {
		t.Errorf("%+v, %v", b, err)
	}
}

package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	agentapi "github.com/pybox/pybox/agent/api"
	"github.com/pybox/pybox/guest/bundle"
	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/config"
	"github.com/pybox/pybox/host/daemon/daemontest"
	"github.com/pybox/pybox/host/home"
	"github.com/pybox/pybox/host/images"
	"github.com/pybox/pybox/vm"
)

// asUser is the variable by which this binary is told to look at a directory and to
// print what it sees, as another user.
const asUser = "DOCTOR_TEST_AS_USER"

func TestMain(m *testing.M) {
	if dir := os.Getenv(asUser); dir != "" {
		p := &patient{home: home.At(dir)}
		if err := json.NewEncoder(os.Stdout).Encode(Run(context.Background(), p.options())); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// patient is a state directory that a test makes ill.
type patient struct {
	t    *testing.T
	home *home.Home
	env  map[string]string
	host Host
	free int64
	lost error // of the file systems
	rows []vm.Finding
	arch string // that the driver was asked for
	left error  // of the context of that
	err  error  // of the cache's folder
	o    Options
}

func yes() *bool { b := true; return &b }
func no() *bool  { b := false; return &b }

// newPatient has a directory and a bundle; nothing runs.
func newPatient(t *testing.T) *patient {
	t.Helper()
	h, err := home.Open(filepath.Join(t.TempDir(), "it's a home"))
	if err != nil {
		t.Fatal(err)
	}
	p := &patient{t: t, home: h}
	src := t.TempDir()
	daemontest.NewBundle(t, src)
	if _, err := bundle.Install(t.Context(), h.Dir(), src); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *patient) options() Options {
	o := p.o
	o.Getenv = func(k string) string {
		if v, ok := p.env[k]; ok {
			return v
		}
		return map[string]string{"PYBOX_HOME": p.home.Dir()}[k]
	}
	if p.host.OS == "" {
		p.host = Host{OS: "linux", Arch: vm.HostArch(), Name: "Linux 6.1", Virtualization: yes(), CPU: "the CPU has it"}
	}
	if p.host.CPU == "" {
		p.host.CPU = "who knows"
	}
	if p.rows == nil {
		p.rows = []vm.Finding{{ID: "fake.need", OK: true, Observed: "there"}}
	}
	if p.free == 0 {
		p.free = 1 << 40
	}
	o.Version = "1.2.3"
	o.CacheDir = func() (string, error) { return filepath.Join(p.home.Dir(), "cache"), p.err }
	o.Driver = func(*home.Home, config.Config) vm.Driver { return fakeDriver{p} }
	if o.host == nil {
		o.host = func() (Host, error) { return p.host, nil }
	}
	o.room = func(string) (int64, error) { return p.free, p.lost }
	if o.Limit == 0 {
		o.Limit = 20 * time.Second // a busy machine's; nothing waits for it
	}
	return o
}

type fakeDriver struct{ p *patient }

func (fakeDriver) Name() string { return "fake" }
func (d fakeDriver) Check(ctx context.Context) []vm.Finding {
	d.p.left = ctx.Err()
	return d.p.rows
}
func (fakeDriver) Start(context.Context, vm.Config) (vm.Machine, error) {
	panic("doctor starts nothing")
}
func (d fakeDriver) CheckFor(_ context.Context, arch string) []vm.Finding {
	d.p.arch = arch
	return d.p.rows
}

// look runs the doctor, who must change nothing.
func (p *patient) look() Report {
	p.t.Helper()
	top := existing(filepath.Dir(p.home.Dir()))
	before := tree(p.t, top)
	r := Run(p.t.Context(), p.options())
	if after := tree(p.t, top); !slices.Equal(before, after) {
		p.t.Errorf("the doctor changed something:\n%s\nwas\n%s", strings.Join(after, "\n"), strings.Join(before, "\n"))
	}
	checkForm(p.t, r)
	return r
}

// tree describes everything below dir.
func tree(t *testing.T, dir string) (out []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st, err := e.Info()
		if err != nil {
			return err
		}
		out = append(out, fmt.Sprintf("%s %v %d %d", path, st.Mode(), st.Size(), st.ModTime().UnixNano()))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// checkForm holds every report to what all reports promise.
func checkForm(t *testing.T, r Report) {
	t.Helper()
	known := append(IDs(), "fake.need")
	seen := map[string]bool{}
	for _, row := range r.Rows {
		needs := row.Verdict == Failed || row.Verdict == Advice
		switch {
		case needs != (row.Next != ""):
			t.Errorf("%+v: something next, where there is a need for it alone", row)
		case strings.Contains(row.Observed, "'pybox setup'") && strings.Contains(row.Next, "'pybox setup'"):
			t.Errorf("%+v: it says twice what to do", row)
		case row.Observed == "" || row.Title == "":
			t.Errorf("%+v: nothing observed, or no title", row)
		case row.Verdict != OK && row.Verdict != Advice && row.Verdict != Failed && row.Verdict != Unknown:
			t.Errorf("%+v: no verdict", row)
		case !slices.Contains(known, row.ID) || seen[row.ID]:
			t.Errorf("%+v: an id that nobody knows, or twice", row)
		}
		seen[row.ID] = true
	}
	if r.Schema != Schema || r.Version != "1.2.3" || (r.Verdict == Failed) != (r.Count(Failed) > 0) {
		t.Errorf("report %+v", r)
	}
}

func rowOf(t *testing.T, r Report, id string) Row {
	t.Helper()
	for _, row := range r.Rows {
		if row.ID == id {
			return row
		}
	}
	t.Fatalf("no row %s in %+v", id, r.Rows)
	return Row{}
}

// own makes this process the directory's daemon.
func (p *patient) own() {
	p.t.Helper()
	l, err := p.home.Lock()
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { l.Unlock() })
	if err := p.home.SetDaemon("1.2.3", time.Now(), ""); err != nil {
		p.t.Fatal(err)
	}
}

// listen makes the daemon's socket.
func (p *patient) listen() net.Listener {
	p.t.Helper()
	if len(p.home.Path("pybox.sock")) > 103 {
		p.t.Fatal("the test's folder has too long a path")
	}
	l, err := net.Listen("unix", p.home.Socket())
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { l.Close() })
	if err := os.Chmod(p.home.Socket(), 0o600); err != nil {
		p.t.Fatal(err)
	}
	return l
}

// serve is a daemon that answers with s.
func (p *patient) serve(s any) {
	p.t.Helper()
	p.own()
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { json.NewEncoder(w).Encode(s) })}
	p.t.Cleanup(func() { srv.Close() })
	go srv.Serve(p.listen())
}

// running is the status of a VM that is well.
func (p *patient) running() api.Status {
	b, err := bundle.Current(p.home.Dir())
	if err != nil {
		p.t.Fatal(err)
	}
	now := time.Now()
	return api.Status{State: api.StateRunning, Version: "1.2.3", Since: now.Add(-time.Minute), Daemon: api.Daemon{PID: os.Getpid()},
		VM: &api.VM{Facts: vm.Facts{VMM: "QEMU 9", Acceleration: "kvm"}, CPUs: 2, MemoryBytes: 2 << 30, Bundle: b.ID()},
		Guest: &api.Guest{Answering: true, ReadAt: now, KernelRelease: "6.12.9", Agent: "1.2.3", ProtocolVersion: agentapi.ProtocolVersion,
			Engine: "ready", Clock: &api.Clock{OffsetMS: 0.3, BoundMS: 0.2, MeasuredAt: now}}}
}

// image puts an image into the store, or finds the one of that name.
func (p *patient) image(name string) *images.Record {
	p.t.Helper()
	s, err := images.Open(p.home.Dir())
	if err != nil {
		p.t.Fatal(err)
	}
	if r, err := s.Get(name); err == nil {
		return r
	}
	st, err := s.Stage(p.t.Context())
	if err != nil {
		p.t.Fatal(err)
	}
	defer st.Close()
	if err := os.WriteFile(st.Path(), append([]byte(name), make([]byte, 512-len(name))...), 0o600); err != nil {
		p.t.Fatal(err)
	}
	sum := strings.Repeat("1", 64)
	r, err := s.Commit(p.t.Context(), st, images.Record{
		Name: name, Arch: vm.HostArch(), Kind: images.KindBuilt,
		Built: &images.Built{Base: images.Base{Name: "stdlib", SHA256: sum}, LockSHA256: sum, LockKind: "requirements"},
	}, images.Commit{Bundled: 1})
	if err != nil {
		p.t.Fatal(err)
	}
	return r
}

func (p *patient) write(name, text string) {
	p.t.Helper()
	if err := os.WriteFile(p.home.Path(name), []byte(text), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

func (p *patient) chmod(name string, mode os.FileMode) {
	p.t.Helper()
	if err := os.Chmod(p.home.Path(name), mode); err != nil {
		p.t.Fatal(err)
	}
}

func (p *patient) mkdir(name string, mode os.FileMode) {
	p.t.Helper()
	if err := os.Mkdir(p.home.Path(name), 0o700); err != nil {
		p.t.Fatal(err)
	}
	p.chmod(name, mode)
}

// record writes a daemon.json that was changed.
func (p *patient) record(change func(*home.Daemon)) {
	p.t.Helper()
	if err := p.home.SetDaemon("1.2.3", time.Now().Add(-time.Hour), ""); err != nil {
		p.t.Fatal(err)
	}
	d, err := p.home.Daemon()
	if err != nil {
		p.t.Fatal(err)
	}
	change(&d)
	if err := p.home.WriteJSON(p.home.Path("daemon.json"), d); err != nil {
		p.t.Fatal(err)
	}
}

func (p *patient) ended(e api.End) {
	p.t.Helper()
	e.At = time.Now()
	if err := p.home.WriteJSON(p.home.LastEnd(), e); err != nil {
		p.t.Fatal(err)
	}
}

// reinstall replaces the bundle by one with another manifest.
func (p *patient) reinstall(change func(*bundle.Manifest)) {
	p.t.Helper()
	dir := p.t.TempDir()
	b := daemontest.NewBundle(p.t, dir)
	m := b.Manifest
	change(&m)
	enc, err := m.Encode()
	if err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, bundle.ManifestName), enc, 0o644); err != nil {
		p.t.Fatal(err)
	}
	if _, err := bundle.Install(p.t.Context(), p.home.Dir(), dir); err != nil {
		p.t.Fatal(err)
	}
}

func otherArch() string {
	if vm.HostArch() == vm.ArchAMD64 {
		return vm.ArchARM64
	}
	return vm.ArchAMD64
}

// bundleFile is a path of the installed bundle.
func (p *patient) bundleFile(f func(*bundle.Bundle) string) string {
	b, err := bundle.Current(p.home.Dir())
	if err != nil {
		p.t.Fatal(err)
	}
	return f(b)
}

// cases are what each row says of each state.
var cases = []struct {
	name    string
	ail     func(*patient)
	id      string
	verdict Verdict
	say     string
	next    string // a part of it
}{
	{"well", func(*patient) {}, "platform", OK, "Linux 6.1", ""},
	{"another system", func(p *patient) { p.host.OS = "plan9"; p.host.Arch = "amd64" }, "platform", Failed, "does not run here", "Linux"},
	{"another CPU", func(p *patient) { p.host = Host{OS: "linux", Arch: "riscv64"} }, "platform", Failed, "riscv64", "amd64"},
	{"Rosetta", func(p *patient) { p.host = Host{OS: "darwin", Arch: "amd64", Version: "14.5", Translated: true} }, "platform", Failed, "translated by Rosetta", "go env GOARCH"},
	{"old macOS", func(p *patient) { p.host = Host{OS: "darwin", Arch: "arm64", Version: "12.7.1"} }, "platform", Failed, "macOS 13 or newer", "softwareupdate"},
	{"macOS", func(p *patient) { p.host = Host{OS: "darwin", Arch: "arm64", Version: "13.0", Name: "macOS 13.0"} }, "platform", OK, "macOS 13.0, arm64", ""},
	{"no host", func(p *patient) { p.o.host = func() (Host, error) { return Host{}, errors.New("closed") } }, "platform", Unknown, "closed", ""},

	{"well", func(*patient) {}, "virtualization", OK, "has it", ""},
	{"CPU without", func(p *patient) { p.host = Host{OS: "linux", Arch: "amd64", Virtualization: no(), CPU: "none"} }, "virtualization", OK, "none: see KVM", ""},
	{"VM without", func(p *patient) { p.host = Host{OS: "linux", Arch: "amd64", Virtualization: no(), Guest: true} }, "virtualization", OK, "a VM itself: see KVM", ""},
	{"Mac without", func(p *patient) { p.host = Host{OS: "darwin", Arch: "arm64", Virtualization: no(), CPU: "is 0"} }, "virtualization", Failed, "is 0", "kern.hv_support"},
	{"silent CPU", func(p *patient) { p.host = Host{OS: "linux", Arch: "arm64", CPU: "does not say"} }, "virtualization", Unknown, "does not say", ""},

	{"well", func(*patient) {}, "fake.need", OK, "there", ""},
	{"need not met", func(p *patient) { p.rows = []vm.Finding{{ID: "fake.need", Observed: "not there", Fix: "get it"}} }, "fake.need", Failed, "not there", "get it"},
	{"wish not met", func(p *patient) {
		p.rows = []vm.Finding{{ID: "fake.need", Advice: true, Observed: "not there", Fix: "get it"}}
	}, "fake.need", Advice, "not there", "get it"},
	{"need not looked at in time", func(p *patient) {
		p.rows = []vm.Finding{{ID: "fake.need", Unknown: true, Observed: "did not end in time"}}
	}, "fake.need", Unknown, "in time", ""},
	{"mute driver", func(p *patient) { p.rows = []vm.Finding{} }, "driver", Unknown, "says nothing", ""},

	{"well", func(*patient) {}, "home.dir", OK, "mode 0700", ""},
	{"no directory", func(p *patient) { p.home = home.At(p.home.Path("not", "there")) }, "home.dir", OK, "is not there yet", ""},
	{"no place for it", func(p *patient) { p.write("file", ""); p.home = home.At(p.home.Path("file", "x")) }, "home.dir", Failed, "not a directory", "PYBOX_HOME"},
	{"a file", func(p *patient) { p.write("file", ""); p.home = home.At(p.home.Path("file")) }, "home.dir", Failed, "is not a directory", "PYBOX_HOME"},
	{"a link", func(p *patient) { os.Symlink("nowhere", p.home.Path("l")); p.home = home.At(p.home.Path("l")) }, "home.dir", Failed, "leads nowhere", "remove the link"},
	{"others write", func(p *patient) { p.chmod("", 0o770) }, "home.dir", Failed, "others may write", `chmod 700 '/`},
	{"others read", func(p *patient) { p.chmod("", 0o755) }, "home.dir", Advice, "mode 0755", `it'\''s a home'`},
	{"no HOME", func(p *patient) { p.env = map[string]string{"PYBOX_HOME": ""} }, "home.dir", Failed, "neither PYBOX_HOME nor HOME", "export PYBOX_HOME"},

	{"well", func(*patient) {}, "home.config", OK, "default", ""},
	{"config", func(p *patient) { p.write("config.toml", "[vm]\ncpus = 1\n") }, "home.config", OK, "valid", ""},
	{"bad config", func(p *patient) { p.write("config.toml", "[vm]\ncpu = 1\n") }, "home.config", Failed, `line 2: unknown key "vm.cpu"`, "correct"},
	{"open token", func(p *patient) {
		p.write("config.toml", "[api]\nlisten = \"127.0.0.1:0\"\n")
		p.write("api-token", strings.Repeat("0", 64))
		p.chmod("api-token", 0o644)
	}, "home.config", Failed, "others can read", "rm "},
	{"token", func(p *patient) {
		p.write("config.toml", "[api]\nlisten = \"127.0.0.1:0\"\n")
		p.write("api-token", strings.Repeat("0", 64))
	}, "home.config", OK, "valid", ""},
	{"no token yet", func(p *patient) { p.write("config.toml", "[api]\nlisten = \"127.0.0.1:0\"\n") }, "home.config", OK, "valid", ""},
	{"open token that is not used", func(p *patient) { p.write("api-token", ""); p.chmod("api-token", 0o644) }, "home.config", OK, "default", ""},
	{"bad variable", func(p *patient) { p.env = map[string]string{"PYBOX_ACCEL": "warp"} }, "home.config", Failed, "PYBOX_ACCEL", "unset PYBOX_ACCEL"},
	{"open config", func(p *patient) { p.write("config.toml", ""); p.chmod("config.toml", 0o666) }, "home.config", Advice, "0666", "chmod 600"},

	{"well", func(*patient) {}, "home.room", OK, "1 TiB free", ""},
	{"disk low", func(p *patient) { p.free = 100 << 20 }, "home.room", Advice, "100 MiB free", "make room"},
	{"disk full", func(p *patient) { p.free = 1 << 20 }, "home.room", Failed, "1 MiB free", "make room"},
	{"disk mute", func(p *patient) { p.lost = errors.New("stale handle") }, "home.room", Unknown, "stale handle", ""},
	{"disk mute", func(p *patient) { p.lost = errors.New("stale handle") }, "cache.room", Unknown, "stale handle", ""},
	{"well", func(*patient) {}, "cache.room", OK, "1 TiB free", ""},
	{"disk low", func(p *patient) { p.free = 100 << 20 }, "cache.room", Advice, "100 MiB free", "rm -r"},
	{"no cache", func(p *patient) { p.err = errors.New("no folder") }, "cache.room", Advice, "no folder", "PYBOX_CACHE"},

	{"no images", func(*patient) {}, "images.own", OK, "none; 'pybox image build'", ""},
	{"an image", func(p *patient) { p.image("mine") }, "images.own", OK, "1, 512 B", ""},
	{"an image without its file", func(p *patient) {
		p.image("mine")
		p.image("other")
		p.write(filepath.Join("images", p.image("mine").SHA256+".erofs"), "")
	}, "images.own", Advice, "mine: the image is damaged", "'pybox image remove mine'"},
	{"an image without a record", func(p *patient) {
		p.image("mine")
		p.write("images/mine.json", "{")
	}, "images.own", Advice, "mine: the image is damaged", "--replace"},
	{"images a file", func(p *patient) { p.write("images", "") }, "images.own", Advice, "not a directory", "move it away"},
	{"more images than fit", func(p *patient) {
		for i := range images.MaxImages {
			p.image(fmt.Sprintf("i%d", i))
		}
		more := *p.image("i0")
		more.Name = "more"
		b, err := more.Encode()
		if err != nil {
			p.t.Fatal(err)
		}
		p.write("images/more.json", string(b))
	}, "images.own", Advice, "there are 15, and a VM takes 14", "pybox image remove"},
	{"images of a VM that has none", func(p *patient) {
		p.image("mine")
		p.image("other")
		s := p.running()
		s.VM.LeftOut = []api.LeftOut{{Why: "the folder is in use", Next: "'pybox vm restart' tries again"}}
		p.serve(s)
	}, "images.own", Advice, "the VM left all of them out: the folder is in use", "tries again"},
	{"an image that was left out", func(p *patient) {
		r := p.image("mine")
		s := p.running()
		s.VM.LeftOut = []api.LeftOut{{Name: "mine", SHA256: r.SHA256, CreatedAt: r.CreatedAt, Why: "it was damaged", Next: "make it again"}}
		p.serve(s)
	}, "images.own", Advice, "mine: the VM left it out: it was damaged", "make it again"},
	{"an image made since", func(p *patient) {
		p.image("mine")
		s := p.running()
		s.VM.LeftOut = []api.LeftOut{{Name: "mine", SHA256: strings.Repeat("1", 64), Why: "it was damaged", Next: "make it again"}}
		p.serve(s)
	}, "images.own", OK, "1, 512 B", ""},
	{"a folder for a record", func(p *patient) {
		p.image("mine")
		p.mkdir("images/other.json", 0o700)
	}, "images.own", Advice, "is no record of an image", "other.json away"},
	{"well", func(*patient) {}, "home.receipts", OK, "none yet", ""},
	{"receipts", func(p *patient) { p.mkdir("receipts", 0o700) }, "home.receipts", OK, "0 kept, of at most 1000", ""},
	{"open receipts", func(p *patient) { p.mkdir("receipts", 0o755) }, "home.receipts", Failed, "mode 0755", "chmod 700"},
	{"receipts a file", func(p *patient) { p.write("receipts", "") }, "home.receipts", Failed, "is not a folder", "move it away"},

	{"well", func(*patient) {}, "bundle.installed", OK, vm.HostArch() + ", PyBox's own kernel", ""},
	{"no bundle", func(p *patient) { os.RemoveAll(p.home.Path("bundles")) }, "bundle.installed", Failed, "none is installed", "pybox setup"},
	{"half a bundle", func(p *patient) {
		os.Remove(p.bundleFile(func(b *bundle.Bundle) string { return b.Path(b.Manifest.Root) }))
	}, "bundle.installed", Failed, "is missing", "pybox setup"},
	{"other bundle", func(p *patient) { p.reinstall(func(m *bundle.Manifest) { m.Arch = otherArch() }) }, "bundle.installed", Advice, "emulated", "pybox setup"},
	{"other bundle on a Mac", func(p *patient) {
		p.reinstall(func(m *bundle.Manifest) { m.Arch = otherArch() })
		p.host = Host{OS: "darwin", Arch: vm.HostArch(), Version: "15.1"}
	}, "bundle.installed", Failed, "own architecture alone", "pybox setup"},
	{"well", func(*patient) {}, "bundle.intact", OK, "have the SHA-256", ""},
	{"no bundle", func(p *patient) { os.RemoveAll(p.home.Path("bundles")) }, "bundle.intact", Unknown, "no bundle", ""},
	{"damaged bundle", func(p *patient) {
		name := p.bundleFile(func(b *bundle.Bundle) string { return b.Path(b.Manifest.Root) })
		data, err := os.ReadFile(name)
		if err != nil {
			p.t.Fatal(err)
		}
		data[0] ^= 1
		if err := os.WriteFile(name, data, 0o644); err != nil {
			p.t.Fatal(err)
		}
	}, "bundle.intact", Failed, "expected", "pybox setup"},

	{"well", func(*patient) {}, "daemon.owner", OK, "none runs", ""},
	{"daemon", func(p *patient) { p.o.Limit = time.Second; p.own() }, "daemon.owner", OK, fmt.Sprintf("pid %d, PyBox 1.2.3", os.Getpid()), ""},
	{"daemon gone", func(p *patient) { p.record(func(d *home.Daemon) { d.PID = 1 << 22 }) }, "daemon.owner", OK, "has ended", ""},
	{"pid reused", func(p *patient) { p.record(func(d *home.Daemon) { d.StartTime = "1" }) }, "daemon.owner", OK, "another process", ""},
	{"host booted", func(p *patient) { p.record(func(d *home.Daemon) { d.HostBootID = "old" }) }, "daemon.owner", OK, "earlier boot", ""},
	{"rubbish record", func(p *patient) { p.write("daemon.json", "{") }, "daemon.owner", Advice, "cannot be read", "rm '"},
	{"stranger with the lock", func(p *patient) { p.o.Limit = time.Second; p.own(); os.Remove(p.home.Path("daemon.json")) }, "daemon.owner", Failed, "does not name", "fuser"},
	{"lock removed", func(p *patient) { p.o.Limit = time.Second; p.own(); os.Remove(p.home.Path("lock")) }, "daemon.owner", Failed, "was that file removed", "--force"},

	{"well", func(*patient) {}, "daemon.socket", OK, "no daemon runs", ""},
	{"running", func(p *patient) { p.serve(p.running()) }, "daemon.socket", OK, "mode 0600", ""},
	{"open socket", func(p *patient) { p.serve(p.running()); p.chmod("pybox.sock", 0o666) }, "daemon.socket", Advice, "0666", "chmod 600"},
	{"stale socket", func(p *patient) { l := p.listen().(*net.UnixListener); l.SetUnlinkOnClose(false); l.Close() }, "daemon.socket", OK, "the next start replaces it", ""},
	{"socket a folder", func(p *patient) { p.mkdir("pybox.sock", 0o700) }, "daemon.socket", Failed, "is a folder", "move it away"},
	{"socket removed", func(p *patient) { p.o.Limit = time.Second; p.own() }, "daemon.socket", Failed, "is not there", "--force"},
	{"no socket", func(p *patient) { p.o.Limit = time.Second; p.own(); p.write("pybox.sock", "") }, "daemon.socket", Failed, "is no socket", "--force"},
	{"long path", func(p *patient) {
		p.home = home.At(p.home.Path(strings.Repeat("long", 25)))
	}, "daemon.socket", OK, "/tmp/pybox-", ""},

	{"well", func(*patient) {}, "vm.answer", OK, "none runs", ""},
	{"running", func(p *patient) { p.serve(p.running()) }, "vm.answer", OK, "running for 1 m", ""},
	{"starting", func(p *patient) { p.serve(api.Status{State: api.StateStarting, Version: "1.2.3", Since: time.Now()}) }, "vm.answer", OK, "starting for", ""},
	{"socket removed", func(p *patient) { p.o.Limit = time.Second; p.own() }, "vm.answer", Failed, "nobody answers", "--force"},
	{"not PyBox's", func(p *patient) { p.serve("hello") }, "vm.answer", Failed, "not what this version expects", "restart"},

	{"well", func(*patient) {}, "vm.guest", Unknown, "no VM runs", ""},
	{"starting", func(p *patient) { p.serve(api.Status{State: api.StateStarting, Version: "1.2.3"}) }, "vm.guest", Unknown, "is starting", ""},
	{"running", func(p *patient) { p.serve(p.running()) }, "vm.guest", OK, "answers; Linux 6.12.9", ""},
	{"recovering", func(p *patient) { s := p.running(); s.Guest.Engine = "recovering"; p.serve(s) }, "vm.guest", OK, "recovering", ""},
	{"guest hangs", func(p *patient) { s := p.running(); s.Guest.Answering = false; p.serve(s) }, "vm.guest", Failed, "NOT ANSWERING", "restart"},
	{"guest never answered", func(p *patient) {
		s := p.running()
		s.Guest.Answering, s.Guest.ReadAt = false, time.Time{}
		p.serve(s)
	}, "vm.guest", Failed, "never answered", "restart"},
	{"engine failed", func(p *patient) { s := p.running(); s.Guest.Engine = "failed: no room"; p.serve(s) }, "vm.guest", Failed, "failed: no room", "restart"},

	{"well", func(*patient) {}, "vm.clock", Unknown, "no VM runs", ""},
	{"running", func(p *patient) { p.serve(p.running()) }, "vm.clock", OK, "+0.3 ms from this host's, within ±0.2 ms", ""},
	{"clock off", func(p *patient) { s := p.running(); s.Guest.Clock.OffsetMS = 7.2e6; p.serve(s) }, "vm.clock", Advice, "+7200000.0 ms", "restart"},
	{"clock off within its bound", func(p *patient) {
		s := p.running()
		s.Guest.Clock.OffsetMS, s.Guest.Clock.BoundMS = -80, 60
		p.serve(s)
	}, "vm.clock", OK, "-80.0 ms", ""},
	{"old reading", func(p *patient) {
		s := p.running()
		s.Guest.Clock.MeasuredAt = time.Now().Add(-time.Hour)
		p.serve(s)
	}, "vm.clock", Unknown, "no longer", ""},
	{"no reading", func(p *patient) { s := p.running(); s.Guest.Clock = nil; p.serve(s) }, "vm.clock", Unknown, "not measured", ""},

	{"well", func(*patient) {}, "versions", OK, "pybox 1.2.3, protocol 2", ""},
	{"running", func(p *patient) { p.serve(p.running()) }, "versions", OK, "daemon 1.2.3; agent 1.2.3", ""},
	{"other daemon", func(p *patient) { s := p.running(); s.Version = "1.0"; p.serve(s) }, "versions", Advice, "the daemon is of another version", "restart"},
	{"other bundle runs", func(p *patient) { s := p.running(); s.VM.Bundle = "other"; p.serve(s) }, "versions", Advice, "another bundle", "restart"},
	{"other protocol", func(p *patient) {
		p.reinstall(func(m *bundle.Manifest) { m.Agent.ProtocolVersion = agentapi.ProtocolVersion + 1 })
	}, "versions", Failed, "this pybox is older", "pybox setup"},

	{"well", func(*patient) {}, "vm.last", OK, "none has ended", ""},
	{"ended well", func(p *patient) { p.ended(api.End{Started: true, By: "client", Reason: "stopped by a client"}) }, "vm.last", OK, "stopped by a client", ""},
	{"killed", func(p *patient) { p.record(func(d *home.Daemon) { d.PID = 1 << 22 }) }, "vm.last", OK, "without a record", ""},
	{"did not start", func(p *patient) {
		p.ended(api.End{Problem: &api.Problem{Detail: "was not ready", LikelyCause: "slow", Next: "wait", ConsoleTail: []string{"\x1b[31mpanic"}}})
	}, "vm.last", Failed, "was not ready; likely cause: slow", "wait"},
	{"daemon could not begin", func(p *patient) { p.write("daemon.err", "pybox: the disk is full\n\nmore\n") }, "vm.last", Failed, "crashed: the disk is full · more", "pybox vm start"},
	{"daemon could not begin since", func(p *patient) {
		p.ended(api.End{Started: true, Reason: "stopped by a client"})
		p.write("daemon.err", "panic: oh")
	}, "vm.last", Failed, "panic: oh", "pybox vm start"},
	{"daemon could not begin once", func(p *patient) {
		p.write("daemon.err", "panic: oh")
		if err := os.Chtimes(p.home.Path("daemon.err"), time.Time{}, time.Now().Add(-time.Hour)); err != nil {
			p.t.Fatal(err)
		}
		p.ended(api.End{Started: true, Reason: "stopped by a client"})
	}, "vm.last", OK, "stopped by a client", ""},
	{"two daemons", func(p *patient) { p.write("daemon.err", "pybox: "+home.ErrLocked.Error()) }, "vm.last", OK, "none has ended", ""},
	{"daemon began after trouble", func(p *patient) { p.write("daemon.err", "pybox: oh"); p.serve(p.running()) }, "vm.last", OK, "none has ended", ""},
	{"crashed", func(p *patient) { p.ended(api.End{Started: true, Problem: &api.Problem{Detail: "guest reset"}}) }, "vm.last", Advice, "ended by itself", "pybox vm start"},
	{"crashed, and runs again", func(p *patient) {
		s := p.running()
		s.LastEnd = &api.End{At: time.Now(), Reason: "guest reset", Problem: &api.Problem{}}
		p.serve(s)
	}, "vm.last", OK, "the VM runs", ""},
	{"rubbish record", func(p *patient) { p.write("last-end.json", "{") }, "vm.last", Advice, "reading how the last VM ended", "rm '"},
	{"rubbish record of a daemon that is gone", func(p *patient) {
		p.record(func(d *home.Daemon) { d.PID = 1 << 22 })
		p.write("last-end.json", "{")
	}, "vm.last", Advice, "reading how the last VM ended", "rm '"},
}

// TestNoDirectory: where the state directory is none, one row says so, and no other
// names a culprit.
func TestNoDirectory(t *testing.T) {
	for name, at := range map[string][]string{"a file": {"file"}, "below a file": {"file", "x"}, "a link to itself": {"link"}} {
		t.Run(name, func(t *testing.T) {
			p := newPatient(t)
			p.write("file", "")
			if err := os.Symlink("link", p.home.Path("link")); err != nil {
				t.Fatal(err)
			}
			p.home = home.At(p.home.Path(at...))
			r := p.look()
			for _, row := range r.Rows {
				if (row.Verdict == Failed) != (row.ID == "home.dir") || strings.Contains(row.Observed, "http://") {
					t.Errorf("%+v", row)
				}
			}
			for _, id := range []string{"home.config", "home.receipts", "bundle.installed", "bundle.intact", "images.own", "daemon.owner", "daemon.socket", "vm.answer", "vm.guest", "vm.clock", "vm.last"} {
				if row := rowOf(t, r, id); row.Verdict != Unknown {
					t.Errorf("%+v: want that it is unknown", row)
				}
			}
		})
	}
}

func TestRows(t *testing.T) {
	for _, c := range cases {
		t.Run(c.id+"/"+c.name, func(t *testing.T) {
			p := newPatient(t)
			c.ail(p)
			row := rowOf(t, p.look(), c.id)
			if row.Verdict != c.verdict || !strings.Contains(row.Observed, c.say) || !strings.Contains(row.Next, c.next) {
				t.Errorf("got %+v, want %s that says %q and next %q", row, c.verdict, c.say, c.next)
			}
		})
	}
}

// TestCasesAreComplete holds the cases to every verdict that a row can have. What
// only another user, or a hang, meets is in tests of its own.
func TestCasesAreComplete(t *testing.T) {
	elsewhere := map[string][]Verdict{ // in TestAnotherUser and those of hang_test.go
		"home.config": {Unknown}, "home.receipts": {Unknown}, "bundle.installed": {Unknown}, "images.own": {Unknown},
		"daemon.owner": {Unknown}, "daemon.socket": {Unknown}, "vm.answer": {Unknown}, "vm.last": {Unknown},
	}
	never := map[string][]Verdict{
		"platform": {Advice}, "virtualization": {Advice}, "home.dir": {Unknown}, "cache.room": {Failed}, "home.receipts": {Advice}, "bundle.intact": {Advice},
		"images.own": {Failed}, "vm.answer": {Advice}, "vm.guest": {Advice}, "vm.clock": {Failed}, "versions": {Unknown},
	}
	for _, id := range IDs() {
		if id == "driver" { // stands for the rows of "fake.need"
			continue
		}
		have := slices.Concat(elsewhere[id], never[id])
		for _, c := range cases {
			if c.id == id {
				have = append(have, c.verdict)
			}
		}
		for _, v := range []Verdict{OK, Advice, Failed, Unknown} {
			if !slices.Contains(have, v) {
				t.Errorf("%s: no case is %s", id, v)
			}
		}
	}
}

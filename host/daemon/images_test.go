package daemon

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/daemon/daemontest"
	"github.com/pybox/pybox/host/images"
	"github.com/pybox/pybox/vm"
	"github.com/pybox/pybox/vm/vmtest"
)

// padded is as long as a disk may be.
func padded(content string) []byte { return append([]byte(content), make([]byte, 512-len(content))...) }

// ownImage puts an image with that content into the store of o's home.
func ownImage(t *testing.T, o Options, name, content string) *images.Record {
	t.Helper()
	s, err := images.Open(o.Home.Dir())
	if err != nil {
		t.Fatal(err)
	}
	st, err := s.Stage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	if err := os.WriteFile(st.Path(), padded(content), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := s.Commit(t.Context(), st, images.Record{
		Name: name, Arch: vm.HostArch(), Kind: images.KindBuilt,
		Built: &images.Built{Base: images.Base{Name: "stdlib", SHA256: strings.Repeat("1", 64)}, LockSHA256: strings.Repeat("2", 64), LockKind: "requirements"},
	}, images.Commit{Bundled: 1})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// configs remembers what machines were started.
type configs struct {
	vm.Driver
	mu   sync.Mutex
	seen []vm.Config
}

func (c *configs) Start(ctx context.Context, cfg vm.Config) (vm.Machine, error) {
	c.mu.Lock()
	c.seen = append(c.seen, cfg)
	c.mu.Unlock()
	return c.Driver.Start(ctx, cfg)
}

func TestImagesOfOnesOwn(t *testing.T) {
	a := &daemontest.Agent{}
	o := options(t, a)
	driver := &configs{Driver: &vmtest.Fake{Guest: a.Program}}
	o.Driver = driver
	whole := ownImage(t, o, "whole", "an image")
	ownImage(t, o, "twin", "an image")
	damaged := ownImage(t, o, "damaged", "another image")
	path := filepath.Join(o.Home.Dir(), images.Dir, damaged.SHA256+".erofs")
	if err := os.WriteFile(path, padded("another imagE"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := run(t, o)
	s := r.start()

	var own []string
	for _, i := range s.VM.Images {
		if i.Own {
			own = append(own, i.Name+" "+i.SHA256)
		}
	}
	if want := "twin " + whole.SHA256 + ", whole " + whole.SHA256; strings.Join(own, ", ") != want {
		t.Errorf("images of one's own: %v, want %s", own, want)
	}
	if l := s.VM.LeftOut; len(l) != 1 || l[0].Name != "damaged" || !strings.Contains(l[0].Why, "damaged") || !strings.Contains(l[0].Next, "--replace") {
		t.Errorf("left out: %+v", l)
	}
	// Equal contents are one disk: the serial number is theirs.
	disks := driver.seen[0].Disks
	if len(disks) != 3 || disks[2].Serial != "img-"+whole.SHA256[:16] || !strings.HasSuffix(disks[2].Path, whole.SHA256+".erofs") {
		t.Errorf("disks: %+v", disks)
	}
	if err := driver.seen[0].Validate(); err != nil {
		t.Error(err)
	}
	list, err := r.client.Images(r.ctx())
	if err != nil || len(list) != 3 {
		t.Errorf("GET %s: %+v, %v", api.PathImages, list, err)
	}
	out, err := r.client.Run(r.ctx(), api.RunRequest{Image: "whole", Program: words("print hello")}, ignored)
	if err != nil || out.Receipt.Configured.Image.Name != "whole" || out.Receipt.Configured.Image.Digest != "sha256:"+whole.SHA256 {
		t.Errorf("a run in it: %+v, %v", out, err)
	}
	_, err = r.client.Run(r.ctx(), api.RunRequest{Image: "damaged", Program: words("print hello")}, ignored)
	var p *api.Problem
	if !errors.As(err, &p) || p.Type != api.ProblemImage {
		t.Errorf("a run in a damaged image: %v", err)
	}
}

// TestImagesNeedNoStage: a VM without images of one's own starts as ever.
func TestImagesNeedNoStage(t *testing.T) {
	o := options(t, &daemontest.Agent{})
	s := run(t, o).start()
	for _, st := range s.Stages {
		if st.Name == "images verified" {
			t.Errorf("there is a stage %q without images", st.Name)
		}
	}
	if _, err := os.Stat(filepath.Join(o.Home.Dir(), images.Dir)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the daemon made a folder for images: %v", err)
	}
}

func stopIfIdle(r *running) (api.End, error) {
	return r.client.Stop(r.ctx(), api.StopRequest{IfIdle: true})
}

func TestStopIfIdle(t *testing.T) {
	r := run(t, options(t, &daemontest.Agent{}))
	r.start()
	running := make(chan struct{})
	ctx, cancel := context.WithCancel(r.ctx())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = r.client.Run(ctx, api.RunRequest{Program: words("wait")}, func(e api.Event) error {
			if e.Event == api.EventStarted {
				close(running)
			}
			return nil
		})
	}()
	<-running
	_, err := stopIfIdle(r)
	var p *api.Problem
	if !errors.As(err, &p) || p.Type != api.ProblemInUse || p.Status != http.StatusConflict || p.Next == "" {
		t.Fatalf("stop of a VM with a run: %v, want a conflict", err)
	}
	if s, err := r.client.Status(r.ctx()); err != nil || s.State != api.StateRunning || s.Runs.Active != 1 {
		t.Fatalf("the refused stop did harm: %+v, %v", s, err)
	}
	cancel()
	<-ended
	for deadline := time.Now().Add(bound); ; time.Sleep(5 * time.Millisecond) {
		end, err := stopIfIdle(r)
		if err == nil {
			if end.By != "client" || !end.Started {
				t.Errorf("end: %+v", end)
			}
			break
		}
		if !errors.As(err, &p) || p.Type != api.ProblemInUse || time.Now().After(deadline) {
			t.Fatalf("stop of an idle VM: %v", err)
		}
	}
	if err := r.wait(); err != nil {
		t.Error(err)
	}
}

func TestStopIfIdleWhileStarting(t *testing.T) {
	o := options(t, &daemontest.Agent{Silent: true})
	r := run(t, o)
	_, err := stopIfIdle(r)
	var p *api.Problem
	if !errors.As(err, &p) || p.Type != api.ProblemInUse || !strings.Contains(p.Detail, "starting") {
		t.Errorf("stop of a VM that starts: %v", err)
	}
}

// TestStopIfIdleRacesRuns: whichever comes first, a run is whole or is told that the VM
// is on its way out; none is cancelled by a stop that took the VM for idle.
func TestStopIfIdleRacesRuns(t *testing.T) {
	for range 10 {
		r := run(t, options(t, &daemontest.Agent{}))
		r.start()
		var wg sync.WaitGroup
		begin := make(chan struct{})
		for range 8 {
			wg.Go(func() {
				<-begin
				out, err := r.client.Run(r.ctx(), api.RunRequest{Program: words("print hello")}, ignored)
				var p *api.Problem
				switch {
				case err == nil && out.Receipt.Ending.How == "exited":
				case errors.Is(err, api.ErrNoDaemon), errors.Is(err, api.ErrHungUp), errors.As(err, &p) && p.Type == api.ProblemStopping:
				default:
					t.Errorf("a run: %+v, %v", out, err)
				}
			})
		}
		wg.Go(func() {
			<-begin
			_, err := stopIfIdle(r)
			var p *api.Problem
			if err != nil && !(errors.As(err, &p) && p.Type == api.ProblemInUse) {
				t.Errorf("the stop: %v", err)
			}
		})
		close(begin)
		wg.Wait()
	}
}

func TestStopIfIdleWithShell(t *testing.T) {
	d := &Daemon{o: Options{Now: time.Now}, state: api.StateRunning, log: options(t, &daemontest.Agent{}).Logger}
	leave := user{d}.Use()
	if p := d.closeIfIdle(); p == nil || d.state != api.StateRunning {
		t.Errorf("a VM in use: %v, %s", p, d.state)
	}
	leave()
	if p := d.closeIfIdle(); p != nil || d.state != api.StateStopping {
		t.Errorf("a VM that nobody uses: %v, %s", p, d.state)
	}
	if p := d.closeIfIdle(); p != nil {
		t.Errorf("a VM that stops: %v", p)
	}
}

func words(s string) api.Source { return api.Source{Text: &s} }

func ignored(api.Event) error { return nil }

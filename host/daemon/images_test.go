package daemon

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
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

// inUse expects a stop of a VM that nothing uses to be refused, for that reason.
func (r *running) inUse(why string) {
	r.t.Helper()
	_, err := stopIfIdle(r)
	var p *api.Problem
	if !errors.As(err, &p) || p.Type != api.ProblemInUse || !strings.Contains(p.Detail, why) {
		r.t.Fatalf("stop if idle: %v, want a refusal that says %q", err, why)
	}
}

// stopsSoon expects such a stop to be granted, once what was in progress has ended.
func (r *running) stopsSoon() {
	r.t.Helper()
	for deadline := time.Now().Add(bound); ; time.Sleep(5 * time.Millisecond) {
		_, err := stopIfIdle(r)
		var p *api.Problem
		if err == nil {
			return
		}
		if !errors.As(err, &p) || p.Type != api.ProblemInUse || time.Now().After(deadline) {
			r.t.Fatalf("stop if idle: %v", err)
		}
	}
}

// TestStopIfIdleKeepsWhatIsLeft: what a run left is its client's until that has taken it.
func TestStopIfIdleKeepsWhatIsLeft(t *testing.T) {
	r := run(t, options(t, &daemontest.Agent{}))
	r.start()
	_, rec, err := r.exec(api.RunRequest{Program: source("leave 10 out\n"), Collect: true, Limits: largeFiles()})
	if err != nil || len(rec.Program.Files) != 1 || rec.Program.Files[0].File == "" {
		t.Fatalf("%+v, %v", rec, err)
	}
	id := rec.Program.Files[0].File
	for deadline := time.Now().Add(bound); ; time.Sleep(5 * time.Millisecond) {
		_, err := stopIfIdle(r)
		if err == nil {
			t.Fatal("it was stopped with a file that its client has not taken")
		}
		if strings.Contains(err.Error(), "a file that a run left waits for its client") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("stop if idle: %v", err)
		}
	}
	if n, sum := r.fetch(id); n != 10 || sum != sumOfZeros(t, 10) {
		t.Errorf("%d bytes, %s", n, sum)
	}
	if err := r.client.ForgetFile(r.ctx(), id); err != nil {
		t.Fatal(err)
	}
	r.stopsSoon()
}

// TestStopIfIdleLetsFilesCome: a file that is being stored is not cut off, and waits for
// its run; a run that is refused, also for want of an image, lets go of it.
func TestStopIfIdleLetsFilesCome(t *testing.T) {
	r := run(t, options(t, &daemontest.Agent{}))
	r.start()
	body, in := io.Pipe()
	type stored struct {
		file api.StoredFile
		err  error
	}
	done := make(chan stored, 1)
	go func() {
		f, err := r.client.StoreFile(r.ctx(), body)
		done <- stored{f, err}
	}()
	for range 5 { // more than is on the way, so that the daemon has some of it
		if _, err := in.Write(make([]byte, 1<<20)); err != nil {
			t.Fatal(err)
		}
	}
	r.inUse("storing of a file")
	if _, err := in.Write([]byte("the rest")); err != nil {
		t.Fatal(err)
	}
	in.Close()
	s := <-done
	if s.err != nil || s.file.Bytes != 5<<20+8 {
		t.Fatalf("the file that came: %+v", s)
	}
	for deadline := time.Now().Add(bound); ; time.Sleep(5 * time.Millisecond) {
		_, err := stopIfIdle(r)
		if err == nil {
			t.Fatal("it was stopped with a file that waits for its run")
		}
		if strings.Contains(err.Error(), "a stored file waits for its run") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("stop if idle: %v", err)
		}
	}
	input := []api.InputFile{{Source: api.Source{Name: "in", File: s.file.File}}}
	_, err := r.client.Run(r.ctx(), api.RunRequest{Image: "none", Program: words("print hello"), Inputs: input}, ignored)
	var p *api.Problem
	if !errors.As(err, &p) || p.Type != api.ProblemImage {
		t.Fatalf("a run in no image: %v", err)
	}
	r.stopsSoon()
}

// TestStopIfIdleWaitsForDelivery: what a run printed is its client's until that has
// taken it, though the run uses the VM no more.
func TestStopIfIdleWaitsForDelivery(t *testing.T) {
	r := run(t, options(t, &daemontest.Agent{}))
	r.start()
	conn, err := net.Dial("unix", r.home.Socket())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const size = 1 << 20 // more than a socket holds
	body := fmt.Sprintf(`{"program": {"text": "flood %d"}, "limits": {"output_bytes": %d}}`, size, 2*size)
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nAccept: %s\r\nContent-Length: %d\r\n\r\n%s", api.PathRuns, api.MediaEvents, len(body), body)
	taken := bufio.NewReader(conn)
	if _, err := taken.Peek(1); err != nil { // then it has begun
		t.Fatal(err)
	}
	for deadline := time.Now().Add(bound); ; time.Sleep(5 * time.Millisecond) {
		_, err := stopIfIdle(r)
		if err == nil {
			t.Fatal("it was stopped with output that its client has not taken")
		}
		if strings.Contains(err.Error(), "has yet to take") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("stop if idle: %v", err)
		}
	}
	answer, err := http.ReadResponse(taken, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	if err != nil || len(b) < size || !strings.Contains(string(b), `"receipt"`) {
		t.Errorf("%d bytes came, %v", len(b), err)
	}
	r.stopsSoon()
}

func TestStopIfIdleWithShell(t *testing.T) {
	o := options(t, &daemontest.Agent{})
	d := &Daemon{o: o, state: api.StateRunning, log: o.Logger}
	d.o.Now = time.Now
	if err := d.openRuns(); err != nil {
		t.Fatal(err)
	}
	defer d.files.Close()
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

// TestImagesCanChangeOnceTheMachineRuns: a guest that does not come up holds nothing.
func TestImagesCanChangeOnceTheMachineRuns(t *testing.T) {
	o := options(t, &daemontest.Agent{Silent: true})
	ownImage(t, o, "mine", "an image")
	r := run(t, o)
	started := func() bool {
		s, err := r.client.Status(r.ctx())
		return err == nil && slices.ContainsFunc(s.Stages, func(st api.Stage) bool { return st.Name == "machine started" })
	}
	for deadline := time.Now().Add(bound); !started(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no machine was started")
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), bound/2)
	defer cancel()
	if _, err := images.View(o.Home.Dir()).Remove(ctx, "mine"); err != nil {
		t.Error(err)
	}
	if s, err := r.client.Status(r.ctx()); err != nil || s.State != api.StateStarting {
		t.Errorf("the VM does not start any more: %+v, %v", s, err)
	}
}

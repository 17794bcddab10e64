package daemon

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/daemon/daemontest"
	"github.com/pybox/pybox/host/receipt"
)

// zeros is a content that takes no memory.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// sumOfZeros is the digest of so many of them, as receipts have it.
func sumOfZeros(t *testing.T, n int64) string {
	t.Helper()
	h := sha256.New()
	if _, err := io.CopyN(h, zeros{}, n); err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// limits that have room for the largest files.
func largeFiles() api.Limits {
	return api.Limits{MemoryBytes: new(int64(1 << 30)), FilesBytes: new(int64(256 << 20)), Files: new(int64(256))}
}

// storeZeros stores an input.
func (r *running) storeZeros(name string, n int64) api.InputFile {
	r.t.Helper()
	f, err := r.client.StoreFile(r.ctx(), io.LimitReader(zeros{}, n))
	if err != nil {
		r.t.Fatal(err)
	}
	return api.InputFile{Source: api.Source{Name: name, File: f.File}}
}

// fetch reads a file that a run left and gives its digest.
func (r *running) fetch(id string) (int64, string) {
	r.t.Helper()
	f, err := r.client.File(r.ctx(), id)
	if err != nil {
		r.t.Fatal(err)
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.Copy(h, f)
	if err != nil {
		r.t.Fatal(err)
	}
	return n, hex.EncodeToString(h.Sum(nil))
}

// As much goes in and comes out as the ceilings allow, and none of it through memory:
// the client, the daemon, the guest and the agent of this test are one process.
func TestFilesStream(t *testing.T) {
	const size = 256 << 20
	r := run(t, options(t, &daemontest.Agent{}))
	r.patience = 5 * bound // half a gigabyte, under the race detector
	r.start()
	if _, _, err := r.exec(api.RunRequest{Program: source("")}); err != nil { // everything is there
		t.Fatal(err)
	}
	debug.FreeOSMemory()
	before := ownMemory()
	peak, stop, watched := int64(0), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			peak = max(peak, ownMemory())
			select {
			case <-tick.C:
			case <-stop:
				return
			}
		}
	}()
	in := r.storeZeros("in", size)
	out, rec, err := r.exec(api.RunRequest{
		Program: source(fmt.Sprintf("files\nleave %d out\n", size)), Inputs: []api.InputFile{in}, Collect: true, Limits: largeFiles(),
	})
	if err != nil || out != fmt.Sprintf("in %d\n", size) {
		t.Fatalf("%q, %v", out, err)
	}
	sum := sumOfZeros(t, size)
	if i := rec.Configured.Inputs; len(i) != 1 || i[0].Bytes != size || i[0].SHA256 == nil || *i[0].SHA256 != sum {
		t.Errorf("inputs %+v", i)
	}
	if f := rec.Program.Files; len(f) != 1 || !f[0].Returned || *f[0].SHA256 != sum {
		t.Fatalf("files %+v, unknown %+v", f, rec.Unknown)
	}
	if n, got := r.fetch(rec.Program.Files[0].File); n != size || got != sum {
		t.Errorf("%d bytes came, with the digest %s", n, got)
	}
	close(stop)
	<-watched
	t.Logf("RssAnon + RssFile: %d MiB before, %d MiB at most", before>>20, peak>>20)
	if before > 0 && peak-before > size/2 { // a fifth of that without the race detector
		t.Errorf("memory grew from %d to %d MiB", before>>20, peak>>20)
	}
	if kept := r.kept(rec.Run.ID); kept.Program.Files[0].File != "" || !kept.Program.Files[0].Returned {
		t.Errorf("the kept receipt has %+v", kept.Program.Files)
	}
}

// 256 files in and 256 out, at the ceilings, by several clients at once: some wait, and
// none loses anything.
func TestManyFiles(t *testing.T) {
	r := run(t, options(t, &daemontest.Agent{}))
	r.start()
	const n, clients = 256, 6
	var program strings.Builder
	program.WriteString("files\n")
	for i := range n {
		fmt.Fprintf(&program, "leave %d f%03d\n", i, i)
	}
	done := make(chan error, clients)
	for range clients {
		inputs := make([]api.InputFile, 0, n)
		text := "x"
		for i := range n {
			inputs = append(inputs, api.InputFile{Source: api.Source{Name: fmt.Sprintf("in/%03d", i), Text: &text}})
		}
		go func() {
			done <- func() error {
				out, rec, err := r.exec(api.RunRequest{Program: source(program.String()), Inputs: inputs, Collect: true, Limits: largeFiles()})
				if err != nil {
					return err
				}
				if strings.Count(out, "\n") != n || len(rec.Configured.Inputs) != n || len(rec.Program.Files) != n {
					return fmt.Errorf("%d inputs, %d files", strings.Count(out, "\n"), len(rec.Program.Files))
				}
				for i, f := range rec.Program.Files {
					if size, sum := r.fetch(f.File); size != int64(i) || sum != *f.SHA256 {
						return fmt.Errorf("%s has %d bytes, %s", f.Name, size, sum)
					}
					if err := r.client.ForgetFile(r.ctx(), f.File); err != nil {
						return err
					}
				}
				return nil
			}()
		}()
	}
	for range clients {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// What a run left goes with the daemon, and nothing of it stays on the disk.
func TestFilesGoWithTheDaemon(t *testing.T) {
	r := run(t, options(t, &daemontest.Agent{}))
	r.start()
	_, rec, err := r.exec(api.RunRequest{Program: source("leave 10 a\nleave 0 b\n"), Collect: true})
	if err != nil {
		t.Fatal(err)
	}
	_, unasked, err := r.exec(api.RunRequest{Program: source("leave 10 a\n")})
	if err != nil || len(unasked.Program.Files) != 1 || unasked.Program.Files[0].Reason != receipt.FileNotAsked || unasked.Program.Files[0].Bytes != 10 {
		t.Errorf("%+v, %v", unasked, err)
	}
	if n, _ := r.fetch(rec.Program.Files[0].File); n != 10 {
		t.Errorf("%d bytes came", n)
	}
	if _, err := r.client.Stop(r.ctx(), api.StopRequest{TimeoutMS: 5000}); err != nil {
		t.Fatal(err)
	}
	if err := r.wait(); err != nil {
		t.Error(err)
	}
	if _, err := r.client.File(r.ctx(), rec.Program.Files[0].File); !errors.Is(err, api.ErrNoDaemon) {
		t.Errorf("without a daemon: %v", err)
	}
	if e, err := os.ReadDir(r.home.Path("files")); err != nil || len(e) != 0 {
		t.Errorf("left in the folder: %v, %v", e, err)
	}
}

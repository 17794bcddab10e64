package daemon

import (
	"testing"
	"time"

	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/daemon/daemontest"
	"github.com/pybox/pybox/host/units"
)

// TestFilesKeepTheVMFromIdling: what a run left, and what waits for its run, ends with the
// daemon, which does not stop as idle before.
func TestFilesKeepTheVMFromIdling(t *testing.T) {
	const idle = time.Second // on a busy machine too the run begins before
	for name, put := range map[string]func(*running) string{
		"left": func(r *running) string {
			_, rec, err := r.exec(api.RunRequest{Program: source("leave 10 out\n"), Collect: true, Limits: largeFiles()})
			if err != nil || len(rec.Program.Files) != 1 || rec.Program.Files[0].File == "" {
				r.t.Fatalf("%+v, %v", rec, err)
			}
			return rec.Program.Files[0].File
		},
		"stored": func(r *running) string { return r.storeZeros("in", 10).File },
	} {
		t.Run(name, func(t *testing.T) {
			o := options(t, &daemontest.Agent{})
			o.Config.VM.IdleStop = units.Duration(idle)
			r := run(t, o)
			r.start()
			id := put(r)
			time.Sleep(3 * idle) // this is the time that it must survive
			s, err := r.client.Status(r.ctx())
			if err != nil || s.State != api.StateRunning || !s.VM.IdleStopAt.After(time.Now()) {
				t.Fatalf("%+v, %v", s, err)
			}
			if err := r.client.ForgetFile(r.ctx(), id); err != nil {
				t.Fatal(err)
			}
			if err := r.wait(); err != nil {
				t.Error(err)
			}
			if e := r.lastEnd(); e.By != "idle" {
				t.Errorf("%+v", e)
			}
		})
	}
}

package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	agentapi "github.com/pybox/pybox/agent/api"
	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/config"
	"github.com/pybox/pybox/host/daemon/daemontest"
	"github.com/pybox/pybox/host/home"
	"github.com/pybox/pybox/host/policy"
	"github.com/pybox/pybox/host/receipt"
	"github.com/pybox/pybox/host/receipt/receipttest"
	"github.com/pybox/pybox/host/receipts"
	"github.com/pybox/pybox/host/runs"
	"github.com/pybox/pybox/host/units"
	"github.com/pybox/pybox/vm/vmtest"
)

func source(s string) api.Source { return api.Source{Text: &s} }

func ignore(api.Event) error { return nil }

// exec runs a program to its end and gives its standard output.
func (r *running) exec(req api.RunRequest) (string, *receipt.Receipt, error) {
	var out strings.Builder
	o, err := r.client.Run(r.ctx(), req, func(e api.Event) error {
		if e.Event == api.EventOutput && e.Stream == "stdout" {
			b, err := e.Output()
			out.Write(b)
			return err
		}
		return nil
	})
	if err != nil {
		return out.String(), nil, err
	}
	receipttest.Check(r.t, o.Receipt)
	return out.String(), o.Receipt, nil
}

// background runs a program and calls meanwhile once it has started.
func (r *running) background(req api.RunRequest, meanwhile func()) (*receipt.Receipt, error) {
	started := make(chan struct{})
	type result struct {
		o   *api.Outcome
		err error
	}
	done := make(chan result, 1)
	go func() {
		o, err := r.client.Run(r.ctx(), req, func(e api.Event) error {
			if e.Event == api.EventStarted {
				close(started)
			}
			return nil
		})
		done <- result{o, err}
	}()
	select {
	case <-started:
		meanwhile()
	case res := <-done:
		r.t.Fatalf("it did not start: %+v, %v", res.o, res.err)
	}
	res := <-done
	if res.err != nil {
		return nil, res.err
	}
	receipttest.Check(r.t, res.o.Receipt)
	return res.o.Receipt, nil
}

// kept is a receipt as it was stored.
func (r *running) kept(id string) *receipt.Receipt {
	r.t.Helper()
	s, err := receipts.View(r.home.Path("receipts"))
	if err != nil {
		r.t.Fatal(err)
	}
	rec, err := s.Get(id)
	if err != nil {
		r.t.Fatalf("the receipt of %s: %v", id, err)
	}
	return rec
}

func evidence(r *receipt.Receipt) string { return strings.Join(r.Ending.Evidence, "; ") }

func TestRuns(t *testing.T) {
	r := run(t, options(t, &daemontest.Agent{}))
	r.start()
	stdin, err := r.client.StoreFile(r.ctx(), strings.NewReader("from a file\n"))
	if err != nil {
		t.Fatal(err)
	}
	out, rec, err := r.exec(api.RunRequest{ID: "first", Program: source("print hello\nerror oh\ncat\nexit 3\n"), Stdin: &api.Source{File: stdin.File}})
	if err != nil || out != "hello\nfrom a file\n" || rec.ExitCode() != 3 || rec.Program.Stderr.KeptBytes != 3 || rec.Cleanup.Status != receipt.CleanupRemoved {
		t.Fatalf("%q, %+v, %v", out, rec, err)
	}
	v := rec.Observed.VM
	if v.Driver != "fake" || v.BootID != daemontest.BootID || v.KernelRelease != "6.12.0-test" || v.Clock == nil || len(v.KernelSHA256) != 64 || len(v.RootSHA256) != 64 || v.GuestArch == "" {
		t.Errorf("the VM of the receipt: %+v", v)
	}
	if got, err := r.client.Receipt(r.ctx(), "first"); err != nil || got.ExitCode() != 3 || got.Program.Stdout.Text != nil {
		t.Errorf("the kept one: %+v, %v", got, err)
	}
	var p *api.Problem
	if _, _, err := r.exec(api.RunRequest{ID: "first", Program: source("")}); !errors.As(err, &p) || p.Type != api.ProblemExists {
		t.Errorf("an id used before: %v", err)
	}
	if _, rec, err = r.exec(api.RunRequest{Program: source("")}); err != nil || rec.ExitCode() != 0 {
		t.Errorf("an empty program: %+v, %v", rec, err)
	}
	list, err := r.client.Receipts(r.ctx(), 0)
	if err != nil || len(list) != 2 || list[1].ID != "first" || list[1].ExitCode != 3 {
		t.Errorf("%+v, %v", list, err)
	}
	if i, err := r.client.Images(r.ctx()); err != nil || len(i) != 1 || i[0].Name != api.DefaultImage {
		t.Errorf("images: %+v, %v", i, err)
	}
	tooLong := float64(31_000)
	for want, req := range map[string]api.RunRequest{
		api.ProblemCeiling:    {Program: source(""), Limits: api.Limits{TimeoutMS: &tooLong}},
		api.ProblemImage:      {Program: source(""), Image: "data"},
		api.ProblemBadRequest: {Program: source(""), ID: "NO"},
		api.ProblemFile:       {Program: api.Source{File: stdin.File}},
	} {
		if _, _, err := r.exec(req); !errors.As(err, &p) || p.Type != want {
			t.Errorf("want %s, got %v", want, err)
		}
	}
	if e, err := os.ReadDir(r.home.Path("files")); err != nil || len(e) != 0 {
		t.Errorf("%v, %v: stored files have no names", e, err)
	}
}

func TestStatusCountsRuns(t *testing.T) {
	r := run(t, options(t, &daemontest.Agent{}))
	if s := r.start(); s.Runs == nil || s.Runs.Active != 0 {
		t.Errorf("%+v", s.Runs)
	}
	rec, err := r.background(api.RunRequest{ID: "mine", Program: source("wait")}, func() {
		if s, err := r.client.Status(r.ctx()); err != nil || s.Runs.Active != 1 || s.Runs.Queued != 0 {
			t.Errorf("%+v, %v", s.Runs, err)
		}
		if l, err := r.client.Runs(r.ctx()); err != nil || len(l) != 1 || l[0].ID != "mine" || l[0].State != "running" {
			t.Errorf("%+v, %v", l, err)
		}
		if err := r.client.CancelRun(r.ctx(), "mine"); err != nil {
			t.Error(err)
		}
	})
	if err != nil || rec.Ending.How != receipt.HowCancelled || rec.Ending.By != receipt.ByClient || !strings.Contains(evidence(rec), "asked for the run to be cancelled") {
		t.Errorf("%+v, %v", rec, err)
	}
}

func TestRunWaitsForTheVM(t *testing.T) {
	a := &daemontest.Agent{}
	o := options(t, a)
	hold := make(chan struct{})
	o.Driver = &vmtest.Fake{Guest: func(ctx context.Context, g *vmtest.FakeGuest) error {
		<-hold
		return a.Program(ctx, g)
	}}
	r := run(t, o)
	time.AfterFunc(50*time.Millisecond, func() { close(hold) })
	if out, _, err := r.exec(api.RunRequest{Program: source("print hello")}); err != nil || out != "hello\n" {
		t.Errorf("%q, %v", out, err)
	}
}

func TestRunOfAVMThatDoesNotStart(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(r *running, hold chan struct{})
		want string
	}{
		"fails":      {func(r *running, hold chan struct{}) { close(hold) }, api.ProblemStart},
		"is stopped": {func(r *running, hold chan struct{}) { r.client.Stop(r.ctx(), api.StopRequest{}) }, api.ProblemStopping},
	} {
		t.Run(name, func(t *testing.T) {
			hold := make(chan struct{})
			o := options(t, &daemontest.Agent{})
			o.Driver = &vmtest.Fake{Guest: func(ctx context.Context, g *vmtest.FakeGuest) error {
				select {
				case <-hold:
				case <-ctx.Done():
				}
				return errors.New("boom")
			}}
			r := run(t, o)
			time.AfterFunc(50*time.Millisecond, func() { c.end(r, hold) })
			_, _, err := r.exec(api.RunRequest{Program: source("")})
			var p *api.Problem
			if !errors.As(err, &p) || p.Type != c.want {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
}

func TestARunKeepsTheVMFromIdling(t *testing.T) {
	o := options(t, &daemontest.Agent{})
	const idle = time.Second // on a busy machine too the run begins before
	o.Config.VM.IdleStop = units.Duration(idle)
	timeout := float64(20_000)
	r := run(t, o)
	var ended time.Time
	rec, err := r.background(api.RunRequest{ID: "mine", Program: source("wait"), Limits: api.Limits{TimeoutMS: &timeout}}, func() {
		time.Sleep(3 * idle) // this is the time that it must survive
		ended = time.Now()
		if err := r.client.CancelRun(r.ctx(), "mine"); err != nil {
			t.Error(err)
		}
	})
	if err != nil || rec.Ending.How != receipt.HowCancelled {
		t.Fatalf("%+v, %v", rec, err)
	}
	if err := r.wait(); err != nil {
		t.Error(err)
	}
	if e := r.lastEnd(); e.By != "idle" || e.At.Sub(ended) < idle {
		t.Errorf("%+v, %v after the run", e, e.At.Sub(ended))
	}
}

func TestStopDuringRuns(t *testing.T) {
	for name, c := range map[string]struct {
		program string
		agent   *daemontest.Agent
		stop    func(*running)
		how, by string
		says    string
	}{
		"stop": {
			program: "print hello\nwait", stop: func(r *running) { r.client.Stop(r.ctx(), api.StopRequest{}) },
			how: receipt.HowCancelled, by: receipt.ByHost, says: "stopped by a client",
		},
		"signal": {
			program: "wait", stop: func(r *running) { r.cancel() },
			how: receipt.HowCancelled, by: receipt.ByHost, says: "the daemon was asked to end",
		},
		"force": {
			program: "wait", stop: func(r *running) { r.client.Stop(r.ctx(), api.StopRequest{Force: true}) },
			how: receipt.HowVMLost, by: receipt.ByHost, says: "by force",
		},
		"a run that does not end": {
			program: "hang", stop: func(r *running) { r.client.Stop(r.ctx(), api.StopRequest{TimeoutMS: 600}) },
			how: receipt.HowVMLost, by: receipt.ByHost, says: "had asked the guest to power off: stopped by a client",
		},
		"a run that does not end in a guest that does not power off": {
			program: "hang", agent: &daemontest.Agent{Stubborn: true}, stop: func(r *running) { r.client.Stop(r.ctx(), api.StopRequest{TimeoutMS: 300}) },
			how: receipt.HowVMLost, by: receipt.ByHost, says: "did not power off",
		},
		"a guest that does not power off": {
			program: "wait", agent: &daemontest.Agent{Stubborn: true}, stop: func(r *running) { r.client.Stop(r.ctx(), api.StopRequest{TimeoutMS: 300}) },
			how: receipt.HowCancelled, by: receipt.ByHost, says: "stopped by a client",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if c.agent == nil {
				c.agent = &daemontest.Agent{}
			}
			r := run(t, options(t, c.agent))
			from := time.Now()
			rec, err := r.background(api.RunRequest{ID: "mine", Program: source(c.program)}, func() { from = time.Now(); c.stop(r) })
			if err != nil {
				t.Fatal(err)
			}
			if rec.Ending.How != c.how || rec.Ending.By != c.by || !strings.Contains(evidence(rec), c.says) {
				t.Errorf("%+v, want %s by %s that says %q", rec.Ending, c.how, c.by, c.says)
			}
			if err := r.wait(); err != nil {
				t.Errorf("Run: %v", err)
			}
			if took := time.Since(from); took > 10*time.Second {
				t.Errorf("it took %v", took)
			}
			if k := r.kept("mine"); k.Ending.How != c.how {
				t.Errorf("kept: %+v", k.Ending)
			}
		})
	}
}

func TestLostDuringRuns(t *testing.T) {
	for name, c := range map[string]struct {
		program string
		agent   *daemontest.Agent
		lose    func(*daemontest.Agent)
		by      string
		says    string
		end     string // whom the record of the VM's end names
	}{
		"machine resets":              {program: "wait", lose: func(a *daemontest.Agent) { a.Guest.Reset() }, by: receipt.ByGuestPanic, says: "reset", end: "guest"},
		"machine restarts in silence": {program: "wait", lose: (*daemontest.Agent).Restart, by: receipt.ByGuestPanic, says: "started again", end: "guest"},
		"agent dies": {
			program: "wait", agent: &daemontest.Agent{Exit: &agentapi.AgentExit{AtNS: 1, KilledNS: 1, Code: -1, Signal: 9}},
			lose: func(a *daemontest.Agent) { a.Cancel() }, by: receipt.ByPID1, says: "signal 9", end: "guest",
		},
		"powers off": {program: "wait", lose: func(a *daemontest.Agent) { a.Guest.PowerOff() }, by: receipt.ByUnknown, says: "powered itself off", end: "guest"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.agent == nil {
				c.agent = &daemontest.Agent{}
			}
			r := run(t, options(t, c.agent))
			rec, err := r.background(api.RunRequest{ID: "mine", Program: source(c.program)}, func() {
				if c.lose != nil {
					c.lose(c.agent)
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			if rec.Ending.How != receipt.HowVMLost || rec.Ending.By != c.by || !strings.Contains(evidence(rec), c.says) {
				t.Errorf("%+v", rec.Ending)
			}
			if err := r.wait(); err == nil {
				t.Error("the end was not told")
			}
			if e := r.lastEnd(); e.By != c.end || e.Problem == nil {
				t.Errorf("%+v", e)
			}
			if k := r.kept("mine"); k.Ending.How != receipt.HowVMLost || k.Cleanup.Status != receipt.CleanupVMGone {
				t.Errorf("kept: %+v, %+v", k.Ending, k.Cleanup)
			}
		})
	}
}

// Runs of a lost VM that do not end while it is waited for that are given up, and have
// time for their end.
func TestSettledRunsHaveTimeToEnd(t *testing.T) {
	keep, err := receipts.Open(filepath.Join(t.TempDir(), "receipts"), 10)
	if err != nil {
		t.Fatal(err)
	}
	s := runs.New(runs.Options{Images: daemontest.NewBundle(t, t.TempDir()).Manifest.Images, Policy: policy.New(config.Default()), Keep: keep})
	empty := runs.File{Open: func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader("")), nil }}
	begun, err := s.Begin(runs.Request{ID: "mine", Program: empty})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			if _, err := s.Begin(runs.Request{ID: "mine", Program: empty}); errors.Is(err, runs.ErrClosed) {
				break
			}
			time.Sleep(time.Millisecond)
		}
		time.Sleep(100 * time.Millisecond) // its end takes that long
		begun.Do(context.Background(), runs.Sink{Event: ignore})
	}()
	d := &Daemon{log: vmtest.Logger(t), users: 1}
	d.settleRuns(&instance{runs: s}, 10*time.Millisecond, errors.New("lost"))
	if a := s.Active(); len(a) != 0 {
		t.Errorf("%+v", a)
	}
}

// A guest that does not end a run as it should is not used again.
func TestGuestIsGivenUp(t *testing.T) {
	r := run(t, options(t, &daemontest.Agent{}))
	r.start()
	timeout := float64(100)
	_, rec, err := r.exec(api.RunRequest{ID: "mine", Program: source("print a\nnonsense"), Limits: api.Limits{TimeoutMS: &timeout}})
	if err != nil || rec.Ending.How != receipt.HowVMLost || rec.Ending.By != receipt.ByHost {
		t.Fatalf("%+v, %v", rec, err)
	}
	if err := r.wait(); err == nil {
		t.Error("the end was not told")
	}
	if e := r.lastEnd(); e.By != "daemon" || !strings.Contains(e.Reason, "run mine") || e.Problem == nil || e.Problem.Title != "the VM was given up" {
		t.Errorf("%+v, %+v", e, e.Problem)
	}
}

func TestSilentReadersDoNotKeepTheDaemon(t *testing.T) {
	r := run(t, options(t, &daemontest.Agent{}))
	r.start()
	var ids []string
	for i := range 5 {
		conn, err := net.Dial("unix", r.home.Socket())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		id := fmt.Sprint("silent-", i)
		ids = append(ids, id)
		body := `{"id": "` + id + `", "program": {"text": "flood 4000000\nflood 4000000\nwait"}, "limits": {"output_bytes": 16000000}}`
		fmt.Fprintf(conn, "POST /v1/runs HTTP/1.1\r\nHost: x\r\nAccept: application/x-ndjson\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	}
	for deadline := time.Now().Add(bound); ; time.Sleep(5 * time.Millisecond) {
		l, err := r.client.Runs(r.ctx())
		if err == nil && len(l) == len(ids) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%+v, %v", l, err)
		}
	}
	if out, _, err := r.exec(api.RunRequest{Program: source("print others go on")}); err != nil || out != "others go on\n" {
		t.Errorf("%q, %v", out, err)
	}
	from := time.Now()
	if _, err := r.client.Stop(r.ctx(), api.StopRequest{TimeoutMS: 40_000}); err != nil {
		t.Error(err)
	}
	if err := r.wait(); err != nil {
		t.Error(err)
	}
	if took := time.Since(from); took > 50*time.Second { // their own time to read is a minute
		t.Errorf("they kept it for %v", took)
	}
	for _, id := range ids {
		if k := r.kept(id); k.Ending.How != receipt.HowCancelled {
			t.Errorf("%s: %+v", id, k.Ending)
		}
	}
}

func TestManyRunsAndHangUps(t *testing.T) {
	r := run(t, options(t, &daemontest.Agent{}))
	r.start()
	var wg sync.WaitGroup
	gone := errors.New("gone")
	for i := range 60 {
		wg.Go(func() {
			id := ""
			if i%3 == 0 {
				id = fmt.Sprint("named-", i)
			}
			program := "print a\nprint b\nexit 7"
			_, err := r.client.Run(r.ctx(), api.RunRequest{ID: id, Program: source(program)}, func(e api.Event) error {
				if i%2 == 0 && e.Event == api.EventStarted {
					return gone
				}
				return nil
			})
			if i%2 == 0 && err != gone || i%2 == 1 && err != nil {
				t.Errorf("%d: %v", i, err)
			}
		})
	}
	wg.Wait()
	for deadline := time.Now().Add(bound); ; time.Sleep(5 * time.Millisecond) {
		if l, err := r.client.Runs(r.ctx()); err == nil && len(l) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("runs are left")
		}
	}
	for i := 0; i < 60; i += 3 { // those with an id of their own went on
		if k := r.kept(fmt.Sprint("named-", i)); k.ExitCode() != 7 {
			t.Errorf("%d: %+v", i, k.Ending)
		}
	}
}

// Whoever is not the owner nor root is not let in; root is.
func TestStrangers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: only root can become somebody else")
	}
	r := run(t, options(t, &daemontest.Agent{}))
	r.start()
	// The modes are wrong on purpose: the peer's credentials must do.
	for dir := filepath.Dir(r.home.Socket()); dir != "/"; dir = filepath.Dir(dir) {
		st, err := os.Stat(dir)
		if err != nil {
			t.Fatal(err)
		}
		if st.Mode().Perm()&0o005 != 0o005 {
			if err := os.Chmod(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.Chmod(dir, st.Mode().Perm()) })
		}
	}
	if err := os.Chmod(r.home.Socket(), 0o666); err != nil {
		t.Fatal(err)
	}
	ask := func(uid uint32) string {
		exe, err := os.Open("/proc/self/exe") // no need to reach its folder
		if err != nil {
			t.Fatal(err)
		}
		defer exe.Close()
		cmd := exec.CommandContext(r.ctx(), fmt.Sprintf("/proc/self/fd/%d", exe.Fd()))
		cmd.Dir, cmd.Env = "/", []string{"DAEMON_TEST_ASK=" + r.home.Socket()}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("as user %d: %v, %q", uid, err, out)
		}
		return string(out)
	}
	if out := ask(65534); out != "" {
		t.Errorf("somebody else got %q", out)
	}
	if out := ask(0); !strings.HasPrefix(out, "HTTP/1.1 200") {
		t.Errorf("the owner got %q", out)
	}
}

func TestUnsafeFolders(t *testing.T) {
	for name, prepare := range map[string]func(h *home.Home) error{
		"receipts": func(h *home.Home) error {
			return errors.Join(os.Mkdir(h.Path("receipts"), 0o700), os.Chmod(h.Path("receipts"), 0o777))
		},
		"files": func(h *home.Home) error { return os.Symlink(t.TempDir(), h.Path("files")) },
	} {
		o := options(t, &daemontest.Agent{})
		if err := prepare(o.Home); err != nil {
			t.Fatal(err)
		}
		if err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), o.Home.Path(name)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A disk that is full when the receipt is written costs no run and no client its
// answer.
func TestReceiptCannotBeKept(t *testing.T) {
	r := run(t, options(t, &daemontest.Agent{}))
	r.start()
	if _, err := r.background(api.RunRequest{ID: "mine", Program: source("wait")}, func() {
		if err := os.RemoveAll(r.home.Path("receipts")); err != nil {
			t.Error(err)
		}
		if err := os.WriteFile(r.home.Path("receipts"), nil, 0o600); err != nil {
			t.Error(err)
		}
		r.client.CancelRun(r.ctx(), "mine")
	}); err != nil {
		t.Errorf("got %v", err)
	}
	o, err := r.client.Run(r.ctx(), api.RunRequest{Program: source("exit 5")}, ignore)
	if err != nil || o.Receipt.ExitCode() != 5 || o.NotKept == "" {
		t.Errorf("%+v, %v", o, err)
	}
}

// TestMain lets a test ask as another user: the binary is its own client.
func TestMain(m *testing.M) {
	socket := os.Getenv("DAEMON_TEST_ASK")
	if socket == "" {
		os.Exit(m.Run())
	}
	conn, err := net.Dial("unix", socket)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	conn.SetDeadline(time.Now().Add(bound))
	io.WriteString(conn, "GET /v1/status HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
	b, _ := io.ReadAll(conn)
	os.Stdout.Write(b)
}

// A client that lost its connection asks again, and gets the same run with its output, and
// with its files under ids that are there, whatever waits for their room.
func TestAgain(t *testing.T) {
	o := options(t, &daemontest.Agent{})
	r := run(t, o)
	r.start()
	ctx, cancel := context.WithCancel(r.ctx())
	req := api.RunRequest{ID: "mine", Program: source("print hello\nerror oh\nleave 5 out.txt\n"), Collect: true}
	_, err := r.client.Run(ctx, req, func(e api.Event) error {
		if e.Event == api.EventAccepted {
			cancel()
		}
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	var out string
	var replay bool
	for range 2 { // whether the run has ended or not
		out = ""
		got, err := r.client.Run(r.ctx(), req, func(e api.Event) error {
			replay = replay || e.Replay
			if b, err := e.Output(); e.Event == api.EventOutput && err == nil {
				out += e.Stream + " " + string(b)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		receipttest.Check(t, got.Receipt)
		if !replay || !strings.Contains(out, "stdout hello\n") || !strings.Contains(out, "stderr oh\n") || len(got.Receipt.Program.Files) != 1 {
			t.Fatalf("replay %v: %q, %+v", replay, out, got.Receipt.Program.Files)
		}
		f, err := r.client.File(r.ctx(), got.Receipt.Program.Files[0].File)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(f); err != nil || len(b) != 5 {
			t.Errorf("%q, %v", b, err)
		}
		f.Close()
	}
	var p *api.Problem
	req.Args = []string{"other"}
	if _, err := r.client.Run(r.ctx(), req, ignore); !errors.As(err, &p) || p.Type != api.ProblemExists {
		t.Errorf("another request: %v", err)
	}
}

// TestUntakenRunIsInUse: what a run gave waits for its client as the files do that it left.
func TestUntakenRunIsInUse(t *testing.T) {
	r := run(t, options(t, &daemontest.Agent{}))
	r.start()
	req := api.RunRequest{ID: "mine", Program: source("print hello\nwait\n")}
	ctx, cancel := context.WithCancel(r.ctx())
	defer cancel()
	_, err := r.client.Run(ctx, req, func(e api.Event) error {
		if e.Event == api.EventStarted {
			cancel()
		}
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if err := r.client.CancelRun(r.ctx(), "mine"); err != nil {
		t.Fatal(err)
	}
	within := r.ctx()
	for { // until the run has ended
		_, err := stopIfIdle(r)
		var p *api.Problem
		if !errors.As(err, &p) || p.Type != api.ProblemInUse {
			t.Fatalf("the VM is not in use: %v", err)
		}
		if strings.Contains(p.Detail, "waits for the clients") {
			break
		}
		if within.Err() != nil {
			t.Fatalf("it is in use otherwise: %s", p.Detail)
		}
	}
	if out, _, err := r.exec(req); err != nil || out != "hello\n" {
		t.Errorf("%q, %v", out, err)
	}
	for { // until its answer is known to be delivered
		_, err := stopIfIdle(r)
		if err == nil {
			return
		}
		var p *api.Problem
		if !errors.As(err, &p) || p.Type != api.ProblemInUse || within.Err() != nil {
			t.Fatal(err)
		}
	}
}

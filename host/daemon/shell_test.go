package daemon

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	agentapi "github.com/pybox/pybox/agent/api"
	"github.com/pybox/pybox/agent/shell/shelltest"
	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/daemon/daemontest"
	"github.com/pybox/pybox/host/shell"
)

// open opens the shell of r's guest.
func (r *running) open() api.Shell {
	r.t.Helper()
	s, err := r.client.OpenShell(r.ctx())
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

// inGuest runs a command in the guest.
func (r *running) inGuest(keys api.Shell, command ...string) (string, int, error) {
	r.t.Helper()
	conn, err := r.client.DialShell(r.ctx())
	if err != nil {
		return "", 0, err
	}
	var out bytes.Buffer
	code, err := shell.Run(r.ctx(), shell.Options{Conn: conn, Keys: keys, Command: command, Stdin: strings.NewReader(""), Stdout: &out, Stderr: io.Discard})
	return out.String(), code, err
}

// problem is what err is as one.
func problem(t *testing.T, err error) api.Problem {
	t.Helper()
	var p *api.Problem
	if !errors.As(err, &p) {
		t.Fatalf("%v is no problem", err)
	}
	return *p
}

// TestShell: runs before it say that it is closed, and every other one that it is
// open: those that overlap its opening too.
func TestShell(t *testing.T) {
	a := &daemontest.Agent{Shell: new(shelltest.Script)}
	r := run(t, options(t, a))
	if r.start().Guest.ShellEnabled {
		t.Error("it is open from the start")
	}
	_, err := r.client.DialShell(r.ctx())
	if p := problem(t, err); p.Type != api.ProblemShell || p.Status != http.StatusConflict {
		t.Errorf("a connection before it is open: %+v", p)
	}
	_, before, err := r.exec(api.RunRequest{Program: source("print hello")})
	if err != nil || before.Observed.VM.ShellEnabled {
		t.Errorf("the receipt of a run before: %+v, %v", before.Observed.VM, err)
	}
	var keys api.Shell
	during, err := r.background(api.RunRequest{ID: "during", Program: source("wait")}, func() {
		keys = r.open()
		if err := r.client.CancelRun(r.ctx(), "during"); err != nil {
			t.Error(err)
		}
	})
	if err != nil || !during.Observed.VM.ShellEnabled || !keys.Opened {
		t.Errorf("the receipt of a run meanwhile: %+v, %v; opened %v", during.Observed.VM, err, keys.Opened)
	}
	out, code, err := r.inGuest(keys, "echo", "hello")
	if out != "hello" || code != 0 || err != nil {
		t.Errorf("%q, %d, %v", out, code, err)
	}
	if _, code, err := r.inGuest(keys, "exit", "3"); code != 3 || err != nil {
		t.Errorf("exit 3: %d, %v", code, err)
	}
	again := r.open()
	if again.Opened || again.HostKey != keys.HostKey {
		t.Error("the second time it has another key, or was opened anew")
	}
	if _, code, err := r.inGuest(again, "exit", "4"); code != 4 || err != nil {
		t.Errorf("the second key: %d, %v", code, err)
	}
	_, after, err := r.exec(api.RunRequest{Program: source("print hello")})
	if err != nil || !after.Observed.VM.ShellEnabled {
		t.Errorf("the receipt of a run after: %+v, %v", after.Observed.VM, err)
	}
	if s, err := r.client.Status(r.ctx()); err != nil || !s.Guest.ShellEnabled {
		t.Errorf("status: %+v, %v", s.Guest, err)
	}
}

// TestShellOpenedUnanswered: where the guest opened its shell and nobody heard of it
// the first answer that comes tells, and receipts and status do from the beginning.
func TestShellOpenedUnanswered(t *testing.T) {
	for name, lost := range map[string]error{
		"it says nothing":         nil,
		"it had no time":          connect.NewError(connect.CodeDeadlineExceeded, errors.New("late")),
		"it is on its way out":    connect.NewError(connect.CodeUnavailable, errors.New("gone")),
		"the call was given up":   connect.NewError(connect.CodeCanceled, errors.New("given up")),
		"nobody knows what it is": connect.NewError(connect.CodeUnknown, errors.New("what")),
	} {
		t.Run(name, func(t *testing.T) {
			var again atomic.Bool
			asked := make(chan struct{}, 1)
			a := &daemontest.Agent{Shell: new(shelltest.Script), Opening: func(ctx context.Context) error {
				if again.Load() {
					return nil
				}
				asked <- struct{}{}
				if lost == nil {
					<-ctx.Done()
					return ctx.Err()
				}
				return lost
			}}
			r := run(t, options(t, a))
			r.start()
			ctx, cancel := context.WithCancel(r.ctx())
			defer cancel()
			failed := make(chan error, 1)
			go func() {
				_, err := r.client.OpenShell(ctx)
				failed <- err
			}()
			<-asked
			if lost == nil {
				cancel() // as a client does whose patience ends
			}
			if err := <-failed; err == nil {
				t.Fatal("it was answered")
			} else if p := new(api.Problem); lost != nil && (!errors.As(err, &p) || !strings.Contains(p.Detail, "may have been opened")) {
				t.Errorf("the error does not say what may be: %v", err)
			}
			if s, err := r.client.Status(r.ctx()); err != nil || !s.Guest.ShellEnabled {
				t.Errorf("status: %+v, %v", s.Guest, err)
			}
			if _, rec, err := r.exec(api.RunRequest{Program: source("print hello")}); err != nil || !rec.Observed.VM.ShellEnabled {
				t.Errorf("the receipt: %+v, %v", rec.Observed.VM, err)
			}
			again.Store(true)
			if s := r.open(); !s.Opened {
				t.Error("nobody was ever told that it is open")
			}
			if s := r.open(); s.Opened {
				t.Error("it is told twice")
			}
		})
	}
}

// TestShellOpeningHangs: whoever waits for another's opening is not held by it.
func TestShellOpeningHangs(t *testing.T) {
	i := &instance{door: newDoor()}
	i.door.opening <- struct{}{}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := i.openShell(ctx); !errors.Is(err, context.Canceled) || errors.As(err, new(errPerhaps)) {
		t.Errorf("%v", err)
	}
	if i.door.open {
		t.Error("it counts as open, and the guest was never asked")
	}
}

// TestShellKeys: they hold for one VM.
func TestShellKeys(t *testing.T) {
	r := run(t, options(t, &daemontest.Agent{Shell: new(shelltest.Script)}))
	r.start()
	other := run(t, options(t, &daemontest.Agent{Shell: new(shelltest.Script)}))
	other.start()
	keys, others := r.open(), other.open()
	for name, k := range map[string]api.Shell{
		"the guest is another": {ClientKey: keys.ClientKey, HostKey: others.HostKey},
		"the client is":        {ClientKey: others.ClientKey, HostKey: keys.HostKey},
	} {
		if _, _, err := r.inGuest(k, "exit", "0"); !errors.Is(err, shell.ErrKeys) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, _, err := r.inGuest(keys, "exit", "0"); err != nil {
		t.Error(err)
	}
}

func TestShellRefused(t *testing.T) {
	for name, c := range map[string]struct {
		agent  *daemontest.Agent
		forbid bool
		status int
		detail string
	}{
		"the owner forbids it": {&daemontest.Agent{Shell: new(shelltest.Script)}, true, http.StatusForbidden, "shell = false"},
		"the guest has none":   {&daemontest.Agent{}, false, http.StatusConflict, "this guest has no shell"},
	} {
		t.Run(name, func(t *testing.T) {
			o := options(t, c.agent)
			o.Config.VM.Shell = !c.forbid
			r := run(t, o)
			r.start()
			_, err := r.client.OpenShell(r.ctx())
			if p := problem(t, err); p.Type != api.ProblemShell || p.Status != c.status || !strings.Contains(p.Detail, c.detail) || p.Next == "" {
				t.Errorf("%+v", p)
			}
			if _, err := r.client.DialShell(r.ctx()); problem(t, err).Type != api.ProblemShell {
				t.Errorf("a connection: %v", err)
			}
			_, rec, err := r.exec(api.RunRequest{Program: source("print hello")})
			if s, serr := r.client.Status(r.ctx()); err != nil || serr != nil || rec.Observed.VM.ShellEnabled || s.Guest.ShellEnabled {
				t.Errorf("it counts as open: %v, %v", err, serr)
			}
		})
	}
}

// TestShellConns: they are bounded, keep the VM from being idle, and end with it.
func TestShellConns(t *testing.T) {
	o := options(t, &daemontest.Agent{Shell: new(shelltest.Script)})
	r := run(t, o)
	r.start()
	r.open()
	var conns []net.Conn
	for range api.MaxShells {
		c, err := r.client.DialShell(r.ctx())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		conns = append(conns, c)
	}
	if _, err := r.client.DialShell(r.ctx()); problem(t, err).Type != api.ProblemBusy {
		t.Errorf("one too many: %v", err)
	}
	_ = conns[0].Close()
	for deadline := time.Now().Add(bound); ; {
		c, err := r.client.DialShell(r.ctx())
		if err == nil {
			conns[0] = c
			defer c.Close()
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the end of one makes no room: ", err)
		}
	}
	if _, err := r.client.Stop(r.ctx(), api.StopRequest{}); err != nil {
		t.Error(err)
	}
	for _, c := range conns {
		_ = c.SetReadDeadline(time.Now().Add(bound))
		if _, err := io.Copy(io.Discard, c); err != nil {
			t.Errorf("a connection after the end of the VM: %v", err)
		}
	}
	if err := r.wait(); err != nil {
		t.Error(err)
	}
}

// TestShellSpare: the agent still has room when the daemon has some again, although it
// may not have noticed yet that connections have ended.
func TestShellSpare(t *testing.T) {
	if agentapi.MaxShells < api.MaxShells+2 {
		t.Errorf("the agent takes %d connections, the daemon makes %d", agentapi.MaxShells, api.MaxShells)
	}
}

// TestShellNeedsUpgrade: who knows nothing of the other protocol is told.
func TestShellNeedsUpgrade(t *testing.T) {
	r := run(t, options(t, &daemontest.Agent{Shell: new(shelltest.Script)}))
	r.start()
	r.open()
	c := &http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		return net.Dial("unix", r.home.Socket())
	}}}
	defer c.CloseIdleConnections()
	resp, err := c.Get("http://pybox" + api.PathVMShell)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusUpgradeRequired || resp.Header.Get("Upgrade") != api.ShellUpgrade {
		t.Errorf("%s, %v", resp.Status, resp.Header)
	}
}

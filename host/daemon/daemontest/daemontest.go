// Package daemontest makes what a daemon needs to run without a VM: an agent for
// the in-process machine of package vmtest, and a bundle. It is for tests.
package daemontest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	agentapi "github.com/pybox/pybox/agent/api"
	"github.com/pybox/pybox/agent/api/pid1"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/agent/api/v1/agentv1connect"
	"github.com/pybox/pybox/agent/shell"
	"github.com/pybox/pybox/guest/bundle"
	"github.com/pybox/pybox/vm"
	"github.com/pybox/pybox/vm/vmtest"
)

// BootID is that of every such guest.
const BootID = "3f2504e0-4f89-41d3-9a0c-0305e82c3301"

// nextBootID is that of a guest that has restarted.
const nextBootID = "9b1deb4d-3b7d-4bad-9bdd-2b0d7b3dcb6d"

// Agent is an agent in a fake machine, with switches for what it does wrong. Its
// method Program is the machine's guest program.
type Agent struct {
	agentv1connect.UnimplementedAgentServiceHandler
	// Version is the protocol version of its hello; 0 is ours.
	Version uint32
	// Silent never answers a hello, Stubborn does not power off, Hasty does and
	// gives no answer, Mute leaves the console empty.
	Silent, Stubborn, Hasty, Mute bool
	// Steps are the stages of its status.
	Steps []*agentv1.Stage
	// Deaf, when it returns true, keeps a status from being answered.
	Deaf func() bool
	// Busy, when it returns true, has a call of SetReady fail.
	Busy func() bool
	// Interpret, when it is set, executes a program in the place of the words of
	// Run.
	Interpret func(ctx context.Context, p Program) Done
	// Clock, when it is set, tells how far the guest's clock is from the host's,
	// after it was set to the host's time if set is true.
	Clock func(set bool) time.Duration
	// Shell, when it is set, is what the sessions of its shell run; nil: it has none.
	Shell shell.Starter
	// Opening, when it is set, is called after a shell was opened and before that is
	// answered; an error of it is the answer.
	Opening func(context.Context) error
	// Exit is what PID 1 records of the agent, from its second answer on.
	Exit *agentapi.AgentExit

	// Guest is the machine and Cancel ends the agent's server, once it runs.
	Guest  *vmtest.FakeGuest
	Cancel context.CancelFunc

	runs      runs
	shell     *shell.Server
	restarted atomic.Bool

	readyMu sync.Mutex
	ready   []*agentv1.ReadyState
	asked   *agentv1.SetReadyRequest
}

// Restart is what a guest's reset looks like where its VMM starts it again and tells
// nobody: the connections are cut, PID 1 cannot be reached at first, and then answers
// out of another boot.
func (a *Agent) Restart() {
	a.restarted.Store(true)
	a.Cancel()
}

// Hello implements the service.
func (a *Agent) Hello(ctx context.Context, _ *connect.Request[agentv1.HelloRequest]) (*connect.Response[agentv1.HelloResponse], error) {
	if a.Silent {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return connect.NewResponse(&agentv1.HelloResponse{
		ProtocolVersion: a.Version, AgentVersion: "test", BootId: BootID, KernelRelease: "6.12.0-test", Machine: "x86_64",
		Stages: []*agentv1.Stage{{Name: "kernel", EndedAtNs: 5e6}, {Name: "listening", EndedAtNs: 9e6}},
	}), nil
}

// SetTime implements the service.
func (a *Agent) SetTime(_ context.Context, r *connect.Request[agentv1.SetTimeRequest]) (*connect.Response[agentv1.SetTimeResponse], error) {
	set := r.Msg.GetHostUnixNs() != 0
	now := time.Now()
	if a.Clock != nil {
		now = now.Add(a.Clock(set))
	}
	return connect.NewResponse(&agentv1.SetTimeResponse{GuestUnixNs: now.UnixNano(), Stepped: set}), nil
}

// Status implements the service.
func (a *Agent) Status(ctx context.Context, _ *connect.Request[agentv1.StatusRequest]) (*connect.Response[agentv1.StatusResponse], error) {
	if a.Deaf != nil && a.Deaf() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	a.readyMu.Lock()
	defer a.readyMu.Unlock()
	return connect.NewResponse(&agentv1.StatusResponse{
		MemTotalBytes: 1 << 30, MemAvailableBytes: 1000 << 20, UptimeNs: 1e9, GuestUnixNs: time.Now().UnixNano(), Ready: a.ready, Stages: a.Steps,
	}), nil
}

// ReadyAsked gives what was asked for last; nil: nothing. The caller must not change it.
func (a *Agent) ReadyAsked() *agentv1.SetReadyRequest {
	a.readyMu.Lock()
	defer a.readyMu.Unlock()
	return a.asked
}

// SetReady implements the service: all boxes are ready at once, and none is ever taken.
func (a *Agent) SetReady(_ context.Context, r *connect.Request[agentv1.SetReadyRequest]) (*connect.Response[agentv1.SetReadyResponse], error) {
	if err := agentapi.CheckSetReady(r.Msg); err != nil {
		return nil, connect.NewError(connect.CodeInvalidArgument, err)
	}
	if a.Busy != nil && a.Busy() {
		return nil, connect.NewError(connect.CodeUnavailable, errors.New("not now"))
	}
	a.readyMu.Lock()
	defer a.readyMu.Unlock()
	a.ready, a.asked = nil, r.Msg
	for _, k := range r.Msg.GetReady() {
		a.ready = append(a.ready, &agentv1.ReadyState{Image: k.GetImage(), Wanted: k.GetCount(), Ready: k.GetCount()})
	}
	return connect.NewResponse(&agentv1.SetReadyResponse{}), nil
}

// OpenShell implements the service.
func (a *Agent) OpenShell(ctx context.Context, r *connect.Request[agentv1.OpenShellRequest]) (*connect.Response[agentv1.OpenShellResponse], error) {
	if a.Shell == nil {
		return nil, connect.NewError(connect.CodeFailedPrecondition, shell.ErrNone)
	}
	host, err := a.shell.Open(r.Msg.GetClientKey())
	if err != nil {
		return nil, err
	}
	if a.Opening != nil {
		if err := a.Opening(ctx); err != nil {
			return nil, err
		}
	}
	return connect.NewResponse(&agentv1.OpenShellResponse{HostKey: host}), nil
}

// PowerOff implements the service.
func (a *Agent) PowerOff(context.Context, *connect.Request[agentv1.PowerOffRequest]) (*connect.Response[agentv1.PowerOffResponse], error) {
	if !a.Stubborn {
		time.AfterFunc(10*time.Millisecond, a.Guest.PowerOff) // after the answer
	}
	if a.Hasty {
		panic(http.ErrAbortHandler)
	}
	return connect.NewResponse(&agentv1.PowerOffResponse{}), nil
}

// Program implements vmtest.Fake's Guest.
func (a *Agent) Program(ctx context.Context, g *vmtest.FakeGuest) error {
	a.Guest = g
	a.runs.ended = ctx.Done()
	a.shell = shell.New(ctx, shell.Options{
		Listen:  func() (net.Listener, error) { return g.Listen(agentapi.ShellPort) },
		Starter: a.Shell, Log: slog.New(slog.DiscardHandler),
	})
	if a.Version == 0 {
		a.Version = agentapi.ProtocolVersion
	}
	if !a.Mute {
		fmt.Fprintln(g.Console(), "pybox: init up \x1b[31mred")
	}
	records, err := g.Listen(agentapi.RecordsPort)
	if err != nil {
		return err
	}
	go a.serveRecords(records)
	l, err := g.Listen(agentapi.AgentPort)
	if err != nil {
		return err
	}
	serve, cancel := context.WithCancel(ctx)
	a.Cancel = cancel
	go agentapi.NewServer(a, slog.New(slog.DiscardHandler)).Serve(serve, l)
	<-ctx.Done()
	return nil
}

func (a *Agent) serveRecords(l net.Listener) {
	for n, booting := 0, 2; ; n++ {
		c, err := l.Accept()
		if err != nil {
			return
		}
		if a.restarted.Load() && booting > 0 {
			booting--
			c.Close()
			continue
		}
		r := &agentapi.Records{Schema: pid1.Schema, BootID: BootID, NowNS: 2, Timers: []agentapi.TimerRecord{}}
		if n > 0 {
			r.Agent = a.Exit
		}
		if a.restarted.Load() {
			r.BootID, r.Agent = nextBootID, nil
		}
		pid1.Send(c, r, time.Second)
		c.Close()
	}
}

// NewBundle writes a bundle that a fake machine takes into a new folder.
func NewBundle(t testing.TB, dir string) *bundle.Bundle {
	t.Helper()
	file := func(name string) bundle.File {
		data := []byte("content of " + name)
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(data)
		return bundle.File{File: name, SHA256: hex.EncodeToString(sum[:]), Bytes: int64(len(data))}
	}
	image := bundle.Image{Name: "stdlib", File: file("stdlib.erofs")}
	image.Serial = "img-" + image.SHA256[:16]
	m := bundle.Manifest{
		Schema: bundle.Schema, Arch: vm.HostArch(),
		Kernel: bundle.Kernel{File: file("kernel"), Kind: bundle.KernelOwn, Version: "6.12.0"},
		Root:   file("root.erofs"), Images: []bundle.Image{image}, KernelArgs: []string{"quiet"},
		Agent:      bundle.Agent{Version: "test", SHA256: strings.Repeat("a", 64), ProtocolVersion: agentapi.ProtocolVersion},
		LockSHA256: strings.Repeat("b", 64),
	}
	b, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, bundle.ManifestName), b, 0o644); err != nil {
		t.Fatal(err)
	}
	bu, err := bundle.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return bu
}

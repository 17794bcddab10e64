package daemon

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/crypto/ssh"

	agentapi "github.com/pybox/pybox/agent/api"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/reply"
	"github.com/pybox/pybox/vm"
)

const (
	// shellOpen bounds the opening of the shell: less than a client of this release
	// waits, so that it learns what became of it.
	shellOpen = 10 * time.Second
	// shellDial bounds the way to the guest's SSH server.
	shellDial = 5 * time.Second
)

// door is the shell of one VM, as the daemon knows it. Its key is in memory alone,
// and goes with the VM.
type door struct {
	// opening has room for one, who asks the guest: what it says counts for all.
	opening chan struct{}
	told    bool // that it is open; whoever is opening has it
	mu      sync.Mutex
	// open is set before the guest is asked, so that no run may overlap a shell
	// that its receipt does not tell of.
	open    bool
	private ed25519.PrivateKey
	conns   chan struct{}
}

func newDoor() door {
	return door{opening: make(chan struct{}, 1), conns: make(chan struct{}, api.MaxShells)}
}

// shellOpen tells whether somebody may have been let into the guest.
func (i *instance) shellOpen() bool {
	i.door.mu.Lock()
	defer i.door.mu.Unlock()
	return i.door.open || i.hello.GetShellEnabled()
}

// key is the client's key of this VM, and the first time a new one.
func (i *instance) key() (ed25519.PrivateKey, error) {
	d := &i.door
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.private == nil {
		_, private, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			return nil, fmt.Errorf("make a key for the shell: %w", err)
		}
		d.private = private
	}
	d.open = true
	return d.private, nil
}

// openShell has the guest let the holder of this VM's key in. The error matches
// errPerhaps when the guest may have done so all the same.
func (i *instance) openShell(ctx context.Context) (api.Shell, error) {
	select {
	case i.door.opening <- struct{}{}:
		defer func() { <-i.door.opening }()
	case <-ctx.Done():
		return api.Shell{}, fmt.Errorf("somebody else is opening the shell: %w", ctx.Err())
	}
	was := i.shellOpen()
	private, err := i.key()
	if err != nil {
		return api.Shell{}, err
	}
	public := private.Public().(ed25519.PublicKey)
	answer, err := i.client.OpenShell(ctx, connect.NewRequest(&agentv1.OpenShellRequest{ClientKey: public}))
	if err != nil {
		switch {
		case was:
		case saysNo(err):
			i.door.mu.Lock()
			i.door.open = false
			i.door.mu.Unlock()
		default:
			err = errPerhaps{err}
		}
		return api.Shell{}, err
	}
	block, err := ssh.MarshalPrivateKey(private, "pybox vm shell")
	if err != nil {
		return api.Shell{}, fmt.Errorf("write the shell's key: %w", err)
	}
	host, err := ssh.NewPublicKey(ed25519.PublicKey(answer.Msg.GetHostKey()))
	if err != nil {
		return api.Shell{}, fmt.Errorf("the guest's key: %w", err)
	}
	first := !i.door.told
	i.door.told = true
	return api.Shell{
		Opened:    first,
		ClientKey: string(pem.EncodeToMemory(block)),
		HostKey:   strings.TrimSuffix(string(ssh.MarshalAuthorizedKey(host)), "\n"),
	}, nil
}

// errPerhaps: the guest was asked to open its shell, and it is not known whether it
// did.
type errPerhaps struct{ error }

func (e errPerhaps) Unwrap() error { return e.error }

// saysNo tells whether the guest itself answered that it let nobody in. An answer that
// it had no time, or whatever a server says before the call is made, is none of that.
func saysNo(err error) bool {
	if !agentapi.IsRemote(err) {
		return false
	}
	switch connect.CodeOf(err) {
	case connect.CodeFailedPrecondition, connect.CodeInvalidArgument, connect.CodeInternal, connect.CodeUnimplemented:
		return true
	}
	return false
}

// shellFor gives the VM that a shell may be opened in.
func (d *Daemon) shellFor(r *http.Request) (*instance, error) {
	if !d.o.Config.VM.Shell {
		return nil, &api.Problem{
			Type: api.ProblemShell, Title: "a shell in the guest is not allowed", Status: http.StatusForbidden,
			Detail: fmt.Sprintf("a shell in the guest is not allowed: \"shell = false\" in the section [vm] of %s, as it was when this VM started", d.o.Home.Config()),
			Next:   "if it is your decision, change it there and run 'pybox vm restart'",
		}
	}
	return d.instance(r.Context())
}

// failed answers with an error, unless the client is gone.
func (d *Daemon) failed(w http.ResponseWriter, r *http.Request, err error) {
	var p *api.Problem
	switch {
	case errors.As(err, &p):
	case r.Context().Err() != nil:
		return
	case agentapi.IsRemote(err) && connect.CodeOf(err) == connect.CodeFailedPrecondition:
		p = &api.Problem{
			Type: api.ProblemShell, Title: "the guest opens no shell", Status: http.StatusConflict,
			Detail: "the guest opens no shell: " + err.Error(),
			Next:   "a guest bundle of this release has one: 'pybox setup' or 'make install-bundle', then 'pybox vm restart'",
		}
	default:
		p = &api.Problem{
			Type: api.ProblemInternal, Title: "no way into the guest", Status: http.StatusBadGateway,
			Detail: "no way into the guest: " + err.Error(), Next: "'pybox vm status' and 'pybox vm logs' tell more",
		}
		if errors.As(err, new(errPerhaps)) {
			p.Detail += "; the shell may have been opened all the same, so receipts of this VM may say so from now on"
		}
	}
	reply.Problem(w, p)
}

// serveShell opens the shell and gives the keys to it.
func (d *Daemon) serveShell(w http.ResponseWriter, r *http.Request) {
	if err := readJSON(w, r, &struct{}{}); err != nil {
		reply.Problem(w, err)
		return
	}
	d.touch()
	defer user{d}.Use()()
	i, err := d.shellFor(r)
	if err != nil {
		d.failed(w, r, err)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), shellOpen)
	defer cancel()
	s, err := i.openShell(ctx)
	if errors.As(err, new(errPerhaps)) {
		d.log.Warn("a shell may have been opened in the guest: from now on every receipt of this VM says that it was", "error", err)
	}
	if err != nil {
		d.failed(w, r, err)
		return
	}
	if s.Opened {
		d.log.Warn("a shell was opened in the guest: from now on every receipt of this VM says so")
	}
	reply.JSON(w, s)
}

// serveShellConn connects the client with the guest's SSH server, until one of them
// ends that.
func (d *Daemon) serveShellConn(w http.ResponseWriter, r *http.Request) {
	d.touch()
	if !strings.EqualFold(r.Header.Get("Upgrade"), api.ShellUpgrade) {
		w.Header().Set("Upgrade", api.ShellUpgrade)
		w.Header().Set("Connection", "Upgrade")
		p := reply.BadRequest("%s becomes another protocol: it wants \"Connection: Upgrade\" and \"Upgrade: %s\"", api.PathVMShell, api.ShellUpgrade)
		p.Status = http.StatusUpgradeRequired
		reply.Problem(w, p)
		return
	}
	defer user{d}.Use()() // it keeps the VM from being idle, and from being stopped as such
	i, err := d.shellFor(r)
	if err != nil {
		d.failed(w, r, err)
		return
	}
	select {
	case i.door.conns <- struct{}{}:
		defer func() { <-i.door.conns }()
	default:
		reply.Problem(w, &api.Problem{Type: api.ProblemBusy, Title: "too many shells", Status: http.StatusServiceUnavailable,
			Detail: fmt.Sprintf("there are %d connections to the guest's shell already, the most at a time", api.MaxShells), Next: "leave one of them"})
		return
	}
	guest, err := i.dialShell(r.Context())
	if err != nil {
		d.failed(w, r, err)
		return
	}
	defer guest.Close()
	client, ahead, err := hijack(w)
	if err != nil {
		d.log.Warn("no connection to the guest's shell", "error", err)
		return
	}
	join(client, ahead, guest)
}

func (i *instance) dialShell(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, shellDial)
	defer cancel()
	conn, err := i.machine.Dial(ctx, agentapi.ShellPort)
	if errors.Is(err, vm.ErrRefused) {
		return nil, &api.Problem{Type: api.ProblemShell, Title: "no shell was opened", Status: http.StatusConflict,
			Detail: "no shell was opened in this VM", Next: "'pybox vm shell' opens one"}
	}
	return conn, err
}

// hijack takes the connection of a request, and tells its client.
func hijack(w http.ResponseWriter) (net.Conn, io.Reader, error) {
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, nil, err
	}
	const answer = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + api.ShellUpgrade + "\r\n\r\n"
	err = conn.SetDeadline(time.Time{}) // the server's own
	if err == nil {
		_, err = io.WriteString(conn, answer)
	}
	if err != nil {
		_ = conn.Close()
		return nil, nil, err
	}
	return conn, buffered.Reader, nil
}

// join copies both ways until either side ends, and closes both: neither of them has
// to know of half of an end.
func join(client net.Conn, ahead io.Reader, guest net.Conn) {
	done := make(chan struct{}, 2)
	go func() {
		_, _ = io.Copy(guest, ahead)
		done <- struct{}{}
	}()
	go func() {
		_, _ = io.Copy(client, guest)
		done <- struct{}{}
	}()
	<-done
	_, _ = client.Close(), guest.Close()
	<-done
}

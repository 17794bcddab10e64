//go:build linux && pyboxtest

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/pybox/pybox/agent/boxtest"
	"github.com/pybox/pybox/guest/bundle"
	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/bench/report"
	"github.com/pybox/pybox/host/receipt"
)

// person is somebody with a home of their own who uses the command.
type person struct {
	exe, home string
}

// newPerson makes one who has installed the bundle in dir and has this configuration;
// leave stops the VM and removes the home, in this order and also after Ctrl-C.
func newPerson(ctx context.Context, o *options, dir, config string) (p person, leave func(), err error) {
	exe, err := filepath.Abs(o.pybox)
	if err != nil {
		return p, nil, err
	}
	home, err := os.MkdirTemp("", "pybox-bench")
	if err != nil {
		return p, nil, err
	}
	p = person{exe, home}
	_, err = bundle.Install(ctx, home, dir)
	if err == nil {
		err = os.WriteFile(filepath.Join(home, "config.toml"), []byte(config), 0o600)
	}
	if err != nil {
		os.RemoveAll(home)
		return p, nil, err
	}
	return p, func() {
		p.run(context.WithoutCancel(ctx), "vm", "stop", "--force")
		os.RemoveAll(home)
	}, nil
}

// run runs the command and gives its standard output.
func (p person) run(ctx context.Context, args ...string) ([]byte, error) {
	took, err := p.spend(ctx, "", args...)
	return took.out, err
}

// spent is what a command printed and took.
type spent struct {
	out       []byte
	wall, cpu time.Duration
}

// spend runs the command with a standard input.
func (p person) spend(ctx context.Context, stdin string, args ...string) (spent, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*patience)
	defer cancel()
	var out, errs bytes.Buffer
	cmd := p.command(ctx, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	began := time.Now()
	if err := cmd.Run(); err != nil {
		return spent{}, fmt.Errorf("pybox %v: %w\n%s", args, err, errs.Bytes())
	}
	return spent{out.Bytes(), time.Since(began), cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()}, nil
}

func (p person) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, p.exe, args...)
	cmd.Env = append(os.Environ(), "PYBOX_HOME="+p.home)
	return cmd
}

// write makes a program's file.
func (p person) write(name, source string) (string, error) {
	path := filepath.Join(p.home, name)
	return path, os.WriteFile(path, []byte(source), 0o600)
}

// last is the newest receipt.
func (p person) last(ctx context.Context) (*receipt.Receipt, error) {
	out, err := p.run(ctx, "receipt", "show", "last", "--json")
	if err != nil {
		return nil, err
	}
	var r receipt.Receipt
	return &r, json.Unmarshal(out, &r)
}

// client is one of the API of the daemon that the command has started.
func (p person) client() *api.Client { return api.NewClient(filepath.Join(p.home, "pybox.sock")) }

func (p person) status(ctx context.Context) (api.Status, error) {
	var s api.Status
	out, err := p.run(ctx, "vm", "status", "--json")
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal(out, &s)
}

// service is a daemon with a door, its clients' view of it, and ours of its guest.
type service struct {
	person
	client *api.Client
	guest  *boxtest.Guest
	// daemon and vmm are processes.
	daemon, vmm int
}

// newService starts one that has installed the bundle in dir and has this configuration;
// leave ends it. The report is told what machine it is. Its VM has the disk of peers too,
// where one is named.
func newService(ctx context.Context, o *options, r *report.Report, dir, config string, peers ...string) (s *service, leave func(), err error) {
	p, away, err := newPerson(ctx, o, dir, config)
	if err != nil {
		return nil, nil, err
	}
	d, err := p.startDaemon(peers)
	if err != nil {
		away()
		return nil, nil, err
	}
	s = &service{person: p}
	leave = func() {
		if s.guest != nil && s.guest.Client != nil {
			s.guest.Client.Close()
		}
		d.end()
		away()
	}
	if err := s.attach(ctx, d, r, dir); err != nil {
		log, _ := os.ReadFile(filepath.Join(p.home, "daemon.log"))
		leave()
		return nil, nil, fmt.Errorf("%w\n%s", err, log[max(0, len(log)-2000):])
	}
	return s, leave, nil
}

// attach waits until the VM is ready, and connects to it.
func (s *service) attach(ctx context.Context, d *doorDaemon, r *report.Report, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	status, err := s.started(ctx, d)
	if err != nil {
		return err
	}
	if status.VM == nil {
		return errors.New("a status lacks the VM")
	}
	noteMachine(r, status)
	s.client, s.daemon, s.vmm = api.NewClient(status.Daemon.Socket), status.Daemon.PID, status.VM.PID
	b, err := bundle.Open(dir)
	if err != nil {
		return err
	}
	s.guest, err = boxtest.Attach(ctx, b, throughDoor{home: s.home})
	return err
}

// started waits for the daemon's socket and then for its VM.
func (s *service) started(ctx context.Context, d *doorDaemon) (api.Status, error) {
	client := s.person.client()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		status, err := client.Start(ctx)
		if !errors.Is(err, api.ErrNoDaemon) {
			return status, err
		}
		select {
		case <-tick.C:
		case <-d.ended:
			return api.Status{}, errors.New("the daemon ended")
		case <-ctx.Done():
			return api.Status{}, ctx.Err()
		}
	}
}

// doorDaemon is the process of a daemon with a door.
type doorDaemon struct {
	cmd   *exec.Cmd
	stdin io.Closer     // it ends with this
	ended chan struct{} // closed when it has
}

func (p person) startDaemon(peers []string) (*doorDaemon, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	d := &doorDaemon{cmd: exec.Command(self, append([]string{doorCommand, p.home}, peers...)...), ended: make(chan struct{})}
	d.cmd.Stderr = os.Stderr
	if d.stdin, err = d.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := d.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(d.ended)
		_ = d.cmd.Wait()
	}()
	return d, nil
}

// end has it power its VM off, and kills it if that takes too long: the VM ends with it.
func (d *doorDaemon) end() {
	_ = d.stdin.Close()
	select {
	case <-d.ended:
	case <-time.After(30 * time.Second):
		_ = d.cmd.Process.Kill()
		<-d.ended
	}
}

// untilReady waits until a box of the image is ready, and none is being made.
func (s *service) untilReady(ctx context.Context, image string) error {
	return untilBoxReady(ctx, s.client, image)
}

// untilBoxReady waits likewise, for the daemon of a client.
func untilBoxReady(ctx context.Context, client *api.Client, image string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(30 * time.Millisecond)
	defer tick.Stop()
	for {
		status, err := client.Status(ctx)
		if err != nil {
			return err
		}
		if status.Guest == nil {
			return errors.New("a status lacks the guest")
		}
		for _, b := range status.Guest.Ready {
			if b.Image == image && b.Trouble != "" {
				return fmt.Errorf("no box of %s is made ready: %s", image, b.Trouble)
			}
			if b.Image == image && b.Ready == b.Wanted && b.Making == 0 {
				return nil
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

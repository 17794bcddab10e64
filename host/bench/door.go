//go:build linux && pyboxtest

package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/pybox/pybox/agent/peers"
	"github.com/pybox/pybox/host/config"
	"github.com/pybox/pybox/host/daemon"
	"github.com/pybox/pybox/host/home"
	"github.com/pybox/pybox/host/version"
	"github.com/pybox/pybox/vm"
	"github.com/pybox/pybox/vm/qemu"
)

// doorCommand runs a daemon that differs from PyBox's own in one thing: on the socket
// doorName in its home, everybody who is let into that home is connected to a port of
// the guest. So bare Python and the CPU time of the guest's processes can be measured in
// the very guest that the daemon's clients use, while the daemon is a process of its own
// whose CPU time is its own.
const (
	doorCommand = "daemon"
	doorName    = "door.sock"
)

// runDaemon owns a VM until ctx ends, a client stops it, or standard input ends, which it
// does with the process that measures, however that ends.
func runDaemon(ctx context.Context, args []string) error {
	if len(args) < 1 || len(args) > 2 {
		return errors.New("want the home of the daemon, and what disk the peers have or nothing")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	h, err := home.Open(args[0])
	if err != nil {
		return err
	}
	c, err := config.Load(h.Config(), func(string) string { return "" })
	if err != nil {
		return err
	}
	f, err := os.OpenFile(h.Log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	log := slog.New(slog.NewTextHandler(f, nil))
	l, err := net.Listen("unix", filepath.Join(h.Dir(), doorName))
	if err != nil {
		return err
	}
	defer l.Close()
	driver := qemu.New(qemu.Options{
		Logger: log, Accel: c.VM.Accel, AccelMemory: h.Path("acceleration.json"), Binary: os.Getenv("PYBOX_QEMU"),
	})
	return daemon.Run(ctx, daemon.Options{Home: h, Config: c, Driver: doored{driver, l, args[1:]}, Logger: log, Version: version.String()})
}

// doored serves a door to the machine that it starts, which has the disks of peers too.
type doored struct {
	vm.Driver
	door  net.Listener
	peers []string
}

// Start implements vm.Driver.
func (d doored) Start(ctx context.Context, c vm.Config) (vm.Machine, error) {
	for _, path := range d.peers {
		c.Disks = append(slices.Clone(c.Disks), vm.Disk{Path: path, Serial: peers.Serial})
	}
	m, err := d.Driver.Start(ctx, c)
	if err == nil {
		go serveDoor(d.door, m)
	}
	return m, err
}

// serveDoor connects who comes until the door closes.
func serveDoor(l net.Listener, m vm.Machine) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			if err := pass(c, m); err != nil {
				slog.Debug("door", "error", err)
			}
		}()
	}
}

// pass reads the port that c wants, four bytes, says with one byte that it is open, and
// copies both ways until either ends.
func pass(c net.Conn, m vm.Machine) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	deadline, _ := ctx.Deadline()
	if err := c.SetDeadline(deadline); err != nil {
		return err
	}
	var port [4]byte
	if _, err := io.ReadFull(c, port[:]); err != nil {
		return err
	}
	guest, err := m.Dial(ctx, binary.BigEndian.Uint32(port[:]))
	if err != nil {
		return err
	}
	defer guest.Close()
	if _, err := c.Write([]byte{1}); err != nil {
		return err
	}
	if err := c.SetDeadline(time.Time{}); err != nil {
		return err
	}
	done := make(chan error, 2)
	go func() { _, err := io.Copy(guest, c); done <- err }()
	go func() { _, err := io.Copy(c, guest); done <- err }()
	return <-done
}

// throughDoor is the machine of a daemon with a door, as far as it can be dialled.
type throughDoor struct {
	vm.Machine // nil: nothing else can be asked of it
	home       string
}

// Dial implements vm.Machine.
func (d throughDoor) Dial(ctx context.Context, port uint32) (net.Conn, error) {
	var dialer net.Dialer
	c, err := dialer.DialContext(ctx, "unix", filepath.Join(d.home, doorName))
	if err != nil {
		return nil, err
	}
	if deadline, ok := ctx.Deadline(); ok {
		err = c.SetDeadline(deadline)
	}
	if err == nil {
		_, err = c.Write(binary.BigEndian.AppendUint32(nil, port))
	}
	if err == nil {
		_, err = io.ReadFull(c, make([]byte, 1))
	}
	if err == nil {
		err = c.SetDeadline(time.Time{})
	}
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("the guest of %s: %w", d.home, err)
	}
	return c, nil
}

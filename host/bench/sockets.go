//go:build linux && pyboxtest

package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/pybox/pybox/guest/bundle"
	"github.com/pybox/pybox/host/bench/report"
	"github.com/pybox/pybox/vm"
	"github.com/pybox/pybox/vm/qemu"
	"github.com/pybox/pybox/vm/vmtest"
	"golang.org/x/sys/unix"
)

const groupSockets = "Sockets between host and guest"

const (
	bulkBytes = 64 << 20
	bulkRuns  = 5
	pings     = 2000
	pingBytes = 64
)

// benchSockets measures our virtio socket device against a bare virtio-serial port
// of the same guest.
func benchSockets(ctx context.Context, o *options, r *report.Report) error {
	serial, theirs, err := serialPair()
	if err != nil {
		return err
	}
	defer serial.Close()
	const fd = 7 + 1 // see qemu.Options.ExtraFiles: after the one disk
	m, leave, err := startSockets(ctx, o, qemu.Options{
		ExtraFiles: []*os.File{theirs},
		ExtraArgs: []string{"-device", "virtio-serial-pci-non-transitional",
			"-chardev", fmt.Sprintf("socket,id=serial,fd=%d", fd), "-device", "virtserialport,chardev=serial,name=bench"},
	})
	theirs.Close()
	if err != nil {
		return err
	}
	defer leave()
	start, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	sock, err := dial(start, m, vmtest.PortEcho)
	if err != nil {
		return err
	}
	defer sock.Close()

	// Taken in turns, so that whatever else this host does meets both.
	var viaSocket, viaSerial []float64
	for range pings {
		for _, x := range []struct {
			c    net.Conn
			into *[]float64
		}{{sock, &viaSocket}, {serial, &viaSerial}} {
			took, err := ping(x.c)
			if err != nil {
				return err
			}
			*x.into = append(*x.into, took)
		}
	}
	var in, out []float64
	for range bulkRuns {
		for port, into := range map[uint32]*[]float64{vmtest.PortDiscard: &in, vmtest.PortZeros: &out} {
			rate, err := bulk(start, m, port, bulkBytes)
			if err != nil {
				return err
			}
			*into = append(*into, rate)
		}
	}
	f := func(id, name, unit, note string) report.Figure {
		return report.Figure{ID: id, Group: groupSockets, Name: name, Unit: unit, Note: note, MoreIsBetter: unit == "MiB/s"}
	}
	theirSerial := f("sockets.serial", "the same over a virtio-serial port", "ms", "").Of(viaSerial)
	r.Add(
		f("sockets.in", "host to guest", "MiB/s", "64 MiB").Of(in).AtLeast(50),
		f("sockets.out", "guest to host", "MiB/s", "64 MiB").Of(out).AtLeast(50),
		f("sockets.ping", "ping-pong", "ms", "64 bytes there and back").Of(viaSocket).InTurns(theirSerial, viaSocket, viaSerial).RatioAtMost(2),
		theirSerial,
	)
	return nil
}

// startSockets starts the guest of package vmtest, which has nothing but services on
// sockets; leave ends it.
func startSockets(ctx context.Context, o *options, q qemu.Options) (m vm.Machine, leave func(), err error) {
	b, err := bundle.Open(o.bundle)
	if err != nil {
		return nil, nil, err
	}
	dir, err := os.MkdirTemp("", "pybox-bench")
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			os.RemoveAll(dir)
		}
	}()
	c, err := vmtest.MakeConfig(ctx, dir, b.Path(b.Manifest.Kernel.File), vmtest.GuestPackage)
	if err != nil {
		return nil, nil, err
	}
	start, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if m, err = qemu.New(q).Start(start, c); err != nil {
		return nil, nil, err
	}
	return m, func() {
		m.Kill()
		os.RemoveAll(dir)
	}, nil
}

func serialPair() (net.Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	mine := os.NewFile(uintptr(fds[0]), "serial")
	defer mine.Close()
	c, err := net.FileConn(mine)
	return c, os.NewFile(uintptr(fds[1]), "serial"), err
}

// dial waits until the guest listens.
func dial(ctx context.Context, m vm.Machine, port uint32) (net.Conn, error) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		c, err := m.Dial(ctx, port)
		if !errors.Is(err, vm.ErrRefused) {
			return c, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func ping(c net.Conn) (float64, error) {
	var b [pingBytes]byte
	c.SetDeadline(time.Now().Add(patience))
	began := time.Now()
	if _, err := c.Write(b[:]); err != nil {
		return 0, err
	}
	_, err := io.ReadFull(c, b[:])
	return ms(time.Since(began)), err
}

// bulk moves n bytes through a service and returns MiB/s.
func bulk(ctx context.Context, m vm.Machine, port uint32, n int) (float64, error) {
	c, err := dial(ctx, m, port)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	began := time.Now()
	if _, err := c.Write(binary.LittleEndian.AppendUint64(nil, uint64(n))); err != nil {
		return 0, err
	}
	if port == vmtest.PortDiscard {
		for buf := make([]byte, 256<<10); n > 0; n -= len(buf) {
			if _, err := c.Write(buf); err != nil {
				return 0, err
			}
		}
		_, err = io.ReadFull(c, make([]byte, 1))
	} else {
		_, err = io.CopyN(io.Discard, struct{ io.Reader }{c}, int64(n))
	}
	return bulkBytes / (1 << 20) / time.Since(began).Seconds(), err
}

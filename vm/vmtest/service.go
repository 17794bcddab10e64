package vmtest

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
)

// Ports of the suite's guest. Refused is one that nobody listens on.
const (
	PortEcho    uint32 = 2000 // sends back what it gets
	PortSink    uint32 = 2001 // reads 8 bytes n, then n bytes; answers SHA-256 of those
	PortSource  uint32 = 2002 // reads 8 bytes n; sends n bytes of Pattern
	PortControl uint32 = 2003 // reads a line, a word of Guest.Do, and does it
	PortDrip    uint32 = 2004 // reads 4+4 bytes n, size; sends n writes of that size, then waits for the peer to close
	PortHold    uint32 = 2005 // accepts and reads nothing until the peer's first byte arrives on PortRelease
	PortRelease uint32 = 2006
	PortDiscard uint32 = 2007 // reads 8 bytes n, then n bytes; answers one byte
	PortZeros   uint32 = 2008 // reads 8 bytes n; sends n zero bytes
	PortRefused uint32 = 2099
)

// Banner is the guest's first console line.
const Banner = "vmtest: guest up"

// Guest is what the services need from whatever runs them: a real guest's PID 1
// or the in-process fake.
type Guest interface {
	// Listen takes a vsock port.
	Listen(port uint32) (net.Listener, error)
	// Do performs "poweroff", "reboot", "panic" or "flood" (128 KiB of console
	// output).
	Do(word string) error
}

// Pattern is byte i of what PortSource sends.
func Pattern(i int64) byte { return byte(i ^ i>>8 ^ i>>16) }

// ServeGuest runs every service until the listeners end.
func ServeGuest(g Guest) error {
	release := make(chan struct{}, 1024)
	services := map[uint32]func(net.Conn) error{
		PortEcho:    echo,
		PortSink:    sink,
		PortSource:  source,
		PortDrip:    drip,
		PortDiscard: discard,
		PortZeros:   zeros,
		PortControl: func(c net.Conn) error { return control(c, g) },
		PortHold: func(c net.Conn) error {
			<-release
			return sink(c)
		},
		PortRelease: func(c net.Conn) error {
			var b [1]byte
			if _, err := io.ReadFull(c, b[:]); err != nil {
				return err
			}
			release <- struct{}{}
			_, err := c.Write(b[:])
			return err
		},
	}
	errs := make(chan error, len(services))
	for port, serve := range services {
		l, err := g.Listen(port)
		if err != nil {
			return fmt.Errorf("port %d: %w", port, err)
		}
		go func() { errs <- accept(l, serve) }()
	}
	return <-errs
}

func accept(l net.Listener, serve func(net.Conn) error) error {
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			serve(c) // the client sees a fault as a cut connection and fails its test
		}()
	}
}

func echo(c net.Conn) error {
	// Without io.ReaderFrom and WriterTo: the connection itself is under test.
	_, err := io.CopyBuffer(struct{ io.Writer }{c}, struct{ io.Reader }{c}, make([]byte, 64<<10))
	if h, ok := c.(interface{ CloseWrite() error }); ok && err == nil {
		err = h.CloseWrite()
	}
	return err
}

func readCount(c net.Conn) (int64, error) {
	var b [8]byte
	if _, err := io.ReadFull(c, b[:]); err != nil {
		return 0, err
	}
	n := int64(binary.LittleEndian.Uint64(b[:]))
	if n < 0 || n > 1<<32 {
		return 0, errors.New("absurd count")
	}
	return n, nil
}

func sink(c net.Conn) error {
	n, err := readCount(c)
	if err != nil {
		return err
	}
	h := sha256.New()
	if _, err := io.CopyBuffer(struct{ io.Writer }{h}, struct{ io.Reader }{io.LimitReader(c, n)}, make([]byte, 64<<10)); err != nil {
		return err
	}
	_, err = c.Write(h.Sum(nil))
	return err
}

func source(c net.Conn) error {
	n, err := readCount(c)
	if err != nil {
		return err
	}
	buf := make([]byte, 64<<10)
	for at := int64(0); at < n; {
		m := min(n-at, int64(len(buf)))
		for i := range m {
			buf[i] = Pattern(at + i)
		}
		if _, err := c.Write(buf[:m]); err != nil {
			return err
		}
		at += m
	}
	return nil
}

// discard and zeros cost the guest as little as can be: for measurements.
func discard(c net.Conn) error {
	n, err := readCount(c)
	if err != nil {
		return err
	}
	for buf := make([]byte, 256<<10); n > 0; {
		m, err := c.Read(buf[:min(n, int64(len(buf)))])
		if err != nil {
			return err
		}
		n -= int64(m)
	}
	_, err = c.Write([]byte{1})
	return err
}

func zeros(c net.Conn) error {
	n, err := readCount(c)
	if err != nil {
		return err
	}
	for buf := make([]byte, 256<<10); n > 0; {
		m, err := c.Write(buf[:min(n, int64(len(buf)))])
		if err != nil {
			return err
		}
		n -= int64(m)
	}
	return nil
}

func drip(c net.Conn) error {
	var b [8]byte
	if _, err := io.ReadFull(c, b[:]); err != nil {
		return err
	}
	n, size := binary.LittleEndian.Uint32(b[:]), binary.LittleEndian.Uint32(b[4:])
	if n > 1<<20 || size > 1<<16 {
		return errors.New("absurd count")
	}
	p := make([]byte, size)
	for i := range n {
		for j := range p {
			p[j] = byte(i)
		}
		if _, err := c.Write(p); err != nil {
			return err
		}
	}
	_, err := io.Copy(io.Discard, c)
	return err
}

func control(c net.Conn, g Guest) error {
	line, err := bufio.NewReader(io.LimitReader(c, 64)).ReadString('\n')
	if err != nil {
		return err
	}
	return g.Do(strings.TrimSpace(line))
}

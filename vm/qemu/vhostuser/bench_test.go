//go:build linux

package vhostuser

import (
	"io"
	"testing"
)

func benchmarkConn(b *testing.B, port uint32) io.ReadWriteCloser {
	b.Helper()
	g := newGuest(b)
	newStack(g, services())
	c, err := g.dev.Dial(b.Context(), port)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { c.Close() })
	return c
}

func BenchmarkPingPong(b *testing.B) {
	c := benchmarkConn(b, echoPort)
	buf := make([]byte, 64)
	for b.Loop() {
		if _, err := c.Write(buf); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(c, buf); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkToGuest(b *testing.B) {
	c := benchmarkConn(b, sinkPort)
	buf := make([]byte, 256<<10)
	b.SetBytes(int64(len(buf)))
	for b.Loop() {
		if _, err := c.Write(buf); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkFromGuest(b *testing.B) {
	c := benchmarkConn(b, srcPort)
	if _, err := c.Write(u64(1 << 62)); err != nil {
		b.Fatal(err)
	}
	buf := make([]byte, 256<<10)
	b.SetBytes(int64(len(buf)))
	for b.Loop() {
		if _, err := io.ReadFull(c, buf); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDial(b *testing.B) {
	g := newGuest(b)
	newStack(g, services())
	for b.Loop() {
		c, err := g.dev.Dial(b.Context(), echoPort)
		if err != nil {
			b.Fatal(err)
		}
		c.Close()
	}
}

//go:build linux

package vhostuser

import (
	"io"
	"testing"
)

func TestSmoke(t *testing.T) {
	g := newGuest(t)
	c, p := g.pair(1000)
	if _, err := c.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if r := g.expect(opRW); string(r.data) != "hello" {
		t.Fatal(r)
	}
	p.put(opRW, 0, []byte("world"))
	b := make([]byte, 5)
	if _, err := io.ReadFull(c, b); err != nil || string(b) != "world" {
		t.Fatal(err)
	}
	c.Close()
	g.expect(opShutdown)
	p.put(opReset, 0, nil)
	g.quiet()
	if s := g.dev.Stats(); s.Conns != 0 {
		t.Fatalf("%+v", s)
	}
}

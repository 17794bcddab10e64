//go:build linux && pyboxtest

package main

import (
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pybox/pybox/vm"
)

func TestRates(t *testing.T) {
	l := load{clients: 2}
	end := time.Duration(0)
	for i := range 2*batchRuns + batchRuns/2 { // two a second, then four, and half a batch
		if end += 500 * time.Millisecond; i >= batchRuns {
			end -= 250 * time.Millisecond
		}
		l.ends = append(l.ends, end)
	}
	if got := l.rates(); !slices.Equal(got, []float64{2, 4}) {
		t.Errorf("rates of whole batches: %v, want 2 and 4", got)
	}
}

// TestTimes: a quick bench measures a quarter, and no fewer than 6.
func TestTimes(t *testing.T) {
	for full, want := range map[int]int{40: 10, 10: 6, 5: 5} {
		if got := (&options{quick: true}).times(full); got != want {
			t.Errorf("of %d: %d, want %d", full, got, want)
		}
	}
}

// TestInterrupted: what was not begun before the end is no success.
func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var said strings.Builder
	err := measure(ctx, &options{only: "start,memory"}, "", &said)
	if !errors.Is(err, errFailed) || strings.Count(said.String(), "NOT MEASURED WHOLE") != 2 {
		t.Errorf("%v, it says:\n%s", err, said.String())
	}
}

// TestOrder: each peer begins in its turn, and those that are slow are in some rounds.
func TestOrder(t *testing.T) {
	a, b, c := &peer{every: 1}, &peer{every: 1}, &peer{every: 2}
	all := []*peer{a, b, c}
	for i, want := range [][]*peer{{a, b, c}, {a, b}, {b, c, a}, {b, a}, {c, a, b}} {
		if got := order(all, i); !slices.Equal(got, want) {
			t.Errorf("round %d: %v, want %v", i, got, want)
		}
	}
}

// TestVersions: of what the guest says, versions are told.
func TestVersions(t *testing.T) {
	p := peer{packages: []string{"crun", "runc"}}
	if got := p.versions(map[string]string{"crun": "1.8.1-1+deb12u1", "runc": "<b>"}); got != "crun 1.8.1-1+deb12u1, runc of unknown version" {
		t.Error(got)
	}
}

func TestSlug(t *testing.T) {
	if got := slug("guest: Kernel up, (2)"); got != "guest-kernel-up-2" {
		t.Error(got)
	}
}

func TestGuestTimes(t *testing.T) {
	got, err := guestTimes([]byte(`{"agent_usec":1000,"shim_usec":2000,"crun_usec":3000,"boxes_usec":4000,"guest_usec":15000}`))
	if err != nil || !maps.Equal(got, cpuTimes{"agent": 1, "shim": 2, "crun": 3, "boxes": 4, "other": 5}) {
		t.Errorf("%v, %v", got, err)
	}
	for _, text := range []string{"", `{"agent_usec":1000}`} {
		if got, err := guestTimes([]byte(text)); err == nil {
			t.Errorf("%q: %v", text, got)
		}
	}
}

// TestProcessCPU: what this process burns is seen.
func TestProcessCPU(t *testing.T) {
	before, err := processCPU(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for began := time.Now(); time.Since(began) < 20*time.Second; {
		now, err := processCPU(os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		if now > before {
			return
		}
	}
	t.Errorf("%g ms before and after 20 s of work", before)
}

// echo is a machine whose ports send back what they get, but one that nobody has.
type echo struct{ vm.Machine }

const nobody = 7

func (echo) Dial(_ context.Context, port uint32) (net.Conn, error) {
	if port == nobody {
		return nil, vm.ErrRefused
	}
	mine, theirs := net.Pipe()
	go func() {
		defer theirs.Close()
		_, _ = theirs.Write([]byte{byte(port)})
		_, _ = io.Copy(theirs, theirs)
	}()
	return mine, nil
}

func TestDoor(t *testing.T) {
	home := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(home, doorName))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go serveDoor(l, echo{})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	d := throughDoor{home: home}
	c, err := d.Dial(ctx, 42)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 6)
	if _, err := io.ReadFull(c, got); err != nil || string(got) != "*hello" {
		t.Errorf("%q, %v: want the port, 42, and what was sent", got, err)
	}
	if c, err := d.Dial(ctx, nobody); err == nil {
		c.Close()
		t.Error("a port that nobody has was opened")
	}
}

// TestGroupsAreKnown: every group of a figure has its words on the page.
func TestGroupsAreKnown(t *testing.T) {
	for _, g := range groups {
		if g.Name == "" || g.About == "" {
			t.Errorf("%+v", g)
		}
	}
}

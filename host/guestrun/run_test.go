package guestrun

import (
	"context"
	"crypto/sha256"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pybox/pybox/agent/api"
)

func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var heard string
		g := newGuest(t, func(s *script) {
			if !s.Begin() {
				return
			}
			if !s.Stdin {
				s.T.Error("the go does not announce standard input")
			}
			for m := s.Next(); len(m.GetStdin()) > 0; m = s.Next() {
				heard += string(m.GetStdin())
			}
			s.Sample(time.Second)
			s.Print(1, "out")
			s.Print(2, "err")
			s.End(3)
		})
		r := request()
		big := strings.Repeat("0123456789abcdef", 1<<16) // 1 MiB, in pieces
		r.Files = append(r.Files, File{Name: "d", Folder: true}, text("d/big", big), text("d/empty", ""))
		r.Stdin = strings.NewReader("input")
		var e events
		res, err := Run(t.Context(), g, r, e.take, Options{})
		if err != nil {
			t.Fatal(err)
		}
		wantEnding(t, res, api.HowExited, api.ByProgram)
		if status := res.Record.GetExit().GetRawStatus(); status != 3<<8 {
			t.Errorf("wait status %#x, want %#x", status, 3<<8)
		}
		if want := "admitted stage started sample output exited record"; e.kinds() != want {
			t.Errorf("events %s, want %s", e.kinds(), want)
		}
		if e.out[1].String() != "out" || e.out[2].String() != "err" || heard != "input" {
			t.Errorf("printed %q and %q, heard %q", e.out[1].String(), e.out[2].String(), heard)
		}
		if res.Stdout != (Received{Bytes: 3, SHA256: sha256.Sum256([]byte("out")), Complete: true}) {
			t.Errorf("standard output is %+v", res.Stdout)
		}
		if len(res.Inputs) != 4 || res.Inputs[0].SHA256 != sha256.Sum256([]byte(program)) || res.Inputs[2].SHA256 != sha256.Sum256([]byte(big)) || !res.Inputs[1].Folder {
			t.Errorf("inputs are %+v", res.Inputs)
		}
		if res.Record == nil || res.Exited == nil || res.GuestLost || len(res.Unknown) > 0 || res.Cleanup != nil || len(g.Killed()) > 0 {
			t.Errorf("the result is %+v", res)
		}
		for _, at := range []time.Time{res.Times.Sent, res.Times.Admitted, res.Times.Started, res.Times.Exited, res.Times.Ended} {
			if at.IsZero() {
				t.Errorf("times are %+v", res.Times)
			}
		}
	})
}

// ctx is over before anything begins.
func TestRunNotBegun(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if r, err := Run(ctx, nil, request(), nil, Options{}); err == nil || r != nil {
		t.Errorf("%v, %v", r, err)
	}
}

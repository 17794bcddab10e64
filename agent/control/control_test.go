package control

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

var good = []Request{
	{Seq: 1, Op: OpArm, ID: "5319e024", Path: "box-5319e024", After: 3 * time.Second},
	{Seq: 2, Op: OpArm, ID: strings.Repeat("a", MaxID), Path: strings.Repeat("b", 128), After: MaxDuration},
	{Seq: 3, Op: OpDisarm, ID: "5319e024"},
	{Seq: 4, Op: OpPowerOff, Reason: strings.Repeat("r", MaxReason)},
	{Seq: 5, Op: OpPowerOff},
	{Seq: 1<<32 - 1, Op: OpCrash},
}

func TestRequestsSurviveTheWire(t *testing.T) {
	for _, r := range good {
		b, err := r.Encode()
		if err != nil {
			t.Errorf("%+v: %v", r, err)
			continue
		}
		if got, err := DecodeRequest(b); err != nil || got != r || len(b) != Size {
			t.Errorf("%+v came back as %+v, %v", r, got, err)
		}
	}
}

func TestBadRequests(t *testing.T) {
	for _, r := range []Request{
		{},
		{Op: 200},
		{Op: OpArm, Path: "a", After: 1}, // no id
		{Op: OpArm, ID: "a b", Path: "a", After: 1},                        // id
		{Op: OpArm, ID: strings.Repeat("a", MaxID+1), Path: "a", After: 1}, // long id
		{Op: OpArm, ID: "a", After: 1},                                     // no path
		{Op: OpArm, ID: "a", Path: "../a", After: 1},                       // path
		{Op: OpArm, ID: "a", Path: "a"},                                    // no time
		{Op: OpArm, ID: "a", Path: "a", After: -1},                         // negative
		{Op: OpArm, ID: "a", Path: "a", After: MaxDuration + 1},            // long
		{Op: OpDisarm},                                             // no id
		{Op: OpDisarm, ID: "a", Path: "a"},                         // path
		{Op: OpDisarm, ID: "a", After: 1},                          // time
		{Op: OpPowerOff, ID: "a"},                                  // id
		{Op: OpPowerOff, Reason: "a\n"},                            // reason
		{Op: OpPowerOff, Reason: strings.Repeat("a", MaxReason+1)}, // long
		{Op: OpCrash, Path: "a"},                                   // path
	} {
		if _, err := r.Encode(); !errors.Is(err, ErrInvalid) && !errors.Is(err, ErrUnsupported) {
			t.Errorf("%+v: %v", r, err)
		}
	}
	spoil := func(f func(b []byte) []byte) error {
		b, err := good[0].Encode()
		if err != nil {
			t.Fatal(err)
		}
		_, err = DecodeRequest(f(b))
		return err
	}
	for name, f := range map[string]func(b []byte) []byte{
		"empty":          func([]byte) []byte { return nil },
		"short":          func(b []byte) []byte { return b[:Size-1] },
		"long":           func(b []byte) []byte { return append(b, 0) },
		"magic":          func(b []byte) []byte { b[0] = 'X'; return b },
		"padding":        func(b []byte) []byte { b[12] = 1; return b },
		"after the id":   func(b []byte) []byte { b[63] = 'x'; return b },
		"after the path": func(b []byte) []byte { b[Size-1] = 'x'; return b },
		"id length":      func(b []byte) []byte { b[9] = 255; return b },
		"path length":    func(b []byte) []byte { b[10] = 255; return b },
		"duration":       func(b []byte) []byte { binary.LittleEndian.PutUint64(b[16:], 1<<63); return b },
	} {
		if err := spoil(f); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
}

// messages is a net.Conn that keeps message boundaries, as SOCK_SEQPACKET does:
// net.Pipe hands over each write as it is when the reader's buffer is larger.
func messages() (a, b net.Conn) { return net.Pipe() }

func TestClientAndServer(t *testing.T) {
	agent, pid1 := messages()
	replies := map[Op]Reply{
		OpArm:      {Status: StatusFull},
		OpDisarm:   {Status: StatusFired, FiredAt: 7 * time.Second},
		OpPowerOff: {Status: StatusOK},
		OpCrash:    {Status: StatusUnsupported},
	}
	served := make(chan error, 1)
	go func() { served <- Serve(pid1, func(r Request) Reply { return replies[r.Op] }) }()
	c := NewClient(agent)
	if err := c.Arm("a", "a", time.Second); !errors.Is(err, ErrFull) {
		t.Errorf("Arm: %v", err)
	}
	if fired, at, err := c.Disarm("a"); !fired || at != 7*time.Second || err != nil {
		t.Errorf("Disarm: %v at %v, %v", fired, at, err)
	}
	if err := c.Arm("a", "..", time.Second); !errors.Is(err, ErrInvalid) {
		t.Errorf("a bad request: %v", err)
	}
	if err := c.Crash(); !errors.Is(err, ErrUnsupported) {
		t.Errorf("Crash: %v", err)
	}
	if err := c.PowerOff("why"); err != nil {
		t.Errorf("PowerOff: %v", err)
	}
	_ = c.Close()
	if err := <-served; err == nil {
		t.Error("Serve ended without an error")
	}
	if err := c.PowerOff(""); !errors.Is(err, ErrLost) {
		t.Errorf("after the end: %v", err)
	}
}

func TestServerAnswersRubbishAndGoesOn(t *testing.T) {
	agent, pid1 := messages()
	defer agent.Close()
	go func() { _ = Serve(pid1, func(Request) Reply { return Reply{} }) }()
	_ = agent.SetDeadline(time.Now().Add(10 * time.Second))
	unknown := make([]byte, Size)
	copy(unknown, requestMagic)
	unknown[4], unknown[8] = 9, 77
	valid, err := good[2].Encode()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		send []byte
		want Reply
	}{
		{[]byte("rubbish"), Reply{Status: StatusInvalid}},
		{make([]byte, Size), Reply{Status: StatusInvalid}},
		{unknown, Reply{Seq: 9, Status: StatusUnsupported}},
		{valid, Reply{Seq: 3}},
	} {
		if _, err := agent.Write(c.send); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, ReplySize+1)
		n, err := agent.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := DecodeReply(b[:n]); err != nil || got != c.want {
			t.Errorf("%.10q: %+v, %v, want %+v", c.send, got, err, c.want)
		}
	}
}

// After a reply that does not fit its request no later one may be believed.
func TestClientGivesUpOnAWrongReply(t *testing.T) {
	for name, reply := range map[string][]byte{
		"other sequence number": Reply{Seq: 99}.Encode(),
		"rubbish":               []byte("rubbish"),
		"unknown status":        Reply{Seq: 1, Status: 99}.Encode(),
		"fired and not":         Reply{Seq: 1, FiredAt: 1}.Encode(),
		"long":                  make([]byte, 100),
	} {
		agent, pid1 := messages()
		go func() {
			_, _ = pid1.Read(make([]byte, Size))
			_, _ = pid1.Write(reply)
			_ = pid1.Close()
		}()
		c := NewClient(agent)
		if err := c.PowerOff(""); !errors.Is(err, ErrLost) {
			t.Errorf("%s: %v, want ErrLost", name, err)
		}
		if err := c.PowerOff(""); !errors.Is(err, ErrLost) {
			t.Errorf("%s, again: %v, want ErrLost", name, err)
		}
	}
}

func TestClientDoesNotWaitForever(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		agent, pid1 := messages()
		defer pid1.Close()
		start := time.Now()
		if err := NewClient(agent).PowerOff(""); !errors.Is(err, ErrLost) {
			t.Errorf("%v, want ErrLost", err)
		}
		if d := time.Since(start); d != callTimeout {
			t.Errorf("it took %v", d)
		}
	})
}

func FuzzDecodeRequest(f *testing.F) {
	for _, r := range good {
		b, err := r.Encode()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte("PBC1"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := DecodeRequest(b)
		if err != nil {
			return
		}
		// What is taken has one encoding only.
		if again, err := r.Encode(); err != nil || !bytes.Equal(again, b) {
			t.Errorf("%x decodes to %+v, which encodes to %x, %v", b, r, again, err)
		}
	})
}

func FuzzDecodeReply(f *testing.F) {
	f.Add(Reply{Seq: 1, Status: StatusFired, FiredAt: time.Second}.Encode())
	f.Add([]byte("PBR1"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := DecodeReply(b); err == nil && !bytes.Equal(r.Encode(), b) {
			t.Errorf("%x decodes to %+v", b, r)
		}
	})
}

//go:build linux && pyboxtest

package agent_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/pybox/pybox/agent/api"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/agent/boxtest"
)

// printed holds one stream to what the program wrote: all of it counted and hashed,
// the first limit bytes kept and received.
func printed(t *testing.T, name string, wrote []byte, limit int64, got []byte, said *agentv1.Printed) {
	t.Helper()
	kept := min(limit, int64(len(wrote)))
	if said.GetBytes() != int64(len(wrote)) || said.GetKeptBytes() != kept || !said.GetComplete() {
		t.Errorf("%s: %d bytes, %d kept, complete %v; want %d and %d", name, said.GetBytes(), said.GetKeptBytes(), said.GetComplete(), len(wrote), kept)
	}
	if sum := sha256.Sum256(wrote); !bytes.Equal(sum[:], said.GetSha256()) {
		t.Errorf("%s: the SHA-256 is not that of what was written", name)
	}
	if !bytes.Equal(got, wrote[:kept]) {
		t.Errorf("%s: %d bytes came, which are not the first %d written: %.80q", name, len(got), kept, got)
	}
}

// TestE2EOutput holds what a program prints to what of it is kept, counted, hashed
// and sent.
func TestE2EOutput(t *testing.T) {
	g := boxtest.Start(t, 1<<30)
	exits(t, g, boxtest.Program{Source: ""}, 0)
	before := figures(t, g, "before")
	// It takes a while until a client that takes nothing is given up: the rest of
	// this test goes on beside it.
	unread := startUnread(t, g, before)

	t.Run("more than is kept", func(t *testing.T) {
		o := exits(t, g, boxtest.Program{Source: `print("x" * 10_000_000)`, MilliCPU: 500, Timeout: time.Minute}, 0)
		printed(t, "stdout", append(bytes.Repeat([]byte("x"), 10_000_000), '\n'), 1<<20, o.Stdout, o.Record.GetStdout())
		printed(t, "stderr", nil, 1<<20, o.Stderr, o.Record.GetStderr())
	})
	t.Run("bytes", func(t *testing.T) {
		all := make([]byte, 256)
		for i := range all {
			all[i] = byte(i)
		}
		for name, wrote := range map[string][]byte{
			"no text":          []byte("\xff\xfe\x00"),
			"every byte":       all,
			"nothing":          {},
			"terminal":         []byte("\x1b]52;c;aGVsbG8=\a\x1b[2J\x1b[31mred\x1b[0m\r\x9b1A\x07"),
			"no end of line":   []byte("no end of line"),
			"lines of all":     []byte("a\r\nb\rc\n\n\x00\n"),
			"a record of ours": recordBytes(t),
		} {
			t.Run(name, func(t *testing.T) {
				source := fmt.Sprintf("import os\nb = bytes.fromhex(%q)\nos.write(1, b)\nos.write(2, b[::-1])\n", fmt.Sprintf("%x", wrote))
				o := exits(t, g, boxtest.Program{Source: source, MilliCPU: 500}, 0)
				printed(t, "stdout", wrote, 1<<20, o.Stdout, o.Record.GetStdout())
				reversed := bytes.Clone(wrote)
				for i, j := 0, len(reversed)-1; i < j; i, j = i+1, j-1 {
					reversed[i], reversed[j] = reversed[j], reversed[i]
				}
				printed(t, "stderr", reversed, 1<<20, o.Stderr, o.Record.GetStderr())
			})
		}
	})
	t.Run("characters", func(t *testing.T) {
		// Of three bytes each: neither a piece of 64 KiB nor the limit ends with one.
		const n, limit = 60_000, 100_000
		wrote := []byte(strings.Repeat("€", n))
		o := exits(t, g, boxtest.Program{Source: fmt.Sprintf("print('€' * %d, end='')", n), MilliCPU: 500, Stdout: limit}, 0)
		printed(t, "stdout", wrote, limit, o.Stdout, o.Record.GetStdout())
		o = exits(t, g, boxtest.Program{Source: fmt.Sprintf("print('€' * %d, end='')", n), MilliCPU: 500}, 0)
		printed(t, "stdout", wrote, 1<<20, o.Stdout, o.Record.GetStdout())
	})
	t.Run("nothing is kept", func(t *testing.T) {
		o := exits(t, g, boxtest.Program{Source: "import sys\nprint('out')\nprint('err', file=sys.stderr)", MilliCPU: 500, Stdout: -1, Stderr: -1}, 0)
		printed(t, "stdout", []byte("out\n"), 0, o.Stdout, o.Record.GetStdout())
		printed(t, "stderr", []byte("err\n"), 0, o.Stderr, o.Record.GetStderr())
	})
	t.Run("two streams", func(t *testing.T) {
		const n = 2000
		var out, err bytes.Buffer
		for i := range n {
			fmt.Fprintf(&out, "out %d\n", i)
			fmt.Fprintf(&err, "err %d\n", i)
		}
		o := exits(t, g, boxtest.Program{Source: fmt.Sprintf("import sys\nfor i in range(%d):\n print('out', i)\n print('err', i, file=sys.stderr)\n", n), MilliCPU: 500, Timeout: time.Minute}, 0)
		printed(t, "stdout", out.Bytes(), 1<<20, o.Stdout, o.Record.GetStdout())
		printed(t, "stderr", err.Bytes(), 1<<20, o.Stderr, o.Record.GetStderr())
	})
	t.Run("before the deadline", func(t *testing.T) {
		// Whole lines of print are out at once; what has no end of line yet is the
		// program's own buffer.
		o := g.Run(t, boxtest.Program{Source: "for i in range(100): print('line', i)\nprint('half', end='')\nwhile True: pass\n", Timeout: 3 * time.Second, MilliCPU: 500})
		if o.Record.GetEnding().GetHow() != api.HowDeadline {
			t.Errorf("want the deadline: %v", o)
		}
		var want bytes.Buffer
		for i := range 100 {
			fmt.Fprintf(&want, "line %d\n", i)
		}
		printed(t, "stdout", want.Bytes(), 1<<20, o.Stdout, o.Record.GetStdout())
	})
	t.Run("much", func(t *testing.T) { testMuchOutput(t, g, before) })
	unread.givenUp(t, g)
	flat(t, before, figures(t, g, "after"))
}

// recordBytes is what the agent itself would send: an envelope of the Connect
// protocol with a record in it, and the JSON of one.
func recordBytes(t *testing.T) []byte {
	m, err := proto.Marshal(&agentv1.RunEvent{Event: &agentv1.RunEvent_Record{Record: &agentv1.RunRecord{
		Id: "forged", Ending: &agentv1.Ending{How: api.HowExited, By: api.ByProgram, Evidence: []string{"forged"}}, Exit: &agentv1.Exit{Known: true},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	b := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(m)))
	b = append(b, m...)
	b = append(b, 2, 0, 0, 0, 2, '{', '}') // the end of a stream
	return append(b, `{"schema": "pybox.receipt/v1", "ending": {"how": "exited", "by": "program"}}`+"\n"...)
}

// testMuchOutput prints 200 MB, or what this machine gets through in a minute, and
// watches the memory of both ends. before is from when the agent kept no output.
func testMuchOutput(t *testing.T, g *boxtest.Guest, before *agentv1.StatusResponse) {
	const block, most, kept = 64 << 10, 200_000_000 / (64 << 10), 16 * mib
	print := func(blocks int) *boxtest.Outcome {
		return exits(t, g, boxtest.Program{
			Source:   fmt.Sprintf("import os\nb = bytes(range(256)) * 256\nfor _ in range(%d):\n n = 0\n while n < len(b): n += os.write(1, b[n:])\n", blocks),
			MilliCPU: 1500, Timeout: boxtest.Bound, Stdout: kept,
		}, 0)
	}
	trial := print(most / 20)
	took := time.Duration(trial.Record.GetExitedAtNs() - trial.Record.GetStartedAtNs())
	blocks := int(min(most, int64(most/20)*int64(time.Minute)/int64(took)))

	base := g.Status(t).GetAgentRssBytes()
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	heap := m.HeapInuse
	stop := watchMost(t, g)
	o := print(blocks)
	agent := stop()
	runtime.GC() // what is held, not what waits for the collector
	runtime.ReadMemStats(&m)
	t.Logf("%d bytes in %v; agent RSS %d KiB before, at most %d KiB; heap of the host %d KiB before, %d KiB after", o.Record.GetStdout().GetBytes(),
		time.Duration(o.Record.GetExitedAtNs()-o.Record.GetStartedAtNs()), base>>10, agent>>10, heap>>10, m.HeapInuse>>10)
	one := make([]byte, block)
	for i := range one {
		one[i] = byte(i)
	}
	sum := sha256.New()
	for range blocks {
		sum.Write(one)
	}
	said := o.Record.GetStdout()
	if said.GetBytes() != int64(blocks)*block || said.GetKeptBytes() != kept || !bytes.Equal(said.GetSha256(), sum.Sum(nil)) || !said.GetComplete() {
		t.Errorf("%d bytes, %d kept, complete %v; or their SHA-256 differs", said.GetBytes(), said.GetKeptBytes(), said.GetComplete())
	}
	// What is kept is there once in the agent, beside what nobody reads, and once here.
	within(t, "agent RSS", agent, 1, base+2*kept)
	within(t, "agent RSS", agent, 1, before.GetAgentRssBytes()+heapOf(kept+3*2*unreadBytes))
	within(t, "heap of the host", int64(m.HeapInuse), kept, int64(heap)+2*kept)
}

// watchMost polls the agent's resident memory. The function ends it and gives the
// most.
func watchMost(t *testing.T, g *boxtest.Guest) func() int64 {
	ctx, cancel := context.WithTimeout(t.Context(), 2*boxtest.Bound)
	t.Cleanup(cancel)
	most := make(chan int64, 1)
	go func() {
		n, tick := int64(0), time.NewTicker(50*time.Millisecond)
		defer tick.Stop()
		for {
			s, err := g.ReadStatus(ctx)
			if err != nil {
				break
			}
			n = max(n, s.GetAgentRssBytes())
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
		most <- n
	}()
	return func() int64 {
		cancel()
		return <-most
	}
}

// unreadRuns are runs whose client takes nothing of what they print.
type unreadRuns struct {
	streams []*connect.BidiStreamForClient[agentv1.RunRequest, agentv1.RunEvent]
	begun   time.Time
}

// unreadBytes is what each of them prints on each stream: far more than the
// windows of the connection hold, and all of it is kept.
const unreadBytes = 4 << 20

func startUnread(t *testing.T, g *boxtest.Guest, before *agentv1.StatusResponse) *unreadRuns {
	t.Helper()
	u := &unreadRuns{begun: time.Now()}
	for range 3 {
		s := g.Client.Run(t.Context())
		p := boxtest.Program{Stdout: unreadBytes, Stderr: unreadBytes, MilliCPU: 500, Source: fmt.Sprintf(
			"import sys\nfor f in sys.stdout, sys.stderr: f.write('x' * %d)\n", unreadBytes)}
		send := func(r *agentv1.RunRequest) {
			if err := s.Send(r); err != nil {
				t.Fatal(err)
			}
		}
		send(&agentv1.RunRequest{Part: &agentv1.RunRequest_Start{Start: g.RunStart(&p)}})
		for admitted := false; !admitted; {
			e, err := s.Receive()
			if err != nil {
				t.Fatal(err)
			}
			admitted = e.GetAdmitted() != nil
		}
		send(&agentv1.RunRequest{Part: &agentv1.RunRequest_File{File: &agentv1.RunFile{Name: "main.py", Bytes: int64(len(p.Source))}}})
		send(&agentv1.RunRequest{Part: &agentv1.RunRequest_Data{Data: []byte(p.Source)}})
		send(&agentv1.RunRequest{Part: &agentv1.RunRequest_Go{Go: &agentv1.RunGo{}}})
		u.streams = append(u.streams, s)
	}
	// They end and what they printed is in the agent, their boxes go, and their
	// clients have still taken nothing.
	g.Until(t, "output that is kept", func(s *agentv1.StatusResponse) bool {
		return s.GetAgentRssBytes() > before.GetAgentRssBytes()+3*2*unreadBytes-4*mib
	})
	g.Until(t, "the end of boxes whose clients read nothing", func(s *agentv1.StatusResponse) bool {
		if s.GetCgroups() > 0 {
			return false
		}
		if s.GetBoxes() != 3 {
			t.Fatalf("they are given up already: %v", s)
		}
		return true
	})
	s := g.Status(t)
	t.Logf("3 unread: files %d, goroutines %d, agent RSS %d KiB", s.GetOpenFiles(), s.GetGoroutines(), s.GetAgentRssBytes()>>10)
	within(t, "agent RSS", s.GetAgentRssBytes(), 1, before.GetAgentRssBytes()+heapOf(3*2*unreadBytes))
	return u
}

// givenUp waits until the agent has given all of them up.
func (u *unreadRuns) givenUp(t *testing.T, g *boxtest.Guest) {
	t.Helper()
	g.Until(t, "the end of what nobody reads", func(s *agentv1.StatusResponse) bool { return s.GetBoxes() == 0 })
	t.Logf("given up after %v at most", time.Since(u.begun))
	for _, s := range u.streams {
		got := 0
		var err error
		for err == nil {
			var e *agentv1.RunEvent
			if e, err = s.Receive(); e.GetRecord() != nil {
				t.Error("a record came to a client that took nothing before it")
			}
			got += len(e.GetOutput().GetData())
		}
		if err == io.EOF || got >= 2*unreadBytes {
			t.Errorf("%d bytes, then %v", got, err)
		}
	}
}

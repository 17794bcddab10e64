package runapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/recall"
	"github.com/pybox/pybox/host/receipt"
	"github.com/pybox/pybox/host/runs"
	"github.com/pybox/pybox/host/spool"
)

// once accepts requests as runs that go as do says, and counts them.
func once(n *atomic.Int32, do func(context.Context, runs.Sink) error) func(runs.Request) (Run, error) {
	return func(r runs.Request) (Run, error) {
		n.Add(1)
		return program(do)(r)
	}
}

const whole = "a€\n\xf0\x9f\x98\x80\xff\x00"

// printed prints whole, cut in the middle of characters, and says that it has ended.
func printed(_ context.Context, sink runs.Sink) error {
	return errors.Join(
		sink.Output(1, 1, []byte(whole[:2])), sink.Output(2, 2, []byte("oh\n")), sink.Output(3, 1, []byte(whole[2:6])), sink.Output(4, 1, []byte(whole[6:])),
		sink.Event(api.Event{Event: api.EventExited, MS: 5, Ending: &receipt.Ending{How: receipt.HowExited}}))
}

// events asks with events and gives those, the output of both streams and the answer.
func (s *server) events(body string) (events []api.Event, out [2]string, resp *http.Response) {
	s.t.Helper()
	resp, p, b := s.ask("POST", api.PathRuns, body, "Accept", api.MediaEvents)
	if p.Type != "" {
		s.t.Fatalf("%+v", p)
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	for {
		var e api.Event
		err := dec.Decode(&e)
		if errors.Is(err, io.EOF) {
			return events, out, resp
		}
		if err != nil {
			s.t.Fatal(err)
		}
		events = append(events, e)
		if e.Event != api.EventOutput {
			continue
		}
		b, err := e.Output()
		if err != nil {
			s.t.Fatal(err)
		}
		out[map[string]int{"stdout": 0, "stderr": 1}[e.Stream]] += string(b)
	}
}

func names(events []api.Event) string {
	var n []string
	for _, e := range events {
		n = append(n, e.Event)
	}
	return strings.Join(n, " ")
}

func TestAgain(t *testing.T) {
	var n atomic.Int32
	s := serve(t, once(&n, printed))
	const body = `{"id": "mine", "program": {"text": "x"}, "args": ["a"]}`
	resp, _, first := s.ask("POST", api.PathRuns, body)
	if resp.StatusCode != 200 || resp.Header.Get(Replay) != "" {
		t.Fatalf("%s %v %s", resp.Status, resp.Header, first)
	}
	resp, _, second := s.ask("POST", api.PathRuns, body)
	if resp.StatusCode != 200 || resp.Header.Get(Replay) != "true" || !bytes.Equal(first, second) {
		t.Errorf("again: %s %v\n%s\n%s", resp.Status, resp.Header, second, first)
	}
	events, out, resp := s.events(body)
	if names(events) != "accepted output output exited receipt" || resp.Header.Get(Replay) != "true" || out != [2]string{whole, "oh\n"} {
		t.Errorf("as events: %s %q %v", names(events), out, resp.Header)
	}
	if e := events[0]; !e.Replay || e.ID != "mine" {
		t.Errorf("accepted: %+v", e)
	}
	if e := events[len(events)-1]; e.Receipt == nil || e.Receipt.Run.ID != "mine" || e.Receipt.Program.Stdout.Text != nil {
		t.Errorf("the receipt: %+v", e)
	}
	for _, same := range []string{
		`{"program": {"base64": "eA==", "name": "main.py"}, "id": "mine", "args": ["a"], "image": "stdlib", "env": [], "watch": true}`,
		`{"id": "mine", "program": {"text": "\u0078"}, "args": ["\u0061"], "limits": {}, "collect": false, "inputs": []}`,
	} {
		if resp, p, _ := s.ask("POST", api.PathRuns, same); resp.StatusCode != 200 {
			t.Errorf("%s: %+v", same, p)
		}
	}
	for _, other := range []string{
		`{"id": "mine", "program": {"text": "y"}, "args": ["a"]}`, `{"id": "mine", "program": {"text": "x"}}`,
		`{"id": "mine", "program": {"text": "x"}, "args": ["a", ""]}`, `{"id": "mine", "program": {"text": "x"}, "args": ["a"], "image": "data"}`,
		`{"id": "mine", "program": {"text": "x"}, "args": ["a"], "stdin": {"text": ""}}`, `{"id": "mine", "program": {"text": "x", "name": "x.py"}, "args": ["a"]}`,
		`{"id": "mine", "program": {"text": "x"}, "args": ["a"], "collect": true}`, `{"id": "mine", "program": {"text": "x"}, "args": ["a"], "limits": {"pids": 3}}`,
		`{"id": "mine", "program": {"text": "x"}, "args": ["a"], "inputs": [{"name": "d", "folder": true}]}`, `{"id": "mine", "program": {"text": "x"}, "args": ["a"], "env": ["A=b"]}`,
	} {
		if resp, p, _ := s.ask("POST", api.PathRuns, other); resp.StatusCode != 409 || p.Type != api.ProblemExists || resp.Header.Get(Replay) != "" {
			t.Errorf("%s: %s %+v", other, resp.Status, p)
		}
	}
	if n.Load() != 1 {
		t.Errorf("it ran %d times", n.Load())
	}
	await(t, func() bool { return s.users.Load() == 0 && !s.h.Delivering() })
}

// TestAgainMeanwhile: several who ask for the same while it goes on get the same run, and
// can hang up; what was told before they came they are told too.
func TestAgainMeanwhile(t *testing.T) {
	for name, header := range map[string][]string{"receipt": nil, "events": {"Accept", api.MediaEvents}} {
		t.Run(name, func(t *testing.T) {
			var n atomic.Int32
			begun, end := make(chan struct{}), make(chan struct{})
			s := serve(t, once(&n, func(ctx context.Context, sink runs.Sink) error {
				sink.Output(1, 1, []byte("before\n"))
				close(begun)
				select {
				case <-end:
				case <-ctx.Done():
					return context.Cause(ctx)
				}
				return sink.Output(2, 1, []byte("after\n"))
			}))
			const body = `{"id": "mine", "program": {"text": ""}}`
			var wg sync.WaitGroup
			answers := make(chan string, 10)
			ask := func() {
				_, _, b := s.ask("POST", api.PathRuns, body, header...)
				answers <- string(b)
			}
			wg.Go(ask)
			<-begun
			for range 5 {
				wg.Go(ask)
			}
			for range 3 { // these hang up
				ctx, cancel := context.WithCancel(s.ctx())
				_, err := s.client.Run(ctx, api.RunRequest{ID: "mine", Program: text("")}, func(e api.Event) error {
					if e.Event == api.EventOutput {
						cancel()
					}
					return nil
				})
				if !errors.Is(err, context.Canceled) {
					t.Errorf("hung up: %v", err)
				}
			}
			if resp, p, _ := s.ask("POST", api.PathRuns, `{"id": "mine", "program": {"text": "other"}}`); resp.StatusCode != 409 || p.Type != api.ProblemExists {
				t.Errorf("another body: %+v", p)
			}
			close(end)
			wg.Wait()
			close(answers)
			for b := range answers {
				if !strings.Contains(b, `before\n`) || !strings.Contains(b, `after\n`) || !strings.Contains(b, `"how":"exited"`) {
					t.Errorf("an answer: %s", b)
				}
			}
			if n.Load() != 1 {
				t.Errorf("it ran %d times", n.Load())
			}
		})
	}
}

// TestAgainAtOnce: of equal requests at the same moment one is the run, whatever becomes of
// the client that it began with.
func TestAgainAtOnce(t *testing.T) {
	for range 20 {
		var n atomic.Int32
		s := serve(t, once(&n, printed))
		file, err := s.client.StoreFile(s.ctx(), strings.NewReader("print(1)"))
		if err != nil {
			t.Fatal(err)
		}
		body := `{"id": "mine", "program": {"file": "` + file.File + `"}}`
		var wg sync.WaitGroup
		var replays atomic.Int32
		for range 8 {
			wg.Go(func() {
				resp, p, _ := s.ask("POST", api.PathRuns, body)
				if resp.StatusCode != 200 {
					t.Errorf("%+v", p)
				}
				if resp.Header.Get(Replay) == "true" {
					replays.Add(1)
				}
			})
		}
		wg.Wait()
		if n.Load() != 1 || replays.Load() != 7 {
			t.Errorf("it ran %d times, and was told again %d times", n.Load(), replays.Load())
		}
	}
}

// TestAgainWithFiles: a stored file that the first request used up is known by its id, and
// the same content under another one, or inside the request, is the same.
func TestAgainWithFiles(t *testing.T) {
	var n atomic.Int32
	s := serve(t, once(&n, printed))
	store := func(content string) string {
		f, err := s.client.StoreFile(s.ctx(), strings.NewReader(content))
		if err != nil {
			t.Fatal(err)
		}
		return f.File
	}
	body := func(file string) string {
		return `{"id": "mine", "program": {"text": ""}, "inputs": [{"name": "b", "text": "b"}, {"name": "a", "file": "` + file + `"}]}`
	}
	first, second := store("abc"), store("abc")
	for _, b := range []string{
		body(first), body(first), body(second), body(second), body(first),
		`{"id": "mine", "program": {"text": ""}, "inputs": [{"name": "a", "text": "abc"}, {"name": "b", "base64": "Yg=="}]}`,
	} {
		if resp, p, _ := s.ask("POST", api.PathRuns, b); resp.StatusCode != 200 {
			t.Errorf("%s: %+v", b, p)
		}
	}
	for b, typ := range map[string]string{body(store("abd")): api.ProblemExists, body("0123"): api.ProblemFile} {
		if _, p, _ := s.ask("POST", api.PathRuns, b); p.Type != typ {
			t.Errorf("%s: %+v", b, p)
		}
	}
	if n.Load() != 1 {
		t.Errorf("it ran %d times", n.Load())
	}
	if waiting, _ := s.files.Waiting(); waiting != 0 { // whoever asks uses its files up
		t.Errorf("%d stored files are left", waiting)
	}
}

// TestRefusedIsNotRemembered: who asks again for what was refused, or never began, tries
// again.
func TestRefusedIsNotRemembered(t *testing.T) {
	const body = `{"id": "mine", "program": {"text": ""}}`
	refused := runs.ErrBusy
	var n atomic.Int32
	s := serve(t, nil)
	s.begin = func(runs.Request) (Run, error) { n.Add(1); return nil, fmt.Errorf("%w: no room", refused) }
	for range 2 {
		if _, p, _ := s.ask("POST", api.PathRuns, body); p.Type != api.ProblemBusy {
			t.Errorf("%+v", p)
		}
	}
	s.begin = once(&n, func(context.Context, runs.Sink) error { return fmt.Errorf("the run was not begun: %w", refused) })
	if _, p, _ := s.ask("POST", api.PathRuns, body); p.Type != api.ProblemBusy {
		t.Errorf("%+v", p)
	}
	s.begin = once(&n, printed)
	if resp, p, _ := s.ask("POST", api.PathRuns, body); resp.StatusCode != 200 || resp.Header.Get(Replay) != "" || n.Load() != 4 {
		t.Errorf("%+v after %d", p, n.Load())
	}
	if _, p, _ := s.ask("POST", api.PathRuns, `{"id": "NO", "program": {"text": ""}}`); p.Type != api.ProblemBadRequest {
		t.Errorf("a bad id: %+v", p)
	}
}

// TestAgainAfterHangUp: a client that lost its connection gets the whole, with files that
// are there.
func TestAgainAfterHangUp(t *testing.T) {
	ids := make(chan string, 1)
	s := serve(t, nil)
	end := make(chan struct{})
	s.begin = s.leaves(ids, func(ctx context.Context, sink runs.Sink) error {
		<-end
		return printed(ctx, sink)
	})
	ctx, cancel := context.WithCancel(s.ctx())
	_, err := s.client.Run(ctx, api.RunRequest{ID: "mine", Program: text("")}, func(api.Event) error { cancel(); return nil })
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	close(end)
	id := <-ids
	resp, _, b := s.ask("POST", api.PathRuns, `{"id": "mine", "program": {"text": ""}}`)
	if resp.Header.Get(Replay) != "true" || !bytes.Contains(b, []byte(`"file":"`+id+`"`)) || !bytes.Contains(b, []byte(`"oh\n"`)) {
		t.Errorf("%v %s", resp.Header, b)
	}
	f, err := s.client.File(s.ctx(), id)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	// It has been told the ids: another run that needs room does not take it.
	s.h.records.Relieve(spool.MaxLeft, spool.MaxLeftBytes)
	if f, err = s.client.File(s.ctx(), id); err != nil {
		t.Fatal(err)
	}
	f.Close()
}

// TestSlowReplay: a client that does not read a replay has no longer for it from the end of
// the run than its first client had, whichever kind of answer it wants.
func TestSlowReplay(t *testing.T) {
	for _, accept := range []string{"application/json", api.MediaEvents} {
		t.Run(accept, func(t *testing.T) {
			var n atomic.Int32
			begun, end := make(chan struct{}), make(chan struct{})
			s := serve(t, once(&n, func(_ context.Context, sink runs.Sink) error {
				close(begun)
				<-end
				for range 64 {
					if err := sink.Output(1, 1, []byte(strings.Repeat("x", 64<<10))); err != nil {
						return err
					}
				}
				return nil
			}))
			s.h.times.deliver = 300 * time.Millisecond
			const body = `{"id": "mine", "program": {"text": "x"}}`
			ask := func() net.Conn {
				c, err := (&net.Dialer{Timeout: bound}).DialContext(t.Context(), "unix", s.socket)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { c.Close() })
				fmt.Fprintf(c, "POST /v1/runs HTTP/1.1\r\nHost: x\r\nAccept: %s\r\nContent-Length: %d\r\n\r\n%s", accept, len(body), body)
				return c
			}
			var first sync.WaitGroup
			c := ask()
			first.Go(func() { io.Copy(io.Discard, c) }) // it reads, but may be slow for that time
			<-begun
			ask() // while it goes on
			await(t, func() bool { s.h.mu.Lock(); defer s.h.mu.Unlock(); return len(s.h.writers) == 2 })
			close(end)
			await(t, func() bool { return !s.h.Delivering() })
			c.Close()
			first.Wait()
			ask() // once it has ended
			await(t, func() bool { return s.h.Delivering() })
			await(t, func() bool { return !s.h.Delivering() })
		})
	}
}

// TestReplayKeepsNoRequest: while a replay waits for the end of its run, the memory of its
// request is others'.
func TestReplayKeepsNoRequest(t *testing.T) {
	var n atomic.Int32
	begun, end := make(chan struct{}), make(chan struct{})
	s := serve(t, once(&n, func(context.Context, runs.Sink) error {
		close(begun)
		<-end
		return nil
	}))
	body := `{"id": "mine", "program": {"text": "` + strings.Repeat("#", smallBody) + `"}}`
	var all sync.WaitGroup
	ask := func() {
		if resp, p, _ := s.ask("POST", api.PathRuns, body); resp.StatusCode != 200 {
			t.Errorf("%+v", p)
		}
	}
	all.Go(ask)
	<-begun
	for range 3 {
		all.Go(ask)
	}
	await(t, func() bool { s.h.mu.Lock(); defer s.h.mu.Unlock(); return len(s.h.writers) == 4 })
	rest := requestMemory - int64(len(body)) // what the first has is its own
	if !s.h.requests.TryAcquire(rest) {
		t.Error("those who wait keep memory")
	} else {
		s.h.requests.Release(rest)
	}
	close(end)
	all.Wait()
}

// FuzzDigest: requests that differ in nothing but how they are written have one digest, and
// those whose contents differ have two.
func FuzzDigest(f *testing.F) {
	f.Add(`{"id": "a", "program": {"text": "x"}, "inputs": [{"name": "a", "text": "b"}, {"name": "b", "folder": true}]}`, `{"program": {"base64": "eA=="}}`)
	f.Add(`{"program": {"text": "x"}, "inputs": [{"name": "a", "text": "1"}, {"name": "b", "text": "2"}]}`, `{"program": {"text": "x"}, "inputs": [{"name": "b", "text": "2"}, {"name": "a", "text": "1"}]}`)
	f.Add(`{"program": {"text": "x"}, "inputs": [{"name": "a", "text": "1"}, {"name": "b", "text": "2"}]}`, `{"program": {"text": "x"}, "inputs": [{"name": "b", "text": "1"}, {"name": "a", "text": "2"}]}`)
	f.Add(`{"program": {"text": "x"}, "stdin": {"text": ""}, "watch": true}`, `{"program": {"text": "x"}}`)
	f.Add(`{"program": {"text": "x"}, "limits": {"cpus": 1e0, "timeout_ms": 1.0}}`, `{"program": {"text": "x", "name": "main.py"}, "limits": {"cpus": 1, "timeout_ms": 1}}`)
	files, err := spool.Open(filepath.Join(f.TempDir(), "files"), time.Now)
	if err != nil {
		f.Fatal(err)
	}
	of := func(body string) (api.RunRequest, map[string]string, recall.Digest, bool) {
		req, p := decode([]byte(body))
		if p != nil {
			return req, nil, recall.Digest{}, false
		}
		c := newContents(files, true)
		defer c.close()
		if _, err := c.request(req); err != nil {
			return req, nil, recall.Digest{}, false
		}
		return req, c.sums, digest(req, c.sums), true
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		reqA, sumsA, digestA, ok := of(a)
		if !ok {
			return
		}
		written, err := json.Marshal(reqA)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, again, ok := of(string(written)); !ok || again != digestA {
			t.Errorf("%q is another when it is written as %q", a, written)
		}
		reqB, sumsB, digestB, ok := of(b)
		if ok && digestA == digestB && !slices.Equal(contentsOf(reqA, sumsA), contentsOf(reqB, sumsB)) {
			t.Errorf("%q and %q are the same", a, b)
		}
	})
}

// contentsOf are the contents of a request by what they are for, inputs by their names.
func contentsOf(req api.RunRequest, sums map[string]string) []string {
	all := []string{"program " + sums["program"], "stdin " + sums["stdin"]}
	inputs := slices.Clone(req.Inputs)
	for n := range inputs {
		inputs[n].File = sums[inputName(n)]
	}
	slices.SortStableFunc(inputs, func(a, b api.InputFile) int { return strings.Compare(a.Name, b.Name) })
	for _, in := range inputs {
		all = append(all, fmt.Sprintf("input %q %s %v %v", in.Name, in.File, in.Folder, in.Executable))
	}
	return all
}

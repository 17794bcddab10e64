//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/receipt"
)

const (
	// queueLength is how many requests there are at once, in 'make soak' longQueue.
	queueLength, longQueue = 40, 100
	// queuePatience bounds the wait for the next of them to end.
	queuePatience = 2 * time.Minute
	// queuePlaces is how many of them fit at a time: 2 CPUs, and half of one each.
	queuePlaces = 4
	// maxDaemonMemory and maxAgentMemory are what they may have meanwhile, in bytes.
	maxDaemonMemory, maxAgentMemory = 128 << 20, 64 << 20
)

// TestE2EQueue: many requests at once are served in the order in which they came,
// with bounded memory, whatever some of their clients do. Among them is one that needs
// all of the VM, which nobody overtakes, and which is in nobody's way for longer than it
// takes. The status is answered all the time.
func TestE2EQueue(t *testing.T) {
	p := newPerson(t, "")
	p.config("[vm]\nidle_stop = \"10m\"\nqueue_wait = \"15m\"\n[ceilings]\ntimeout = \"10m\"\n[ready]\nstdlib = 1\n")
	p.must("vm", "start")
	length := queueLength
	if os.Getenv("PYBOX_SOAK") != "" {
		length = longQueue
	}
	q := queue{t: t, p: p, client: p.client(), socket: p.status().Daemon.Socket, ended: make(chan served, length)}

	letGo := q.hold()
	q.neverReads(`{"program": {"text": "while True: print('x' * 10000)"}, "limits": {"timeout_ms": 3000}}`, api.MediaEvents)
	q.neverReads(`{"program": {"text": "print('x' * 900000)"}}`, "")
	q.uploadsSlowly()
	for n := range length {
		q.ask(n)
	}
	watched := q.watch()
	if s := p.status(); s.Guest.Waiting != uint32(q.waiting) || s.Runs.Queued != q.waiting {
		t.Errorf("%d of them wait in the guest, %+v in the daemon; want %d", s.Guest.Waiting, s.Runs, q.waiting)
	}
	began := time.Now()
	letGo()
	var all []served
	for range length {
		all = append(all, q.next())
	}
	took := time.Since(began)
	watched()
	inOrder(t, all)
	t.Logf("%d runs in %.1f s; at most: daemon %d MiB, agent %d MiB, a status in %v (of %d)",
		length, took.Seconds(), q.daemon>>20, q.agent>>20, q.longest.Round(time.Millisecond), q.looks)
	if q.daemon == 0 || q.daemon > maxDaemonMemory || q.agent == 0 || q.agent > maxAgentMemory {
		t.Errorf("memory: daemon %d bytes, agent %d; want at most %d and %d", q.daemon, q.agent, maxDaemonMemory, maxAgentMemory)
	}
	q.hangUp()
	p.expectIdle()
}

// served is the end of one of the hundred.
type served struct {
	n   int
	rec *receipt.Receipt
	err error
}

// admittedAt is about when it was admitted.
func (s served) admittedAt() time.Time {
	return s.rec.Run.StartedAt.Add(time.Duration(*s.rec.Run.QueuedMS * float64(time.Millisecond)))
}

// inOrder wants each to have been admitted in its turn, but for those that were at the
// same time.
func inOrder(t *testing.T, all []served) {
	t.Helper()
	for _, s := range all {
		if s.err != nil || s.rec == nil || s.rec.Run.QueuedMS == nil || s.rec.ExitCode() != 0 {
			t.Fatalf("request %d: %v, %+v", s.n, s.err, s.rec)
		}
		if want := fmt.Sprintf("number %d\n", s.n); s.rec.Program.Stdout.Bytes == nil || *s.rec.Program.Stdout.Bytes != int64(len(want)) {
			t.Errorf("request %d: it printed %+v, want %q", s.n, s.rec.Program.Stdout, want)
		}
	}
	slices.SortFunc(all, func(a, b served) int { return a.admittedAt().Compare(b.admittedAt()) })
	for place, s := range all {
		if off := place - s.n; off > queuePlaces || off < -queuePlaces {
			t.Errorf("request %d was admitted as number %d", s.n, place)
		}
	}
}

// queue is what stands before the guest.
type queue struct {
	t      *testing.T
	p      *person
	client *api.Client
	socket string
	ended  chan served
	// waiting is how many wait for room now, held by all who hold a connection.
	waiting int
	held    []net.Conn

	// The highest readings of the daemon's and the agent's memory, in bytes, and the
	// longest wait for a status; set when watch has ended.
	daemon, agent int64
	longest       time.Duration
	looks         int
}

// whole is a need for all CPUs of the VM.
func whole(r api.RunRequest) api.RunRequest {
	r.Limits.CPUs = new(2.0)
	return r
}

// hold has a run take the whole VM until the function that it gives is called.
func (q *queue) hold() (letGo func()) {
	ctx, cancel := context.WithCancel(q.t.Context())
	r := whole(request(forever))
	r.Limits.TimeoutMS = new(600_000.0)
	runs, over := make(chan struct{}), make(chan struct{})
	first := sync.OnceFunc(func() { close(runs) })
	go func() {
		defer close(over)
		_, err := q.client.Run(ctx, r, func(e api.Event) error {
			if e.Event == api.EventStarted {
				first()
			}
			return nil
		})
		if !errors.Is(err, context.Canceled) {
			q.t.Errorf("what holds the VM ended: %v", err)
		}
	}()
	q.t.Cleanup(cancel)
	select {
	case <-runs:
	case <-time.After(time.Minute):
		q.t.Fatal("what is to hold the VM does not run")
	}
	return func() { cancel(); <-over }
}

// stands waits until one more stands in the guest's queue.
func (q *queue) stands() {
	q.t.Helper()
	q.waiting++
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); ; <-tick.C {
		s, err := q.client.Status(q.t.Context())
		if err != nil {
			q.t.Fatal(err)
		}
		if s.Guest.Answering && s.Guest.Waiting == uint32(q.waiting) {
			return
		}
		if time.Now().After(end) {
			q.t.Fatalf("%d stand in the queue, want %d", s.Guest.Waiting, q.waiting)
		}
	}
}

// ask asks for the nth run: every fourth wants its receipt in one piece, the eleventh all
// of the VM.
func (q *queue) ask(n int) {
	r := request(fmt.Sprintf("print('number', %d)", n))
	r.Limits.TimeoutMS = new(60_000.0)
	r.Limits.OutputBytes = new(int64(64 << 10))
	if n == 10 {
		r = whole(r)
	}
	go func() {
		s := served{n: n}
		if n%4 == 3 {
			s.rec, s.err = q.inOnePiece(r)
		} else {
			var out *api.Outcome
			if out, s.err = q.client.Run(q.t.Context(), r, func(api.Event) error { return nil }); s.err == nil {
				s.rec = out.Receipt
			}
		}
		q.ended <- s
	}()
	q.stands()
}

// next waits for the next run to end.
func (q *queue) next() served {
	q.t.Helper()
	select {
	case s := <-q.ended:
		return s
	case <-time.After(queuePatience):
		q.t.Fatalf("no run ended within %v", queuePatience)
		return served{}
	}
}

// inOnePiece asks for a run as curl does.
func (q *queue) inOnePiece(r api.RunRequest) (*receipt.Receipt, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	c, err := q.dial()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	req, err := http.NewRequestWithContext(q.t.Context(), http.MethodPost, "http://pybox"+api.PathRuns, strings.NewReader(string(body)))
	if err != nil {
		return nil, err
	}
	tr := &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) { return c, nil }}
	resp, err := tr.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s, %v: %.500s", resp.Status, err, b)
	}
	rec := new(receipt.Receipt)
	return rec, json.Unmarshal(b, rec)
}

func (q *queue) dial() (net.Conn, error) {
	return new(net.Dialer).DialContext(q.t.Context(), "unix", q.socket)
}

// neverReads asks for a run and never reads a byte of the answer.
func (q *queue) neverReads(body, accept string) {
	q.t.Helper()
	q.send(fmt.Sprintf("POST %s HTTP/1.1\r\nHost: pybox\r\nAccept: %s\r\nContent-Length: %d\r\n\r\n%s", api.PathRuns, accept, len(body), body))
	q.stands()
}

// uploadsSlowly begins to ask for a run, and to store a file, and sends no more.
func (q *queue) uploadsSlowly() {
	q.t.Helper()
	for _, path := range []string{api.PathRuns, api.PathFiles} {
		q.send(fmt.Sprintf("POST %s HTTP/1.1\r\nHost: pybox\r\nContent-Length: 60000\r\n\r\n{", path))
	}
}

// send sends something on a connection that is kept.
func (q *queue) send(s string) {
	q.t.Helper()
	c, err := q.dial()
	if err != nil {
		q.t.Fatal(err)
	}
	q.t.Cleanup(func() { c.Close() })
	q.held = append(q.held, c)
	if _, err := io.WriteString(c, s); err != nil {
		q.t.Fatal(err)
	}
}

// hangUp closes what send has opened.
func (q *queue) hangUp() {
	for _, c := range q.held {
		c.Close()
	}
}

// watch looks at the status until the function that it gives is called.
func (q *queue) watch() (stop func()) {
	ctx, cancel := context.WithCancel(q.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			began := time.Now()
			s, err := q.client.Status(q.t.Context())
			if err != nil {
				q.t.Errorf("a status: %v", err)
				return
			}
			q.longest, q.looks = max(q.longest, time.Since(began)), q.looks+1
			q.daemon, q.agent = max(q.daemon, s.Daemon.RSSBytes), max(q.agent, s.Guest.AgentRSSBytes)
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
	}()
	return func() {
		cancel()
		<-done
		if q.longest > 10*time.Second { // ten times what is promised
			q.t.Errorf("a status took %v", q.longest)
		}
	}
}

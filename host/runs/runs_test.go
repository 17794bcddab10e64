package runs

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	agentapi "github.com/pybox/pybox/agent/api"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/guest/bundle"
	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/config"
	"github.com/pybox/pybox/host/guestrun/guestruntest"
	"github.com/pybox/pybox/host/policy"
	"github.com/pybox/pybox/host/receipt"
	"github.com/pybox/pybox/host/receipt/receipttest"
)

// Most tests run in bubbles of package synctest, with the guest of package
// guestruntest: waits take no time and are exact.

const source = "print('hello')\n"

type script = guestruntest.Script

// sumOf is a digest as receipts have it.
func sumOf(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

// keeper stores receipts as JSON, and holds each to what docs promises.
type keeper struct {
	t testing.TB
	// fail is what Put fails with; had is kept without a Put; light holds the
	// receipts to nothing, where there are many.
	fail  error
	had   string
	light bool

	mu   sync.Mutex
	kept map[string][]*receipt.Receipt
}

func (k *keeper) Put(r *receipt.Receipt) error {
	if !k.light {
		receipttest.Check(k.t, r)
	}
	b, err := json.Marshal(r)
	if err != nil {
		k.t.Error(err)
	}
	c := new(receipt.Receipt)
	if err := json.Unmarshal(b, c); err != nil {
		k.t.Error(err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.fail != nil {
		return k.fail
	}
	if k.kept == nil {
		k.kept = map[string][]*receipt.Receipt{}
	}
	k.kept[r.Run.ID] = append(k.kept[r.Run.ID], c)
	return nil
}

func (k *keeper) failWith(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fail = err
}

func (k *keeper) Has(id string) bool { return id == k.had || len(k.versions(id)) > 0 }

// versions are the receipts of a run, oldest first.
func (k *keeper) versions(id string) []*receipt.Receipt {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.kept[id]
}

var testVM = receipt.VM{
	Driver: "fake", VMM: "fake 1", Acceleration: "none", GuestArch: "amd64", BootID: guestruntest.BootID, KernelKind: "own",
	KernelRelease: "6.12.0", KernelSHA256: strings.Repeat("1", 64), RootSHA256: strings.Repeat("2", 64), Agent: "test",
}

// bench is a service with what it is made of.
type bench struct {
	*Service
	guest *guestruntest.Guest
	keep  *keeper
}

// newBench makes a service whose guest plays play.
func newBench(t testing.TB, play func(*script), change ...func(*Options)) *bench {
	b := &bench{guest: guestruntest.New(t, play), keep: &keeper{t: t}}
	o := Options{
		Guest: b.guest, Keep: b.keep, Policy: policy.New(config.Default()), QueueWait: 20 * time.Second,
		Versions: map[string]string{"crun": "1.21"},
		VM: func() receipt.VM {
			v := testVM
			v.Clock = &receipt.Clock{OffsetMS: 1, BoundMS: 0.4}
			return v
		},
		Images: []bundle.Image{
			{Name: "stdlib", Serial: "img-0123456789abcdef", File: bundle.File{SHA256: strings.Repeat("a", 64)}},
			{Name: "data", Serial: "img-fedcba9876543210", File: bundle.File{SHA256: strings.Repeat("b", 64)}},
		},
	}
	for _, f := range change {
		f(&o)
	}
	b.Service = New(o)
	return b
}

// begin accepts a run of the id.
func (b *bench) begin(t *testing.T, id string, change ...func(*Request)) *Run {
	t.Helper()
	r := Request{ID: id, Program: text("", source)}
	for _, f := range change {
		f(&r)
	}
	run, err := b.Begin(r)
	if err != nil {
		t.Fatal(err)
	}
	return run
}

// do carries a run out that must give a receipt, which is stored.
func (b *bench) do(t *testing.T, run *Run, sink Sink) *receipt.Receipt {
	t.Helper()
	rec, notKept, err := run.Do(t.Context(), sink)
	if err != nil || notKept != nil {
		t.Fatalf("%v, not kept: %v", err, notKept)
	}
	kept := b.keep.versions(run.ID())
	if len(kept) == 0 {
		t.Fatal("the receipt is not kept")
	}
	have, _ := json.Marshal(rec)
	if want, _ := json.Marshal(kept[0]); !bytes.Equal(have, want) {
		t.Errorf("kept is\n%s\nwant\n%s", want, have)
	}
	return rec
}

func text(name, content string) File {
	return File{Name: name, Bytes: int64(len(content)), Open: func() (io.ReadCloser, error) {
		return io.NopCloser(strings.NewReader(content)), nil
	}}
}

// told collects what a sink is told.
type told struct {
	events []api.Event
	out    [3]strings.Builder
	kinds  []string // joined pieces of output count once
	last   float64
	t      *testing.T
}

func (c *told) sink() Sink {
	return Sink{
		Event: func(e api.Event) error {
			c.at(e.MS)
			c.events = append(c.events, e)
			c.kinds = append(c.kinds, e.Event)
			return nil
		},
		Output: func(ms float64, stream int, b []byte) error {
			c.at(ms)
			c.out[stream].Write(b)
			if n := len(c.kinds); c.kinds[n-1] != api.EventOutput {
				c.kinds = append(c.kinds, api.EventOutput)
			}
			return nil
		},
	}
}

// at wants the times of events in order.
func (c *told) at(ms float64) {
	if ms < c.last {
		c.t.Errorf("an event at %v ms after one at %v ms", ms, c.last)
	}
	c.last = ms
}

// event is the only one of its kind.
func (c *told) event(kind string) api.Event {
	var found []api.Event
	for _, e := range c.events {
		if e.Event == kind {
			found = append(found, e)
		}
	}
	if len(found) != 1 {
		c.t.Fatalf("%d events %q, want 1", len(found), kind)
	}
	return found[0]
}

// nobody is a sink that takes everything.
func nobody() Sink {
	return Sink{Event: func(api.Event) error { return nil }, Output: func(float64, int, []byte) error { return nil }}
}

// wantEnding checks how a run ended, and that the evidence has all words.
func wantEnding(t *testing.T, r *receipt.Receipt, how, by string, words ...string) {
	t.Helper()
	said := strings.Join(r.Ending.Evidence, "\n")
	if r.Ending.How != how || r.Ending.By != by {
		t.Errorf("the run ended %s by %s (%q), want %s by %s", r.Ending.How, r.Ending.By, said, how, by)
	}
	for _, w := range words {
		if !strings.Contains(said, w) {
			t.Errorf("the evidence is %q, want %q in it", said, w)
		}
	}
}

// lacks tells whether a fact is listed as unknown.
func lacks(r *receipt.Receipt, fact string) bool {
	for _, u := range r.Unknown {
		if strings.Contains(u.Fact, fact) {
			return true
		}
	}
	return false
}

func known(n int64) *agentv1.Number { return &agentv1.Number{Known: true, Value: n} }

// full makes a record that says everything.
func full(r *agentv1.RunRecord) *agentv1.RunRecord {
	r.SettingsChecked = true
	r.Checks = []*agentv1.Check{
		{Setting: "memory.max", Expected: "1", Found: "1", Source: "cgroup", Ok: true},
		{Setting: "memory.max", Expected: "1", Found: "1", Source: "cgroup", Ok: true, Again: true},
	}
	at := func(name string, before time.Duration) *agentv1.Stage {
		return &agentv1.Stage{Name: name, EndedAtNs: guestruntest.GoAt - int64(before)}
	}
	r.RequestedAtNs = guestruntest.GoAt - int64(100*time.Millisecond)
	r.Stages = []*agentv1.Stage{at("admitted", 99*time.Millisecond), at("created", 40*time.Millisecond), at("go", 0)}
	r.Counters = &agentv1.Counters{
		Final: true, Source: agentapi.CountersCgroup,
		MemoryPeakBytes: known(11), PidsPeak: known(2), CpuUsec: known(3), ThrottledPeriods: known(4), ThrottledUsec: known(5),
		Oom: known(6), OomKill: known(7), OomGroupKill: known(8), PidsMaxHits: known(9), Periods: known(10),
	}
	r.Samples = []*agentv1.Sample{{AfterNs: int64(100 * time.Millisecond), MemoryBytes: 1, Pids: 2, CpuUsec: 3}}
	r.ExitedAtNs = guestruntest.GoAt + int64(1500*time.Millisecond)
	r.QueuedNs = int64(time.Millisecond)
	r.RunnerSha256, r.SeccompSha256 = strings.Repeat("c", 64), strings.Repeat("d", 64)
	return r
}

// finish ends a run with a full record.
func finish(s *script, e *agentv1.Ending, x *agentv1.Exit, change ...func(*agentv1.RunRecord)) {
	r := full(s.Record(e, x, true))
	for _, f := range change {
		f(r)
	}
	s.Finish(r)
}

var errGone = errors.New("broken pipe")

// closeAll closes the service, and waits for all that it still does.
func (b *bench) closeAll(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := b.Close(ctx, errors.New("the test is over")); err != nil {
		t.Error(err)
	}
}

package runs

import (
	"path/filepath"
	"testing"

	"github.com/pybox/pybox/host/guestrun/guestruntest"
	"github.com/pybox/pybox/host/receipts"
)

// emptyRun gives what carries out a run that prints a line, each time it is called, with a
// guest that is quick and receipts that are written to the disk.
func emptyRun(t testing.TB) func() {
	store, err := receipts.Open(filepath.Join(t.TempDir(), "receipts"), 100)
	if err != nil {
		t.Fatal(err)
	}
	b := newBench(t, func(s *script) {
		s.Begin()
		s.Print(1, "hello\n")
		e, x := guestruntest.ExitWith(0)
		s.Exited(e, x)
		finish(s, e, x)
	}, func(o *Options) { o.Keep = store })
	return func() {
		run, err := b.Begin(Request{Program: text("", source)})
		if err != nil {
			t.Fatal(err)
		}
		if rec, notKept, err := run.Do(t.Context(), nobody()); err != nil || notKept != nil || rec.ExitCode() != 0 {
			t.Fatalf("%v, not kept: %v, %+v", err, notKept, rec)
		}
	}
}

// maxAllocs is over twice what a run allocates on the host, the guest's side of the
// connection included: a mistake in what each event costs shows.
const maxAllocs = 2000

func TestAllocsOfARun(t *testing.T) {
	if n := testing.AllocsPerRun(30, emptyRun(t)); n > maxAllocs {
		t.Errorf("%.0f allocations, want at most %d", n, maxAllocs)
	}
}

func BenchmarkRun(b *testing.B) {
	run := emptyRun(b)
	b.ReportAllocs()
	for b.Loop() {
		run()
	}
}

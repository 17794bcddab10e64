//go:build linux && pyboxtest

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pybox/pybox/host/bench/report"
	"github.com/pybox/pybox/host/receipt"
)

const (
	groupThroughput = "Many runs at once"
	// throughputRuns are measured with each number of clients, in batches of
	// batchRuns, each of which is a sample, after those that a batch takes.
	throughputRuns, batchRuns = 40, 8
	// idleRuns of bare Python are measured before each load, and after the last.
	idleRuns = 6
)

// clientCounts are how many clients ask at a time, each for a run as soon as it has the
// receipt of the last.
var clientCounts = []int{1, 4, sustained}

// costClients is the number of clients with which the CPU cost of a run is told apart.
const costClients = 4

// benchThroughput measures how many runs there are in a second while boxes are made
// ahead as they are used, on the guest's two processors.
func benchThroughput(ctx context.Context, o *options, r *report.Report) error {
	s, leave, err := newService(ctx, o, r, o.testBundle, "")
	if err != nil {
		return err
	}
	defer leave()
	var bare []float64
	alone := func() error {
		if err := s.untilReady(ctx, "stdlib"); err != nil {
			return err
		}
		for range idleRuns {
			took, err := bareTime(ctx, s.guest, "")
			if err != nil {
				return err
			}
			bare = append(bare, took)
		}
		return nil
	}
	if _, _, err := s.post(ctx, "stdlib", empty); err != nil { // the image is mounted then
		return err
	}
	if err := alone(); err != nil {
		return err
	}
	var all []*load
	for _, n := range clientCounts {
		l, err := s.load(ctx, n, throughputRuns)
		if err != nil {
			return fmt.Errorf("%d clients: %w", n, err)
		}
		all = append(all, l)
		if err := alone(); err != nil {
			return err
		}
	}
	base := report.Figure{ID: "throughput.bare", Group: groupThroughput, Name: bareName + ", idle", Unit: "ms"}.Of(bare)
	for _, l := range all {
		l.report(r, base)
	}
	r.Add(base)
	for _, l := range all {
		if l.clients == costClients {
			l.cost(r, base)
		}
	}
	return nil
}

// sustained is how many clients always have something waiting for room.
const sustained = 16

// load is what came of many runs.
type load struct {
	clients, ready int
	// ends are when runs were done, in order, since the measuring began.
	ends []time.Duration
	// before and after are the CPU times at both ends of the measuring.
	before, after cpuTimes
}

// load has so many clients ask for runs.
func (s *service) load(ctx context.Context, clients, runs int) (*load, error) {
	ctx, cancel := context.WithTimeout(ctx, 4*patience)
	defer cancel()
	// As many boxes are ready when the measuring begins as such a load leaves.
	if _, err := s.many(ctx, clients, max(batchRuns, clients)); err != nil {
		return nil, err
	}
	before, err := s.cpu(ctx)
	if err != nil {
		return nil, err
	}
	l, err := s.many(ctx, clients, runs)
	if err != nil {
		return nil, err
	}
	l.before = before
	l.after, err = s.cpu(ctx)
	return l, err
}

// many has clients ask until so many runs are done.
func (s *service) many(ctx context.Context, clients, runs int) (*load, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	l := &load{clients: clients}
	began := time.Now()
	var mu sync.Mutex
	asked := 0
	more := func() bool {
		mu.Lock()
		defer mu.Unlock()
		asked++
		return asked <= runs
	}
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			for more() {
				_, rec, err := s.post(ctx, "stdlib", empty)
				if err == nil && rec.ExitCode() != 0 {
					err = fmt.Errorf("the run %s did not end as it should: %+v", rec.Run.ID, rec.Ending)
				}
				if err != nil {
					cancel(err)
					return
				}
				mu.Lock()
				l.add(time.Since(began), rec)
				mu.Unlock()
			}
		})
	}
	all.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	slices.Sort(l.ends)
	return l, nil
}

func (l *load) add(end time.Duration, rec *receipt.Receipt) {
	l.ends = append(l.ends, end)
	if k := rec.Observed.Engine.Box.Kind; k != nil && *k == boxReady {
		l.ready++
	}
}

// rates are the runs a second, one of each batch.
func (l *load) rates() []float64 {
	size := min(batchRuns, len(l.ends)/2)
	var rates []float64
	from := time.Duration(0)
	for batch := range slices.Chunk(l.ends, size) {
		if len(batch) == size {
			to := batch[size-1]
			rates = append(rates, float64(size)/(to-from).Seconds())
			from = to
		}
	}
	return rates
}

func (l *load) report(r *report.Report, base report.Figure) {
	rates := l.rates()
	id, name := fmt.Sprintf("throughput.%d", l.clients), fmt.Sprintf("%d clients", l.clients)
	if l.clients == 1 {
		name = "1 client"
	}
	each := make([]float64, len(rates))
	for i, v := range rates {
		each[i] = v * base.Median / 1000
	}
	note := fmt.Sprintf("%d of %d in ready boxes; in batches of %d", l.ready, len(l.ends), min(batchRuns, len(l.ends)/2))
	bare := report.Figure{ID: id + ".bare", Group: groupThroughput, PartOf: id, Name: "runs in the time of a bare Python", Unit: "x", MoreIsBetter: true}.Of(each).Counting(base)
	switch l.clients {
	case 1:
		bare.Note = "one client that waits for each receipt cannot use both processors"
	case sustained:
		bare = bare.AtLeast(0.4)
		bare.Note = "somebody always waits for room: sustained throughput"
	default:
		bare.Note = "as many as have room at once: each is between two runs for a while"
	}
	r.Add(report.Figure{ID: id, Group: groupThroughput, Name: name, Unit: "runs/s", MoreIsBetter: true, Note: note}.Of(rates), bare)
}

// cpuTimes are CPU times since the start of each process, in milliseconds, by a name for
// people.
type cpuTimes map[string]float64

// cpuOrder are the names, in the page's order: the guest's, then the host's.
var cpuOrder = []string{"agent", "shim", "crun", "boxes", "other", "daemon", "vmm", "client"}

// cpuNames are for people.
var cpuNames = map[string]string{
	"agent": "guest: agent, with the containerd in it", "shim": "guest: containerd's shim", "crun": "guest: crun, and what else a box is made with",
	"boxes": "guest: what is in boxes, Python too", "other": "guest: the rest, its kernel too",
	"daemon": "host: daemon", "vmm": "host: VMM, the whole guest in it", "client": "host: client",
}

// cpu reads the CPU times of all that takes part in a run.
func (s *service) cpu(ctx context.Context) (cpuTimes, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	text, err := s.guest.Client.TestOutput(ctx, "cpu", "")
	if err != nil {
		return nil, err
	}
	t, err := guestTimes([]byte(text))
	if err != nil {
		return nil, err
	}
	for name, pid := range map[string]int{"daemon": s.daemon, "vmm": s.vmm} {
		if t[name], err = processCPU(pid); err != nil {
			return nil, err
		}
	}
	var own unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &own); err != nil {
		return nil, err
	}
	t["client"] = float64(own.Utime.Nano()+own.Stime.Nano()) / 1e6
	return t, nil
}

// guestTimes reads what the guest's test build answers: microseconds since it started.
func guestTimes(b []byte) (cpuTimes, error) {
	var used map[string]float64
	if err := json.Unmarshal(b, &used); err != nil {
		return nil, fmt.Errorf("the CPU times of the guest are %.200q: %w", b, err)
	}
	t := cpuTimes{"other": used["guest_usec"] / 1000}
	for _, name := range []string{"agent", "shim", "crun", "boxes"} {
		v, ok := used[name+"_usec"]
		if !ok {
			return nil, fmt.Errorf("the CPU times of the guest are %.200q: none of %s", b, name)
		}
		t[name] = v / 1000
		t["other"] -= t[name]
	}
	return t, nil
}

// processCPU is the CPU time of a process of this host (proc_pid_stat(5)), to 10 ms.
func processCPU(pid int) (float64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0, fmt.Errorf("process %d: %q", pid, b)
	}
	sum := 0.0
	for _, f := range fields[11:13] { // utime and stime
		ticks, err := strconv.ParseFloat(f, 64)
		if err != nil {
			return 0, err
		}
		sum += ticks * 10
	}
	return sum, nil
}

// cost tells the CPU time of a run apart by process.
func (l *load) cost(r *report.Report, base report.Figure) {
	for _, name := range cpuOrder {
		each := (l.after[name] - l.before[name]) / float64(len(l.ends))
		if each <= 0 { // less than what the clock's ticks tell
			continue
		}
		r.Add(report.Figure{
			ID: "cpu." + name, Group: groupThroughput, Name: "CPU time of a run, " + cpuNames[name], Unit: "ms",
			Note: fmt.Sprintf("with %d clients", l.clients),
		}.Once(each).Against(base))
	}
}

package report

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

// aged is the example after alter: each sample of a figure is so many times what it was.
func aged(factors map[string]float64, n int, width float64) *Report {
	r := example()
	for i, f := range r.Figures {
		factor := factors[f.ID]
		if factor == 0 {
			continue
		}
		samples := make([]float64, n)
		for k := range samples {
			samples[k] = f.Median * factor * (1 + width*(float64(k)/float64(n)-0.5))
		}
		was := f
		f = f.Of(samples)
		if base, ok := r.Figure(was.Base); ok {
			f.Pairs = nil
			if f = f.Against(base); was.Pairs != nil {
				f = f.InTurns(base, samples, spread(150, n))
			}
		}
		r.Figures[i] = f
	}
	return r
}

func ids(changes []Change) string {
	var all []string
	for _, c := range changes {
		all = append(all, c.Now.ID)
	}
	return strings.Join(all, " ")
}

func TestCompare(t *testing.T) {
	for name, c := range map[string]struct {
		now                    *Report
		losses, unclear, gains string
	}{
		"the same":               {now: example()},
		"a little worse":         {now: aged(map[string]float64{"ready.exit": 1.2}, 30, 0.1)},
		"clearly worse":          {now: aged(map[string]float64{"ready.exit": 1.4}, 30, 0.1), losses: "ready.exit"},
		"worse, but few samples": {now: aged(map[string]float64{"ready.exit": 1.9}, 5, 1.5), unclear: "ready.exit"},
		"clearly better":         {now: aged(map[string]float64{"ready.exit": 0.6}, 30, 0.1), gains: "ready.exit"},
		"more memory":            {now: aged(map[string]float64{"memory": 1.6}, 1, 0), losses: "memory"},
		"a little more":          {now: aged(map[string]float64{"memory": 1.4}, 1, 0), unclear: "memory"},
		// Times and rates of another machine.
		"only times": {now: aged(map[string]float64{"ready.part": 3, "rate": 0.2}, 30, 0.1)},
	} {
		got := Compare(example(), c.now)
		if ids(got.Losses) != c.losses || ids(got.Unclear) != c.unclear || ids(got.Gains) != c.gains || got.Reason != "" || got.Compared != 3 {
			t.Errorf("%s: %s", name, got)
		}
		if loss := strings.Contains(got.String(), "clearly worse.") && !strings.Contains(got.String(), "None is"); loss != (c.losses != "") {
			t.Errorf("%s: it says:\n%s", name, got)
		}
	}
}

// TestCompareRates: of a ratio of which more is better, less is a loss.
func TestCompareRates(t *testing.T) {
	with := func(v float64) *Report {
		r := example()
		r.Add(Figure{ID: "speed", Group: "Rates", Name: "runs in the time of one", Unit: "x", MoreIsBetter: true}.Of(spread(v, 20)))
		return r
	}
	if got := Compare(with(0.4), with(0.25)); ids(got.Losses) != "speed" {
		t.Errorf("less: %s", got)
	}
	if got := Compare(with(0.25), with(0.4)); ids(got.Losses) != "" || ids(got.Gains) != "speed" {
		t.Errorf("more: %s", got)
	}
}

// TestCompareCounts: system calls are compared as they are: a slow machine has no more of them.
func TestCompareCounts(t *testing.T) {
	with := func(samples ...float64) *Report {
		r := example()
		r.Add(Figure{ID: "calls", Group: "Calls", Name: "of a run", Unit: Calls}.Of(samples))
		return r
	}
	then := with(800, 804, 806, 806, 808, 810, 811, 815)
	if got := Compare(then, with(1030, 1034, 1036, 1036, 1038, 1040, 1041, 1045)); ids(got.Losses) != "calls" || got.Compared != 4 {
		t.Errorf("more: %s", got)
	}
	if got := Compare(then, with(900, 904, 906, 906, 908, 910, 911, 1915)); ids(got.Losses) != "" || got.Compared != 4 {
		t.Errorf("a little more: %s", got)
	}
	if got := Compare(then, with(500, 504, 506, 506, 508, 510, 511, 515)); ids(got.Gains) != "calls" {
		t.Errorf("fewer: %s", got)
	}
}

func TestCompareNothing(t *testing.T) {
	for name, alter := range map[string]func(*Machine){
		"acceleration": func(m *Machine) { m.Acceleration = "kvm" },
		"guest":        func(m *Machine) { m.GuestArch = "arm64" },
		"number":       func(m *Machine) { m.VCPUs = 4 },
		"kernel":       func(m *Machine) { m.Kernel = "debian-cloud" },
	} {
		now := aged(map[string]float64{"ready.exit": 10}, 30, 0.1)
		alter(&now.Machine)
		got := Compare(example(), now)
		if got.Reason == "" || len(got.Losses) > 0 || !strings.HasPrefix(got.String(), "There is nothing to compare with: ") {
			t.Errorf("another %s: %s", name, got)
		}
	}
}

// TestCompareSeldom: what was measured twice has no spread that is known.
func TestCompareSeldom(t *testing.T) {
	now := aged(map[string]float64{"ready.exit": 2}, 2, 0.1)
	if got := Compare(example(), now); len(got.Losses) != 0 || got.Compared != 2 {
		t.Errorf("%s", got)
	}
	now = aged(map[string]float64{"ready.exit": 2}, 3, 0.1)
	if got := Compare(example(), now); ids(got.Losses) != "ready.exit" || got.Compared != 3 {
		t.Errorf("thrice: %s", got)
	}
}

// TestCompareGone: a figure that is not there any more is said, unless its group, or so
// much, was not measured.
func TestCompareGone(t *testing.T) {
	without := func() *Report {
		r := example()
		r.Figures = r.Figures[1:2] // a part alone
		r.Figures[0].PartOf = ""
		return r
	}
	if got := Compare(example(), without()); strings.Join(got.Gone, " ") != "ready.exit" || !strings.Contains(got.String(), "Not measured this time: ready.exit\n") {
		t.Errorf("%s", got)
	}
	quick := without()
	quick.Quick = true
	if got := Compare(example(), quick); strings.Join(got.Gone, " ") != "ready.exit" || got.Compared != 0 {
		t.Errorf("quick: %s", got)
	}
}

// Times in milliseconds of runs as they were measured, on a machine that did other things
// too: of ready.exit, and of cli.ready.
var (
	exitTimes = []float64{61, 78, 108, 139, 77, 56, 132, 138, 104, 106, 122, 125, 111, 136, 146, 123, 95, 125, 198, 106,
		118, 137, 139, 100, 117, 89, 168, 161, 90, 174, 139, 113, 122, 139, 117, 62, 134, 101, 112, 123}
	execTimes = []float64{279, 331, 354, 387, 237, 346, 252, 417, 248, 257, 240, 262, 272, 436, 250, 680}
)

// drawn is a report of n pairs of such times, so many times as long, and of a bare Python
// that varies as much as it did.
func drawn(random *rand.Rand, times []float64, n int, factor float64) *Report {
	took, bare := make([]float64, n), make([]float64, n)
	for i := range n {
		took[i] = factor * times[random.IntN(len(times))]
		bare[i] = 150 * math.Exp(0.17*random.NormFloat64())
	}
	r := New(example().When)
	base := Figure{ID: "bare", Group: "Runs", Name: "bare", Unit: "ms"}.Of(bare)
	r.Add(base, Figure{ID: "run", Group: "Runs", Name: "a run", Unit: "ms"}.Of(took).InTurns(base, took, bare))
	return r
}

// TestCompareFinds: what takes half as long again is found nearly always, and what does
// not is hardly ever said to be worse, with as many runs as the bench measures.
func TestCompareFinds(t *testing.T) {
	const tries = 400
	for name, c := range map[string]struct {
		times []float64
		n     int
	}{"ready.exit": {exitTimes, 40}, "cli.ready": {execTimes, 28}} {
		random := rand.New(rand.NewPCG(1, 2))
		found, alarms := 0, 0
		for range tries {
			then := drawn(random, c.times, c.n, 1)
			found += len(Compare(then, drawn(random, c.times, c.n, 1.5)).Losses)
			alarms += len(Compare(then, drawn(random, c.times, c.n, 1)).Losses)
		}
		if found < tries*9/10 || alarms >= tries/100 {
			t.Errorf("%s: %d of %d losses found, and %d that were none", name, found, tries, alarms)
		}
	}
}

// TestCompareTogether: what slows both of a pair is no change, however much it is.
func TestCompareTogether(t *testing.T) {
	slowed := func(factor float64) *Report {
		var took, bare []float64
		for i := range 10 {
			slow := float64(1 + i%5)
			took, bare = append(took, 50*factor*slow), append(bare, 100*slow)
		}
		r := New(example().When)
		base := Figure{ID: "bare", Group: "Runs", Name: "bare", Unit: "ms"}.Of(bare)
		r.Add(base, Figure{ID: "run", Group: "Runs", Name: "a run", Unit: "ms"}.Of(took).InTurns(base, took, bare))
		return r
	}
	if got := Compare(slowed(1), slowed(1.3)); ids(got.Losses) != "run" {
		t.Errorf("%s", got)
	}
}

// TestCompareCountsTheBase: a rate that is told in the time of another figure is known no
// better than that.
func TestCompareCountsTheBase(t *testing.T) {
	base := Figure{ID: "bare"}.Of([]float64{50, 60, 90, 100, 110, 160, 200})
	with := func(v float64) *Report {
		r := New(example().When)
		r.Add(Figure{ID: "rate", Group: "Rates", Name: "rate", Unit: "x", MoreIsBetter: true}.Of(spread(v, 10)).Counting(base))
		return r
	}
	if got := Compare(with(0.4), with(0.3)); ids(got.Losses) != "" || ids(got.Unclear) != "rate" {
		t.Errorf("%s", got)
	}
	if got := Compare(with(0.4), with(0.05)); ids(got.Losses) != "rate" {
		t.Errorf("much less: %s", got)
	}
}

package report

import (
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
			f = f.Against(base)
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
		"more memory":            {now: aged(map[string]float64{"memory": 1.5}, 1, 0), losses: "memory"},
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

func TestCompareNothing(t *testing.T) {
	for name, alter := range map[string]func(*Machine){
		"acceleration": func(m *Machine) { m.Acceleration = "kvm" },
		"guest":        func(m *Machine) { m.GuestArch = "arm64" },
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
	if got := Compare(example(), quick); len(got.Gone) != 0 {
		t.Errorf("quick: %s", got)
	}
}

package report

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

// example is a report with something of everything.
func example() *Report {
	r := New(time.Date(2026, 11, 30, 15, 4, 5, 6, time.UTC))
	r.Version, r.Commit = "0.1.0", "0123456789ab"
	r.Machine = Machine{Acceleration: "tcg", VMM: "QEMU 7.2.22", HostOS: "linux", HostArch: "amd64", HostCPUs: 2, GuestArch: "amd64", VCPUs: 2, Kernel: "own"}
	r.Groups = []Group{{"Runs", "What they take."}, {"Nothing", "No figure is in it."}}
	bare := Figure{ID: "bare", Group: "Runs", Name: "bare `python3`", Unit: "ms"}.Of(spread(150, 30))
	exit := spread(80, 30)
	r.Add(
		Figure{ID: "ready.exit", Group: "Runs", Name: "to the exit", Unit: "ms"}.Of(exit).InTurns(bare, exit, spread(150, 30)).RatioAtMost(0.6).Plotted("ready", exit),
		Figure{ID: "ready.part", Group: "Runs", Name: "a | part", Unit: "ms"}.Of(spread(10, 30)).In("ready.exit"),
		bare,
		Figure{ID: "rate", Group: "Rates", Name: "four clients", Unit: "runs/s", MoreIsBetter: true}.Of(spread(3, 10)).AtLeast(2),
		Figure{ID: "memory", Group: "Rates", Name: "a box", Unit: "MiB"}.Once(4.5).AtMost(14),
	)
	other := spread(4200, 10)
	r.Add(Figure{ID: "peers.x", Group: "Rates", Name: "<other>", Unit: "ms", Other: true}.Of(other).Against(bare).Plotted("<other>", other))
	return r
}

// spread is n samples within a tenth of the middle.
func spread(middle float64, n int) []float64 {
	var v []float64
	for i := range n {
		v = append(v, middle*(0.95+0.1*float64(i)/float64(n)))
	}
	return v
}

func TestFigureSummary(t *testing.T) {
	var hundred []float64
	for i := range 100 {
		hundred = append(hundred, float64(100-i))
	}
	f := Figure{}.Of(hundred)
	if f.N != 100 || f.Median != 50.5 || f.P95 != 95 || f.Min != 1 || f.Low != 40 || f.High != 61 {
		t.Errorf("a time: %+v", f)
	}
	if f = (Figure{MoreIsBetter: true}).Of(hundred); f.P95 != 6 || f.Median != 50.5 {
		t.Errorf("a rate: %+v, want a p95 that 95 of 100 are not below", f)
	}
	if f = (Figure{}).Once(3.14159); f.N != 1 || f.Median != 3.142 || f.P95 != 3.142 || f.Low != 3.142 || f.High != 3.142 {
		t.Errorf("one sample: %+v", f)
	}
}

// TestBoundsHoldTheMedian compares with the binomial distribution's tables, and for large
// numbers with its normal approximation.
func TestBoundsHoldTheMedian(t *testing.T) {
	for n, want := range map[int]int{1: 0, 2: 0, 5: 0, 6: 0, 8: 0, 9: 1, 10: 1, 20: 5, 40: 13, 100: 39} {
		low, high := bounds(n)
		if low != want || high != n-1-want {
			t.Errorf("of %d: %d and %d, want %d and %d", n, low, high, want, n-1-want)
		}
	}
	for _, n := range []int{1000, 4000} {
		low, _ := bounds(n)
		if want := float64(n)/2 - 0.98*math.Sqrt(float64(n)); math.Abs(float64(low)-want) > 2 {
			t.Errorf("of %d: %d, want about %.0f", n, low, want)
		}
	}
}

// TestQuotient compares with what Wilcoxon's tables allow: of 6 pairs the least and the
// greatest, of 10 all but the 8 outermost means.
func TestQuotient(t *testing.T) {
	ones := []float64{1, 1, 1, 1, 1, 1}
	if got := quotient([]float64{1, 2, 4, 8, 16, 32}, ones); *got != (Span{1, 5.657, 32}) {
		t.Errorf("of 6: %+v", *got)
	}
	if got := quotient([]float64{30, 30}, []float64{10, 20}); math.Abs(got.Middle-2.121) > 0.001 || got.Low != 1.5 || got.High != 3 {
		t.Errorf("of 2: %+v", *got)
	}
	if got := quotient([]float64{0}, []float64{1}); got != nil {
		t.Errorf("of nothing: %+v", *got)
	}
}

func TestBudgets(t *testing.T) {
	base := Figure{ID: "base"}.Once(100)
	for name, c := range map[string]struct {
		f      Figure
		missed bool
	}{
		"none":               {Figure{}.Once(5), false},
		"kept":               {Figure{}.Once(5).AtMost(5), false},
		"above":              {Figure{}.Once(5.1).AtMost(5), true},
		"enough":             {Figure{}.Once(5).AtLeast(5), false},
		"below":              {Figure{}.Once(4.9).AtLeast(5), true},
		"ratio kept":         {Figure{}.Once(60).Against(base).RatioAtMost(0.6), false},
		"ratio above":        {Figure{}.Once(61).Against(base).RatioAtMost(0.6), true},
		"ratio of no figure": {Figure{}.Once(61).RatioAtMost(0.6), false},
	} {
		if got := c.f.Missed(); got != c.missed {
			t.Errorf("%s: missed is %v", name, got)
		}
	}
}

func TestReportRoundTrip(t *testing.T) {
	b, err := example().Encode()
	if err != nil {
		t.Fatal(err)
	}
	r, err := Decode(b)
	if err != nil {
		t.Fatal(err)
	}
	again, err := r.Encode()
	if err != nil || !slices.Equal(b, again) {
		t.Errorf("it changed on the way (%v):\n%s\n%s", err, b, again)
	}
	if f, ok := r.Figure("ready.exit"); !ok || math.Abs(*f.Ratio-0.533) > 0.001 || f.Pairs == nil || len(f.Samples) != 30 {
		t.Errorf("the figure: %+v", f)
	}
}

func TestReportRefused(t *testing.T) {
	for name, alter := range map[string]func(*Report){
		"other schema":   func(r *Report) { r.Schema = "pybox.bench/v1" },
		"twice":          func(r *Report) { r.Add(r.Figures[0]) },
		"no id":          func(r *Report) { r.Figures[0].ID = "" },
		"no name":        func(r *Report) { r.Figures[0].Name = "" },
		"no base":        func(r *Report) { r.Figures[0].Base = "gone" },
		"no whole":       func(r *Report) { r.Figures[1].PartOf = "gone" },
		"no samples":     func(r *Report) { r.Figures[0].N = 0 },
		"not a number":   func(r *Report) { r.Figures[0].Median = math.NaN() },
		"infinite ratio": func(r *Report) { v := math.Inf(1); r.Figures[0].Ratio = &v },
		"pairs of none":  func(r *Report) { r.Figures[2].Pairs = &Span{1, 2, 3} },
		"mixed bounds":   func(r *Report) { r.Figures[0].Pairs = &Span{2, 1, 3} },
		"part of itself": func(r *Report) { r.Figures[1].PartOf = "ready.part" },
		"in a circle":    func(r *Report) { r.Figures[0].PartOf = "ready.part" },
	} {
		r := example()
		alter(r)
		if _, err := r.Encode(); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Decode([]byte("{")); !errors.Is(err, ErrInvalid) {
		t.Errorf("half of one: %v", err)
	}
}

// TestPartsFollow: what is a part of a figure comes behind it, however it was added.
func TestPartsFollow(t *testing.T) {
	r := example()
	r.Add(Figure{ID: "late", Group: "Runs", Name: "late", Unit: "ms"}.Once(1).In("ready.part"))
	var got []string
	for _, f := range r.of("Runs") {
		got = append(got, r.indent(f, ">")+f.ID)
	}
	if want := []string{"ready.exit", ">ready.part", ">>late", "bare"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if f, _ := r.Figure("late"); r.whole(f) != "to the exit: a | part: late" {
		t.Errorf("its name is %q", r.whole(f))
	}
}

func TestTable(t *testing.T) {
	r := example()
	r.Fail("start", errors.New("no VM"))
	var b strings.Builder
	if err := r.WriteTable(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"to the exit ", "  a | part ", "0.533", "ratio at most 0.6", "at least 2 runs/s", "NOT MEASURED WHOLE: start: no VM",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("it lacks %q:\n%s", want, b.String())
		}
	}
	if strings.Contains(b.String(), "MISSED") || strings.Contains(b.String(), "Nothing") {
		t.Errorf("nothing is missed, and no figure is in the last group:\n%s", b.String())
	}
}

func TestNumbersForPeople(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 0.61234: "0.612", 12.345: "12.3", 1234.5: "1230", 2e9: "2000000000", 0.00012345: "0.000123"} {
		if got := number(v); got != want {
			t.Errorf("%g is %q, want %q", v, got, want)
		}
	}
}

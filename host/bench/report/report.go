// Package report is what 'make bench' tells: figures, what each was measured against,
// the budgets that hold for them, the page and the plot for people that are made of
// them, and the comparison of two reports. It measures nothing, starts no machine, and
// knows no figure by its meaning; package main beside it does.
package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
)

// Schema is the version of a report's JSON.
const Schema = "pybox.bench/v2"

// Calls is the unit of counts of system calls.
const Calls = "calls"

// ErrInvalid: a report is not one, or contradicts itself.
var ErrInvalid = errors.New("not a report of this version of PyBox's bench")

// Report is one run of the bench.
type Report struct {
	// Schema is Schema.
	Schema string `json:"schema"`
	// When is when the measuring began, to the second.
	When time.Time `json:"when"`
	// Version is that of the measured pybox, Commit that of its source, with "+" behind
	// it where the source had been altered since; empty: not known.
	Version string `json:"version"`
	Commit  string `json:"commit"`
	// Quick says that fewer runs were measured, and not every group.
	Quick bool `json:"quick,omitempty"`
	// Machine is what was measured on.
	Machine Machine `json:"machine"`
	// Groups are the parts of the page, in its order; figures of others come after them.
	Groups []Group `json:"groups"`
	// Figures are in the order of the page, within their groups.
	Figures []Figure `json:"figures"`
	// Failed are groups that could not be measured, or not whole.
	Failed []Failure `json:"failed,omitempty"`
}

// Machine is the host and the guest. What is not known is empty or 0.
type Machine struct {
	// Acceleration is "kvm", "tcg" (emulation) or what the driver says of itself, VMM
	// its name and version.
	Acceleration string `json:"acceleration"`
	VMM          string `json:"vmm"`
	// HostOS and HostArch are named as Go does; HostCPUs is how many the host has.
	HostOS   string `json:"host_os"`
	HostArch string `json:"host_arch"`
	HostCPUs int    `json:"host_cpus"`
	// GuestArch is the guest's, named likewise, VCPUs how many processors it has, Kernel
	// its kernel's kind: "own" or "debian-cloud".
	GuestArch string `json:"guest_arch"`
	VCPUs     int    `json:"vcpus"`
	Kernel    string `json:"kernel"`
}

// Group is a part of the page.
type Group struct {
	Name string `json:"name"`
	// About says in a few sentences, in Markdown, what was measured and how.
	About string `json:"about"`
}

// Failure is a group that failed, and why.
type Failure struct {
	Group string `json:"group"`
	Error string `json:"error"`
}

// Figure is one thing that was measured, N times. Make one with a literal of ID, Group,
// Name, Unit and what else is known, and the methods that return it with more.
type Figure struct {
	// ID names the figure for good, such as "ready.exit". It begins with a letter.
	ID string `json:"id"`
	// Group is the part of the page where it stands, Name what it is, for people.
	Group string `json:"group"`
	Name  string `json:"name"`
	// PartOf is the id of the figure that it is a part of; empty: of none.
	PartOf string `json:"part_of,omitempty"`
	// Unit is of all numbers but the ratio: "ms", "MiB", "MiB/s", "x", Calls and so on.
	Unit string `json:"unit"`
	// MoreIsBetter is so of rates; of all else less is.
	MoreIsBetter bool `json:"more_is_better,omitempty"`
	// N is how many samples there were; P95 is what 95 % of them are at least as good as.
	N      int     `json:"n"`
	Median float64 `json:"median"`
	P95    float64 `json:"p95"`
	Min    float64 `json:"min"`
	// Low and High are the bounds within which the true median lies, 19 times of 20
	// (see bounds).
	Low  float64 `json:"low"`
	High float64 `json:"high"`
	// Base is the id of the figure that this one is held against; Ratio is the ratio of
	// the two medians.
	Base  string   `json:"base,omitempty"`
	Ratio *float64 `json:"ratio,omitempty"`
	// Pairs is the same ratio of the pairs that were measured in turns; nil: none were.
	Pairs *Span `json:"pairs,omitempty"`
	// Budget is what PyBox allows itself; nil: nothing is said.
	Budget *Budget `json:"budget,omitempty"`
	// Note says for people how it was measured, in a few words.
	Note string `json:"note,omitempty"`
	// Other says that what was measured is not PyBox.
	Other bool `json:"other,omitempty"`
	// Label is the name in the plot, and Samples are all that were measured, in their
	// order; empty: it is not plotted.
	Label   string    `json:"label,omitempty"`
	Samples []float64 `json:"samples,omitempty"`
}

// Span is a value, and the bounds within which the true one lies, 19 times of 20.
type Span struct {
	Low    float64 `json:"low"`
	Middle float64 `json:"middle"`
	High   float64 `json:"high"`
}

// Budget bounds a figure's median, or its ratio. One of AtMost and AtLeast is not 0.
type Budget struct {
	AtMost  float64 `json:"at_most,omitempty"`
	AtLeast float64 `json:"at_least,omitempty"`
	// OfRatio says that it is the ratio that is bounded.
	OfRatio bool `json:"of_ratio,omitempty"`
}

// New makes a report of nothing yet.
func New(when time.Time) *Report {
	return &Report{Schema: Schema, When: when.UTC().Truncate(time.Second)}
}

// Of is the figure with what the samples say, which must not be none; it knows already
// whether more is better.
func (f Figure) Of(samples []float64) Figure {
	s := slices.Sorted(slices.Values(samples))
	low, high := bounds(len(s))
	at := rank95(len(s))
	if f.MoreIsBetter {
		at = len(s) - 1 - at
	}
	f.N, f.Median, f.P95, f.Min = len(s), round(middle(s)), round(s[at]), round(s[0])
	f.Low, f.High = round(s[low]), round(s[high])
	return f
}

// Once is the figure with its only sample.
func (f Figure) Once(v float64) Figure { return f.Of([]float64{v}) }

// Against is the figure, which has its samples, with the ratio to base.
func (f Figure) Against(base Figure) Figure {
	ratio := round(f.Median / base.Median)
	f.Base, f.Ratio = base.ID, &ratio
	return f
}

// InTurns is Against where each of the figure's samples was measured beside one of the
// base's.
func (f Figure) InTurns(base Figure, samples, beside []float64) Figure {
	f = f.Against(base)
	f.Pairs = quotient(samples, beside)
	return f
}

// Counting is the figure, each of whose samples has the median of base as a factor, with
// bounds that count those of base too.
func (f Figure) Counting(base Figure) Figure {
	f.Low = round(f.Median / joined(f.Median/f.Low, base.Median/base.Low))
	f.High = round(f.Median * joined(f.High/f.Median, base.High/base.Median))
	return f
}

// In is the figure as a part of that with the id whole.
func (f Figure) In(whole string) Figure {
	f.PartOf = whole
	return f
}

// AtMost is the figure with a budget for its median.
func (f Figure) AtMost(v float64) Figure {
	f.Budget = &Budget{AtMost: v}
	return f
}

// AtLeast is the figure with a budget for its median.
func (f Figure) AtLeast(v float64) Figure {
	f.Budget = &Budget{AtLeast: v}
	return f
}

// RatioAtMost is the figure with a budget for its ratio.
func (f Figure) RatioAtMost(v float64) Figure {
	f.Budget = &Budget{AtMost: v, OfRatio: true}
	return f
}

// Plotted is the figure with a name and its samples for the plot, which shows how they
// are to the median of the figure's base.
func (f Figure) Plotted(label string, samples []float64) Figure {
	f.Label, f.Samples = label, make([]float64, len(samples))
	for i, v := range samples {
		f.Samples[i] = round(v)
	}
	return f
}

// Bounded is what the budget bounds, and false where there is no budget, or no ratio for
// one.
func (f Figure) Bounded() (float64, bool) {
	switch {
	case f.Budget == nil:
		return 0, false
	case !f.Budget.OfRatio:
		return f.Median, true
	case f.Ratio == nil:
		return 0, false
	}
	return *f.Ratio, true
}

// Missed says whether a figure does not keep to its budget.
func (f Figure) Missed() bool {
	v, ok := f.Bounded()
	if !ok {
		return false
	}
	return f.Budget.AtMost != 0 && v > f.Budget.AtMost || f.Budget.AtLeast != 0 && v < f.Budget.AtLeast
}

// Add takes figures in, in the page's order.
func (r *Report) Add(figures ...Figure) { r.Figures = append(r.Figures, figures...) }

// Fail notes that a group could not be measured whole.
func (r *Report) Fail(group string, err error) {
	r.Failed = append(r.Failed, Failure{Group: group, Error: err.Error()})
}

// Figure gives the figure with an id, and whether there is one.
func (r *Report) Figure(id string) (Figure, bool) {
	at := slices.IndexFunc(r.Figures, func(f Figure) bool { return f.ID == id })
	if at < 0 {
		return Figure{}, false
	}
	return r.Figures[at], true
}

// Encode gives the report as JSON. Errors match ErrInvalid.
func (r *Report) Encode() ([]byte, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return append(b, '\n'), nil
}

// Decode reads a report. Errors match ErrInvalid.
func Decode(b []byte) (*Report, error) {
	var r Report
	if err := json.Unmarshal(b, &r); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return &r, r.check()
}

// check holds a report to what the page and the comparison rely on.
func (r *Report) check() error {
	if r.Schema != Schema {
		return fmt.Errorf("%w: its schema is %.40q", ErrInvalid, r.Schema)
	}
	seen := map[string]bool{}
	for _, f := range r.Figures {
		if f.ID == "" || f.Group == "" || f.Name == "" || seen[f.ID] {
			return fmt.Errorf("%w: the figure %.40q has no name or group, or is there twice", ErrInvalid, f.ID)
		}
		seen[f.ID] = true
	}
	for _, f := range r.Figures {
		if f.N < 1 || !finite(f.Median, f.P95, f.Min, f.Low, f.High) || !finite(f.Samples...) {
			return fmt.Errorf("%w: the figure %.40q has numbers that cannot be", ErrInvalid, f.ID)
		}
		if p := f.Pairs; p != nil && (f.Ratio == nil || !finite(p.Low, p.Middle, p.High) || p.Low <= 0 || p.Low > p.Middle || p.Middle > p.High) {
			return fmt.Errorf("%w: the figure %.40q has pairs that cannot be", ErrInvalid, f.ID)
		}
		if f.Ratio != nil && (!finite(*f.Ratio) || !seen[f.Base]) || f.PartOf != "" && !seen[f.PartOf] {
			return fmt.Errorf("%w: the figure %.40q is held against one that is not there", ErrInvalid, f.ID)
		}
		if !r.ends(f) {
			return fmt.Errorf("%w: the figure %.40q is a part of too many others, or of itself", ErrInvalid, f.ID)
		}
	}
	return nil
}

// ends says whether a figure is a whole, or is so after fewer than maxDepth steps to what
// it is a part of.
func (r *Report) ends(f Figure) bool {
	for range maxDepth {
		whole, ok := r.Figure(f.PartOf)
		if !ok {
			return true
		}
		f = whole
	}
	return false
}

func finite(v ...float64) bool {
	return !slices.ContainsFunc(v, func(x float64) bool { return math.IsNaN(x) || math.IsInf(x, 0) })
}

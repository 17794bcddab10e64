package report

import (
	"fmt"
	"math"
	"strings"
)

// enough is how many samples a figure must have for its spread to be known at all.
const enough = 3

// Clear is how much worse than before a figure must be, as a factor, to be a loss; and
// ClearOnce how much where the spread of one of the two is not known.
const Clear, ClearOnce = 1.25, 1.5

// A Comparison is what became of the figures of one report in another.
type Comparison struct {
	// Reason is why there was nothing to compare; empty: there was.
	Reason string
	// Losses are figures that are clearly worse, in the page's order.
	Losses []Change
	// Unclear are figures that are worse by more than Clear, but not beyond the spread
	// of both reports, or not by ClearOnce where that is not known.
	Unclear []Change
	// Gains are figures that are clearly better.
	Gains []Change
	// Compared is how many figures both reports have. Gone are those that the older has,
	// and the newer has not although it measured their group.
	Compared int
	Gone     []string
}

// Change is a figure of two reports.
type Change struct {
	Then, Now Figure
	// Of is what is compared, "ratio" or the figure's unit; From and To are its values.
	Of       string
	From, To float64
}

// value is what two machines of one kind can be compared by.
type value struct {
	of string
	Span
}

// comparable gives what of a figure says something on another day: its ratio, by the
// pairs that were measured in turns where there are such, or else its median where that
// is memory, a count or a ratio itself. Times are not compared: they tell of the machine. Nor is
// what was measured once or twice, but for memory, which hardly varies.
func (r *Report) comparable(f Figure) (value, bool) {
	if f.N < enough && f.Unit != "MiB" {
		return value{}, false
	}
	if f.Pairs != nil {
		return value{"ratio", *f.Pairs}, true
	}
	if f.Ratio != nil {
		base, ok := r.Figure(f.Base)
		if !ok || base.Low <= 0 || f.Low <= 0 {
			return value{}, false
		}
		low, high := joined(f.Median/f.Low, base.High/base.Median), joined(f.High/f.Median, base.Median/base.Low)
		return value{"ratio", Span{*f.Ratio / low, *f.Ratio, *f.Ratio * high}}, true
	}
	ok := (f.Unit == "x" || f.Unit == "MiB" || f.Unit == Calls) && f.Median > 0 && f.Low > 0
	return value{f.Unit, Span{f.Low, f.Median, f.High}}, ok
}

// kind is what of a machine must be the same for its ratios to be compared.
func (m Machine) kind() string {
	return fmt.Sprintf("%s with %s, acceleration %s and %s", m.GuestArch, count(m.VCPUs, "CPU"), m.Acceleration, kernels(m.Kernel))
}

// Compare holds a report to an older one. A figure is a loss where both hold: its value
// is more than Clear times as bad, and the bounds of the two values do not meet. The
// second keeps a figure that varies much, or was measured a few times only, from crying
// wolf; one that was measured once has no bounds, and must be ClearOnce times as bad.
func Compare(then, now *Report) Comparison {
	var c Comparison
	if a, b := then.Machine.kind(), now.Machine.kind(); a != b {
		c.Reason = fmt.Sprintf("the older report is of a guest of %s, this one of %s", a, b)
		return c
	}
	groups := map[string]bool{}
	for _, f := range now.Figures {
		groups[f.Group] = true
	}
	for _, old := range then.Figures {
		was, ok := then.comparable(old)
		if !ok {
			continue
		}
		f, there := now.Figure(old.ID)
		is, ok := now.comparable(f)
		if !there || !ok || is.of != was.of {
			if groups[old.Group] {
				c.Gone = append(c.Gone, old.ID)
			}
			continue
		}
		c.Compared++
		c.sort(Change{Then: old, Now: f, Of: was.of, From: was.Middle, To: is.Middle}, was.Span, is.Span)
	}
	return c
}

// sort puts a change where it belongs, if anywhere.
func (c *Comparison) sort(x Change, was, is Span) {
	worse, apart, clear := is.Middle/was.Middle, is.Low > was.High || is.High < was.Low, Clear
	if x.Then.MoreIsBetter {
		worse = 1 / worse
	}
	if min(x.Then.N, x.Now.N) < enough {
		clear = ClearOnce
	}
	switch {
	case worse > clear && apart:
		c.Losses = append(c.Losses, x)
	case worse > Clear:
		c.Unclear = append(c.Unclear, x)
	case worse < 1/clear && apart:
		c.Gains = append(c.Gains, x)
	}
}

// String tells the comparison to people, and ends with a line feed.
func (c Comparison) String() string {
	if c.Reason != "" {
		return "There is nothing to compare with: " + c.Reason + ".\n"
	}
	var b strings.Builder
	for _, part := range []struct {
		title   string
		changes []Change
	}{
		{"Clearly worse:", c.Losses},
		{"Worse, but within the spread of both reports:", c.Unclear},
		{"Clearly better:", c.Gains},
	} {
		if len(part.changes) > 0 {
			fmt.Fprintln(&b, part.title)
		}
		for _, x := range part.changes {
			fmt.Fprintf(&b, "  %s (%s, %s): %s of %s before, %+.0f %%\n", x.Now.ID, x.Now.Name, x.Of, number(x.To), number(x.From), math.Round(100*(x.To/x.From-1)))
		}
	}
	if len(c.Gone) > 0 {
		fmt.Fprintf(&b, "Not measured this time: %s\n", strings.Join(c.Gone, ", "))
	}
	verdict := "None is clearly worse."
	if n := len(c.Losses); n > 0 {
		verdict = fmt.Sprintf("%d clearly worse.", n)
	}
	fmt.Fprintf(&b, "%d figures compared (ratios, memory and system calls; clearly: by more than %.0f %%, and beyond the spread of both; of what was measured once, by more than %.0f %%). %s\n",
		c.Compared, 100*(Clear-1), 100*(ClearOnce-1), verdict)
	return b.String()
}

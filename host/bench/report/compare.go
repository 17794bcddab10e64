package report

import (
	"fmt"
	"math"
	"strings"
)

// enough is how many samples a figure must have for its spread to be known at all.
const enough = 3

// Clear is how much worse than before a figure must be, as a factor, to be a loss.
const Clear = 1.25

// A Comparison is what became of the figures of one report in another.
type Comparison struct {
	// Reason is why there was nothing to compare; empty: there was.
	Reason string
	// Losses are figures that are clearly worse, in the page's order.
	Losses []Change
	// Unclear are figures that are worse by more than Clear, but not beyond the spread
	// of both reports.
	Unclear []Change
	// Gains are figures that are clearly better.
	Gains []Change
	// Compared is how many figures both reports have. Gone are those of which the older
	// has some, and the newer has not although it measured their group.
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

// span is a value that two machines of one kind can be compared by, and the bounds
// within which its true value lies.
type span struct {
	of             string
	low, mid, high float64
}

// comparable gives what of a figure says something on another day: its ratio, whose
// bounds are taken as if those of both figures were at their worst at once, or else its
// median where that is memory or a ratio itself. Times are not compared: they tell of
// the machine. Nor is what was measured once or twice, but for memory, which hardly varies.
func (r *Report) comparable(f Figure) (span, bool) {
	if f.N < enough && f.Unit != "MiB" {
		return span{}, false
	}
	if f.Ratio != nil {
		base, ok := r.Figure(f.Base)
		if !ok || base.Low <= 0 || base.High <= 0 {
			return span{}, false
		}
		return span{"ratio", f.Low / base.High, *f.Ratio, f.High / base.Low}, true
	}
	ok := (f.Unit == "x" || f.Unit == "MiB") && f.Median > 0 && f.Low > 0
	return span{f.Unit, f.Low, f.Median, f.High}, ok
}

// Compare holds a report to an older one. A figure is a loss where both hold: its value
// is more than Clear times as bad, and the bounds of the two values do not meet. The
// second keeps a figure that varies much, or was measured a few times only, from crying
// wolf.
func Compare(then, now *Report) Comparison {
	var c Comparison
	if a, b := then.Machine, now.Machine; a.Acceleration != b.Acceleration || a.GuestArch != b.GuestArch {
		c.Reason = fmt.Sprintf("the older report is of a guest of %s with acceleration %s, this one of %s with %s",
			a.GuestArch, a.Acceleration, b.GuestArch, b.Acceleration)
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
		switch {
		case !there || !ok || is.of != was.of:
			if groups[old.Group] && !now.Quick {
				c.Gone = append(c.Gone, old.ID)
			}
			continue
		}
		c.Compared++
		c.sort(Change{Then: old, Now: f, Of: was.of, From: was.mid, To: is.mid}, was, is)
	}
	return c
}

// sort puts a change where it belongs, if anywhere.
func (c *Comparison) sort(x Change, was, is span) {
	worse, apart := is.mid/was.mid, is.low > was.high || is.high < was.low
	if x.Then.MoreIsBetter {
		worse = 1 / worse
	}
	switch {
	case worse > Clear && apart:
		c.Losses = append(c.Losses, x)
	case worse > Clear:
		c.Unclear = append(c.Unclear, x)
	case worse < 1/Clear && apart:
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
	fmt.Fprintf(&b, "%d figures compared (ratios and memory; clearly: by more than %.0f %%, and beyond the spread of both). %s\n", c.Compared, 100*(Clear-1), verdict)
	return b.String()
}

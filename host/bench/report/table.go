package report

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// WriteTable writes the figures for a terminal. The error is w's.
func (r *Report) WriteTable(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, group := range r.groups() {
		fmt.Fprintf(t, "\n%s\tmedian\tp95\tratio\tbudget\t\n", group.Name)
		for _, f := range r.of(group.Name) {
			fmt.Fprintf(t, "%s%s\t%s\t%s\t%s\t%s\t%s\n", r.indent(f, "  "), f.Name, f.value(f.Median), f.p95(), f.ratio(), f.budget("MISSED"), f.Note)
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, x := range r.Failed {
		if _, err := fmt.Fprintf(w, "\nNOT MEASURED WHOLE: %s: %s\n", x.Group, x.Error); err != nil {
			return err
		}
	}
	return nil
}

// groups are the groups that have figures, in the page's order.
func (r *Report) groups() []Group {
	all := slices.Clone(r.Groups)
	for _, f := range r.Figures {
		if !slices.ContainsFunc(all, func(g Group) bool { return g.Name == f.Group }) {
			all = append(all, Group{Name: f.Group})
		}
	}
	return slices.DeleteFunc(all, func(g Group) bool { return len(r.of(g.Name)) == 0 })
}

// of are the figures of a group, what is a part of one behind that.
func (r *Report) of(group string) []Figure {
	in := slices.DeleteFunc(slices.Clone(r.Figures), func(f Figure) bool { return f.Group != group })
	has := func(id string) bool { return slices.ContainsFunc(in, func(f Figure) bool { return f.ID == id }) }
	var all []Figure
	var add func(f Figure)
	add = func(f Figure) {
		all = append(all, f)
		for _, part := range in {
			if part.PartOf == f.ID {
				add(part)
			}
		}
	}
	for _, f := range in {
		if !has(f.PartOf) {
			add(f)
		}
	}
	return all
}

// whole is the name of a figure with those of what it is a part of before it.
func (r *Report) whole(f Figure) string {
	name := f.Name
	for depth := 0; depth < maxDepth; depth++ {
		var ok bool
		if f, ok = r.Figure(f.PartOf); !ok {
			break
		}
		name = f.Name + ": " + name
	}
	return name
}

// maxDepth bounds how many figures one can be a part of.
const maxDepth = 4

// indent is unit once for each figure that f is a part of, directly or not.
func (r *Report) indent(f Figure, unit string) string {
	for depth := 0; ; depth++ {
		whole, ok := r.Figure(f.PartOf)
		if !ok || depth == maxDepth {
			return strings.Repeat(unit, depth)
		}
		f = whole
	}
}

// Missed are the figures that do not keep to their budgets.
func (r *Report) Missed() []Figure {
	return slices.DeleteFunc(slices.Clone(r.Figures), func(f Figure) bool { return !f.Missed() })
}

// number is a value with three significant digits, and never an exponent.
func number(v float64) string {
	rounded, err := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 3, 64), 64)
	if err != nil { // of no text that FormatFloat gives
		rounded = v
	}
	return strconv.FormatFloat(rounded, 'f', -1, 64)
}

func (f Figure) value(v float64) string {
	if f.Unit == "x" {
		return number(v)
	}
	return number(v) + " " + f.Unit
}

func (f Figure) p95() string {
	if f.N < 2 {
		return ""
	}
	return f.value(f.P95)
}

func (f Figure) ratio() string {
	if f.Ratio == nil {
		return ""
	}
	return number(*f.Ratio)
}

// apart says whether the figure was not measured in turns with what it is held against.
func (f Figure) apart() bool { return f.Ratio != nil && f.Pairs == nil }

// budget is what bounds the figure, followed by missed where it does not keep to it.
func (f Figure) budget(missed string) string {
	if f.Budget == nil {
		return ""
	}
	text := f.bound()
	if f.Budget.OfRatio {
		text = "ratio " + text
	}
	if f.Missed() {
		text += " " + missed
	}
	return text
}

// bound is the budget, which there must be, in words.
func (f Figure) bound() string {
	text, v := "at most ", f.Budget.AtMost
	if f.Budget.AtLeast != 0 {
		text, v = "at least ", f.Budget.AtLeast
	}
	if f.Budget.OfRatio {
		return text + number(v)
	}
	return text + f.value(v)
}

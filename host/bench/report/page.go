package report

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// The files of the page, in one folder.
const (
	PageName = "performance.md"
	PlotName = "performance.svg"
	JSONName = "performance.json"
)

// Page tells the report to people, as Markdown. The same report gives the same bytes.
func Page(r *Report) []byte {
	var b strings.Builder
	b.WriteString("<!-- Made by 'make bench-page' from performance.json: do not edit. -->\n# What PyBox costs\n\n")
	writeHow(&b, r)
	writeBudgets(&b, r)
	if len(r.strips()) > 0 {
		fmt.Fprintf(&b, "![%s](%s)\n\n", plotTitle, PlotName)
	}
	for _, g := range r.groups() {
		writeGroup(&b, r, g)
	}
	b.WriteString(pageEnd)
	return []byte(b.String())
}

const pageEnd = "## To measure it yourself\n\n" +
	"`make bench` measures all of this, in some twenty minutes on a slow machine, and\n" +
	"`make bench BENCH=quick` the most important part of it in half of that. `make bench-page` makes\n" +
	"this page of what was measured last. `make bench-check` measures the quick part and fails where\n" +
	"a ratio, memory or a count is clearly worse than here: by more than a quarter, and so that the\n" +
	"bounds of both do not meet. Those are wide enough for what is measured to lie within them 19\n" +
	"times of 20, but less often where *n* is below 6; memory that was read once has none, and must\n" +
	"be worse by a half. All numbers, with those bounds, are in\n" +
	"[performance.json](performance.json).\n"

// writeHow says what was measured on, and how far that can be carried.
func writeHow(b *strings.Builder, r *Report) {
	m := r.Machine
	from := "PyBox " + r.Version
	if r.Commit != "" {
		from += " (" + r.Commit + ")"
	}
	text := fmt.Sprintf("Measured on %s with %s: %s on %s/%s with %s, a guest of %s with %s and %s. ",
		r.When.Format("2 January 2006"), from, m.VMM, m.HostOS, m.HostArch, count(m.HostCPUs, "CPU"), m.GuestArch, count(m.VCPUs, "CPU"), kernels(m.Kernel))
	if m.Acceleration == "tcg" {
		text += "**The guest was emulated (TCG), without hardware virtualization**: everything in it takes several times as long " +
			"as it would with that, so the times below say nothing about another machine. "
	} else {
		text += fmt.Sprintf("Acceleration: %s. The times below are that machine's. ", m.Acceleration)
	}
	text += "What can be compared are the *ratios*: each is to what is named above its table, mostly bare `python3 -I -S -c pass` " +
		"as a process in the same guest without any box. It was measured in turns with that, so that whatever else the machine did met both, " +
		"but for ratios with an asterisk, whose two sides were measured one after the other. " +
		"A ratio is that of the two medians. Other machines will have other ratios too: emulation slows some things more than others."
	b.WriteString(wrap(text) + "\n\n*p95*: 19 of 20 were at least as good. *n*: how many were measured.\n\n")
	if r.Quick {
		b.WriteString("This was the quick measuring: fewer runs, and not all parts.\n\n")
	}
	for _, x := range r.Failed {
		fmt.Fprintf(b, "**Not measured whole**: %s: %s\n\n", literal(x.Group), literal(x.Error))
	}
}

func kernels(kind string) string {
	switch kind {
	case "own":
		return "PyBox's own kernel"
	case "debian-cloud":
		return "Debian's cloud kernel"
	}
	return "a kernel of the kind " + kind
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// writeBudgets says which budgets there are, and which are missed.
func writeBudgets(b *strings.Builder, r *Report) {
	all := slices.DeleteFunc(slices.Clone(r.Figures), func(f Figure) bool { _, ok := f.Bounded(); return !ok })
	missed := r.Missed()
	fmt.Fprintf(b, "Of %s that PyBox holds itself to, ", count(len(all), "budget"))
	if len(missed) == 0 {
		b.WriteString("all were kept.\n\n")
		return
	}
	fmt.Fprintf(b, "**%d missed**, and the others kept:\n\n", len(missed))
	for _, f := range missed {
		v, _ := f.Bounded()
		text := "is " + f.value(v)
		if f.Budget.OfRatio {
			text = "has the ratio " + number(v)
		}
		fmt.Fprintf(b, "- %s: %s %s, where %s is allowed\n", f.Group, r.whole(f), text, f.bound())
	}
	b.WriteString("\n")
}

// writeGroup writes a table.
func writeGroup(b *strings.Builder, r *Report, g Group) {
	figures := r.of(g.Name)
	fmt.Fprintf(b, "## %s\n\n", g.Name)
	about := g.About
	if bases := r.bases(figures); len(bases) > 0 {
		about = strings.TrimSpace(about + " Ratios are to: " + strings.Join(bases, "; ") + ".")
	}
	if about != "" {
		fmt.Fprintf(b, "%s\n\n", wrap(about))
	}
	b.WriteString("| | median | p95 | n | ratio | budget | |\n| --- | ---: | ---: | ---: | ---: | --- | --- |\n")
	for _, f := range figures {
		fmt.Fprintf(b, "| %s%s | %s | %s | %d | %s | %s | %s |\n", r.indent(f, "&emsp;"), cell(f.Name), f.value(f.Median), f.p95(), f.N, f.marked(), f.budget("**missed**"), cell(f.Note))
	}
	b.WriteString("\n")
}

// marked is the ratio, with an asterisk where it was not measured in turns.
func (f Figure) marked() string {
	if f.apart() {
		return f.ratio() + `\*`
	}
	return f.ratio()
}

// bases are the names of what figures are held against, each once.
func (r *Report) bases(figures []Figure) []string {
	var names []string
	for _, f := range figures {
		base, ok := r.Figure(f.Base)
		if ok && f.Ratio != nil && !slices.Contains(names, base.Name) {
			names = append(names, base.Name)
		}
	}
	return names
}

// cell is text for a table.
func cell(s string) string { return strings.ReplaceAll(oneLine(s), "|", `\|`) }

// literal is text, whatever is in it, in one line of Markdown that shows it as it is.
func literal(s string) string {
	var b strings.Builder
	for _, c := range oneLine(s) {
		if strings.ContainsRune("\\`*_[]()<>&#|~!", c) {
			b.WriteByte('\\')
		}
		b.WriteRune(c)
	}
	return b.String()
}

// wrap breaks text into lines of at most 92 characters, where it has words of that length.
func wrap(s string) string {
	var b strings.Builder
	column := 0
	for i, word := range strings.Fields(s) {
		n := utf8.RuneCountInString(word)
		switch {
		case i == 0:
		case column+1+n > 92:
			b.WriteString("\n")
			column = 0
		default:
			b.WriteString(" ")
			column++
		}
		b.WriteString(word)
		column += n
	}
	return b.String()
}

// oneLine is text without line feeds.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

package report

import (
	"cmp"
	"encoding/xml"
	"fmt"
	"math"
	"slices"
	"strings"
)

// The plot's measures, in pixels.
const (
	plotWidth  = 980
	plotLeft   = 285 // labels end here
	plotRight  = 915 // medians stand behind
	plotTop    = 64
	plotRow    = 30
	plotBottom = 52
)

// plotStyle draws the same in light and in dark; the background is the plot's own, so
// that it can be read wherever it is shown.
const plotStyle = `<style>
svg { color-scheme: light dark; font: 13px system-ui, "Segoe UI", "Noto Sans", "DejaVu Sans", sans-serif; }
.back { fill: #ffffff; } .text { fill: #1f2328; } .soft { fill: #59636e; }
.grid { stroke: #d1d9e0; } .one { stroke: #59636e; stroke-dasharray: 4 3; }
.own { fill: #0969da; } .other { fill: #bc4c00; } .dot { fill-opacity: 0.4; }
.median { stroke: #1f2328; stroke-width: 2; }
.title { font-size: 15px; font-weight: 600; } .end { text-anchor: end; } .mid { text-anchor: middle; }
@media (prefers-color-scheme: dark) {
.back { fill: #0d1117; } .text { fill: #f0f6fc; } .soft { fill: #9198a1; }
.grid { stroke: #3d444d; } .one { stroke: #9198a1; }
.own { fill: #58a6ff; } .other { fill: #f0883e; }
.median { stroke: #f0f6fc; }
}
</style>
`

// strip is a row of the plot: a figure's samples as ratios to its base.
type strip struct {
	label  string
	other  bool
	median float64
	ratios []float64
}

// strips are the rows, the quickest first.
func (r *Report) strips() []strip {
	var all []strip
	for _, f := range r.Figures {
		base, ok := r.Figure(f.Base)
		if len(f.Samples) == 0 || f.Ratio == nil || !ok || base.Median <= 0 {
			continue
		}
		s := strip{label: f.Label, other: f.Other, median: *f.Ratio}
		for _, v := range f.Samples {
			if drawable(v / base.Median) {
				s.ratios = append(s.ratios, v/base.Median)
			}
		}
		if len(s.ratios) > 0 && drawable(s.median) {
			all = append(all, s)
		}
	}
	slices.SortStableFunc(all, func(a, b strip) int { return cmp.Compare(a.median, b.median) })
	return all
}

// drawable says whether a ratio can be on an axis of logarithms that people read.
func drawable(ratio float64) bool { return ratio > 1e-6 && ratio < 1e6 }

// scale maps ratios to pixels, by their logarithm.
type scale struct{ low, high float64 }

func newScale(all []strip) scale {
	s := scale{1, 1}
	for _, row := range all {
		s.low, s.high = min(s.low, slices.Min(row.ratios)), max(s.high, slices.Max(row.ratios))
	}
	return scale{s.low / 1.15, s.high * 1.15}
}

func (s scale) at(v float64) float64 {
	return plotLeft + 10 + (plotRight-plotLeft-20)*math.Log(v/s.low)/math.Log(s.high/s.low)
}

// ticks are 1, 2 and 5 times the powers of ten that are within.
func (s scale) ticks() []float64 {
	var all []float64
	for e := math.Floor(math.Log10(s.low)); e <= math.Log10(s.high); e++ {
		for _, m := range []float64{1, 2, 5} {
			if v := round(m * math.Pow(10, e)); v >= s.low && v <= s.high {
				all = append(all, v)
			}
		}
	}
	return all
}

// Plot draws the samples of those figures that have them as an SVG: a row of dots for
// each, where they are on a logarithmic axis of ratios to bare Python. The same report
// gives the same bytes. It is nil where no figure has samples.
func Plot(r *Report) []byte {
	all := r.strips()
	if len(all) == 0 {
		return nil
	}
	height := plotTop + plotRow*len(all) + plotBottom
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" role="img" aria-labelledby="title desc">`+"\n", plotWidth, height, plotWidth, height)
	fmt.Fprintf(&b, "<title id=\"title\">%s</title>\n<desc id=\"desc\">%s</desc>\n", plotTitle, escape(describe(all)))
	b.WriteString(plotStyle)
	fmt.Fprintf(&b, `<rect class="back" width="%d" height="%d"/>`+"\n", plotWidth, height)
	fmt.Fprintf(&b, `<text class="text title" x="16" y="28">%s</text>`+"\n", plotTitle)
	drawLegend(&b, all, r.Machine.Acceleration == "tcg")
	s := newScale(all)
	drawAxis(&b, s, height)
	for i, row := range all {
		row.draw(&b, s, plotTop+plotRow*i)
	}
	b.WriteString("</svg>\n")
	return []byte(b.String())
}

const plotTitle = "Time of a run, as a multiple of bare Python in the same guest"

// describe is the plot in words.
func describe(all []strip) string {
	var words []string
	for _, row := range all {
		words = append(words, fmt.Sprintf("%s: median %s, from %s to %s (n = %d)", row.label, number(row.median), number(slices.Min(row.ratios)), number(slices.Max(row.ratios)), len(row.ratios)))
	}
	return strings.Join(words, "; ") + "."
}

// drawLegend says what the dots are, whether the guest was emulated, and what the
// colours are, where there are two.
func drawLegend(b *strings.Builder, all []strip, emulated bool) {
	y, text := 48, "one dot for each run; the line is the median, the number too"
	if emulated {
		text += "; the guest was emulated (TCG)"
	}
	fmt.Fprintf(b, `<text class="soft" x="16" y="%d">%s</text>`+"\n", y, text)
	if !slices.ContainsFunc(all, func(s strip) bool { return s.other }) {
		return
	}
	for i, name := range []string{"PyBox", "others"} {
		x := plotRight - 110 + 80*i
		fmt.Fprintf(b, `<circle class="%s" cx="%d" cy="%d" r="4"/><text class="soft" x="%d" y="%d">%s</text>`+"\n", colour(i == 1), x, y-4, x+10, y, name)
	}
}

func colour(other bool) string {
	if other {
		return "other"
	}
	return "own"
}

func drawAxis(b *strings.Builder, s scale, height int) {
	bottom := height - plotBottom + 4
	last := math.Inf(-1)
	for _, v := range s.ticks() {
		class, x := "grid", s.at(v)
		if v == 1 {
			class = "one"
		}
		fmt.Fprintf(b, `<line class="%s" x1="%.1f" y1="%d" x2="%.1f" y2="%d"/>`, class, x, plotTop-4, x, bottom)
		if x-last > 26 {
			fmt.Fprintf(b, `<text class="soft mid" x="%.1f" y="%d">%s</text>`, x, bottom+18, number(v))
			last = x
		}
		b.WriteString("\n")
	}
	fmt.Fprintf(b, `<text class="soft mid" x="%d" y="%d">times bare Python (1: as long as it takes); logarithmic</text>`+"\n", (plotLeft+plotRight)/2, bottom+38)
}

// draw puts a row into the plotRow pixels from top.
func (row strip) draw(b *strings.Builder, s scale, top int) {
	middle := float64(top) + plotRow/2
	fmt.Fprintf(b, `<text class="text end" x="%d" y="%.1f">%s</text>`, plotLeft, middle+4.5, escape(row.label))
	fmt.Fprintf(b, `<g class="%s dot">`, colour(row.other))
	for i, v := range row.ratios {
		// Up and down by the golden ratio, so that dots in one place are told apart.
		_, part := math.Modf(float64(i) * math.Phi)
		fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="2.8"/>`, s.at(v), middle+(part-0.5)*(plotRow-14))
	}
	x := s.at(row.median)
	fmt.Fprintf(b, `</g><line class="median" x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f"/>`, x, middle-11, x, middle+11)
	fmt.Fprintf(b, `<text class="text" x="%d" y="%.1f">%s</text>`+"\n", plotRight+6, middle+4.5, number(row.median))
}

// escape makes text of XML.
func escape(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a Builder takes everything
	return b.String()
}

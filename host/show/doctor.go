package show

import (
	"io"
	"regexp"
	"strings"
	"time"

	"github.com/pybox/pybox/host/doctor"
	"github.com/pybox/pybox/host/units"
)

const (
	// verdictColumn is the width of a verdict, with the space behind it.
	verdictColumn = 8
	// maxObserved and maxConsoleLine bound what a row shows, in bytes.
	maxObserved    = 2000
	maxConsoleLine = 400
)

// Colours of verdicts (ECMA-48, SGR), beside bold and dim.
const (
	red    = "\x1b[31m"
	green  = "\x1b[32m"
	yellow = "\x1b[33m"
)

// Doctor writes a report: a row for each observation, below it what to do, and at
// the end how many of each kind there are.
func Doctor(w io.Writer, r doctor.Report, o Style) {
	p := newPage(o)
	p.title("PyBox doctor", Escape(r.Version, maxName))
	p.blank()
	for _, row := range r.Rows {
		p.observation(row)
	}
	p.blank()
	var parts []string
	for _, v := range []doctor.Verdict{doctor.Failed, doctor.Advice, doctor.Unknown, doctor.OK} {
		if n := r.Count(v); n > 0 {
			parts = append(parts, glued("%d %s", n, v))
		}
	}
	took := time.Duration(r.MS * float64(time.Millisecond))
	p.line(verdictOf(r), strings.Join(parts, ", ")+glued(" (%s)", units.Elapsed(took)))
	_, _ = w.Write(p.b.Bytes())
}

// verdictOf says in a sentence what the whole report comes to.
func verdictOf(r doctor.Report) string {
	switch r.Verdict {
	case doctor.Failed:
		return "Something keeps PyBox from working:"
	case doctor.Advice:
		return "PyBox works, and could be better:"
	}
	return "Nothing is wrong:"
}

// observation writes one row of a report.
func (p *page) observation(r doctor.Row) {
	verdict, how := string(r.Verdict), dim
	switch r.Verdict {
	case doctor.OK:
		how = green
	case doctor.Advice:
		how = yellow
	case doctor.Failed:
		verdict, how = "FAILED", red
	}
	title := Escape(r.Title, maxName)
	left, first := pageLabel, p.styled(how, verdict)+indent(verdictColumn-len(verdict))+title
	first += indent(max(1, left-verdictColumn-Columns(title)))
	if p.narrow() {
		left = 2
		gap := " "
		if len(verdict)+1+Columns(title) > p.width {
			gap = "\n" + indent(left)
		}
		p.b.WriteString(p.styled(how, verdict) + gap + title)
		p.blank()
		first = indent(left)
	}
	p.hanging(first, left, Escape(r.Observed, maxObserved))
	if r.Next != "" {
		p.hanging(indent(left)+p.styled(bold, "→")+" ", left+2, Escape(r.Next, maxObserved))
	}
	if len(r.Untrusted) == 0 {
		return
	}
	p.hanging(indent(left), left, "the guest's console, untrusted:")
	for _, l := range r.Untrusted {
		for _, part := range Wrap(Escape(l, maxConsoleLine), p.width-left-2) {
			p.b.WriteString(indent(left) + "| " + part)
			p.blank()
		}
	}
}

// hanging writes text behind first, and its further lines below it, left columns in.
func (p *page) hanging(first string, left int, text string) {
	for i, l := range commandWrap(text, p.width-left) {
		if i > 0 {
			first = indent(left)
		}
		p.b.WriteString(first + l)
		p.blank()
	}
}

// command is a command as PyBox's sentences quote it.
var command = regexp.MustCompile(`'[a-z][^']*'`)

// commandWrap is Wrap that keeps a quoted command on one line where it has room.
func commandWrap(text string, n int) []string {
	text = command.ReplaceAllStringFunc(text, func(c string) string {
		if Columns(c) > n {
			return c
		}
		return glued("%s", c)
	})
	var words []string
	for word := range strings.SplitSeq(text, " ") {
		if strings.ContainsRune(word, glue) { // not with what stands around the quotes
			words = append(words, word)
			continue
		}
		words = append(words, Wrap(word, n)...)
	}
	return wrap(strings.Join(words, " "), n, n)
}

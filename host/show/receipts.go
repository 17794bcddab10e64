package show

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/pybox/pybox/host/api"
)

// Receipts writes a list of kept receipts, a line for each where that fits, and
// below it what is wrong with those that are damaged.
func Receipts(w io.Writer, list []api.ReceiptSummary, o Style) {
	p := newPage(o)
	rows := [][]string{{"RUN", "STARTED", "ENDED", "EXIT", "TIME", "IMAGE", "PROGRAM"}}
	for _, s := range list {
		rows = append(rows, receiptRow(s))
	}
	if !p.table(rows) {
		for _, row := range rows[1:] {
			p.title(row[0], row[1])
			p.row("", strings.Join(row[2:], " · "))
		}
	}
	for _, s := range list {
		if s.Damaged != "" {
			p.blank()
			p.title("Damaged: "+Escape(s.ID, maxName), Escape(s.Damaged, maxSentence))
		}
	}
	_, _ = w.Write(p.b.Bytes())
}

func receiptRow(s api.ReceiptSummary) []string {
	id, at := Escape(s.ID, maxName), s.StartedAt.Local().Format(time.DateTime)
	if s.Damaged != "" {
		return []string{id, at, "damaged", "-", "-", "-", "-"}
	}
	took := "-"
	if s.ElapsedMS != nil {
		took = strings.ReplaceAll(seconds(*s.ElapsedMS), string(glue), " ")
	}
	return []string{id, at, Escape(s.How, maxName), fmt.Sprint(s.ExitCode), took, Escape(s.Image, maxName), fileName(s.Program)}
}

// table writes rows in columns, the first as a heading, if they fit side by side.
func (p *page) table(rows [][]string) bool {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], Columns(cell))
		}
	}
	const gap = 2
	total := -gap
	for _, w := range widths {
		total += w + gap
	}
	if total > p.width {
		return false
	}
	for i, row := range rows {
		var line strings.Builder
		for j, cell := range row {
			line.WriteString(cell + indent(widths[j]-Columns(cell)+gap))
		}
		s := strings.TrimRight(line.String(), " ")
		if i == 0 {
			s = p.styled(bold, s)
		}
		p.b.WriteString(s)
		p.blank()
	}
	return true
}

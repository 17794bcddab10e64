//go:build linux

// Command bench measures what a VM costs, on this host, and holds the figures to
// PyBox's budgets where they are ratios of one run. 'make bench' runs it.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"text/tabwriter"
)

// row is one figure.
type row struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	// Limit is the budget, at most or (AtLeast) at least; 0 is none.
	Limit   float64 `json:"limit,omitempty"`
	AtLeast bool    `json:"at_least,omitempty"`
	Note    string  `json:"note,omitempty"`
}

func (r row) missed() bool {
	if r.Limit == 0 {
		return false
	}
	if r.AtLeast {
		return r.Value < r.Limit
	}
	return r.Value > r.Limit
}

// report is what --json writes.
type report struct {
	Schema       string `json:"schema"`
	Acceleration string `json:"acceleration"`
	VMM          string `json:"vmm"`
	Rows         []row  `json:"rows"`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var o options
	flag.StringVar(&o.bundle, "bundle", "", "folder of the guest bundle")
	flag.StringVar(&o.testBundle, "test-bundle", "", "folder of the guest bundle of the tests")
	flag.StringVar(&o.dataBundle, "data-bundle", "", "folder of the guest bundle of the tests with the image data")
	flag.StringVar(&o.plainBundle, "plain-bundle", "", "folder of a bundle whose image data has no byte code; empty: imports are not measured")
	flag.StringVar(&o.pybox, "pybox", "", "the pybox to measure")
	flag.IntVar(&o.starts, "starts", 5, "how many starts to measure")
	out := flag.String("json", "", "file to write the figures to")
	flag.Parse()
	missed, err := run(ctx, o, *out)
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	case missed:
		os.Exit(1)
	}
}

type options struct {
	bundle, testBundle, dataBundle, plainBundle, pybox string
	starts                                             int
}

func run(ctx context.Context, o options, out string) (missed bool, err error) {
	r := report{Schema: "pybox.bench/v1"}
	if err := benchStart(ctx, o, &r); err != nil {
		return false, fmt.Errorf("starts: %w", err)
	}
	if err := benchSockets(ctx, o, &r); err != nil {
		return false, fmt.Errorf("sockets: %w", err)
	}
	if err := benchRuns(ctx, o, &r); err != nil {
		return false, fmt.Errorf("runs: %w", err)
	}
	if err := benchReady(ctx, o, &r); err != nil {
		return false, fmt.Errorf("ready runs: %w", err)
	}
	if o.plainBundle != "" {
		if err := benchData(ctx, o, &r); err != nil {
			return false, fmt.Errorf("imports: %w", err)
		}
	}
	missed = r.print()
	if out == "" {
		return missed, nil
	}
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return missed, err
	}
	return missed, os.WriteFile(out, append(b, '\n'), 0o644)
}

func (r *report) add(rows ...row) { r.Rows = append(r.Rows, rows...) }

// print writes the table and tells whether a budget was missed.
func (r *report) print() (missed bool) {
	fmt.Printf("%s, acceleration %s\n\n", r.VMM, r.Acceleration)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "figure\tmeasured\tbudget\t")
	for _, x := range r.Rows {
		budget := ""
		if x.Limit != 0 {
			word := "at most"
			if x.AtLeast {
				word = "at least"
			}
			budget = fmt.Sprintf("%s %g", word, x.Limit)
		}
		if x.missed() {
			budget += "  MISSED"
			missed = true
		}
		fmt.Fprintf(w, "%s\t%.3g %s\t%s\t%s\n", x.Name, x.Value, x.Unit, budget, x.Note)
	}
	w.Flush()
	return missed
}

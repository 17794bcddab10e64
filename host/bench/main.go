// Command bench measures what PyBox costs, on this host, and tells it as a report: see
// package report. 'make bench' runs it. It is no test: what it says depends on the
// machine, and only ratios of one report are held to budgets.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/pybox/pybox/host/bench/report"
)

const usage = `usage:
  bench measure --pybox FILE --bundle DIR --test-bundle DIR … --json FILE
  bench page --json FILE --dir DIR     performance.md, .svg and .json from a report
  bench check --json FILE --baseline FILE
                                       fails where a figure has become clearly worse`

// errFailed: what is to be said has been said.
var errFailed = errors.New("failed")

// errNothing: of two reports no figure could be compared, although the machine is of one
// kind.
var errNothing = errors.New("no figure of the one report is in the other: were they renamed, or not measured?")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	switch {
	case err == nil:
		return
	case !errors.Is(err, errFailed):
		fmt.Fprintln(os.Stderr, "bench:", err)
	}
	if errors.Is(err, errNothing) {
		os.Exit(2)
	}
	os.Exit(1)
}

func run(ctx context.Context, args []string, w io.Writer) error {
	if len(args) == 0 {
		return errors.New(usage)
	}
	f := flag.NewFlagSet("bench "+args[0], flag.ContinueOnError)
	file := f.String("json", "", "the report")
	switch args[0] {
	case "measure":
		o := measureFlags(f)
		if err := f.Parse(args[1:]); err != nil {
			return errFailed
		}
		return measure(ctx, o, *file, w)
	case "page":
		dir := f.String("dir", "docs", "folder of the page")
		if err := f.Parse(args[1:]); err != nil {
			return errFailed
		}
		return writePage(*file, *dir)
	case "check":
		baseline := f.String("baseline", "docs/performance.json", "the report that it is held to")
		if err := f.Parse(args[1:]); err != nil {
			return errFailed
		}
		return check(*file, *baseline, w)
	case doorCommand:
		return runDaemon(ctx, args[1:])
	}
	return errors.New(usage)
}

// options say what is measured.
type options struct {
	bundle, testBundle, dataBundle, plainBundle, peersDisk, pybox, commit, only string
	quick                                                                       bool
}

func measureFlags(f *flag.FlagSet) *options {
	o := &options{}
	f.StringVar(&o.pybox, "pybox", "bin/pybox", "the pybox to measure")
	f.StringVar(&o.bundle, "bundle", "", "folder of its guest bundle")
	f.StringVar(&o.testBundle, "test-bundle", "", "folder of the guest bundle of the tests")
	f.StringVar(&o.dataBundle, "data-bundle", "", "folder of the same with the image data; empty: that is not measured")
	f.StringVar(&o.plainBundle, "plain-bundle", "", "folder of a bundle whose image data has no byte code; empty: imports are not measured")
	f.StringVar(&o.peersDisk, "peers-disk", "", "disk with the container engines that PyBox is compared with; empty: it is not")
	f.StringVar(&o.commit, "commit", "", "the commit of the source, for the report")
	f.StringVar(&o.only, "only", "", "groups to measure, with commas between; empty: all")
	f.BoolVar(&o.quick, "quick", false, "fewer runs, and neither the image data nor imports")
	return o
}

// writePage writes what is told of the report in file into dir.
func writePage(file, dir string) error {
	r, err := readReport(file)
	if err != nil {
		return err
	}
	b, err := r.Encode()
	if err != nil {
		return err
	}
	for name, content := range map[string][]byte{
		report.PageName: report.Page(r), report.PlotName: report.Plot(r), report.JSONName: b,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// check holds the report in file to that in baseline.
func check(file, baseline string, w io.Writer) error {
	now, err := readReport(file)
	if err != nil {
		return err
	}
	then, err := readReport(baseline)
	if err != nil {
		return err
	}
	c := report.Compare(then, now)
	if _, err := io.WriteString(w, c.String()); err != nil {
		return err
	}
	for _, x := range now.Failed {
		fmt.Fprintf(w, "Not measured whole: %s: %s\n", x.Group, x.Error)
	}
	if len(c.Losses) > 0 || len(now.Failed) > 0 {
		return errFailed
	}
	if c.Reason == "" && c.Compared == 0 {
		return errNothing
	}
	return nil
}

func readReport(file string) (*report.Report, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	r, err := report.Decode(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return r, nil
}

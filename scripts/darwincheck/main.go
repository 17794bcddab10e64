// Command darwincheck type-checks this module for macOS on Apple Silicon with cgo
// enabled, on any machine that has Go: no Mac, no C compiler and no SDK of Apple's
// is needed.
//
//	darwincheck [-tags LIST] [-import PATH] [-timeout D] [PACKAGES]
//
// The packages are ./... unless others are named; their tests are checked with
// them. -import names what at least one of them must import: without that
// package among what was checked, the check has missed its purpose and fails.
//
// Why not go build or go vet: both run cgo, which runs a C compiler with Apple's
// headers, as soon as a package behind the build constraint "darwin && cgo"
// imports one that has C or Objective-C in it. Here go/types reads the Go side
// alone, with types.Config.FakeImportC for what is on the C side.
//
// What that proves: every call that our code makes exists with these parameters
// and results, on the versions that go.mod names. What it does not: that the
// C side compiles and links (its authors' task), nor how anything behaves.
// Functions of other modules are checked by their declarations, without their
// bodies, as a compiler does that reads export data.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "darwincheck:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("darwincheck", flag.ContinueOnError)
	tags := flags.String("tags", "", "build tags, separated by commas")
	must := flags.String("import", "", "package that one of the checked ones must import")
	limit := flags.Duration("timeout", 3*time.Minute, "most time that the check may take")
	if err := flags.Parse(args); err != nil {
		return err
	}
	patterns := flags.Args()
	if len(patterns) == 0 {
		patterns = []string{"./..."}
	}
	ctx, cancel := context.WithTimeout(ctx, *limit)
	defer cancel()

	start := time.Now()
	result, err := check(ctx, request{dir: ".", tags: *tags, patterns: patterns})
	if err != nil {
		return err
	}
	const most = 50
	for i, problem := range result.problems {
		if i == most {
			fmt.Fprintf(os.Stderr, "and %d more\n", len(result.problems)-most)
			break
		}
		fmt.Fprintln(os.Stderr, problem)
	}
	if n := len(result.problems); n > 0 {
		return fmt.Errorf("%d errors for %s/%s with cgo", n, targetOS, targetArch)
	}
	if err := result.reached(*must); err != nil {
		return err
	}
	with := ""
	if *must != "" {
		with = fmt.Sprintf(", %d of them against %s", len(result.importers[*must]), *must)
	}
	fmt.Printf("darwincheck: %d packages of ours%s, with the declarations of %d others: %.1f s\n",
		result.ours, with, result.others, time.Since(start).Seconds())
	return nil
}

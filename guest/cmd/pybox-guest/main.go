// Command pybox-guest makes, checks and installs guest bundles, and keeps the
// lock file of the Debian packages that they are made of.
//
// It exits with 0 when done, 1 when something failed, and 2 for wrong usage.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

const (
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// usageError marks wrong usage, for the exit code.
type usageError struct{ error }

func (u usageError) Unwrap() error { return u.error }

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	cmd := newRoot(stdout, stderr)
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(ctx)
	var usage usageError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &usage):
		fmt.Fprintf(stderr, "pybox-guest: %v\nsee pybox-guest --help\n", err)
		return exitUsage
	case errors.Is(err, context.Canceled):
		fmt.Fprintln(stderr, "pybox-guest: interrupted; what was downloaded is kept")
		return exitFailed
	}
	fmt.Fprintf(stderr, "pybox-guest: %v\n", err)
	return exitFailed
}

func newRoot(stdout, stderr io.Writer) *cobra.Command {
	root := &cobra.Command{
		Use:   "pybox-guest",
		Short: "Make, check and install the guest that PyBox's VM boots",
		Long: `Make, check and install the guest that PyBox's VM boots.

A guest bundle is a folder with a kernel, a read-only root file system made of
pinned Debian packages, and a manifest with the SHA-256 of each. Making one needs
no root, no Docker and no Debian. Downloads are kept in $PYBOX_CACHE (default: the
folder pybox in the user's cache folder).

Packages come from, in this order: the cache, a mirror given with --mirror or
$PYBOX_DEBIAN_MIRROR, the mirrors that this machine's apt uses, and Debian's
snapshot archive or the copy of it that $PYBOX_DEBIAN_SNAPSHOT names. HTTPS_PROXY
and friends are honoured. docs/vm-image.md shows how to make an image of your own.`,
		SilenceErrors: true, SilenceUsage: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError{fmt.Errorf("there is no verb %q", args[0])}
			}
			return nil
		},
		RunE: func(*cobra.Command, []string) error { return usageError{errors.New("a verb is missing")} },
	}
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(newBuild(), newInstall(), newVerify(), newPack(), newRelock(), newFetch())
	return root
}

// exactArgs is cobra.ExactArgs with a usage error.
func exactArgs(n int) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if err := cobra.ExactArgs(n)(c, args); err != nil {
			return usageError{err}
		}
		return nil
	}
}

// Command mkkernel configures, builds and checks the kernel of PyBox's guest.
// Results go to standard output, everything else to standard error. It ends
// with 0 when done, 1 when something failed, 2 on wrong usage.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/pybox/pybox/guest/fetch"
	"github.com/pybox/pybox/kernel"
	"github.com/pybox/pybox/kernel/config"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), endSignals()...)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// endSignals end a build in good order: also that its terminal is closed, unless
// it was started to outlive that, as with nohup.
func endSignals() []os.Signal {
	list := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		list = append(list, syscall.SIGHUP)
	}
	return list
}

// errUsage marks errors that are the caller's.
var errUsage = errors.New("usage")

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	c := newCommand(stdout, stderr)
	c.SetArgs(args)
	err := c.ExecuteContext(ctx)
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errUsage):
		fmt.Fprintf(stderr, "mkkernel: %v\nrun mkkernel --help for the usage\n", err)
		return 2
	case errors.Is(err, kernel.ErrNotCached):
		fmt.Fprintf(stderr, "mkkernel: %v\n", err)
		return exitNotCached
	}
	fmt.Fprintf(stderr, "mkkernel: %v\n", err)
	return 1
}

// exitNotCached is the exit code of "cached" where there is no such kernel: the
// Makefile tells that from what went wrong.
const exitNotCached = 3

// flags are those of the verbs that need a source.
type flags struct {
	lock   string
	mirror string
	deb    string
	own    []string
	jobs   int
	clean  bool
	stderr io.Writer
}

func newCommand(stdout, stderr io.Writer) *cobra.Command {
	f := &flags{stderr: stderr}
	root := &cobra.Command{
		Use:           "mkkernel",
		Short:         "Configure, build and check the kernel of PyBox's guest",
		Long:          "Configure, build and check the kernel of PyBox's guest.\nEverything is kept below $PYBOX_CACHE (default: pybox in the user's cache folder).",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          usage(cobra.NoArgs),
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return fmt.Errorf("%w: %w", errUsage, err) })
	root.CompletionOptions.DisableDefaultCmd = true
	p := root.PersistentFlags()
	p.StringVar(&f.lock, "lock", filepath.Join("guest", "debian.lock.json"), "lock file that pins the source, in its set kernel-source")
	p.StringVar(&f.mirror, "mirror", "", "Debian mirror to ask first for the source, such as http://HOST/debian (default: $PYBOX_DEBIAN_MIRROR)")
	p.StringVar(&f.deb, "source-deb", "", "use this linux-source package instead of the pinned one, to try an update")
	p.StringArrayVar(&f.own, "fragment", nil, "`FILE` with requests of your own, such as CONFIG_NAME=y; they go before PyBox's and are part of the kernel's key (may be given more than once)")
	p.IntVarP(&f.jobs, "jobs", "j", 0, "processes that compile at a time (0: one per CPU)")
	root.AddCommand(
		&cobra.Command{
			Use:   "configure ARCH",
			Short: "Make the configuration, fail on requests that are not honoured, print its path",
			Args:  usage(archArg),
			RunE: f.with(func(c *cobra.Command, b *kernel.Builder, arch string) error {
				done, err := b.Configure(c.Context(), arch)
				if err == nil {
					fmt.Fprintln(stdout, done.File)
				}
				return err
			}),
		},
		buildCommand(f, stdout),
		&cobra.Command{
			Use:   "cached ARCH",
			Short: "Print the folder of the kernel if it is built already, exit with 3 if not; nothing is built or fetched",
			Args:  usage(archArg),
			RunE: f.with(func(c *cobra.Command, b *kernel.Builder, arch string) error {
				r, err := b.Cached(c.Context(), arch)
				if err == nil {
					fmt.Fprintln(stdout, r.Dir)
				}
				return err
			}),
		},
		&cobra.Command{
			Use:   "compare ARCH",
			Short: "Show protective settings that are on by default and off in ours, fail on unexplained ones",
			Args:  usage(archArg),
			RunE: f.with(func(c *cobra.Command, b *kernel.Builder, arch string) error {
				return compare(c.Context(), b, arch, stdout)
			}),
		},
		&cobra.Command{
			Use:   "check-tools [ARCH]",
			Short: "Name the programs that a build needs and this host lacks, and how to install them",
			Args:  usage(optionalArchArg),
			RunE:  func(c *cobra.Command, args []string) error { return checkTools(c.Context(), args, stderr) },
		},
		&cobra.Command{
			Use:   "clean",
			Short: "Remove unpacked sources and objects, keep finished kernels",
			Args:  usage(cobra.NoArgs),
			RunE: func(c *cobra.Command, _ []string) error {
				dir, err := cacheDir()
				if err != nil {
					return err
				}
				return (&kernel.Builder{Cache: dir, Progress: stderr}).RemoveScratch(c.Context())
			},
		},
	)
	return root
}

func buildCommand(f *flags, stdout io.Writer) *cobra.Command {
	c := &cobra.Command{
		Use:   "build ARCH",
		Short: "Build the kernel unless it is in the cache, print the folder that holds it",
		Long:  "Build the kernel unless it is in the cache, print the folder that holds it:\nkernel (bzImage for amd64, uncompressed Image for arm64), config, System.map, meta.json.",
		Args:  usage(archArg),
		RunE: f.with(func(c *cobra.Command, b *kernel.Builder, arch string) error {
			r, err := b.Build(c.Context(), arch)
			if err == nil {
				fmt.Fprintln(stdout, r.Dir)
			}
			return err
		}),
	}
	c.Flags().BoolVar(&f.clean, "clean", false, "do not reuse objects of an earlier build")
	return c
}

// usage marks errors of an argument check as the caller's.
func usage(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if err := check(c, args); err != nil {
			return fmt.Errorf("%w: %s: %w", errUsage, c.Name(), err)
		}
		return nil
	}
}

func archArg(c *cobra.Command, args []string) error {
	if err := cobra.ExactArgs(1)(c, args); err != nil {
		return err
	}
	return optionalArchArg(c, args)
}

func optionalArchArg(c *cobra.Command, args []string) error {
	if err := cobra.MaximumNArgs(1)(c, args); err != nil {
		return err
	}
	for _, a := range args {
		if _, err := config.For(a); err != nil {
			return err
		}
	}
	return nil
}

// with makes a verb of fn, which gets a builder and the architecture.
func (f *flags) with(fn func(*cobra.Command, *kernel.Builder, string) error) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, args []string) error {
		dir, err := cacheDir()
		if err != nil {
			return err
		}
		src, err := f.source()
		if err != nil {
			return err
		}
		own, err := config.ReadFragments(f.own...)
		if err != nil {
			return err
		}
		return fn(c, &kernel.Builder{Cache: dir, Source: src, Own: own, Jobs: f.jobs, Clean: f.clean, Progress: f.stderr}, args[0])
	}
}

func cacheDir() (string, error) {
	dir, err := fetch.CacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "kernel"), nil
}

func compare(ctx context.Context, b *kernel.Builder, arch string, stdout io.Writer) error {
	allow, err := config.AllowList()
	if err != nil {
		return err
	}
	l, err := b.Compare(ctx, arch, allow)
	if err != nil {
		return err
	}
	if len(b.Own) > 0 {
		l.Stale = nil // the list is about PyBox's own requests
	}
	for _, a := range l.Allowed {
		fmt.Fprintf(stdout, "allowed  CONFIG_%s: %s\n", a.Symbol, a.Reason)
	}
	for _, a := range l.Stale {
		fmt.Fprintf(stdout, "stale    CONFIG_%s (%s): not lost any more\n", a.Symbol, a.Pos)
	}
	for _, s := range l.Lost {
		fmt.Fprintf(stdout, "lost     CONFIG_%s\n", s)
	}
	if !l.OK() {
		return fmt.Errorf("%d protective settings are lost, %d entries of the allow list are stale: request the former in kernel/config/*.config, or give the reason in kernel/config/lost.allow",
			len(l.Lost), len(l.Stale))
	}
	return nil
}

func checkTools(ctx context.Context, args []string, stderr io.Writer) error {
	if runtime.GOOS != "linux" {
		return fmt.Errorf("a kernel is built on Linux only; on %s use the kernel of a release", runtime.GOOS)
	}
	if len(args) == 0 {
		args = config.Arches()
	}
	var all error
	for _, a := range args {
		if err := kernel.CheckTools(ctx, a); err != nil {
			all = errors.Join(all, fmt.Errorf("for %s: %w", a, err))
			continue
		}
		fmt.Fprintf(stderr, "for %s: every tool is there\n", a)
	}
	return all
}

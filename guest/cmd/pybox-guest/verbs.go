package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	agentapi "github.com/pybox/pybox/agent/api"
	"github.com/pybox/pybox/guest/build"
	"github.com/pybox/pybox/guest/bundle"
	"github.com/pybox/pybox/guest/debian"
	"github.com/pybox/pybox/guest/nospace"
)

const defaultLock = "guest/debian.lock.json"

func addArch(c *cobra.Command, arch *string) {
	c.Flags().StringVar(arch, "arch", runtime.GOARCH, "the guest's architecture: amd64 or arm64")
}

func newBuild() *cobra.Command {
	var o build.Options
	var src sourceFlags
	c := &cobra.Command{
		Use:   "build --kernel FILE --kernel-version V --agent FILE --agent-version V",
		Short: "Make a bundle from a kernel, an agent and the locked packages",
		Example: `  pybox-guest build --arch amd64 --kernel bzImage --kernel-version 6.12.118 \
      --agent pybox-agent --agent-version 0.1.0 --out bundle-amd64`,
		Args: exactArgs(0),
		RunE: func(c *cobra.Command, _ []string) error {
			if o.Arch != "amd64" && o.Arch != "arm64" {
				return usageError{fmt.Errorf("--arch %s: want amd64 or arm64", o.Arch)}
			}
			f, lock, done, err := src.open(c)
			if err != nil {
				return err
			}
			defer done()
			o.Lock, o.Fetch = lock, f
			o.Stage = func(name string, took time.Duration) {
				done()
				fmt.Fprintf(c.ErrOrStderr(), "%-10s %6.2f s\n", name, took.Seconds())
			}
			b, err := build.Build(c.Context(), o)
			if errors.Is(err, build.ErrOptions) {
				return usageError{err}
			}
			if err != nil {
				return err
			}
			done()
			fmt.Fprintf(c.OutOrStdout(), "%s\n", b.ID())
			return nil
		},
	}
	addArch(c, &o.Arch)
	src.add(c)
	fl := c.Flags()
	fl.StringVar(&o.Kernel, "kernel", "", "kernel: a bzImage (amd64) or an uncompressed Image (arm64)")
	fl.StringVar(&o.KernelKind, "kernel-kind", bundle.KernelOwn, "whose kernel it is: own or debian-cloud")
	fl.StringVar(&o.KernelVersion, "kernel-version", "", "version of the kernel")
	fl.StringVar(&o.Agent, "agent", "", "the agent's program, static, for the guest's architecture")
	fl.StringVar(&o.AgentVersion, "agent-version", "", "version of the agent")
	fl.Uint32Var(&o.ProtocolVersion, "protocol", agentapi.ProtocolVersion, "version of the protocol that the agent speaks")
	fl.StringVar(&o.Out, "out", "bundle", "folder to make")
	for _, f := range []string{"kernel", "kernel-version", "agent", "agent-version"} {
		_ = c.MarkFlagRequired(f)
	}
	return requireUsage(c)
}

// requireUsage turns cobra's complaint about missing flags into a usage error.
func requireUsage(c *cobra.Command) *cobra.Command {
	c.PreRunE = func(c *cobra.Command, _ []string) error { return nil }
	args := c.Args
	c.Args = func(c *cobra.Command, a []string) error {
		if err := c.ValidateRequiredFlags(); err != nil {
			return usageError{err}
		}
		return args(c, a)
	}
	return c
}

func newInstall() *cobra.Command {
	var home string
	c := &cobra.Command{
		Use:   "install DIR",
		Short: "Verify a bundle and make it the one that PyBox boots",
		Long: `Verify a bundle and make it the one that PyBox boots, from the next start of the
VM on. It is copied into the state folder; the bundle before it is kept.`,
		Args: exactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			dir, err := homeDir(home)
			if err != nil {
				return err
			}
			b, err := bundle.Install(c.Context(), dir, args[0])
			if err != nil {
				return err
			}
			fmt.Fprintf(c.OutOrStdout(), "%s\n", b.Dir())
			return nil
		},
	}
	c.Flags().StringVar(&home, "home", "", "state folder (default: $PYBOX_HOME, or ~/.pybox)")
	return c
}

func homeDir(flag string) (string, error) {
	dir := flag
	if dir == "" {
		dir = os.Getenv("PYBOX_HOME")
	}
	if dir != "" {
		return filepath.Abs(dir)
	}
	h, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("no home folder (%w): give --home", err)
	}
	return filepath.Join(h, ".pybox"), nil
}

func newVerify() *cobra.Command {
	return &cobra.Command{
		Use:   "verify DIR",
		Short: "Check every file of a bundle against its manifest",
		Args:  exactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			b, err := bundle.Open(args[0])
			if err != nil {
				return err
			}
			if err := b.Verify(c.Context()); err != nil {
				return err
			}
			for _, f := range b.Manifest.Files() {
				fmt.Fprintf(c.OutOrStdout(), "%s  %10d  %s\n", f.SHA256, f.Bytes, f.File)
			}
			fmt.Fprintf(c.OutOrStdout(), "%s  whole\n", b.ID())
			return nil
		},
	}
}

func newFetch() *cobra.Command {
	var src sourceFlags
	c := &cobra.Command{
		Use:     "fetch SET ARCH",
		Short:   "Download a set of the lock file and print where its files are",
		Example: "  pybox-guest fetch kernel-source all",
		Args:    exactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			f, lock, done, err := src.open(c)
			if err != nil {
				return err
			}
			defer done()
			set, err := lock.Set(args[0], args[1])
			if err != nil {
				return usageError{err}
			}
			files, err := f.GetAll(c.Context(), build.Items(set))
			if err != nil {
				return err
			}
			done()
			for _, name := range files {
				fmt.Fprintln(c.OutOrStdout(), name)
			}
			return nil
		},
	}
	src.add(c)
	return c
}

func newRelock() *cobra.Command {
	var src sourceFlags
	c := &cobra.Command{
		Use:   "relock",
		Short: "Bring the lock file up to the newest packages of Debian stable",
		Long: `Bring the lock file up to the newest packages of Debian stable and its updates.

The archive's signature is checked against keys that are part of PyBox, and a
mirror that serves older lists than the locked ones is refused. That the lists are
newer is recorded also where no package changed, so that no mirror can go back.`,
		Args: exactArgs(0),
		RunE: func(c *cobra.Command, _ []string) error { return relock(c, &src) },
	}
	src.add(c)
	return c
}

func relock(c *cobra.Command, src *sourceFlags) error {
	old, err := debian.ReadLock(src.lock)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, done, err := src.fetcher(c, time.Now())
	if err != nil {
		return err
	}
	defer done()
	keys, err := debian.ArchiveKeys()
	if err != nil {
		return err
	}
	r := debian.Relocker{Source: f, Keys: keys, Now: time.Now, Recipes: debian.Recipes()}
	cur, err := r.Relock(c.Context(), old)
	if err != nil {
		return err
	}
	done()
	return writeLock(c.OutOrStdout(), src.lock, old, cur)
}

// writeLock replaces old (nil: none) in file by cur unless they are the same, and
// tells what changed.
func writeLock(w io.Writer, file string, old, cur *debian.Lock) error {
	changes := debian.Changes(old, cur)
	for _, ch := range changes {
		fmt.Fprintln(w, ch)
	}
	switch {
	case old == nil || len(changes) > 0:
	case debian.SameReleases(old, cur):
		fmt.Fprintln(w, "nothing changed; the lock file stays as it is")
		return nil
	default:
		fmt.Fprintln(w, "no package changed; only the dates of the archive's lists moved:")
		for _, r := range cur.Releases {
			fmt.Fprintf(w, "  %s of %s\n", r.Suite, r.Date.UTC().Format(time.RFC3339))
		}
	}
	return nospace.Explain(cur.WriteFile(file), "the lock file", filepath.Dir(file), 0, "")
}

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	agentapi "github.com/pybox/pybox/agent/api"
	"github.com/pybox/pybox/guest/build"
	"github.com/pybox/pybox/guest/bundle"
	"github.com/pybox/pybox/guest/nospace"
)

const (
	defaultLock = "guest/debian.lock.json"
	// defaultImage is the image of a bundle that nobody asked for more.
	defaultImage = "stdlib"
)

func addArch(c *cobra.Command, arch *string) {
	c.Flags().StringVar(arch, "arch", runtime.GOARCH, "the guest's architecture: amd64 or arm64")
}

func newBuild() *cobra.Command {
	var o build.Options
	var src sourceFlags
	var plain bool
	c := &cobra.Command{
		Use:   "build --kernel FILE|debian --init FILE --agent FILE --agent-version V",
		Short: "Make a bundle from a kernel, an agent and the locked packages",
		Long: `Make a bundle from a kernel, an agent and the locked packages.

The kernel is what mkkernel made, named by its folder; or any other file of the kind
that this architecture boots; or Debian's ready-made cloud kernel, which takes no
time to build but has far more in it than a guest needs (--kernel debian; a file of
that name is ./debian).

The byte code of the images' Python sources is compiled by their own interpreter in
a virtual machine that lives for that only, and kept in the cache. It takes seconds,
or minutes where this machine can only emulate one. Such a machine is of this host's
architecture: --compile-with names a bundle for that when --arch is another one.`,
		Example: `  pybox-guest build --arch amd64 --kernel "$(mkkernel build amd64)" \
      --init pybox-init --agent pybox-agent --agent-version 0.1.0 --out bundle-amd64
  pybox-guest build --arch arm64 --kernel debian --init pybox-init \
      --agent pybox-agent --agent-version 0.1.0 --out bundle-arm64`,
		Args: exactArgs(0),
		RunE: func(c *cobra.Command, _ []string) error {
			if o.Arch != "amd64" && o.Arch != "arm64" {
				return usageError{fmt.Errorf("--arch %s: want amd64 or arm64", o.Arch)}
			}
			if err := chooseKernel(&o); err != nil {
				return err
			}
			f, lock, done, err := src.open(c)
			if err != nil {
				return err
			}
			defer done()
			o.Lock, o.Fetch = lock, f
			if o.Progress = lineWriter(c.ErrOrStderr(), done); !plain {
				if o.Compiler, o.BytecodeCache, err = newCompiler(src.logger(c)); err != nil {
					return err
				}
			}
			o.Stage = func(name string, took time.Duration) {
				done()
				fmt.Fprintf(c.ErrOrStderr(), "%-10s %6.2f s\n", name, took.Seconds())
			}
			b, err := build.Build(c.Context(), o)
			if errors.Is(err, build.ErrOptions) {
				return usageError{err}
			}
			if err != nil {
				return explainCompile(err)
			}
			done()
			fmt.Fprintf(c.OutOrStdout(), "%s\n", b.ID())
			return nil
		},
	}
	addArch(c, &o.Arch)
	src.add(c)
	fl := c.Flags()
	fl.StringVar(&o.Kernel, "kernel", "", "kernel: a folder that mkkernel made, a bzImage (amd64), an uncompressed Image (arm64), or the word debian")
	fl.StringVar(&o.KernelVersion, "kernel-version", "", "version of a kernel that is a file by itself")
	fl.StringVar(&o.Init, "init", "", "the program of PID 1, static, for the guest's architecture")
	fl.StringVar(&o.Agent, "agent", "", "the agent's program, static, for the guest's architecture")
	fl.StringVar(&o.AgentVersion, "agent-version", "", "version of the agent")
	fl.Uint32Var(&o.ProtocolVersion, "protocol", agentapi.ProtocolVersion, "version of the protocol that the agent speaks")
	fl.StringSliceVar(&o.Images, "images", []string{defaultImage}, "images of boxes to make, out of "+strings.Join(build.ImageNames(), " and ")+"; empty: none")
	fl.BoolVar(&plain, "no-bytecode", false, "leave byte code out: every run of a program then compiles what it imports")
	fl.StringVar(&o.CompileWith, "compile-with", "", "bundle for this host's architecture, to compile byte code for another")
	fl.StringVar(&o.Out, "out", "bundle", "folder to make")
	for _, f := range []string{"kernel", "init", "agent", "agent-version"} {
		_ = c.MarkFlagRequired(f)
	}
	return requireUsage(c)
}

// readyMadeKernel is the value of --kernel that is no file.
const readyMadeKernel = "debian"

// chooseKernel completes what --kernel says.
func chooseKernel(o *build.Options) error {
	if o.Kernel == readyMadeKernel {
		if o.KernelVersion != "" {
			return usageError{errors.New("--kernel-version goes with a kernel that is a file: Debian's has the version in the lock file")}
		}
		o.Kernel, o.KernelKind = "", bundle.KernelDebianCloud
		return nil
	}
	return builtKernel(o)
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

func newPack() *cobra.Command {
	return &cobra.Command{
		Use:   "pack DIR FILE.tar",
		Short: "Put a bundle into one file, for 'pybox setup --from'",
		Long: `Put a bundle into one file, for 'pybox setup --from' on another machine: a plain tar
file with the manifest, SHA256SUMS for sha256sum(1), and the bundle's files. Every
file is verified on its way, and equal bundles give equal bytes.`,
		Args: exactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			b, err := bundle.Open(args[0])
			if err != nil {
				return err
			}
			if err := bundle.WriteArchive(c.Context(), b, args[1]); err != nil {
				return nospace.Explain(err, "the archive", filepath.Dir(args[1]), 0, "")
			}
			fmt.Fprintln(c.OutOrStdout(), args[1])
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

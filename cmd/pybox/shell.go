package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/config"
	"github.com/pybox/pybox/host/control"
	"github.com/pybox/pybox/host/receipt"
	"github.com/pybox/pybox/host/shell"
	"github.com/pybox/pybox/host/show"
	"github.com/spf13/cobra"
)

const shellLong = `Opens a shell in the VM's guest, or runs COMMAND there, as root, to look inside.
It is outside every box. A VM that does not run is started.

Nothing in the guest listens for a shell before somebody asks for one. Once one
was opened, every receipt of this VM says so until the VM ends: whoever was in
the guest could have changed anything there. 'pybox vm restart' makes a new one.
"shell = false" in the section [vm] of config.toml forbids it.

The arguments of COMMAND reach it as they are; for a line of shell language use
"sh -c 'LINE'". Without a terminal, or with COMMAND, the three streams are
passed on as they are. At a terminal, Enter ~ . leaves a guest that does not
answer.

Exit codes: that of the shell or COMMAND; 128+N when signal N ended it; 125 when
PyBox could not do it; 130 when interrupted.`

func vmShell() *cobra.Command {
	var tty, quiet bool
	c := &cobra.Command{
		Use:   "shell [flags] [-- COMMAND ARGS…]",
		Short: "Look into the guest (receipts say so from then on)",
		Long:  shellLong,
		Example: `  pybox vm shell
  pybox vm shell -- ps
  pybox vm shell -- sh -c 'cat /sys/fs/cgroup/pybox/boxes/*/memory.peak'`,
		Args: func(c *cobra.Command, args []string) error {
			if at := c.ArgsLenAtDash(); len(args) > 0 && at != 0 {
				return shellFailed(fmt.Errorf("%.80q: what is to run in the guest goes after \"--\"; see 'pybox vm shell --help'", args[0]))
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			var problem *api.Problem
			code, err := runShell(c, args, tty, quiet)
			switch {
			case c.Context().Err() != nil:
				return exitStatus(receipt.ExitCancelled)
			case errors.As(err, &problem):
				show.Problem(c.ErrOrStderr(), problem)
				return exitStatus(receipt.ExitFailed)
			case err != nil:
				return shellFailed(err)
			case code != 0:
				return exitStatus(code)
			}
			return nil
		},
	}
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		return shellFailed(fmt.Errorf("%w; see 'pybox vm shell --help'", err))
	})
	c.Flags().BoolVarP(&tty, "tty", "t", false, "give COMMAND a terminal, for programs such as top")
	c.Flags().BoolVarP(&quiet, "quiet", "q", false, "do not say that the shell was opened")
	return c
}

// shellFailed gives an error the exit code of those that are not the guest's.
func shellFailed(err error) error { return codedError{err, receipt.ExitFailed} }

func runShell(c *cobra.Command, command []string, tty, quiet bool) (int, error) {
	terminal, err := shellTerminal(c, command, tty)
	if err != nil {
		return 0, err
	}
	ctl, err := controller()
	if err != nil {
		return 0, err
	}
	if err := startForShell(c, ctl); err != nil {
		return 0, err
	}
	ctx := c.Context()
	asking, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	keys, err := ctl.Client().OpenShell(asking)
	if err != nil {
		return 0, perhapsOpen(err)
	}
	if keys.Opened && !quiet { // whatever becomes of the connection
		fmt.Fprintln(c.ErrOrStderr(), "pybox: the guest's shell is open: every receipt of this VM says so from now on, until 'pybox vm restart'")
	}
	conn, err := ctl.Client().DialShell(asking)
	if err != nil {
		return 0, err
	}
	o := shell.Options{
		Conn: conn, Keys: keys, Command: command,
		Stdin: c.InOrStdin(), Stdout: unchecked(c.OutOrStdout()), Stderr: c.ErrOrStderr(), Lang: "C.UTF-8",
	}
	if terminal != nil { // a typed nil would be one
		o.Terminal, o.Term = terminal, cmp.Or(getenv("TERM"), "dumb")
	}
	return shell.Run(ctx, o)
}

// perhapsOpen says of an error what it leaves open. A daemon that answered has said so
// itself, and where there is none there is no guest.
func perhapsOpen(err error) error {
	var p *api.Problem
	if errors.As(err, &p) || errors.Is(err, api.ErrNoDaemon) {
		return err
	}
	return fmt.Errorf("%w; the shell may have been opened all the same, so receipts of this VM may say so from now on", err)
}

// shellTerminal is the person's, where the guest is to have one; else nil.
func shellTerminal(c *cobra.Command, command []string, tty bool) (*shell.TTY, error) {
	if len(command) > 0 && !tty {
		return nil, nil
	}
	in, _ := c.InOrStdin().(*os.File)
	out, _ := unchecked(c.OutOrStdout()).(*os.File)
	terminal := shell.NewTTY(in, out)
	if terminal == nil && tty {
		return nil, errors.New("--tty: standard input and output are no terminal")
	}
	return terminal, nil
}

// startForShell starts a VM that does not run, unless it is known that there will be
// no shell in it.
func startForShell(c *cobra.Command, ctl *control.Controller) error {
	s, err := ctl.Status(c.Context())
	if err == nil && s.State == api.StateRunning {
		return nil
	}
	if cfg, err := config.Load(ctl.Home.Config(), getenv); err == nil && !cfg.VM.Shell {
		return fmt.Errorf("a shell in the guest is not allowed: \"shell = false\" in the section [vm] of %s", ctl.Home.Config())
	}
	began := time.Now()
	line := newProgress(c.ErrOrStderr())
	defer line.clear()
	_, err = ctl.Start(c.Context(), func(s api.Status) { line.show(startLine(s, time.Since(began))) })
	return err
}

// Command pybox runs untrusted Python in a private VM. This package holds the
// verbs and their flags; what they do lives in the packages under host.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/control"
	"github.com/pybox/pybox/host/home"
	"github.com/pybox/pybox/host/show"
	"github.com/pybox/pybox/host/version"
	"github.com/spf13/cobra"
)

// Exit codes of every command but exec, which has those of package receipt.
const (
	exitFailed = 1
	exitUsage  = 2
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run is main without the process: it returns the exit code.
func run(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), interrupts()...)
	defer stop()
	out := &checked{w: stdout}
	root := rootCommand()
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil && out.err != nil {
		err = fmt.Errorf("writing the output: %w", out.err)
	}
	return exitCode(err, stderr)
}

// interrupts are the signals by which a command is given up. SIGINT and SIGHUP that are
// ignored from the start stay so: a shell does that to a command in the background, and
// nohup. Of SIGTERM package signal does not keep that.
func interrupts() []os.Signal {
	signals := []os.Signal{syscall.SIGTERM}
	for _, s := range []os.Signal{os.Interrupt, syscall.SIGHUP} {
		if !signal.Ignored(s) {
			signals = append(signals, s)
		}
	}
	return signals
}

// checked remembers that a write failed: who prints a line does not look.
type checked struct {
	w   io.Writer
	err error
}

// Write implements io.Writer.
func (c *checked) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	if err != nil && c.err == nil {
		c.err = err
	}
	return n, err
}

// unchecked is the writer itself, for a command that looks at each write.
func unchecked(w io.Writer) io.Writer {
	if c, ok := w.(*checked); ok {
		return c.w
	}
	return w
}

// errInterrupted is what a person is told who did not wait.
var errInterrupted = errors.New("interrupted; what was asked of the VM goes on without you: 'pybox vm status' tells")

// usageError marks a command line that cannot be understood.
type usageError struct{ err error }

func (u usageError) Error() string { return u.err.Error() }
func (u usageError) Unwrap() error { return u.err }

// codedError is an error with an exit code of its own.
type codedError struct {
	error
	code int
}

// exitStatus is the exit code of a command that has said everything.
type exitStatus int

// Error implements error.
func (e exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

func exitCode(err error, stderr io.Writer) int {
	var usage usageError
	var problem *api.Problem
	var coded codedError
	var status exitStatus
	switch {
	case err == nil:
		return 0
	case errors.As(err, &status):
		return int(status)
	case errors.As(err, &usage):
		fmt.Fprintf(stderr, "pybox: %s\n", show.Clean(err.Error()))
		return exitUsage
	case errors.As(err, &problem):
		show.Problem(stderr, problem)
		return exitFailed
	case errors.As(err, &coded):
		fmt.Fprintf(stderr, "pybox: %s\n", show.Clean(err.Error()))
		return coded.code
	}
	fmt.Fprintf(stderr, "pybox: %s\n", show.Clean(err.Error()))
	return exitFailed
}

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "pybox",
		Short: "Run untrusted Python in a private VM and get a receipt",
		Long: `PyBox runs untrusted Python in a private Linux VM that it boots itself: no
network, no access to your files, a read-only system. Everything it keeps is in
one folder, $PYBOX_HOME (usually ~/.pybox).`,
		Version:           version.String(),
		SilenceErrors:     true,
		SilenceUsage:      true,
		Args:              noArgs,
		RunE:              func(c *cobra.Command, _ []string) error { return c.Help() },
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: false},
	}
	root.SetVersionTemplate("pybox {{.Version}}\n")
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usageError{fmt.Errorf("%w; see '%s --help'", err, c.CommandPath())}
	})
	root.AddCommand(execCommand(), repairCommand(), vmCommand(), imageCommand(), receiptCommand(), setupCommand(), doctorCommand(), daemonCommand(), mcpCommand(), versionCommand())
	root.InitDefaultHelpCmd()
	if help, _, err := root.Find([]string{"help"}); err == nil {
		help.Args = helpArgs // without them cobra's succeeds for what it does not know
	}
	return root
}

// helpArgs is a command's path, as a usage error where there is none of that path.
func helpArgs(c *cobra.Command, args []string) error {
	of, rest, err := c.Root().Find(args)
	if err != nil {
		return usageError{err}
	}
	return noArgs(of, rest)
}

// noArgs is cobra.NoArgs as a usage error that names the verbs.
func noArgs(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return usageError{fmt.Errorf("%q is not a command of '%s'; see '%s --help'", args[0], c.CommandPath(), c.CommandPath())}
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: noArgs,
		Run: func(c *cobra.Command, _ []string) { fmt.Fprintln(c.OutOrStdout(), "pybox", version.String()) },
	}
}

// openHome opens the state directory that the environment names.
func openHome() (*home.Home, error) {
	dir, err := home.Locate(os.Getenv)
	if err != nil {
		return nil, err
	}
	return home.Open(dir)
}

func controller() (*control.Controller, error) {
	h, err := openHome()
	if err != nil {
		return nil, err
	}
	exe, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding this program: %w", err)
	}
	return &control.Controller{
		Home: h, Command: []string{exe, "daemon"}, Version: version.String(), Startable: func() error { return startable(h) },
	}, nil
}

func printJSON(w io.Writer, v any) error {
	b, err := show.JSON(v)
	if err != nil {
		return err
	}
	_, err = w.Write(b)
	return err
}

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/pybox/pybox/host/execute"
	"github.com/pybox/pybox/host/home"
	"github.com/pybox/pybox/host/receipt"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

const execLong = `Runs the Python program FILE ("-": standard input) once, in a new box in the VM:
no network, no files of yours but those that you name, a read-only system,
bounded memory, processes, CPU and time. Its output comes out as it appears,
byte for byte; its receipt follows on stderr. A VM that does not run is started.

Limits that are not given are the image's defaults; none can be above the
ceilings in config.toml. TIME is seconds or "1m30s", SIZE bytes or "256MiB".

--input copies a file, or a folder with all that is in it, into the program's
working folder: under its own name or as NAME, a relative path; "PATH=." puts
there what is in a folder. Where PATH itself has a "=" in it, the longest one
that exists is taken. Links inside a folder are refused.
--output puts what the program leaves there, new or changed, into the folder
DIR, which is made, all of it at once or nothing, or is there already. Nothing
is overwritten: where a name is taken, all goes to a new folder in DIR.

Exit codes:
  0-255   the program's own
  128+N   signal N ended it (137: it was killed, also for want of memory)
  124     its time was over
  125     PyBox could not run it, or could not put what it left where it
          belongs, or this command has a mistake
  126     refused before start: a setting differed, or a limit is too high
  130     interrupted
  141     nobody reads the output any more
The receipt, and --json, tell them from a program that exits with the same code.`

const execExample = `  pybox exec hello.py
  pybox exec --timeout 10 --memory 256MiB crunch.py -- --level 9 'two words'
  echo 'print(6*7)' | pybox exec -
  pybox exec --stdin data.csv --receipt receipt.json summarize.py > summary.txt
  pybox exec --input data.csv --input model=lib --output results analyze.py
  pybox exec --json hello.py
  pybox exec --watch hello.py`

func execCommand() *cobra.Command {
	var o execute.Command
	c := &cobra.Command{
		Use:     "exec FILE|- [flags] [-- ARGS…]",
		Short:   "Run a Python program in a box and show its receipt",
		Long:    execLong,
		Example: execExample,
		// Mistakes in this command have its own exit code, not that of others.
		Args: func(c *cobra.Command, args []string) error { return execUsage(execArgs(c, args, &o)) },
		RunE: func(c *cobra.Command, _ []string) error { return runExec(c, o) },
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return nil, cobra.ShellCompDirectiveDefault // files
		},
	}
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return execUsage(err) })
	f := c.Flags()
	f.SortFlags = false
	f.StringVar(&o.Image, "image", "", "image of the box, by its `NAME` (default stdlib)")
	f.StringVar(&o.Timeout, "timeout", "", "the program's `TIME`")
	f.StringVar(&o.Memory, "memory", "", "`SIZE` of the memory, files in the box included")
	f.StringVar(&o.CPUs, "cpus", "", "`NUMBER` of CPUs, such as 0.5")
	f.StringVar(&o.PIDs, "pids", "", "`NUMBER` of processes and threads")
	f.StringArrayVar(&o.Inputs, "input", nil, "copy a file or folder into the working folder;\n`PATH[=NAME]` (repeatable)")
	f.StringVar(&o.Output, "output", "", "put what the program leaves into the folder `DIR`")
	f.StringVar(&o.OutputTar, "output-tar", "", "put it into a new tar archive, `FILE`, instead")
	f.StringVar(&o.MaxFiles, "max-files", "", "`NUMBER` of files and folders in, and of those out")
	f.StringVar(&o.MaxFilesBytes, "max-files-bytes", "", "`SIZE` of the files in together, and of those out")
	f.StringVar(&o.Stdin, "stdin", "", "the program's standard input is this `FILE`, or with\n\"-\" that of this command (default: empty)")
	f.StringArrayVar(&o.Env, "env", nil, "set a variable, or pass on the one that is set here;\n`NAME[=VALUE]` (repeatable)")
	f.StringVar(&o.MaxOutput, "max-output", "", "`SIZE` up to which each output stream is kept")
	f.BoolVar(&o.JSON, "json", false, "print the receipt with the output in it as JSON,\ninstead of the output")
	f.StringVar(&o.Receipt, "receipt", "", "write the receipt to `FILE` too, as JSON without output")
	f.BoolVarP(&o.Quiet, "quiet", "q", false, "show no receipt and no progress")
	f.BoolVar(&o.NoStart, "no-start", false, "do not start a VM that does not run")
	f.BoolVar(&o.Watch, "watch", false, "show each step as it happens, and where it is known\nfrom, on stderr")
	for _, err := range []error{
		c.RegisterFlagCompletionFunc("image", completeImages), c.MarkFlagDirname("output"),
	} {
		if err != nil {
			panic(err) // there is no such flag: a mistake here
		}
	}
	return c
}

// execArgs takes FILE and the program's arguments, which follow "--".
func execArgs(c *cobra.Command, args []string, o *execute.Command) error {
	files := args
	if at := c.ArgsLenAtDash(); at >= 0 {
		files, o.Args = args[:at], args[at:]
	}
	switch {
	case len(files) == 0 || files[0] == "":
		return errors.New("which program? name its FILE, or \"-\" for standard input, before any \"--\"")
	case len(files) > 1:
		return fmt.Errorf("%.80q after FILE: the program's own arguments go after \"--\", as in 'pybox exec FILE -- ARGS'", files[1])
	}
	o.File = files[0]
	var empty error
	c.Flags().Visit(func(f *pflag.Flag) {
		if f.Value.Type() == "string" && f.Value.String() == "" {
			empty = fmt.Errorf("--%s: it is empty", f.Name)
		}
	})
	return empty
}

func execUsage(err error) error {
	if err == nil {
		return nil
	}
	return codedError{fmt.Errorf("%w; see 'pybox exec --help'", err), receipt.ExitFailed}
}

func runExec(c *cobra.Command, o execute.Command) error {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, interrupts()...)
	defer signal.Stop(signals)
	if c.Context().Err() != nil {
		return exitStatus(receipt.ExitCancelled) // a moment ago
	}
	// A pipe that nobody reads is an error of the write, and not the end of us. A
	// handler, since what is ignored would be so for a daemon that is started too.
	pipes := make(chan os.Signal, 1)
	signal.Notify(pipes, syscall.SIGPIPE)
	defer signal.Stop(pipes)

	ctl, err := controller()
	if err != nil {
		return codedError{err, receipt.ExitFailed}
	}
	stdout, stderr := unchecked(c.OutOrStdout()), c.ErrOrStderr()
	code := o.Run(context.WithoutCancel(c.Context()), execute.World{
		Stdin: c.InOrStdin(), Stdout: stdout, Stderr: stderr, Terminal: terminal(stdout, stderr),
		LookupEnv: os.LookupEnv, Signals: signals, Host: execute.NewHost(ctl, getenv),
	})
	if code == 0 {
		return nil
	}
	return exitStatus(code)
}

// completeImages completes the name of an image.
func completeImages(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	dir, err := home.Locate(getenv)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return execute.Installed(dir), cobra.ShellCompDirectiveNoFileComp
}

package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/pybox/pybox/host/execute"
	"github.com/pybox/pybox/host/repair"
	"github.com/pybox/pybox/host/repair/wire"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

const repairLong = `Runs the Python program FILE ("-": standard input) in a box. When it fails, shows a
language model the program, its output and what was observed, takes a new program
from the answer, and runs that in a new box; until one works, or a budget is spent.
FILE is never changed.

A program works when it ends with exit code 0; with --expect it also prints TEXT
(white space at the end aside), and with --check the program CHECK, run in a box
of its own with the repaired one beside it, also ends with exit code 0. A program
that CHECK imports can end CHECK with 0: a CHECK that is to withstand a model that
cheats starts the program as a process of its own.

The model gets no tools. It cannot change the image, the limits, the arguments or
the inputs. What it is told is sent to its provider: the program, --goal, --expect,
the arguments, the inputs' names, and what the program and CHECK print. Of other
files that is what these print of them; a traceback shows lines of CHECK, such as
the value that an assert wants.

Who is asked: --provider, or whom --base-url, --model or the environment name.
Keys come from the environment alone: OPENAI_API_KEY, ANTHROPIC_API_KEY. The server
of --base-url gets one only with --provider, or where OPENAI_BASE_URL or
ANTHROPIC_BASE_URL names it too. A server on this machine needs none.

The program that works goes to standard output, or into the new file --output. All
rounds, with their diffs and receipts, are kept in $PYBOX_HOME/repairs.

Exit codes: 0 it works, 1 it does not, 2 usage, 130 interrupted.`

const repairExample = `  pybox repair --base-url http://127.0.0.1:11434/v1 --model qwen3-coder script.py > fixed.py
  pybox repair --model claude-opus-4-6 --goal 'sum of the column' --input data.csv script.py
  pybox repair --check check.py --budget 5m --output fixed.py script.py -- --level 9`

func repairCommand() *cobra.Command {
	var o repair.Command
	c := &cobra.Command{
		Use:     "repair FILE|- [flags] [-- ARGS…]",
		Short:   "Have a language model repair a program, round by round in new boxes",
		Long:    repairLong,
		Example: repairExample,
		Args:    func(c *cobra.Command, args []string) error { return repairArgs(c, args, &o) },
		RunE:    func(c *cobra.Command, _ []string) error { return runRepair(c, o) },
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return nil, cobra.ShellCompDirectiveDefault // files
		},
	}
	f := c.Flags()
	f.SortFlags = false
	f.StringVar(&o.Goal, "goal", "", "what the program is for, in a sentence; `TEXT`")
	f.StringVar(&o.Expect, "expect", "", "what it must print, `TEXT`")
	f.StringVar(&o.Check, "check", "", "a program that judges it, `FILE`")
	f.IntVar(&o.Rounds, "max-rounds", repair.DefaultRounds, "at most so many answers of the model; `NUMBER`")
	f.StringVar(&o.Budget, "budget", "", "`TIME` of the whole, but for the VM's start (default 60s)")
	f.StringVar(&o.ModelBudget, "model-budget", "", "`TIME` for the model, of the whole (default: all)")
	f.StringVar(&o.RunBudget, "run-budget", "", "`TIME` for runs, of the whole (default: all)")
	f.Int64Var(&o.Tokens, "token-budget", repair.DefaultTokens, "`NUMBER` of tokens of questions and answers together")
	f.StringVar(&o.Model, "model", "", "the model's `NAME` (default: the only one that the server has)")
	f.StringVar(&o.BaseURL, "base-url", "", "the model's server, `URL`")
	f.StringVar(&o.Provider, "provider", "", "the server's format, `NAME`: openai or anthropic")
	f.StringVar(&o.Output, "output", "", "write the program that works into the new file `FILE`")
	f.StringVar(&o.History, "history", "", "write all rounds into the new file `FILE` too")
	f.BoolVar(&o.JSON, "json", false, "print all rounds as JSON, instead of the program")
	f.BoolVarP(&o.Quiet, "quiet", "q", false, "show no progress")
	f.StringVar(&o.Image, "image", "", "image of the boxes, by its `NAME` (default stdlib)")
	f.StringVar(&o.Timeout, "timeout", "", "each run's `TIME`")
	f.StringVar(&o.Memory, "memory", "", "`SIZE` of the memory, files in the box included")
	f.StringVar(&o.CPUs, "cpus", "", "`NUMBER` of CPUs, such as 0.5")
	f.StringVar(&o.PIDs, "pids", "", "`NUMBER` of processes and threads")
	f.StringArrayVar(&o.Inputs, "input", nil, "copy a file or folder into the working folder;\n`PATH[=NAME]` (repeatable)")
	f.StringVar(&o.Stdin, "stdin", "", "the program's standard input is this `FILE`, or with\n\"-\" that of this command (default: empty)")
	f.StringArrayVar(&o.Env, "env", nil, "set a variable, or pass on the one that is set here;\n`NAME[=VALUE]` (repeatable)")
	f.BoolVar(&o.NoStart, "no-start", false, "do not start a VM that does not run")
	if err := c.RegisterFlagCompletionFunc("image", completeImages); err != nil {
		panic(err) // there is no such flag: a mistake here
	}
	return c
}

// repairArgs takes FILE and the program's arguments, which follow "--".
func repairArgs(c *cobra.Command, args []string, o *repair.Command) error {
	files := args
	if at := c.ArgsLenAtDash(); at >= 0 {
		files, o.Args = args[:at], args[at:]
	}
	var err error
	switch {
	case len(files) == 0 || files[0] == "":
		err = errors.New("which program? name its FILE, or \"-\" for standard input, before any \"--\"")
	case len(files) > 1:
		err = fmt.Errorf("%.80q after FILE: the program's own arguments go after \"--\", as in 'pybox repair FILE -- ARGS'", files[1])
	default:
		o.File = files[0]
		c.Flags().Visit(func(f *pflag.Flag) {
			if f.Value.Type() == "string" && f.Value.String() == "" {
				err = fmt.Errorf("--%s: it is empty", f.Name)
			}
		})
	}
	if err != nil {
		return usageError{fmt.Errorf("%w; see 'pybox repair --help'", err)}
	}
	return nil
}

func runRepair(c *cobra.Command, o repair.Command) error {
	ctl, err := controller()
	if err != nil {
		return err
	}
	stdout, stderr := unchecked(c.OutOrStdout()), c.ErrOrStderr()
	code := o.Run(c.Context(), repair.World{
		Stdin: c.InOrStdin(), Stdout: stdout, Stderr: stderr,
		OutTerminal: isTerminal(stdout), ErrTerminal: isTerminal(stderr), Dumb: dumb(),
		LookupEnv: os.LookupEnv, Host: execute.NewHost(ctl, getenv), Home: ctl.Home.Dir(), Wire: wire.Usual,
	})
	if code == repair.ExitDone {
		return nil
	}
	return exitStatus(code)
}

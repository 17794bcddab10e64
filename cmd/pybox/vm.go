package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/pybox/pybox/guest/bundle"
	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/config"
	"github.com/pybox/pybox/host/control"
	"github.com/pybox/pybox/host/follow"
	"github.com/pybox/pybox/host/home"
	"github.com/pybox/pybox/host/show"
	"github.com/pybox/pybox/host/units"
	"github.com/pybox/pybox/host/version"
	"github.com/spf13/cobra"
)

var getenv = os.Getenv

func vmCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "vm",
		Short: "Start, stop and look at the VM",
		Args:  noArgs,
		RunE:  func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(vmStart(), vmStop(), vmRestart(), vmStatus(), vmShell(),
		vmLog("logs", "Show the daemon's log", (*home.Home).Log),
		vmLog("console", "Show what the guest wrote to its console (untrusted text)", (*home.Home).Console))
	return c
}

func vmStart() *cobra.Command {
	var asJSON, verbose bool
	c := &cobra.Command{
		Use: "start", Short: "Start the VM, or wait until it is ready", Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			ctl, err := controller()
			if err != nil {
				return err
			}
			return start(c, ctl, ctl.Start, asJSON, verbose)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print the status as JSON")
	c.Flags().BoolVarP(&verbose, "verbose", "v", false, "show the steps of the start, up to 5s later: with a first ready box")
	return c
}

// start runs a start with its progress and prints what came of it.
func start(c *cobra.Command, ctl *control.Controller, do func(context.Context, func(api.Status)) (api.Status, error), asJSON, verbose bool) error {
	began := time.Now()
	line := newProgress(c.ErrOrStderr())
	s, err := do(c.Context(), func(s api.Status) { line.show(startLine(s, time.Since(began))) })
	took := time.Since(began)
	if err == nil && verbose && !asJSON {
		s = awaitReady(c.Context(), ctl, s, func() { line.show("Making a first box ready, " + units.Elapsed(time.Since(began))) })
	}
	line.clear()
	if c.Context().Err() != nil {
		return errInterrupted
	}
	if err != nil {
		return err
	}
	if asJSON {
		return printJSON(c.OutOrStdout(), s)
	}
	w := c.OutOrStdout()
	fmt.Fprintf(w, "The VM is running (%s).\n", units.Elapsed(took))
	hintLeftOut(c.ErrOrStderr(), s)
	if verbose {
		show.Stages(w, s)
	}
	hintOutdated(c.ErrOrStderr(), ctl.Home, s)
	return nil
}

// Who wants to see the steps of a start gets to see when it was over for boxes too,
// unless that takes longer than readyWait. readyEvery is how often it is looked.
const (
	readyWait  = 5 * time.Second
	readyEvery = 100 * time.Millisecond
)

// awaitReady gives a status with the times of the first boxes that are ready, if it comes
// in time.
func awaitReady(ctx context.Context, ctl *control.Controller, s api.Status, progress func()) api.Status {
	ctx, cancel := context.WithTimeout(ctx, readyWait)
	defer cancel()
	tick := time.NewTicker(readyEvery)
	defer tick.Stop()
	for making(s) {
		select {
		case <-tick.C:
			progress()
		case <-ctx.Done():
			return s
		}
		next, err := ctl.Status(ctx)
		if err != nil || next.State != api.StateRunning {
			return s
		}
		s = next
	}
	return s
}

// making tells whether a first box of some image is yet to be ready, and nothing has
// failed about it.
func making(s api.Status) bool {
	return s.Guest != nil && slices.ContainsFunc(s.Guest.Ready, func(r api.ReadyBoxes) bool { return r.FirstMS == nil && r.Trouble == "" && r.Wanted > 0 })
}

// hintOutdated says when what runs is not what is installed.
func hintOutdated(w io.Writer, h *home.Home, s api.Status) {
	if s.VM == nil {
		return
	}
	b, err := bundle.Current(h.Dir())
	switch {
	case err == nil && b.ID() != s.VM.Bundle:
		fmt.Fprintln(w, "pybox: another guest bundle is installed than the VM runs: 'pybox vm restart' boots it")
	case s.Version != version.String():
		fmt.Fprintf(w, "pybox: the VM's daemon is PyBox %s and this is %s: 'pybox vm restart' changes that\n", show.Clean(s.Version), version.String())
	}
}

// hintLeftOut says which images of one's own the VM has not, and what to do.
func hintLeftOut(w io.Writer, s api.Status) {
	if s.VM == nil {
		return
	}
	for _, l := range s.VM.LeftOut {
		what := "the image " + l.Name + " was left out"
		if l.Name == "" {
			what = "your images were left out"
		}
		fmt.Fprintf(w, "pybox: %s: %s; %s\n", show.Clean(what), show.Clean(l.Why), show.Clean(l.Next))
	}
}

func startLine(s api.Status, waited time.Duration) string {
	return fmt.Sprintf("%s, %s", show.StartStep(s), units.Elapsed(waited))
}

func vmStop() *cobra.Command {
	var force bool
	var timeout string
	c := &cobra.Command{
		Use: "stop", Short: "Power the VM off and end its daemon", Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			r, err := stopRequest(force, timeout)
			if err != nil {
				return err
			}
			ctl, err := controller()
			if err != nil {
				return err
			}
			end, err := ctl.Stop(c.Context(), r)
			if c.Context().Err() != nil {
				return errInterrupted
			}
			if err != nil {
				return err
			}
			say := "The VM was not running."
			if end != nil || force {
				say = "The VM is stopped."
			}
			fmt.Fprintln(c.OutOrStdout(), say)
			return nil
		},
	}
	c.Flags().BoolVar(&force, "force", false, "kill it at once, also when its daemon does not answer")
	c.Flags().StringVar(&timeout, "timeout", "5s", "how long the guest may take to power off before it is killed")
	return c
}

func stopRequest(force bool, timeout string) (api.StopRequest, error) {
	d, err := units.ParseDuration(timeout)
	if err != nil {
		return api.StopRequest{}, usageError{fmt.Errorf("--timeout: %w", err)}
	}
	if d < time.Millisecond || d > api.MaxStopTimeout {
		return api.StopRequest{}, usageError{fmt.Errorf("--timeout: %v is not between 1ms and %v", d, api.MaxStopTimeout)}
	}
	return api.StopRequest{Force: force, TimeoutMS: d.Milliseconds()}, nil
}

func vmRestart() *cobra.Command {
	var verbose bool
	c := &cobra.Command{
		Use: "restart", Short: "Stop the VM and start a new one, with the present config.toml", Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			ctl, err := controller()
			if err != nil {
				return err
			}
			if err := startable(ctl.Home); err != nil {
				return fmt.Errorf("the VM was left as it is: %w", err)
			}
			return start(c, ctl, func(ctx context.Context, progress func(api.Status)) (api.Status, error) {
				if _, err := ctl.Stop(ctx, api.StopRequest{}); err != nil {
					return api.Status{}, err
				}
				return ctl.Start(ctx, progress)
			}, false, verbose)
		},
	}
	c.Flags().BoolVarP(&verbose, "verbose", "v", false, "show the steps of the start, up to 5s later: with a first ready box")
	return c
}

// startable tells what would keep a new VM from starting, as far as can be seen
// without starting one.
func startable(h *home.Home) error {
	if _, err := config.Load(h.Config(), getenv); err != nil {
		return err
	}
	_, err := bundle.Current(h.Dir())
	return err
}

func vmStatus() *cobra.Command {
	var asJSON, verbose bool
	c := &cobra.Command{
		Use: "status", Short: "Say what the VM does", Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			ctl, err := controller()
			if err != nil {
				return err
			}
			s, err := ctl.Status(c.Context())
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.OutOrStdout(), s)
			}
			show.Status(c.OutOrStdout(), s, time.Now(), verbose)
			hintOutdated(c.ErrOrStderr(), ctl.Home, s)
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print it as JSON")
	c.Flags().BoolVarP(&verbose, "verbose", "v", false, "add the steps of the start and how the last VM ended")
	return c
}

func vmLog(use, short string, path func(*home.Home) string) *cobra.Command {
	var lines int
	var following bool
	c := &cobra.Command{
		Use: use, Short: short, Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if lines < 0 {
				return usageError{errors.New("--lines: want 0 or more")}
			}
			h, err := openHome()
			if err != nil {
				return err
			}
			return printLog(c.Context(), c.OutOrStdout(), path(h), lines, following)
		},
	}
	c.Flags().IntVarP(&lines, "lines", "n", 200, "how many of the last lines to show")
	c.Flags().BoolVarP(&following, "follow", "f", false, "go on as it grows, until Ctrl-C")
	return c
}

func printLog(ctx context.Context, w io.Writer, path string, lines int, following bool) error {
	err := follow.Log(ctx, w, path, lines, following)
	if errors.Is(err, context.Canceled) {
		return nil // Ctrl-C is how one leaves
	}
	return err
}

package main

import (
	"errors"
	"log/slog"

	"github.com/pybox/pybox/guest/fetch"
	"github.com/pybox/pybox/host/config"
	"github.com/pybox/pybox/host/doctor"
	"github.com/pybox/pybox/host/home"
	"github.com/pybox/pybox/host/show"
	"github.com/pybox/pybox/host/version"
	"github.com/pybox/pybox/vm"
	"github.com/spf13/cobra"
)

func doctorCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Look at what PyBox needs here, and say what to do",
		Long: `Looks at this machine, the state folder, the guest bundle, the daemon and the VM,
and says of each what was seen, whether it is right, and what to run next. It
changes nothing and ends within three seconds, whatever hangs. The exit code is 1
when something failed.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			r := doctor.Run(c.Context(), doctor.Options{
				Getenv: getenv, Version: version.String(), CacheDir: fetch.CacheDir,
				Driver: func(h *home.Home, cfg config.Config) vm.Driver {
					return newDriver(h, cfg, slog.New(slog.DiscardHandler))
				},
			})
			if c.Context().Err() != nil {
				return errors.New("interrupted")
			}
			return tellDoctor(c, r, asJSON)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print it as JSON")
	return c
}

func tellDoctor(c *cobra.Command, r doctor.Report, asJSON bool) error {
	w := c.OutOrStdout()
	if asJSON {
		if err := printJSON(w, r); err != nil {
			return err
		}
	} else {
		show.Doctor(w, r, receiptStyle(w))
	}
	if r.Verdict == doctor.Failed {
		return exitStatus(exitFailed)
	}
	return nil
}

package main

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/config"
	"github.com/pybox/pybox/host/control"
	"github.com/pybox/pybox/host/daemon"
	"github.com/pybox/pybox/host/home"
	"github.com/pybox/pybox/host/logfile"
	"github.com/pybox/pybox/host/version"
	"github.com/spf13/cobra"
)

// logBytes bounds each of the two generations of the daemon's log.
const logBytes = 4 << 20

func daemonCommand() *cobra.Command {
	var debug bool
	c := &cobra.Command{
		Use:   "daemon",
		Short: "Own a VM in the foreground (other commands start this by themselves)",
		Long: `Boots the VM, owns it and serves the API on its socket until the VM ends. Other
commands start a daemon when they need one; run it yourself only under a service
manager. SIGTERM and Ctrl-C power the VM off. The log goes to daemon.log in the
state folder.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return runDaemon(c, debug) },
	}
	c.Flags().BoolVar(&debug, "debug", false, "log more")
	return c
}

func runDaemon(c *cobra.Command, debug bool) error {
	h, err := openHome()
	if err != nil {
		return err
	}
	cfg, err := config.Load(h.Config(), getenv)
	if err != nil {
		return fmt.Errorf("%w; correct it and start again", err)
	}
	logf, err := logfile.Open(h.Log(), logBytes)
	if err != nil {
		return fmt.Errorf("opening the log: %w", err)
	}
	defer logf.Close()
	level := slog.LevelInfo
	if debug {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewTextHandler(logf, &slog.HandlerOptions{Level: level}))
	log.Info("daemon starts", "version", version.String(), "home", h.Dir())
	err = daemon.Run(c.Context(), daemon.Options{
		Home: h, Config: cfg, Driver: newDriver(h, cfg, log), Logger: log, Version: version.String(),
	})
	var problem *api.Problem
	switch {
	case errors.Is(err, home.ErrLocked):
		return codedError{err, control.LockedExit}
	case err != nil && !errors.As(err, &problem): // a problem has been logged as the VM's end
		log.Error("daemon failed", "error", err)
	}
	return err
}

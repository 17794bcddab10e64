package main

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/config"
	"github.com/pybox/pybox/host/control"
	"github.com/pybox/pybox/host/daemon"
	"github.com/pybox/pybox/host/gate"
	"github.com/pybox/pybox/host/home"
	"github.com/pybox/pybox/host/logfile"
	"github.com/pybox/pybox/host/version"
	"github.com/spf13/cobra"
)

// logBytes bounds each of the two generations of the daemon's log.
const logBytes = 4 << 20

func daemonCommand() *cobra.Command {
	var debug bool
	var listen string
	c := &cobra.Command{
		Use:   "daemon",
		Short: "Own a VM in the foreground (other commands start this by themselves)",
		Long: `Boots the VM, owns it and serves the API on its socket until the VM ends. Other
commands start a daemon when they need one; run it yourself only under a service
manager. SIGTERM and Ctrl-C power the VM off. The log goes to daemon.log in the
state folder.

With --listen, or "listen" in the section [api] of config.toml, the API is also served
on a TCP port of this machine, to clients that show the token in the file api-token of
the state folder. 'pybox vm status' tells the address.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return runDaemon(c, debug, listen) },
	}
	c.Flags().BoolVar(&debug, "debug", false, "log more")
	c.Flags().StringVar(&listen, "listen", "", "serve the API on a TCP port of this machine too, such as 127.0.0.1:8383; port 0: any")
	return c
}

func runDaemon(c *cobra.Command, debug bool, listen string) error {
	h, err := openHome()
	if err != nil {
		return err
	}
	cfg, err := config.Load(h.Config(), getenv)
	if err != nil {
		return fmt.Errorf("%w; correct it and start again", err)
	}
	if c.Flags().Changed("listen") {
		if _, err := gate.ParseAddress(listen); listen != "" && err != nil {
			return usageError{fmt.Errorf("--listen: %w", err)}
		}
		cfg.API.Listen = listen
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

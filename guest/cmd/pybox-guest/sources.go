package main

import (
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/pybox/pybox/guest/debian"
	"github.com/pybox/pybox/guest/fetch"
)

// sourceFlags are the flags of every verb that downloads.
type sourceFlags struct {
	lock, mirror string
	verbose      bool
}

func (s *sourceFlags) add(c *cobra.Command) {
	fl := c.Flags()
	fl.StringVar(&s.lock, "lock", defaultLock, "lock file")
	fl.StringVar(&s.mirror, "mirror", "", "Debian mirror to ask first, such as http://HOST/debian (default: $PYBOX_DEBIAN_MIRROR)")
	fl.BoolVarP(&s.verbose, "verbose", "v", false, "tell about failed attempts, and what the virtual machine does")
}

// open reads the lock file and makes a fetcher for it. done ends the progress
// display; it may be called more than once.
func (s *sourceFlags) open(c *cobra.Command) (*fetch.Fetcher, *debian.Lock, func(), error) {
	lock, err := debian.ReadLock(s.lock)
	if err != nil {
		return nil, nil, nil, err
	}
	at, err := lock.SnapshotTime()
	if err != nil {
		return nil, nil, nil, err
	}
	f, done, err := s.fetcher(c, at)
	return f, lock, done, err
}

// fetcher is one whose last source is the snapshot archive as it was at a time.
func (s *sourceFlags) fetcher(c *cobra.Command, at time.Time) (*fetch.Fetcher, func(), error) {
	dir, err := fetch.CacheDir()
	if err != nil {
		return nil, nil, err
	}
	sources, err := fetch.DefaultSources(s.mirror, at)
	if err != nil {
		return nil, nil, usageError{err}
	}
	p := fetch.NewPrinter(c.ErrOrStderr())
	f := &fetch.Fetcher{Dir: dir, Sources: sources, Progress: p.Update, Log: s.logger(c)}
	return f, p.Clear, nil
}

// logger tells what --verbose asks for.
func (s *sourceFlags) logger(c *cobra.Command) *slog.Logger {
	if !s.verbose {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(c.ErrOrStderr(), nil))
}

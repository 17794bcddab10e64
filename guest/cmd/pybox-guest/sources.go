package main

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

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
	fl.StringVar(&s.mirror, "mirror", os.Getenv("PYBOX_DEBIAN_MIRROR"), "Debian mirror to ask first, such as http://HOST/debian")
	fl.BoolVarP(&s.verbose, "verbose", "v", false, "tell about failed attempts")
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
	f, done, err := s.fetcher(c, fetch.Snapshot(at))
	return f, lock, done, err
}

func (s *sourceFlags) fetcher(c *cobra.Command, last fetch.Source) (*fetch.Fetcher, func(), error) {
	dir, err := fetch.CacheDir()
	if err != nil {
		return nil, nil, err
	}
	f := &fetch.Fetcher{Dir: dir}
	if s.mirror != "" {
		m, err := fetch.Mirror("the mirror that was given", s.mirror)
		if err != nil {
			return nil, nil, usageError{err}
		}
		f.Sources = append(f.Sources, m)
	}
	f.Sources = append(f.Sources, fetch.AptSources(fetch.AptMirrors("/etc/apt"))...)
	f.Sources = append(f.Sources, last)
	if s.verbose {
		f.Log = slog.New(slog.NewTextHandler(c.ErrOrStderr(), nil))
	}
	p := newProgress(c.ErrOrStderr())
	f.Progress = p.update
	return f, p.clear, nil
}

// progress shows one line of what is being downloaded, on a terminal only.
type progress struct {
	mu    sync.Mutex
	w     io.Writer
	files map[string]fetch.Progress
	last  time.Time
	shown bool
}

const progressEvery = 100 * time.Millisecond

func newProgress(w io.Writer) *progress {
	p := &progress{files: map[string]fetch.Progress{}}
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		p.w = w
	}
	return p
}

func (p *progress) update(u fetch.Progress) {
	if p.w == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.files[u.File] = u
	if now := time.Now(); now.Sub(p.last) < progressEvery {
		return
	} else {
		p.last = now
	}
	var done, total int64
	for _, f := range p.files {
		done, total = done+f.Done, total+f.Total
	}
	const mib = 1 << 20
	fmt.Fprintf(p.w, "\r\x1b[K%6.1f of %.1f MiB · %s · %s", float64(done)/mib, float64(total)/mib, u.File, u.Source)
	p.shown = true
}

func (p *progress) clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shown {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.shown = false
	}
}

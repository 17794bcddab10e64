package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	agentapi "github.com/pybox/pybox/agent/api"
	"github.com/pybox/pybox/guest"
	"github.com/pybox/pybox/guest/build"
	"github.com/pybox/pybox/guest/bytecode"
	"github.com/pybox/pybox/guest/fetch"
	"github.com/pybox/pybox/host/compile"
	"github.com/pybox/pybox/host/config"
	"github.com/pybox/pybox/host/home"
	"github.com/pybox/pybox/host/setup"
	"github.com/pybox/pybox/host/setup/programs"
	"github.com/pybox/pybox/host/show"
	"github.com/pybox/pybox/host/version"
	"github.com/pybox/pybox/vm"
	"github.com/spf13/cobra"
)

// defaultImage is in every bundle that setup makes.
const defaultImage = "stdlib"

// setupFlags are what was asked for.
type setupFlags struct {
	yes, asJSON, noBytecode, replace, remove, receipts, verbose bool
	with                                                        []string
	from, mirror                                                string
}

func setupCommand() *cobra.Command {
	var f setupFlags
	c := &cobra.Command{
		Use:   "setup [--yes] [--with IMAGE] [--from BUNDLE]",
		Short: "Make and install the guest that the VM boots",
		Long: `Makes the guest that the VM boots, out of pinned Debian packages and Debian's
kernel, or takes a bundle of one with --from; and installs it in the state folder.

Without --yes it only says what it would do: every folder, file and download, with
its size and SHA-256. With --yes it does exactly that. It may be interrupted at any
moment and repeated, and it overwrites nothing that is yours.

Downloads are kept in $PYBOX_CACHE (usually the folder pybox in your cache folder).
They come from a mirror given with --mirror or $PYBOX_DEBIAN_MIRROR, the mirrors
that this machine's apt uses, and Debian's snapshot archive. HTTPS_PROXY is
honoured.`,
		Example: `  pybox setup
  pybox setup --yes
  pybox setup --yes --from pybox-bundle-0.1.0-arm64.tar
  pybox setup --remove`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := f.check(); err != nil {
				return usageError{err}
			}
			if f.remove {
				return f.runRemoval(c)
			}
			return f.run(c)
		},
	}
	fl := c.Flags()
	fl.BoolVar(&f.yes, "yes", false, "do it")
	fl.StringSliceVar(&f.with, "with", nil, "have this image too, such as data")
	fl.StringVar(&f.from, "from", "", "install this bundle, a folder or a .tar file, instead of making one")
	fl.StringVar(&f.mirror, "mirror", "", "Debian mirror to ask first, such as http://HOST/debian (default: $PYBOX_DEBIAN_MIRROR)")
	fl.BoolVar(&f.noBytecode, "no-bytecode", false, "leave byte code out, and with it the VM that compiles it: runs are slower then")
	fl.BoolVar(&f.replace, "replace", false, "make and install a guest also where one is installed that would do")
	fl.BoolVar(&f.remove, "remove", false, "remove what PyBox made: guests, logs, its downloads; never config.toml")
	fl.BoolVar(&f.receipts, "receipts", false, "with --remove: the receipts of runs too")
	fl.BoolVar(&f.asJSON, "json", false, "print the plan, or with --yes what was done, as JSON")
	fl.BoolVarP(&f.verbose, "verbose", "v", false, "tell about failed attempts, and what the virtual machine does")
	return c
}

// check refuses what makes no sense together.
func (f setupFlags) check() error {
	making := f.from != "" || f.mirror != "" || f.noBytecode || f.replace || len(f.with) > 0
	switch {
	case f.remove && making:
		return errors.New("--remove goes with --yes, --receipts and --json only")
	case f.receipts && !f.remove:
		return errors.New("--receipts goes with --remove")
	case f.from != "" && (f.mirror != "" || f.noBytecode):
		return errors.New("--mirror and --no-bytecode are for making a bundle, and --from takes one that is made")
	}
	return nil
}

// command is what has the plan done.
func (f setupFlags) command() string {
	words := []string{quoted(os.Args[0]), "setup --yes"}
	add := func(on bool, word string) {
		if on {
			words = append(words, word)
		}
	}
	add(f.remove, "--remove")
	add(f.receipts, "--receipts")
	add(f.noBytecode, "--no-bytecode")
	add(f.replace, "--replace")
	for _, name := range f.with {
		words = append(words, "--with "+quoted(name))
	}
	add(f.from != "", "--from "+quoted(f.from))
	mirror := f.mirror
	if u, err := url.Parse(mirror); err == nil && u.User != nil {
		mirror = u.Redacted() // a plan is shown to others; $PYBOX_DEBIAN_MIRROR keeps a password out of it
	}
	add(mirror != "", "--mirror "+quoted(mirror))
	return strings.Join(words, " ")
}

// quoted makes one word of s for a shell.
func quoted(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-:+,@%=~", r)
	}
	if s != "" && s[0] != '~' && !strings.ContainsFunc(s, func(r rune) bool { return !plain(r) }) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

func (f setupFlags) run(c *cobra.Command) error {
	o, err := f.options(c)
	if err != nil {
		return err
	}
	p, err := setup.Make(c.Context(), o)
	if err != nil {
		return f.failed(c, err)
	}
	if !f.yes || len(p.Problems) > 0 {
		return f.tellPlan(c, p)
	}
	r, err := f.execute(c, p)
	if err != nil {
		return f.failed(c, err)
	}
	if f.asJSON {
		return printJSON(c.OutOrStdout(), struct {
			Plan   *setup.Plan   `json:"plan"`
			Result *setup.Result `json:"result"`
		}{p, r})
	}
	r.Text(c.OutOrStdout(), receiptStyle(c.OutOrStdout()).Width)
	return nil
}

func (f setupFlags) tellPlan(c *cobra.Command, p *setup.Plan) error {
	w := c.OutOrStdout()
	if f.asJSON {
		if err := printJSON(w, p); err != nil {
			return err
		}
	} else {
		p.Text(w, receiptStyle(w).Width)
	}
	if len(p.Problems) > 0 {
		return exitStatus(exitFailed)
	}
	return nil
}

// options collects what a plan needs of this machine and program.
func (f setupFlags) options(c *cobra.Command) (setup.Options, error) {
	o := setup.Options{
		Arch: vm.HostArch(), Version: version.Number, ProtocolVersion: agentapi.ProtocolVersion,
		From: f.from, NoBytecode: f.noBytecode, Replace: f.replace, Programs: programs.Embedded, Build: build.Build,
		Command: f.command(), Log: f.log(c.ErrOrStderr()), Now: time.Now,
	}
	o.Images = f.with
	if f.from == "" && !slices.Contains(o.Images, defaultImage) {
		o.Images = append([]string{defaultImage}, o.Images...)
	}
	var err error
	if o.Home, err = home.Locate(getenv); err != nil {
		return o, err
	}
	if o.Cache, err = fetch.CacheDir(); err != nil {
		return o, err
	}
	cfg, err := config.Load(filepath.Join(o.Home, "config.toml"), getenv)
	if err != nil {
		return o, err
	}
	driver := newDriver(home.At(o.Home), cfg, o.Log)
	o.Check = driver.Check
	o.Compiler = func() (bytecode.Compiler, error) {
		return compile.New(compile.Options{Driver: driver, HostVersion: version.Number, Log: o.Log}), nil
	}
	if o.Lock, err = guest.Lock(); err != nil {
		return o, err
	}
	at, err := o.Lock.SnapshotTime()
	if err != nil {
		return o, err
	}
	if o.Sources, err = fetch.DefaultSources(f.mirror, at); err != nil {
		return o, usageError{err}
	}
	return o, nil
}

func (f setupFlags) log(w io.Writer) *slog.Logger {
	if !f.verbose {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(w, nil))
}

// execute does the plan and tells how it goes, on stderr.
func (f setupFlags) execute(c *cobra.Command, p *setup.Plan) (*setup.Result, error) {
	w := c.ErrOrStderr()
	bar := fetch.NewPrinter(w)
	bar.Expect(p.DownloadBytes)
	defer bar.Clear()
	return p.Execute(c.Context(), setup.Events{
		Progress: bar.Update,
		Line: func(s string) {
			bar.Clear()
			fmt.Fprintf(w, "           %s\n", show.Clean(s))
		},
		Stage: func(name string, took time.Duration) {
			bar.Clear()
			fmt.Fprintf(w, "%-10s %6.2f s\n", show.Clean(name), took.Seconds())
		},
	})
}

// failed tells of an error of several lines, and what to do after an interruption.
func (f setupFlags) failed(c *cobra.Command, err error) error {
	switch {
	case errors.Is(err, setup.ErrRequest):
		return usageError{err}
	case c.Context().Err() != nil && errors.Is(err, context.Canceled):
		return fmt.Errorf("interrupted; nothing is half installed, and what was downloaded is kept: '%s' goes on from there", f.command())
	case !strings.Contains(err.Error(), "\n"):
		return err
	}
	for i, line := range strings.Split(err.Error(), "\n") {
		if i == 0 {
			line = "pybox: " + line
		}
		fmt.Fprintln(c.ErrOrStderr(), show.Clean(line))
	}
	return exitStatus(exitFailed)
}

func (f setupFlags) runRemoval(c *cobra.Command) error {
	dir, err := home.Locate(getenv)
	if err != nil {
		return err
	}
	cache, err := fetch.CacheDir()
	if err != nil {
		return err
	}
	r, err := setup.PlanRemoval(c.Context(), setup.RemovalOptions{Home: dir, Cache: cache, Receipts: f.receipts, Command: f.command()})
	if err != nil {
		return err
	}
	w := c.OutOrStdout()
	if f.asJSON {
		err = printJSON(w, r)
	} else if !f.yes || r.Nothing() {
		r.Text(w, receiptStyle(w).Width)
	}
	switch {
	case err != nil:
		return err
	case !f.yes && len(r.Problems) > 0:
		return exitStatus(exitFailed)
	case !f.yes || r.Nothing():
		return nil
	}
	left, err := r.Execute(c.Context())
	if err != nil {
		return f.failed(c, err)
	}
	if !f.asJSON {
		r.TellDone(w, left, receiptStyle(w).Width)
	}
	return nil
}

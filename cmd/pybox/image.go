package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/pybox/pybox/guest/bundle"
	"github.com/pybox/pybox/guest/bytecode"
	"github.com/pybox/pybox/guest/fetch"
	"github.com/pybox/pybox/guest/ociimage"
	"github.com/pybox/pybox/guest/pyindex"
	"github.com/pybox/pybox/guest/pylock"
	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/compile"
	"github.com/pybox/pybox/host/config"
	"github.com/pybox/pybox/host/control"
	"github.com/pybox/pybox/host/home"
	"github.com/pybox/pybox/host/images"
	"github.com/pybox/pybox/host/images/maker"
	"github.com/pybox/pybox/host/show"
	"github.com/pybox/pybox/host/units"
	"github.com/pybox/pybox/host/version"
	"github.com/spf13/cobra"
)

const imageLong = `An image is the read-only file system that a program runs on. The guest bundle has
PyBox's own ('stdlib', and 'data' where it was set up); these commands make more:

  build   installs the wheels of a lock file upon one of PyBox's images
  import  takes an OCI (Docker) image that has Python, by its digest

What is downloaded is fetched by this program and verified; the VM has no network,
and no code of a package is run to install it. A VM has the images that there were
when it started: a running one that nothing uses is restarted for a new image.
docs/user-images.md tells more.`

func imageCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "image",
		Short: "Build, import and look at images of your own",
		Long:  imageLong,
		Args:  noArgs,
		RunE:  func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(imageList(), imageInspect(), imageBuild(), imageImport(), imageExport(), imageRemove())
	return c
}

func imageList() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "list", Short: "List the images that a run can name", Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			store, b, err := viewImages()
			if err != nil {
				return err
			}
			list, err := store.Overview(b)
			if err != nil {
				return err
			}
			if b == nil {
				hintNoBundle(c.ErrOrStderr())
			}
			w := c.OutOrStdout()
			switch {
			case asJSON:
				return printJSON(w, list)
			case len(list.Images) == 0:
				fmt.Fprintln(c.ErrOrStderr(), "pybox: there are no images: 'pybox setup' says what it takes to have some")
			default:
				show.Images(w, list.Images, receiptStyle(w))
			}
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print them as JSON")
	return c
}

func imageInspect() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "inspect NAME", Short: "Say what is in an image, where it is from, and whether the VM has it",
		Args: imageArgs("NAME"), ValidArgsFunction: completeImage(anyImage),
		RunE: func(c *cobra.Command, args []string) error {
			store, b, err := viewImages()
			if err != nil {
				return err
			}
			in, err := store.Inspect(b, args[0], vmStatusOf(c.Context()))
			if err != nil {
				return unknownImage(err)
			}
			w := c.OutOrStdout()
			if asJSON {
				return printJSON(w, in)
			}
			show.Image(w, in, receiptStyle(w))
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print it as JSON")
	return c
}

// vmStatusOf is the status of the VM, nil when nobody can be asked.
func vmStatusOf(ctx context.Context) *api.Status {
	dir, err := home.Locate(getenv)
	if err != nil {
		return nil
	}
	h, err := home.OpenExisting(dir)
	if err != nil {
		return &api.Status{State: api.StateStopped}
	}
	s, err := (&control.Controller{Home: h, Version: version.String()}).Status(ctx)
	if err != nil {
		return nil
	}
	return &s
}

// viewImages opens the store for reading, and the installed bundle, nil where there is
// none that can be read. It makes nothing.
func viewImages() (*images.Store, *bundle.Bundle, error) {
	dir, err := home.Locate(getenv)
	if err != nil {
		return nil, nil, err
	}
	if _, err := home.OpenExisting(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, err
	}
	b, err := bundle.Current(dir)
	if err != nil {
		b = nil
	}
	return images.View(dir), b, nil
}

// hintNoBundle says why PyBox's own images are not listed, unless there are none.
func hintNoBundle(w io.Writer) {
	dir, err := home.Locate(getenv)
	if err == nil {
		_, err = bundle.Current(dir)
	}
	if err != nil && !errors.Is(err, bundle.ErrNoBundle) {
		fmt.Fprintf(w, "pybox: PyBox's own images are not listed: %s\n", show.Clean(err.Error()))
	}
}

func unknownImage(err error) error {
	if errors.Is(err, images.ErrNotFound) {
		return fmt.Errorf("%w; 'pybox image list' lists those that there are", err)
	}
	return err
}

// imageArgs wants exactly these arguments.
func imageArgs(names ...string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) != len(names) || slices.Contains(args, "") {
			return usageError{fmt.Errorf("'%s' wants %s; see '%s --help'", c.CommandPath(), strings.Join(names, " and "), c.CommandPath())}
		}
		return nil
	}
}

func imageBuild() *cobra.Command {
	var b maker.Build
	var o imageOptions
	c := &cobra.Command{
		Use:   "build NAME --lock FILE",
		Short: "Make an image of the wheels that a lock file names",
		Long: `Makes an image of one of PyBox's and the wheels that a lock file names. The lock is
what 'uv pip compile --generate-hashes' or 'pip-compile --generate-hashes' writes, or a
pylock.toml (PEP 751). Every package needs a hash, and a wheel for the guest: an sdist
is refused, since building it would run its code.

The wheels come from the index that --index-url or the lock names, else from the
Python Package Index, or from folders of yours. They are kept in $PYBOX_CACHE. The
same name, base, lock and wheels make the same image, to the byte.`,
		Example: `  uv pip compile --generate-hashes --python-version 3.13 requirements.in -o lock.txt
  pybox image build mine --lock lock.txt
  pybox exec --image mine hello.py
  pybox image build offline --lock lock.txt --offline --find-links wheels/`,
		Args: imageArgs("NAME"), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(c *cobra.Command, args []string) error {
			b.Name, b.Replace = args[0], o.replace
			if b.Lock == "" {
				return usageError{errors.New("which packages? --lock FILE names a lock file; see 'pybox image build --help'")}
			}
			return o.make(c, b.Name, func(ctx context.Context, m *maker.Maker) (*images.Record, error) { return m.Build(ctx, b) })
		},
	}
	f := c.Flags()
	f.SortFlags = false
	f.StringVar(&b.Lock, "lock", "", "the lock `FILE`")
	f.StringVar(&b.Base, "base", defaultImage, "the `IMAGE` of PyBox to build upon")
	f.StringVar(&b.IndexURL, "index-url", "", "`URL` of the package index")
	f.StringArrayVar(&b.FindLinks, "find-links", nil, "`FOLDER` with wheels to look in first (repeatable)")
	f.BoolVar(&b.Offline, "offline", false, "ask no index: wheels are in those folders, or in the cache\nwhere a pylock.toml names them")
	f.BoolVar(&b.NoBytecode, "no-bytecode", false, "leave byte code out, and with it the VM that compiles it:\nimports are slower then")
	o.flags(c)
	mustComplete(c, "base", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return bundleImages(), cobra.ShellCompDirectiveNoFileComp
	})
	mustComplete(c, "find-links", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return nil, cobra.ShellCompDirectiveFilterDirs
	})
	return c
}

func imageImport() *cobra.Command {
	var i maker.Import
	var o imageOptions
	c := &cobra.Command{
		Use:   "import NAME REFERENCE@sha256:…",
		Short: "Make an image of an OCI image that has Python",
		Long: `Makes an image of an OCI (Docker) image, flattened. It is named by its digest, never
by a tag alone, which can stand for another image tomorrow. It comes from

  REGISTRY/REPOSITORY@sha256:…   a registry
  oci:FOLDER@sha256:…            a folder in the OCI image layout
  tar:FILE@sha256:…              a tar file of one, or one that 'docker save' wrote

A registry that wants a name and password gets those in $PYBOX_REGISTRY_USER and
$PYBOX_REGISTRY_PASSWORD. Of the image only its files matter: a box has its own user,
environment and limits, and starts /usr/bin/python3.`,
		Example: `  pybox image import py312 docker.io/library/python@sha256:0123…
  pybox image import mine tar:mine.tar@sha256:0123…`,
		Args: imageArgs("NAME", "REFERENCE"), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(c *cobra.Command, args []string) error {
			i.Name, i.Reference, i.Replace = args[0], args[1], o.replace
			return o.make(c, i.Name, func(ctx context.Context, m *maker.Maker) (*images.Record, error) { return m.Import(ctx, i) })
		},
	}
	c.Flags().SortFlags = false
	o.flags(c)
	return c
}

func imageExport() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "export NAME FILE",
		Short: "Write an image to a tar file that 'pybox image import' and 'docker load' take",
		Long: `Writes an image to FILE, which must not be there yet, as a tar in the OCI image
layout, and prints what to import it by elsewhere. Equal images make equal files.`,
		Args: imageArgs("NAME", "FILE"), ValidArgsFunction: completeImage(anyImage),
		RunE: func(c *cobra.Command, args []string) error {
			store, _, err := viewImages()
			if err != nil {
				return err
			}
			dir, err := home.Locate(getenv)
			if err != nil {
				return err
			}
			p := newTeller(c.ErrOrStderr())
			m := &maker.Maker{Store: store, Bundle: func() (*bundle.Bundle, error) { return bundle.Current(dir) }, Events: maker.Events{Line: p.line}}
			e, err := m.Export(c.Context(), args[0], args[1])
			p.clear()
			if err != nil {
				return imageFailed(c, unknownImage(err))
			}
			if asJSON {
				return printJSON(c.OutOrStdout(), e)
			}
			fmt.Fprintf(c.OutOrStdout(), "%s\n", show.Clean(e.Reference))
			fmt.Fprintf(c.ErrOrStderr(), "pybox: wrote %s, %v: 'pybox image import NAME %s' takes it in\n", show.Clean(args[1]), units.Size(e.Bytes), show.Clean(quoted(e.Reference)))
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print the digest and what to import it by as JSON")
	return c
}

func imageRemove() *cobra.Command {
	var o imageOptions
	c := &cobra.Command{
		Use: "remove NAME", Short: "Remove an image of your own",
		Args: imageArgs("NAME"), ValidArgsFunction: completeImage(ownImage),
		RunE: func(c *cobra.Command, args []string) error {
			ctl, err := controller()
			if err != nil {
				return err
			}
			if images.Reserved(args[0]) || slices.Contains(bundleImages(), args[0]) {
				return fmt.Errorf("%q is an image of the guest bundle, which stays whole: only images of your own can be removed", args[0])
			}
			if err := unused(c.Context(), ctl, args[0]); err != nil {
				return err
			}
			store := images.View(ctl.Home.Dir())
			r, err := store.Remove(c.Context(), args[0])
			if err != nil {
				return unknownImage(err)
			}
			shared := ""
			if r != nil && store.Intact(r) == nil {
				shared = "; another image has the same content, which stays for that"
			}
			fmt.Fprintf(c.OutOrStdout(), "The image %s is removed%s.\n", args[0], shared)
			return o.refresh(c, ctl, change{image: images.Summary{Name: args[0], Own: true}, removed: true})
		},
	}
	c.Flags().BoolVar(&o.noRestart, "no-restart", false, "leave a running VM as it is")
	return c
}

// unused refuses what would take an image from a run.
func unused(ctx context.Context, ctl *control.Controller, name string) error {
	if st, err := ctl.Status(ctx); err != nil || st.State == api.StateStopped {
		return err
	}
	runs, err := ctl.Client().Runs(ctx)
	if errors.Is(err, api.ErrNoDaemon) || errors.Is(err, api.ErrHungUp) {
		return nil // it has ended meanwhile
	}
	if err != nil {
		return fmt.Errorf("nobody can tell whether a run uses the image: %w", err)
	}
	for _, r := range runs {
		if r.Image == name {
			return fmt.Errorf("the image %s is used by the run %s; remove it when that has ended", name, r.ID)
		}
	}
	return nil
}

// imageOptions are what commands that change images have in common.
type imageOptions struct {
	replace, noRestart, asJSON, verbose bool
}

func (o *imageOptions) flags(c *cobra.Command) {
	f := c.Flags()
	f.BoolVar(&o.replace, "replace", false, "put it in the place of an image with this name")
	f.BoolVar(&o.noRestart, "no-restart", false, "leave a running VM as it is")
	f.BoolVar(&o.asJSON, "json", false, "print the image's record as JSON")
	f.BoolVarP(&o.verbose, "verbose", "v", false, "tell about failed attempts, and what the virtual machine does")
}

// make has an image made, tells of it, and sees to it that the VM gets it.
func (o *imageOptions) make(c *cobra.Command, name string, do func(context.Context, *maker.Maker) (*images.Record, error)) error {
	if err := images.CheckName(name); err != nil {
		return usageError{err}
	}
	ctl, err := controller()
	if err != nil {
		return err
	}
	p := newTeller(c.ErrOrStderr())
	m, err := o.maker(c, ctl, p)
	if err != nil {
		return err
	}
	began := time.Now()
	r, err := do(c.Context(), m)
	p.clear()
	if err != nil {
		return imageFailed(c, err)
	}
	if o.asJSON {
		err = printJSON(c.OutOrStdout(), r)
	} else {
		o.tell(c, r, time.Since(began))
	}
	if err != nil {
		return err
	}
	return o.refresh(c, ctl, change{image: images.Of(r)})
}

// tell says what was made.
func (o *imageOptions) tell(c *cobra.Command, r *images.Record, took time.Duration) {
	packages := fmt.Sprintf("%d Python packages", len(r.Packages))
	if len(r.Packages) == 1 {
		packages = "1 Python package"
	}
	fmt.Fprintf(c.OutOrStdout(), "The image %s is made (%s): %v, %s, sha256 %s\n", r.Name, units.Elapsed(took), units.Size(r.Bytes), packages, r.SHA256)
	for _, n := range r.Notes {
		fmt.Fprintf(c.ErrOrStderr(), "pybox: note: %s\n", show.Clean(n))
	}
}

func (o *imageOptions) maker(c *cobra.Command, ctl *control.Controller, p *teller) (*maker.Maker, error) {
	store, err := images.Open(ctl.Home.Dir())
	if err != nil {
		return nil, err
	}
	cache, err := fetch.CacheDir()
	if err != nil {
		return nil, err
	}
	cfg, err := config.Load(ctl.Home.Config(), getenv)
	if err != nil {
		return nil, err
	}
	log := slog.New(slog.DiscardHandler)
	if o.verbose {
		log = slog.New(slog.NewTextHandler(c.ErrOrStderr(), nil))
	}
	return &maker.Maker{
		Store: store, Bundle: func() (*bundle.Bundle, error) { return bundle.Current(ctl.Home.Dir()) }, Cache: cache, Getenv: os.Getenv, Log: log,
		Compiler: func() (bytecode.Compiler, error) {
			return compile.New(compile.Options{Driver: newDriver(ctl.Home, cfg, log), HostVersion: version.Number, Log: log}), nil
		},
		Events: maker.Events{Expect: p.bar.Expect, Progress: p.bar.Update, Line: p.line},
	}, nil
}

// teller tells on stderr how the making of an image goes: of each step that takes
// time, and of downloads.
type teller struct {
	bar  *fetch.Printer
	w    io.Writer
	wait *progress
}

func newTeller(w io.Writer) *teller {
	return &teller{bar: fetch.NewPrinter(w), w: w, wait: newProgress(w)}
}

// line replaces what a terminal shows of the present step.
func (t *teller) line(s string) {
	t.bar.Clear()
	t.wait.show(show.Clean(s))
}

func (t *teller) clear() {
	t.bar.Clear()
	t.wait.clear()
}

// imageFailed tells of an error of several lines, and of an interruption.
func imageFailed(c *cobra.Command, err error) error {
	switch {
	case c.Context().Err() != nil && errors.Is(err, context.Canceled):
		return errors.New("interrupted; no image was changed, and what was downloaded whole is kept")
	case errors.Is(err, images.ErrName), errors.Is(err, maker.ErrRequest) && !strings.Contains(err.Error(), "\n"):
		return usageError{err}
	case errors.Is(err, pylock.ErrLock), errors.Is(err, pyindex.ErrChoice), errors.Is(err, ociimage.ErrReference), strings.Contains(err.Error(), "\n"):
		for i, line := range strings.Split(err.Error(), "\n") {
			if i == 0 {
				line = "pybox: " + line
			}
			fmt.Fprintln(c.ErrOrStderr(), show.Clean(line))
		}
		return exitStatus(exitFailed)
	}
	return err
}

// change is what has become of an image in the store.
type change struct {
	image   images.Summary
	removed bool
}

// refresh gives a running VM the images that there are now, if nothing uses it, or
// says what to do.
func (o *imageOptions) refresh(c *cobra.Command, ctl *control.Controller, ch change) error {
	w := c.ErrOrStderr()
	st, err := ctl.Status(c.Context())
	if err != nil {
		fmt.Fprintf(w, "pybox: %s; a VM that starts from now on has it so\n", show.Clean(err.Error()))
		return nil
	}
	if !ch.concerns(st) {
		return nil
	}
	if o.noRestart {
		fmt.Fprintf(w, "pybox: %s until it is restarted: 'pybox vm restart'\n", ch.state())
		return nil
	}
	var began time.Time
	line := newProgress(w)
	granted := func() {
		fmt.Fprintf(w, "pybox: restarting the VM so that it %s\n", ch.wish())
		began = time.Now()
	}
	st, err = ctl.RestartIdle(c.Context(), granted, func(s api.Status) { line.show(startLine(s, time.Since(began))) })
	line.clear()
	switch {
	case errors.Is(err, control.ErrInUse):
		fmt.Fprintf(w, "pybox: %s and was left as it is (%s): run 'pybox vm restart' when that has ended\n", ch.state(), show.Clean(err.Error()))
		return nil
	case errors.Is(err, control.ErrNotStartable):
		return fmt.Errorf("%s: %w", ch.state(), err)
	case c.Context().Err() != nil:
		return errInterrupted
	case err != nil:
		return fmt.Errorf("the image is as it was told, but the VM could not be restarted: %w", err)
	}
	if in, left := images.In(st, ch.image); in == images.PresenceLeftOut && !ch.removed {
		return fmt.Errorf("the VM left the image out: %s; %s", left.Why, left.Next)
	}
	return nil
}

// concerns tells whether the VM has to start anew for the change.
func (ch change) concerns(st api.Status) bool {
	switch in, _ := images.In(st, ch.image); in {
	case images.PresenceStopped:
		return false
	case images.PresenceYes:
		return ch.removed
	case images.PresenceNo, images.PresenceLeftOut:
		return !ch.removed
	}
	return true
}

// state is what the running VM has, and wish what it is to have.
func (ch change) state() string {
	if ch.removed {
		return "the running VM keeps the image " + ch.image.Name
	}
	return "the running VM does not have this image " + ch.image.Name
}

func (ch change) wish() string {
	if ch.removed {
		return "lets go of the image " + ch.image.Name
	}
	return "has the image " + ch.image.Name
}

// anyImage and ownImage are the images that a word can name.
func anyImage() []string { return append(bundleImages(), ownImage()...) }

func ownImage() (names []string) {
	store, _, err := viewImages()
	if err != nil {
		return nil
	}
	list, _ := store.List() // as far as it goes
	for _, e := range list {
		names = append(names, e.Name)
	}
	return names
}

func bundleImages() (names []string) {
	_, b, err := viewImages()
	if err != nil || b == nil {
		return nil
	}
	for _, i := range b.Manifest.Images {
		names = append(names, i.Name)
	}
	return names
}

// completeImage completes the name of an image as the first argument, and files after
// it.
func completeImage(names func() []string) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveDefault
		}
		return names(), cobra.ShellCompDirectiveNoFileComp
	}
}

func mustComplete(c *cobra.Command, flag string, f cobra.CompletionFunc) {
	if err := c.RegisterFlagCompletionFunc(flag, f); err != nil {
		panic(err) // there is no such flag: a mistake here
	}
}

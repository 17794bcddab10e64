// Command peersdisk makes the disk of the benchmark's peers: an erofs file system with
// the container engines of Debian that PyBox is compared with, each with exactly the
// libraries that it is linked to. Its packages are pinned by a lock file of their own.
// It is no part of a guest bundle: only the benchmark's machine has it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"github.com/google/renameio/v2"

	"github.com/pybox/pybox/guest/build"
	"github.com/pybox/pybox/guest/debian"
	"github.com/pybox/pybox/guest/erofs"
	"github.com/pybox/pybox/guest/fetch"
	"github.com/pybox/pybox/guest/unpack"
)

// setPeers is the set of the lock file.
const setPeers = "peers"

// recipes say what is locked. The engines' maintainer scripts never run, and none of
// these peers has a network, so what only those need stays out.
func recipes() []debian.Recipe {
	return []debian.Recipe{{
		Set:   setPeers,
		Seeds: []string{"containerd", "crun", "docker-cli", "docker.io", "runc"},
		Skip:  []string{"adduser", "debconf", "debconf-2.0", "dpkg", "init-system-helpers", "iptables", "perl", "sysvinit-utils"},
	}}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "peersdisk:", err)
		os.Exit(1)
	}
}

// options are the command line.
type options struct {
	lock, arch, mirror, out string
	relock                  bool
}

func run(ctx context.Context, args []string, stderr io.Writer) error {
	var o options
	fl := flag.NewFlagSet("peersdisk", flag.ContinueOnError)
	fl.SetOutput(stderr)
	fl.StringVar(&o.lock, "lock", "host/bench/peers.lock.json", "lock file")
	fl.StringVar(&o.arch, "arch", runtime.GOARCH, "the guest's architecture")
	fl.StringVar(&o.mirror, "mirror", "", "Debian mirror to ask first")
	fl.StringVar(&o.out, "out", "", "the disk to make")
	fl.BoolVar(&o.relock, "relock", false, "make the lock file anew instead, of Debian's newest packages")
	if err := fl.Parse(args); err != nil {
		return err
	}
	if fl.NArg() > 0 || o.relock == (o.out != "") {
		return errors.New("want either --out FILE or --relock")
	}
	if o.relock {
		return o.makeLock(ctx, stderr)
	}
	return o.makeDisk(ctx, stderr)
}

// fetcher gets packages, the last of all from the snapshot archive as it was at a time.
func (o options) fetcher(at time.Time, stderr io.Writer) (*fetch.Fetcher, func(), error) {
	dir, err := fetch.CacheDir()
	if err != nil {
		return nil, nil, err
	}
	sources, err := fetch.DefaultSources(o.mirror, at)
	if err != nil {
		return nil, nil, err
	}
	p := fetch.NewPrinter(stderr)
	return &fetch.Fetcher{Dir: dir, Sources: sources, Progress: p.Update, Log: slog.New(slog.DiscardHandler)}, p.Clear, nil
}

// makeLock resolves the recipes against Debian's signed lists of now.
func (o options) makeLock(ctx context.Context, stderr io.Writer) error {
	old, err := debian.ReadLock(o.lock)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	keys, err := debian.ArchiveKeys()
	if err != nil {
		return err
	}
	f, done, err := o.fetcher(time.Now(), stderr)
	if err != nil {
		return err
	}
	defer done()
	r := debian.Relocker{Source: f, Keys: keys, Now: time.Now, Recipes: recipes()}
	cur, err := r.Relock(ctx, old)
	if err != nil {
		return err
	}
	done()
	for _, c := range debian.Changes(old, cur) {
		fmt.Fprintln(stderr, c)
	}
	return cur.WriteFile(o.lock)
}

// makeDisk makes the disk out of the locked packages, all of it or nothing.
func (o options) makeDisk(ctx context.Context, stderr io.Writer) error {
	lock, err := debian.ReadLock(o.lock)
	if err != nil {
		return err
	}
	set, err := lock.Set(setPeers, o.arch)
	if err != nil {
		return err
	}
	at, err := lock.SnapshotTime()
	if err != nil {
		return err
	}
	f, done, err := o.fetcher(at, stderr)
	if err != nil {
		return err
	}
	defer done()
	files, err := f.GetAll(ctx, build.Items(set))
	if err != nil {
		return err
	}
	packages := make([]unpack.Package, len(files))
	for i, p := range set.Packages {
		packages[i] = unpack.Package{Entry: p, File: files[i]}
	}
	t, err := disk(ctx, o.arch, packages)
	if err != nil {
		return err
	}
	out, err := renameio.NewPendingFile(o.out, renameio.WithStaticPermissions(0o644))
	if err != nil {
		return err
	}
	defer out.Cleanup()
	if err := erofs.Write(out, t); err != nil {
		return err
	}
	return out.CloseAtomicallyReplace()
}

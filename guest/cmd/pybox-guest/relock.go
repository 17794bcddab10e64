package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/spf13/cobra"

	"github.com/pybox/pybox/guest/debian"
	"github.com/pybox/pybox/guest/fetch"
	"github.com/pybox/pybox/guest/nospace"
)

// keyringVariable names a keyring for relock.
const keyringVariable = "PYBOX_DEBIAN_KEYRING"

// relockFlags say what a new lock is made from.
type relockFlags struct {
	sourceFlags
	add, drop         []string
	snapshot, keyring string
}

func newRelock() *cobra.Command {
	var f relockFlags
	c := &cobra.Command{
		Use:   "relock",
		Short: "Bring the lock file up to the newest packages of Debian stable",
		Long: `Bring the lock file up to the newest packages of Debian stable and its updates, or
to those of a time in the past (--snapshot).

The archive's signature is checked against keys that are part of PyBox, or against
those that --keyring names, for an archive that signs its lists itself. A mirror that
serves older lists than the locked ones is refused. That the lists are newer is
recorded also where no package changed, so that no mirror can go back.

--add puts a package and what it depends on into a set: root is the guest's own file
system, stdlib and data are the images of those names. The lock file remembers it, and every later
relock keeps it, until --drop. A file of your own is best begun as a copy of
guest/debian.lock.json.`,
		Example: `  pybox-guest relock --lock my.lock.json --add root=strace --add stdlib=python3-yaml
  pybox-guest relock --lock my.lock.json --drop root=strace
  pybox-guest relock --lock my.lock.json --snapshot 20261101T000000Z`,
		Args: exactArgs(0),
		RunE: func(c *cobra.Command, _ []string) error { return f.relock(c) },
	}
	f.sourceFlags.add(c)
	fl := c.Flags()
	fl.StringArrayVar(&f.add, "add", nil, "`SET=PACKAGE` to add to a set; PACKAGE,PACKAGE for several (may be given more than once)")
	fl.StringArrayVar(&f.drop, "drop", nil, "`SET=PACKAGE` that was added and is to go again")
	fl.StringVar(&f.snapshot, "snapshot", "", "take the lists of this `TIME`, such as 20261101T000000Z, from the snapshot archive or $PYBOX_DEBIAN_SNAPSHOT")
	fl.StringVar(&f.keyring, "keyring", "", "`FILE` with the public keys that sign the lists, as gpg --export writes them (default: $PYBOX_DEBIAN_KEYRING, else Debian's)")
	return c
}

func (f *relockFlags) relock(c *cobra.Command) error {
	old, err := debian.ReadLock(f.lock)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	r := debian.Relocker{Now: time.Now, Recipes: debian.Recipes()}
	if r.At, err = f.at(r.Now()); err != nil {
		return err
	}
	if r.Additions, err = f.additions(r.Recipes, old); err != nil {
		return err
	}
	if r.Keys, err = f.keys(c.ErrOrStderr()); err != nil {
		return err
	}
	source, done, err := f.source(c, r.At)
	if err != nil {
		return err
	}
	defer done()
	r.Source = source
	cur, err := r.Relock(c.Context(), old)
	if err != nil {
		return err
	}
	done()
	return writeLock(c.OutOrStdout(), f.lock, old, cur)
}

// at is the time that --snapshot names, zero without it.
func (f *relockFlags) at(now time.Time) (time.Time, error) {
	if f.snapshot == "" {
		return time.Time{}, nil
	}
	t, err := debian.ParseSnapshot(f.snapshot)
	if err == nil && t.After(now) {
		err = fmt.Errorf("%s is in the future", f.snapshot)
	}
	if err != nil {
		return t, usageError{fmt.Errorf("--snapshot: %w", err)}
	}
	return t, nil
}

// additions are those of the old lock (nil: none) with what the flags change.
func (f *relockFlags) additions(recipes []debian.Recipe, old *debian.Lock) ([]debian.Addition, error) {
	add, err := parseAdditions("--add", f.add)
	if err != nil {
		return nil, err
	}
	drop, err := parseAdditions("--drop", f.drop)
	if err != nil {
		return nil, err
	}
	if err := debian.CheckAdditions(recipes, add); err != nil {
		return nil, usageError{fmt.Errorf("--add: %w", err)}
	}
	var have []debian.Addition
	if old != nil {
		have = old.Additions
	}
	list, err := debian.ChangeAdditions(have, add, drop)
	if err != nil {
		return nil, usageError{fmt.Errorf("%s: %w", f.lock, err)}
	}
	return list, nil
}

func parseAdditions(flag string, args []string) ([]debian.Addition, error) {
	var list []debian.Addition
	for _, s := range args {
		a, err := debian.ParseAddition(s)
		if err != nil {
			return nil, usageError{fmt.Errorf("%s %w", flag, err)}
		}
		list = append(list, a)
	}
	return list, nil
}

// keys are Debian's, or those that a person named, which is never silent.
func (f *relockFlags) keys(stderr io.Writer) (openpgp.EntityList, error) {
	file, by := f.keyring, "--keyring"
	if file == "" {
		file, by = os.Getenv(keyringVariable), "$"+keyringVariable
	}
	if file == "" {
		return debian.ArchiveKeys()
	}
	ring, err := debian.ReadKeyring(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", by, err)
	}
	fmt.Fprintf(stderr, "lists are trusted by the keys in %s (%s), not by Debian's:\n", file, by)
	for _, k := range ring {
		fmt.Fprintf(stderr, "  %X\n", k.PrimaryKey.Fingerprint)
	}
	return ring, nil
}

// source gets lists and files as of a time, or of now where that is zero.
func (f *relockFlags) source(c *cobra.Command, at time.Time) (debian.Source, func(), error) {
	if at.IsZero() {
		return f.fetcher(c, time.Now())
	}
	all, done, err := f.fetcher(c, at)
	if err != nil {
		return nil, nil, err
	}
	snapshot, err := fetch.Snapshot(at)
	if err != nil {
		return nil, nil, usageError{err}
	}
	lists := *all
	lists.Sources = []fetch.Source{snapshot}
	return past{Fetcher: all, lists: &lists}, done, nil
}

// past gets lists as they were: no mirror but the snapshot archive has those. What
// is pinned by its digest may come from anywhere.
type past struct {
	*fetch.Fetcher
	lists *fetch.Fetcher
}

// Fresh implements debian.Source.
func (p past) Fresh(ctx context.Context, archive, path string, max int64) ([]byte, error) {
	b, err := p.lists.Fresh(ctx, archive, path, max)
	var failed *fetch.SourcesError
	if errors.As(err, &failed) {
		failed.Advice = "check the network and HTTPS_PROXY; lists of the past come from an archive of snapshots alone, and PYBOX_DEBIAN_SNAPSHOT names a copy of Debian's"
	}
	return b, err
}

// writeLock replaces old (nil: none) in file by cur unless they are the same, and
// tells what changed.
func writeLock(w io.Writer, file string, old, cur *debian.Lock) error {
	changes := debian.Changes(old, cur)
	for _, ch := range changes {
		fmt.Fprintln(w, ch)
	}
	switch {
	case old == nil || len(changes) > 0:
	case debian.SameReleases(old, cur) && old.Snapshot == cur.Snapshot:
		fmt.Fprintln(w, "nothing changed; the lock file stays as it is")
		return nil
	default:
		fmt.Fprintln(w, "no package changed; only the dates of the archive's lists moved:")
		for _, r := range cur.Releases {
			fmt.Fprintf(w, "  %s of %s\n", r.Suite, r.Date.UTC().Format(time.RFC3339))
		}
	}
	return nospace.Explain(cur.WriteFile(file), "the lock file", filepath.Dir(file), 0, "")
}

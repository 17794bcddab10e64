package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"

	"github.com/pybox/pybox/guest/debian"
	"github.com/pybox/pybox/guest/fetch"
	"github.com/pybox/pybox/kernel"
)

// source is the pinned source, or the one that a person gave.
func (f *flags) source() (kernel.Source, error) {
	if f.deb != "" {
		return givenSource(f.deb)
	}
	lock, err := debian.ReadLock(f.lock)
	if err != nil {
		return kernel.Source{}, fmt.Errorf("%w\nrun mkkernel at the top of the repository, or name the lock file with --lock", err)
	}
	set, err := lock.Set(debian.SetKernelSource, debian.ArchAll)
	if err != nil {
		return kernel.Source{}, err
	}
	if len(set.Packages) != 1 {
		return kernel.Source{}, fmt.Errorf("the lock file's set %s has %d packages, want the one source", debian.SetKernelSource, len(set.Packages))
	}
	at, err := lock.SnapshotTime()
	if err != nil {
		return kernel.Source{}, fmt.Errorf("snapshot time of the lock file: %w", err)
	}
	sources, err := fetch.DefaultSources(f.mirror, at)
	if err != nil {
		return kernel.Source{}, fmt.Errorf("%w: %w", errUsage, err)
	}
	p := set.Packages[0]
	return kernel.Source{
		SHA256:  p.SHA256,
		Version: p.Version,
		Open: func(ctx context.Context) (string, error) {
			return f.fetch(ctx, sources, p)
		},
	}, nil
}

func givenSource(deb string) (kernel.Source, error) {
	in, err := os.Open(deb)
	if err != nil {
		return kernel.Source{}, fmt.Errorf("open source package: %w", err)
	}
	defer in.Close()
	h := sha256.New()
	if _, err := io.Copy(h, in); err != nil {
		return kernel.Source{}, fmt.Errorf("read source package: %w", err)
	}
	return kernel.Source{
		SHA256:  hex.EncodeToString(h.Sum(nil)),
		Version: "given as a file",
		Open:    func(context.Context) (string, error) { return deb, nil },
	}, nil
}

// fetch brings the package into the download cache.
func (f *flags) fetch(ctx context.Context, sources []fetch.Source, p debian.Entry) (string, error) {
	dir, err := fetch.CacheDir()
	if err != nil {
		return "", err
	}
	fmt.Fprintf(f.stderr, "kernel: fetching %s %s, %d MB, unless it is in the cache\n", p.Name, p.Version, p.Bytes/1_000_000)
	progress := fetch.NewPrinter(f.stderr)
	defer progress.Clear()
	return (&fetch.Fetcher{Dir: dir, Sources: sources, Progress: progress.Update}).Pinned(ctx, p.Archive, p.Path, p.Bytes, p.SHA256)
}

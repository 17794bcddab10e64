package debian

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"pault.ag/go/debian/dependency"
	"pault.ag/go/debian/version"
)

// Bounds of a package index (trixie: 68,000 packages, 57 MB of text).
const (
	maxPackages = 500_000
	// maxDependsBytes bounds the relations of one package, over whose words
	// their parser takes quadratic time.
	maxDependsBytes = 64 << 10
	MaxIndexBytes   = 512 << 20 // uncompressed
)

// Package is one version of a binary package in an archive.
type Package struct {
	Name    string
	Version string
	Archive string // ArchiveMain or ArchiveSecurity
	Path    string // below the archive's base, such as "pool/main/c/crun/crun_1.21-1_amd64.deb"
	Bytes   int64
	SHA256  string

	depends  string // Pre-Depends and Depends, parsed only when needed
	provides string
	parsed   version.Version
}

// Index holds the newest version of each package over all the suites that were
// added. The zero value is not usable; see NewIndex.
type Index struct {
	packages map[string]*Package
	// providers maps a virtual package to those that provide it; built on
	// first use, since most closures never need it.
	providers map[string][]string
	count     int
}

// NewIndex returns an empty index.
func NewIndex() *Index { return &Index{packages: map[string]*Package{}} }

// Add reads an uncompressed Packages file of an archive. Of several versions of
// a package, in this file or in one added before, the newest by Debian's rules
// stays (Debian Policy 5.6.12).
func (x *Index) Add(archive string, r io.Reader) error {
	x.providers = nil
	return ReadParagraphs(io.LimitReader(r, MaxIndexBytes), func(p Paragraph) error {
		if x.count++; x.count > maxPackages {
			return formatErr("more than %d packages", maxPackages)
		}
		pkg, err := newPackage(archive, p)
		if err != nil {
			return err
		}
		if old := x.packages[pkg.Name]; old == nil || version.Compare(pkg.parsed, old.parsed) > 0 {
			x.packages[pkg.Name] = pkg
		}
		return nil
	})
}

func newPackage(archive string, p Paragraph) (*Package, error) {
	pkg := &Package{Name: p["Package"], Version: p["Version"], Archive: archive,
		Path: p["Filename"], SHA256: p["SHA256"], provides: p["Provides"]}
	pkg.depends = joinList(p["Pre-Depends"], p["Depends"])
	var err error
	if pkg.parsed, err = version.Parse(pkg.Version); err != nil {
		return nil, formatErr("package %.80q: version: %v", pkg.Name, err)
	}
	if pkg.Bytes, err = strconv.ParseInt(p["Size"], 10, 64); err != nil {
		return nil, formatErr("package %.80q: size %.40q", pkg.Name, p["Size"])
	}
	if err := pkg.entry().validate(); err != nil {
		return nil, formatErr("package list: %v", err)
	}
	return pkg, nil
}

func joinList(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + ", " + b
}

func (p *Package) entry() Entry {
	return Entry{Name: p.Name, Version: p.Version, Archive: p.Archive, Path: p.Path, Bytes: p.Bytes, SHA256: p.SHA256}
}

// Lookup returns the newest version of a package, or nil.
func (x *Index) Lookup(name string) *Package { return x.packages[name] }

// providersOf lists, sorted, the packages that provide a virtual package.
func (x *Index) providersOf(name string) []string {
	if x.providers == nil {
		x.providers = map[string][]string{}
		for n, p := range x.packages {
			for v := range strings.SplitSeq(p.provides, ",") {
				if v, _, _ = strings.Cut(strings.TrimSpace(v), " "); v != "" {
					x.providers[v] = append(x.providers[v], n)
				}
			}
		}
		for _, l := range x.providers {
			slices.Sort(l)
		}
	}
	return x.providers[name]
}

// Closure returns seeds and everything they depend on (Pre-Depends and Depends,
// not Recommends), sorted by name. Packages in skip are taken as given: they
// are left out, and so is what only they need. Of alternatives the first that
// is selected already wins, then the first that exists. An unmet dependency is
// an error. The result depends on the index and the arguments only.
func (x *Index) Closure(seeds, skip []string) ([]*Package, error) {
	c := closure{index: x, skip: map[string]bool{}, got: map[string]*Package{}}
	for _, s := range skip {
		c.skip[s] = true
	}
	first, err := x.lookupAll(seeds)
	if err != nil {
		return nil, err
	}
	for _, p := range first {
		c.take(p)
	}
	for len(c.queue) > 0 {
		p := c.queue[0]
		c.queue = c.queue[1:]
		if err := c.resolve(p); err != nil {
			return nil, fmt.Errorf("dependencies of %s: %w", p.Name, err)
		}
	}
	return c.sorted(), nil
}

// Behind returns what the seeds depend on themselves, sorted by name: neither the
// seeds nor anything further. Alternatives and versions count as for Closure. A
// seed without a dependency is an error.
func (x *Index) Behind(seeds []string) ([]*Package, error) {
	metas, err := x.lookupAll(seeds)
	if err != nil {
		return nil, err
	}
	c := closure{index: x, got: map[string]*Package{}}
	for _, p := range metas {
		before := len(c.got)
		if err := c.resolve(p); err != nil {
			return nil, fmt.Errorf("dependencies of %s: %w", p.Name, err)
		}
		if len(c.got) == before {
			return nil, fmt.Errorf("the package %s depends on nothing: it is no meta package", p.Name)
		}
	}
	return c.sorted(), nil
}

// lookupAll returns the newest versions of packages, in the order of names.
func (x *Index) lookupAll(names []string) ([]*Package, error) {
	out := make([]*Package, 0, len(names))
	for _, n := range names {
		p := x.Lookup(n)
		if p == nil {
			return nil, fmt.Errorf("the archive has no package %q", n)
		}
		out = append(out, p)
	}
	return out, nil
}

type closure struct {
	index *Index
	skip  map[string]bool
	got   map[string]*Package
	queue []*Package
}

// sorted returns what was taken, sorted by name.
func (c *closure) sorted() []*Package {
	out := slices.Collect(maps.Values(c.got))
	slices.SortFunc(out, func(a, b *Package) int { return strings.Compare(a.Name, b.Name) })
	return out
}

func (c *closure) take(p *Package) {
	if c.got[p.Name] == nil && !c.skip[p.Name] {
		c.got[p.Name] = p
		c.queue = append(c.queue, p)
	}
}

func (c *closure) resolve(p *Package) error {
	if len(p.depends) > maxDependsBytes {
		return formatErr("%d bytes of dependencies, at most %d", len(p.depends), maxDependsBytes)
	}
	deps, err := dependency.Parse(p.depends)
	if err != nil {
		return formatErr("%v", err)
	}
	for _, rel := range deps.Relations {
		if len(rel.Possibilities) == 0 {
			continue
		}
		chosen, met := c.choose(rel.Possibilities)
		if !met {
			return fmt.Errorf("nothing in the archive satisfies %q", rel.String())
		}
		if chosen != nil {
			c.take(chosen)
		}
	}
	return nil
}

// choose returns the package that meets one of the alternatives. A nil package
// with met true means that nothing needs to be added.
func (c *closure) choose(alternatives []dependency.Possibility) (chosen *Package, met bool) {
	for _, a := range alternatives {
		if c.skip[a.Name] {
			return nil, true
		}
		if p := c.got[a.Name]; p != nil && satisfies(p, a.Version) {
			return nil, true
		}
		for _, n := range c.index.providersOf(a.Name) {
			if c.got[n] != nil && a.Version == nil {
				return nil, true
			}
		}
	}
	for _, a := range alternatives {
		if p := c.index.Lookup(a.Name); p != nil && satisfies(p, a.Version) {
			return p, true
		}
		if a.Version != nil {
			continue // versioned Provides are rare and not needed here
		}
		if n := c.index.providersOf(a.Name); len(n) > 0 {
			return c.index.Lookup(n[0]), true
		}
	}
	return nil, false
}

func satisfies(p *Package, r *dependency.VersionRelation) bool {
	if r == nil {
		return true
	}
	want, err := version.Parse(r.Number)
	if err != nil {
		return false
	}
	cmp := version.Compare(p.parsed, want)
	switch r.Operator {
	case ">=":
		return cmp >= 0
	case "<=":
		return cmp <= 0
	case "=":
		return cmp == 0
	case "<<":
		return cmp < 0
	case ">>":
		return cmp > 0
	}
	return false
}

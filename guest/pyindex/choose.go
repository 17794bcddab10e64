package pyindex

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/pybox/pybox/guest/fetch"
	"github.com/pybox/pybox/guest/pep440"
	"github.com/pybox/pybox/guest/pylock"
	"github.com/pybox/pybox/guest/pytag"
)

// parallel is how many requests are under way at once.
const parallel = 6

// Chosen is a wheel that is going to be used.
type Chosen struct {
	Project string   // normalised
	Version string   // of the wheel, normalised
	Extras  []string // as locked
	File    string   // the wheel's name
	URL     string   // where from, without credentials and query; "" for a folder
	SHA256  string   // lower-case hex, from the lock
	Bytes   int64
	Yanked  string // why the index withdrew it; "" where it did not

	address string // with its query
	path    string // of a file on this machine; "" for an address
	place   *place // whose credentials go with address; may be nil
	doubt   string // why SHA256 may be of another file; "" where it is not
}

// candidate is a wheel that could be meant.
type candidate struct {
	wheel   pytag.Wheel
	version pep440.Version
	link    link   // of an index or the lock
	place   *place // of an index
	local   *local // of a folder
	good    bool   // the lock has its digest
	assumed bool   // the index gives no digests, and it may be the lock's only one
	python  bool   // the image's Python is one that it is for
}

// session is one Choose.
type session struct {
	*Client
	lock    *pylock.Lock
	target  pytag.Target
	tags    pytag.Chooser // of target
	places  []*place
	folders map[string][]local

	mu       sync.Mutex
	standing map[*place]*standing
}

// standing is how an index fares.
type standing struct {
	troubles int   // one after the other
	down     error // why it is asked no more
}

// maxTroubles is for how many projects, one after the other, an index may fail in a way
// that may be the project's own fault or its.
const maxTroubles = 3

// Choose finds for each package of the lock the wheel that pip would take on the
// target: of those whose digest the lock has, one that is not withdrawn, the newest
// version, the best tag. Folders go before indexes. Everything that is wrong is in
// the one error, a *ChoiceError, or else ctx's.
func (c *Client) Choose(ctx context.Context, l *pylock.Lock, t pytag.Target) ([]Chosen, error) {
	s := &session{Client: c, lock: l, target: t, tags: t.Chooser(), standing: map[*place]*standing{}}
	var err error
	if s.folders, err = readFolders(c.folders); err != nil {
		return nil, err
	}
	if s.places, err = c.places(l); err != nil {
		return nil, err
	}
	chosen := make([]Chosen, len(l.Packages))
	failed := make([]error, len(l.Packages))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(parallel)
	for i, pkg := range l.Packages {
		g.Go(func() error {
			chosen[i], failed[i] = s.choose(gctx, pkg)
			return gctx.Err()
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	if err := s.summary(failed); err != nil {
		return nil, err
	}
	var total int64
	for _, ch := range chosen {
		total += ch.Bytes
	}
	if total > MaxTotalBytes {
		return nil, &ChoiceError{Lock: l.Name, Problems: []string{fmt.Sprintf("its wheels have %d bytes together, more than the %d that an image may have", total, int64(MaxTotalBytes))}}
	}
	for _, ch := range chosen {
		if ch.Yanked != "" {
			c.log().Warn("the index withdrew a wheel that the lock pins", "file", ch.File, "reason", ch.Yanked)
		}
	}
	return chosen, nil
}

// places are the indexes to ask for a lock. One that says --no-index names none.
func (c *Client) places(l *pylock.Lock) ([]*place, error) {
	if c.o.Offline {
		return nil, nil
	}
	var list []*place
	var addresses []string
	if !l.NoIndex {
		addresses = l.ExtraIndex
	}
	switch {
	case c.index != nil:
		list = append(list, c.index)
	case !l.NoIndex:
		addresses = append([]string{cmp.Or(l.IndexURL, DefaultIndex)}, addresses...)
	}
	for _, a := range addresses {
		p, err := parsePlace(a)
		if err != nil {
			return nil, fmt.Errorf("%s: index: %w", l.Name, err)
		}
		if !c.mayLock(p.base) {
			return nil, fmt.Errorf("%s: the index %s is not asked because a lock says so: %s", l.Name, p, onlyNamed)
		}
		list = append(list, p)
	}
	return list, nil
}

// unreachable is a place's fault, which many packages share.
type unreachable struct {
	place *place
	err   error
}

func (u *unreachable) Error() string {
	return fmt.Sprintf("the index %s could not be asked: %v", u.place, u.err)
}

func (u *unreachable) Unwrap() error { return u.err }

// summary makes one error of all, with what is wrong with a place said once.
func (s *session) summary(failed []error) error {
	e := &ChoiceError{Lock: s.lock.Name}
	waiting := map[string][]string{}
	var places []string
	var causes []error
	for i, err := range failed {
		var u *unreachable
		switch {
		case err == nil:
		case errors.As(err, &u):
			text := u.Error()
			if waiting[text] == nil {
				places = append(places, text)
				causes = append(causes, u)
			}
			waiting[text] = append(waiting[text], s.lock.Packages[i].Name)
		default:
			e.add(s.title(s.lock.Packages[i])+": "+err.Error(), err)
		}
	}
	for i, text := range places {
		e.add(text+" (for "+some(waiting[text], 5)+")", causes[i])
	}
	if len(e.Problems) == 0 {
		return nil
	}
	return e
}

// title names a package as in the lock.
func (s *session) title(p pylock.Package) string {
	name := p.Name
	if p.Version != "" {
		name += " " + p.Version
	}
	if p.Line > 0 {
		name += fmt.Sprintf(" (line %d)", p.Line)
	}
	return name
}

// some lists the first of many.
func some(list []string, n int) string { return someOf(list, n, len(list)) }

// someOf lists the first of count, of which list has those at hand.
func someOf(list []string, n, count int) string {
	list = list[:min(n, len(list))]
	if len(list) == count {
		return strings.Join(list, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(list, ", "), count-len(list))
}

// choose finds a package's wheel.
func (s *session) choose(ctx context.Context, p pylock.Package) (Chosen, error) {
	seen, found := &sighting{}, &pool{tags: s.tags}
	if err := s.inFolders(ctx, p, found, seen); err != nil {
		return Chosen{}, err
	}
	if len(p.Wheels) > 0 {
		s.inLock(p, found, seen)
	} else if found.best == nil {
		if err := s.inIndexes(ctx, p, found, seen); err != nil {
			return Chosen{}, err
		}
	}
	if found.best == nil {
		return Chosen{}, errors.New(s.explain(p, found, seen))
	}
	ch, err := s.chosen(ctx, p, *found.best)
	if found.best.assumed {
		ch.doubt = s.doubt(found, seen)
	}
	return ch, err
}

// compare tells which of two is rather taken, before tags are looked at.
func compare(a, b candidate) int {
	switch {
	case a.link.yanked != b.link.yanked && a.link.yanked:
		return -1
	case a.link.yanked != b.link.yanked:
		return 1
	}
	return a.version.Compare(b.version)
}

// candidateOf looks at a wheel's name with the package's in mind.
func candidateOf(w pytag.Wheel, p pylock.Package) (candidate, bool) {
	v, err := pep440.Parse(w.Version)
	if err != nil || w.Name != p.Name {
		return candidate{}, false
	}
	if p.Version != "" {
		want, err := pep440.ParseSpecifiers("==" + p.Version)
		if err != nil || !want.Contains(v) {
			return candidate{wheel: w, version: v}, false
		}
	}
	return candidate{wheel: w, version: v, python: true}, true
}

// inFolders are those of the folders.
func (s *session) inFolders(ctx context.Context, p pylock.Package, found *pool, seen *sighting) error {
	digests := digestsOf(p)
	for _, l := range s.folders[p.Name] {
		c, ok := candidateOf(l.wheel, p)
		seen.wheel(c, ok)
		if !ok {
			continue
		}
		digest, bytes, err := l.digest(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			seen.fault("%v", err)
			continue
		}
		c.local = &l
		c.link = link{file: l.wheel.File, sha256: digest, bytes: bytes}
		c.good = digests[digest]
		found.add(c)
	}
	return nil
}

// digestsOf are all SHA-256 that a package may have.
func digestsOf(p pylock.Package) map[string]bool {
	set := map[string]bool{}
	for _, d := range p.SHA256() {
		set[d] = true
	}
	for _, w := range p.Wheels {
		set[w.SHA256()] = true
	}
	return set
}

// inLock are those that the lock itself names.
func (s *session) inLock(p pylock.Package, found *pool, seen *sighting) {
	for _, lw := range p.Wheels {
		w, err := pytag.Parse(lw.File)
		if err != nil {
			continue // the lock was read: its names are good
		}
		c, ok := candidateOf(w, p)
		seen.wheel(c, ok)
		if !ok {
			continue
		}
		c.good = true
		c.link = link{file: lw.File, sha256: lw.SHA256(), bytes: lw.Bytes}
		if lw.Path != "" {
			c.local = &local{w, lw.Path}
			found.add(c)
			continue
		}
		u, err := url.Parse(lw.URL)
		if err != nil || !s.mayLock(u) {
			seen.fault("%s is not fetched from where the lock says: %s", lw.File, onlyNamed)
			continue
		}
		c.link.base, c.link.ref = u, lw.URL
		c.place = s.index
		found.add(c)
	}
}

// inIndexes are those of all indexes. One that does not know the project is none.
func (s *session) inIndexes(ctx context.Context, p pylock.Package, found *pool, seen *sighting) error {
	for _, at := range s.places {
		links, err := s.ask(ctx, at, p.Name)
		switch {
		case errors.Is(err, fetch.ErrGone):
			seen.unknown = append(seen.unknown, at.String())
			continue
		case err != nil:
			return err
		case len(links) == 0:
			seen.empty = append(seen.empty, at.String())
		}
		if err := s.ofPage(ctx, p, at, links, found, seen); err != nil {
			return err
		}
	}
	return nil
}

// ask asks an index for a project, unless it is known that it does not answer: where
// it could not be reached, or failed for some projects one after the other. Whatever
// else is wrong with a project's page is that project's trouble alone.
func (s *session) ask(ctx context.Context, at *place, name string) ([]link, error) {
	s.mu.Lock()
	st := s.standing[at]
	if st == nil {
		st = &standing{}
		s.standing[at] = st
	}
	down := st.down
	s.mu.Unlock()
	if down != nil {
		return nil, &unreachable{at, down}
	}
	links, err := s.project(ctx, at, name)
	if err != nil && ctx.Err() != nil {
		return nil, ctx.Err()
	}
	fault := faultOf(err)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case fault == faultNone:
		st.troubles = 0
		return links, err
	case fault == faultOfPage:
		return nil, fmt.Errorf("%s: %w", at.project(name), err)
	}
	if st.troubles++; st.down == nil && (fault == faultOfHost || st.troubles >= maxTroubles) {
		st.down = err
	}
	return nil, &unreachable{at, err}
}

// ofPage are the candidates among the files of a page.
func (s *session) ofPage(ctx context.Context, p pylock.Package, at *place, links []link, found *pool, seen *sighting) error {
	digests := digestsOf(p)
	for _, l := range links {
		if err := ctx.Err(); err != nil {
			return err
		}
		rest, ok := afterName(l.file, p.Name)
		if !ok {
			continue
		}
		w, err := pytag.Parse(l.file)
		if err != nil {
			seen.other(l, rest, p, digests)
			continue
		}
		c, ok := candidateOf(w, p)
		seen.wheel(c, ok)
		if !ok {
			continue
		}
		u := l.url()
		if u == nil {
			continue
		}
		if !mayLink(l.from, u) {
			seen.fault("%s names %s at %s://%s, which is not followed; the index ought to name its files by https", at, l.file, u.Scheme, u.Host)
			continue
		}
		c.link, c.place = l, at
		if l.sha256 == "" && len(digests) == 1 {
			// A page without digests: the one of the lock is what must come.
			c.assumed = true
			for d := range digests {
				c.link.sha256 = d
			}
		}
		c.good = digests[c.link.sha256]
		c.python = s.python(l.requiresPython)
		found.add(c)
	}
	return nil
}

// python tells whether a page's requires-python admits the image's. One that cannot
// be read does, as in pip.
func (s *session) python(spec string) bool {
	r, err := pep440.ParseSpecifiers(spec)
	if err != nil {
		return true
	}
	v, err := pep440.Parse(s.lock.Python)
	return err != nil || r.Contains(v)
}

// chosen completes what is known of a wheel.
func (s *session) chosen(ctx context.Context, p pylock.Package, c candidate) (Chosen, error) {
	ch := Chosen{
		Project: p.Name, Version: c.wheel.Version, Extras: p.Extras, File: c.wheel.File,
		SHA256: c.link.sha256, Bytes: c.link.bytes, Yanked: c.link.reasonText(), place: c.place,
	}
	if c.local != nil {
		ch.path = c.local.path
		return s.localSize(ch)
	}
	u := c.link.url()
	if u == nil {
		return Chosen{}, fmt.Errorf("%s is at no https address", ch.File)
	}
	ch.address = u.String()
	u.RawQuery = ""
	ch.URL = u.String()
	have := s.cachedBytes(ctx, ch)
	switch {
	case have > 0:
		ch.Bytes = have
	case s.o.Offline:
		return Chosen{}, fmt.Errorf("%s is neither in the download cache nor in a folder of --find-links, and the network is not to be used", ch.File)
	case ch.Bytes == 0:
		n, err := s.sizeOf(ctx, ch.address, ch.place)
		if err != nil {
			return Chosen{}, fmt.Errorf("%s: %w", ch.URL, err)
		}
		ch.Bytes = n
	}
	if ch.Bytes > MaxWheelBytes {
		return Chosen{}, fmt.Errorf("%s has %d bytes, more than the %d that a wheel may have", ch.File, ch.Bytes, int64(MaxWheelBytes))
	}
	return ch, nil
}

// localSize takes the size of a file that a lock names by its path.
func (s *session) localSize(ch Chosen) (Chosen, error) {
	st, err := os.Stat(ch.path)
	switch {
	case err != nil:
		return Chosen{}, err
	case !st.Mode().IsRegular(), st.Size() <= 0, st.Size() > MaxWheelBytes:
		return Chosen{}, fmt.Errorf("%s is no regular file of 1 to %d bytes", ch.path, int64(MaxWheelBytes))
	case ch.Bytes != 0 && ch.Bytes != st.Size():
		return Chosen{}, fmt.Errorf("%s has %d bytes, and the lock says %d", ch.path, st.Size(), ch.Bytes)
	}
	ch.Bytes = st.Size()
	return ch, nil
}

// cachedBytes is the size of a wheel that the cache has whole, or 0. Where the size
// is known that is not verified yet; Fetch does.
func (c *Client) cachedBytes(ctx context.Context, ch Chosen) int64 {
	f := fetch.Fetcher{Dir: c.o.Cache}
	item := item(ch)
	final, _ := f.Places(item)
	st, err := os.Lstat(final)
	switch {
	case err != nil, !st.Mode().IsRegular(), st.Size() == 0:
		return 0
	case ch.Bytes != 0:
		if st.Size() != ch.Bytes {
			return 0
		}
		return ch.Bytes
	}
	item.Bytes = st.Size()
	if _, whole, err := f.Have(ctx, item); err != nil || !whole {
		return 0
	}
	return item.Bytes
}

// sighting is what was seen on the way, for explanations.
type sighting struct {
	versions map[string]bool // of wheels of other versions, and of what is no wheel
	sdists   []string        // source distributions of the version
	sdist    bool            // the lock has the digest of one
	unknown  []string        // indexes that do not know the project
	empty    []string        // indexes that know it and have nothing of it
	faults   []string        // files that could not be used
	faulty   int             // how many there are
}

// Bounds on a sighting.
const (
	maxVersions = 1000
	maxFaults   = 10
)

// fault notes a file that cannot be used.
func (s *sighting) fault(format string, a ...any) {
	if s.faulty++; len(s.faults) < maxFaults {
		s.faults = append(s.faults, fmt.Sprintf(format, a...))
	}
}

func (s *sighting) version(v string) {
	if s.versions == nil {
		s.versions = map[string]bool{}
	}
	if len(s.versions) < maxVersions {
		s.versions[v] = true
	}
}

// wheel notes a wheel; ok tells whether its version is the one.
func (s *sighting) wheel(c candidate, ok bool) {
	if !ok && c.wheel.Version != "" {
		s.version(c.wheel.Version)
	}
}

// other notes what is no wheel; rest is what follows the project's name in the file's.
func (s *sighting) other(l link, rest string, p pylock.Package, digests map[string]bool) {
	version := sdistVersion(rest)
	if version == "" {
		return
	}
	want, errWant := pep440.Parse(p.Version)
	have, err := pep440.Parse(version)
	switch {
	case err != nil:
	case errWant == nil && want.Public().Compare(have.Public()) == 0:
		if len(s.sdists) < 10 {
			s.sdists = append(s.sdists, l.file)
		}
		s.sdist = s.sdist || digests[l.sha256]
	default:
		s.version(have.String())
	}
}

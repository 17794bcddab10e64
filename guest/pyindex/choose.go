package pyindex

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/pybox/pybox/guest/fetch"
	"github.com/pybox/pybox/guest/internal/printable"
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
}

// candidate is a wheel that could be meant.
type candidate struct {
	wheel   pytag.Wheel
	version pep440.Version
	link    link   // of an index or the lock
	place   *place // of an index
	local   *local // of a folder
	good    bool   // the lock has its digest
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

	mu   sync.Mutex
	down map[*place]error // those that do not answer, asked no more
}

// Choose finds for each package of the lock the wheel that pip would take on the
// target: of those whose digest the lock has, one that is not withdrawn, the newest
// version, the best tag. Folders go before indexes. Everything that is wrong is in
// the one error, a *ChoiceError, or else ctx's.
func (c *Client) Choose(ctx context.Context, l *pylock.Lock, t pytag.Target) ([]Chosen, error) {
	s := &session{Client: c, lock: l, target: t, tags: t.Chooser(), down: map[*place]error{}}
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
	for _, ch := range chosen {
		if ch.Yanked != "" {
			c.log().Warn("the index withdrew a wheel that the lock pins", "file", ch.File, "reason", ch.Yanked)
		}
	}
	return chosen, nil
}

// places are the indexes to ask for a lock.
func (c *Client) places(l *pylock.Lock) ([]*place, error) {
	if c.o.Offline || l.NoIndex && c.index == nil {
		return nil, nil
	}
	var list []*place
	first := c.index
	addresses := l.ExtraIndex
	if first == nil {
		address := l.IndexURL
		if address == "" {
			address = DefaultIndex
		}
		addresses = append([]string{address}, addresses...)
	} else {
		list = append(list, first)
	}
	for _, a := range addresses {
		p, err := parsePlace(a)
		if err != nil {
			return nil, fmt.Errorf("%s: index: %w", l.Name, err)
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
	for i, err := range failed {
		var u *unreachable
		switch {
		case err == nil:
		case errors.As(err, &u):
			text := u.Error()
			if waiting[text] == nil {
				places = append(places, text)
				e.causes = append(e.causes, u)
			}
			waiting[text] = append(waiting[text], s.lock.Packages[i].Name)
		default:
			e.Problems = append(e.Problems, printable.Text(s.title(s.lock.Packages[i])+": "+err.Error()))
			e.causes = append(e.causes, err)
		}
	}
	for _, text := range places {
		e.Problems = append(e.Problems, printable.Text(text+" (for "+some(waiting[text], 5)+")"))
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
func some(list []string, n int) string {
	if len(list) <= n {
		return strings.Join(list, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(list[:n], ", "), len(list)-n)
}

// choose finds a package's wheel.
func (s *session) choose(ctx context.Context, p pylock.Package) (Chosen, error) {
	seen := &sighting{}
	list, err := s.inFolders(ctx, p, seen)
	if err != nil {
		return Chosen{}, err
	}
	if len(p.Wheels) > 0 {
		list = append(list, s.inLock(p, seen)...)
	} else if s.best(list) == nil {
		more, err := s.inIndexes(ctx, p, seen)
		if err != nil {
			return Chosen{}, err
		}
		list = append(list, more...)
	}
	best := s.best(list)
	if best == nil {
		return Chosen{}, errors.New(s.explain(p, list, seen))
	}
	return s.chosen(ctx, p, *best)
}

// best is what pip would take.
func (s *session) best(list []candidate) *candidate {
	var found []candidate
	var wheels []pytag.Wheel
	for _, c := range list {
		if !c.good || !c.python {
			continue
		}
		if _, ok := s.tags.Best([]pytag.Wheel{c.wheel}); !ok {
			continue
		}
		// Only what is as good as the best so far by state and version.
		if len(found) > 0 {
			order := compare(c, found[0])
			if order < 0 {
				continue
			}
			if order > 0 {
				found, wheels = nil, nil
			}
		}
		found, wheels = append(found, c), append(wheels, c.wheel)
	}
	i, ok := s.tags.Best(wheels)
	if !ok {
		return nil
	}
	return &found[i]
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
func (s *session) inFolders(ctx context.Context, p pylock.Package, seen *sighting) ([]candidate, error) {
	digests := digestsOf(p)
	var list []candidate
	for _, l := range s.folders[p.Name] {
		c, ok := candidateOf(l.wheel, p)
		seen.wheel(c, ok)
		if !ok {
			continue
		}
		digest, bytes, err := l.digest(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			seen.faults = append(seen.faults, err.Error())
			continue
		}
		c.local = &l
		c.link = link{file: l.wheel.File, sha256: digest, bytes: bytes}
		c.good = digests[digest]
		list = append(list, c)
	}
	return list, nil
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
func (s *session) inLock(p pylock.Package, seen *sighting) []candidate {
	var list []candidate
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
			list = append(list, c)
			continue
		}
		u, err := url.Parse(lw.URL)
		if err != nil || !s.mayLock(u) {
			seen.faults = append(seen.faults, fmt.Sprintf("%s is at an http address; https is wanted in a lock file", lw.File))
			continue
		}
		u.User = nil
		c.link.url = u
		c.place = s.index
		list = append(list, c)
	}
	return list
}

// inIndexes are those of all indexes. One that does not know the project is none.
func (s *session) inIndexes(ctx context.Context, p pylock.Package, seen *sighting) ([]candidate, error) {
	var list []candidate
	for _, at := range s.places {
		s.mu.Lock()
		err := s.down[at]
		s.mu.Unlock()
		if err != nil {
			return nil, &unreachable{at, err}
		}
		links, err := s.project(ctx, at, p.Name)
		switch {
		case errors.Is(err, errNotThere):
			seen.unknown = append(seen.unknown, at.String())
			continue
		case errors.Is(err, errPage):
			return nil, fmt.Errorf("%s: %w", at.project(p.Name), err)
		case err != nil:
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			s.mu.Lock()
			s.down[at] = err
			s.mu.Unlock()
			return nil, &unreachable{at, err}
		}
		list = append(list, s.ofPage(p, at, links, seen)...)
	}
	return list, nil
}

// ofPage are the candidates among the files of a page.
func (s *session) ofPage(p pylock.Package, at *place, links []link, seen *sighting) []candidate {
	digests := digestsOf(p)
	var list []candidate
	for _, l := range links {
		w, err := pytag.Parse(l.file)
		if err != nil {
			seen.other(l, p, digests)
			continue
		}
		c, ok := candidateOf(w, p)
		seen.wheel(c, ok)
		if !ok {
			continue
		}
		if l.barred {
			seen.faults = append(seen.faults, fmt.Sprintf("%s names %s at %s://%s, which is not followed; the index ought to name its files by https", at, l.file, l.url.Scheme, l.url.Host))
			continue
		}
		c.link, c.place = l, at
		if l.sha256 == "" && len(digests) == 1 {
			// A page without digests: the one of the lock is what must come.
			for d := range digests {
				c.link.sha256 = d
			}
		}
		c.good = digests[c.link.sha256]
		c.python = s.python(l.requiresPython)
		list = append(list, c)
	}
	return list
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
	shown := *c.link.url
	shown.RawQuery, shown.User = "", nil
	ch.URL, ch.address = shown.String(), c.link.url.String()
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
	item := fetch.Item{Archive: archive, Path: ch.File, Bytes: ch.Bytes, SHA256: ch.SHA256}
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
	versions []string // of wheels of other versions, and of what is no wheel
	sdists   []string // source distributions of the version
	sdist    bool     // the lock has the digest of one
	unknown  []string // indexes that do not know the project
	faults   []string // files that could not be used
}

// wheel notes a wheel; ok tells whether its version is the one.
func (s *sighting) wheel(c candidate, ok bool) {
	if !ok && c.wheel.Version != "" && !slices.Contains(s.versions, c.wheel.Version) && len(s.versions) < 1000 {
		s.versions = append(s.versions, c.wheel.Version)
	}
}

// other notes what is no wheel.
func (s *sighting) other(l link, p pylock.Package, digests map[string]bool) {
	version := sdistVersion(l.file, p.Name)
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
	case !slices.Contains(s.versions, have.String()) && len(s.versions) < 1000:
		s.versions = append(s.versions, have.String())
	}
}

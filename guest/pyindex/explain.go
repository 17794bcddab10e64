package pyindex

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/pybox/pybox/guest/pep440"
	"github.com/pybox/pybox/guest/pep508"
	"github.com/pybox/pybox/guest/pylock"
)

// explain says why none of the candidates can be used, and what to do.
func (s *session) explain(p pylock.Package, list []candidate, seen *sighting) string {
	var good, usable, newer []candidate
	for _, c := range list {
		fits := s.tags.Why(c.wheel) == ""
		switch {
		case c.good && fits && !c.python:
			newer = append(newer, c)
		case c.good:
			good = append(good, c)
		case fits && c.python:
			usable = append(usable, c)
		}
	}
	switch {
	case len(newer) > 0:
		return fmt.Sprintf("%s is for Python %s, and the image has %s; lock for that version", newer[0].wheel.File, newer[0].link.requiresPython, s.lock.Python)
	case len(good) > 0:
		return s.wrongTags(good, usable)
	case len(seen.faults) > 0:
		return some(seen.faults, 3)
	case len(list) == 0:
		return s.nothing(p, seen)
	case seen.sdist:
		return fmt.Sprintf("the lock has the hash of its source distribution (%s) only, and building that would run its code on this computer; %s", some(seen.sdists, 1), s.relock(usable))
	case len(usable) > 0 && usable[0].link.sha256 == "":
		return fmt.Sprintf("the index gives no SHA-256 for %s; download it and give its folder with --find-links", usable[0].wheel.File)
	case len(usable) > 0:
		return fmt.Sprintf("none of the lock's %d hashes is of %s; the file may have been exchanged, or the lock is older than it: %s", len(digestsOf(p)), names(usable), s.relock(usable))
	}
	return fmt.Sprintf("there is no wheel for the image, which needs %s or the like; there are %s", s.example(), s.namesWhy(list))
}

// wrongTags is about files whose hashes the lock has, none of which fits.
func (s *session) wrongTags(good, usable []candidate) string {
	text := fmt.Sprintf("the lock has %s; none is for the image, which needs %s or the like", s.namesWhy(good), s.example())
	if len(usable) > 0 {
		return fmt.Sprintf("%s. There is %s, whose hash is not in the lock: %s", text, names(usable), s.relock(usable))
	}
	return text + "; take a version that has such a wheel"
}

// nothing is about a package of which no wheel was seen.
func (s *session) nothing(p pylock.Package, seen *sighting) string {
	switch {
	case len(seen.sdists) > 0:
		return fmt.Sprintf("there is only its source (%s), and building that would run its code on this computer; take a version that has wheels, or build a wheel and give its folder with --find-links", some(seen.sdists, 1))
	case len(seen.versions) > 0:
		return fmt.Sprintf("there is no such version; there are %s", some(newest(seen.versions), 5))
	case len(p.Wheels) > 0:
		return "none of its wheels can be used"
	case len(s.places) == 0:
		return "no folder of --find-links has a wheel of it, and no index is to be asked"
	}
	return fmt.Sprintf("%s has no package of that name; is it on another index (--index-url), or in a folder (--find-links)?", some(seen.unknown, 3))
}

// relock is the advice to make the lock anew.
func (s *session) relock(usable []candidate) string {
	if len(usable) == 0 {
		return "take a version that has wheels"
	}
	return fmt.Sprintf("lock again for Linux, as with 'uv pip compile --generate-hashes --python-platform %s-manylinux_2_%d --python-version %s'",
		s.target.Arch, min(s.target.GlibcMinor, 40), s.target.Python)
}

func (s *session) example() string { return s.target.Example() }

// names are some wheels' names.
func names(list []candidate) string {
	var out []string
	for _, c := range list {
		out = append(out, c.wheel.File)
	}
	return some(out, 2)
}

// namesWhy are some wheels' names, each with why it does not fit.
func (s *session) namesWhy(list []candidate) string {
	var out []string
	for _, c := range list {
		out = append(out, fmt.Sprintf("%s (%s)", c.wheel.File, cmp.Or(s.tags.Why(c.wheel), "not as locked")))
	}
	return some(out, 4)
}

// newest sorts versions, newest first.
func newest(versions []string) []string {
	list := slices.Clone(versions)
	slices.SortFunc(list, func(a, b string) int {
		va, errA := pep440.Parse(a)
		vb, errB := pep440.Parse(b)
		if errA != nil || errB != nil {
			return strings.Compare(b, a)
		}
		return vb.Compare(va)
	})
	return list
}

// sdistEndings are those of source distributions, old ones too.
var sdistEndings = []string{".tar.gz", ".zip", ".tar.bz2", ".tgz", ".tar.xz"}

// sdistVersion is the version in a source distribution's name, or "".
func sdistVersion(file, project string) string {
	for _, ending := range sdistEndings {
		stem, ok := strings.CutSuffix(file, ending)
		if !ok {
			continue
		}
		// The project's name may have a '-' in it.
		for i := range len(stem) {
			if stem[i] == '-' && pep508.NormalizeName(stem[:i]) == project {
				return stem[i+1:]
			}
		}
	}
	return ""
}

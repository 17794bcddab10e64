package pyindex

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pybox/pybox/guest/pep440"
	"github.com/pybox/pybox/guest/pylock"
)

// explain says why none of the wheels can be used, and what to do.
func (s *session) explain(p pylock.Package, found *pool, seen *sighting) string {
	switch usable := found.usable; {
	case found.newer.count > 0:
		c := found.newer.list[0]
		return fmt.Sprintf("%s is for Python %s, and the image has %s; lock for that version", c.wheel.File, c.link.requiresPython, s.lock.Python)
	case found.good.count > 0:
		return s.wrongTags(found.good, usable)
	case len(seen.faults) > 0:
		return someOf(seen.faults, 3, seen.faulty)
	case found.all.count == 0:
		return s.nothing(p, seen)
	case seen.sdist:
		return fmt.Sprintf("the lock has the hash of its source distribution (%s) only, and building that would run its code on this computer; %s", some(seen.sdists, 1), s.relock(usable))
	case usable.count > 0 && usable.list[0].link.sha256 == "":
		return fmt.Sprintf("the index gives no SHA-256 for %s; download it and give its folder with --find-links", usable.list[0].wheel.File)
	case usable.count > 0:
		return fmt.Sprintf("none of the lock's %d hashes is of %s; the file may have been exchanged, or the lock is older than it: %s", len(digestsOf(p)), names(usable), s.relock(usable))
	}
	return fmt.Sprintf("there is no wheel for the image, which needs %s or the like; there are %s", s.example(), s.namesWhy(found.all))
}

// doubt says what may be wrong with a digest that an index did not give.
func (s *session) doubt(found *pool, seen *sighting) string {
	others := slices.Clone(seen.sdists)
	for _, c := range found.good.list {
		others = append(others, c.wheel.File)
	}
	of := ""
	if len(others) > 0 {
		of = " (" + some(others, 3) + ")"
	}
	return "the index gives no hashes, and the lock's may be of another file" + of + ": " + s.relockForLinux()
}

// wrongTags is about files whose hashes the lock has, none of which fits.
func (s *session) wrongTags(good, usable sample) string {
	text := fmt.Sprintf("the lock has %s; none is for the image, which needs %s or the like", s.namesWhy(good), s.example())
	if usable.count > 0 {
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
	case len(seen.empty) > 0:
		return fmt.Sprintf("%s lists no file of it", some(seen.empty, 3))
	case len(seen.unknown) == 0:
		return "no file is listed that has its name"
	}
	return fmt.Sprintf("%s has no package of that name; is it on another index (--index-url), or in a folder (--find-links)?", some(seen.unknown, 3))
}

// relock is the advice to make the lock anew.
func (s *session) relock(usable sample) string {
	if usable.count == 0 {
		return "take a version that has wheels"
	}
	return s.relockForLinux()
}

func (s *session) relockForLinux() string {
	return fmt.Sprintf("lock again for Linux, as with 'uv pip compile --generate-hashes --python-platform %s-manylinux_2_%d --python-version %s'",
		s.target.Arch, min(s.target.GlibcMinor, 40), s.target.Python)
}

func (s *session) example() string { return s.target.Example() }

// names are some wheels' names.
func names(wheels sample) string {
	var out []string
	for _, c := range wheels.list {
		out = append(out, c.wheel.File)
	}
	return someOf(out, 2, wheels.count)
}

// namesWhy are some wheels' names, each with why it does not fit.
func (s *session) namesWhy(wheels sample) string {
	var out []string
	for _, c := range wheels.list[:min(4, len(wheels.list))] {
		out = append(out, fmt.Sprintf("%s (%s)", c.wheel.File, cmp.Or(s.tags.Why(c.wheel), "not as locked")))
	}
	return someOf(out, 4, wheels.count)
}

// newest sorts versions, newest first.
func newest(versions map[string]bool) []string {
	return slices.SortedFunc(maps.Keys(versions), func(a, b string) int {
		va, errA := pep440.Parse(a)
		vb, errB := pep440.Parse(b)
		if errA != nil || errB != nil {
			return strings.Compare(b, a)
		}
		return cmp.Or(vb.Compare(va), strings.Compare(a, b))
	})
}

// sdistEndings are those of source distributions, old ones too.
var sdistEndings = []string{".tar.gz", ".zip", ".tar.bz2", ".tgz", ".tar.xz"}

// sdistVersion is the version in what follows the project's name in that of a source
// distribution, or "".
func sdistVersion(rest string) string {
	for _, ending := range sdistEndings {
		if version, ok := strings.CutSuffix(rest, ending); ok {
			return version
		}
	}
	return ""
}

// afterName is what follows the name of a project, in whatever spelling, and a '-'.
func afterName(file, project string) (rest string, ok bool) {
	for project != "" {
		if project[0] == '-' {
			after := strings.TrimLeft(file, "-_.")
			if len(after) == len(file) {
				return "", false
			}
			file, project = after, project[1:]
			continue
		}
		if file == "" || lower(file[0]) != project[0] {
			return "", false
		}
		file, project = file[1:], project[1:]
	}
	return strings.CutPrefix(file, "-")
}

func lower(c byte) byte {
	if c >= 'A' && c <= 'Z' {
		return c + 'a' - 'A'
	}
	return c
}

package pytag

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Target is what wheels are chosen for: a CPython with the global lock, on Linux
// with glibc.
type Target struct {
	Arch                   string // "x86_64" or "aarch64"
	Python                 string // "3.13"
	GlibcMajor, GlibcMinor int    // 2, 41
}

// legacyManylinux are the names from before PEP 600, by glibc's minor version.
var legacyManylinux = map[int]string{5: "manylinux1", 12: "manylinux2010", 17: "manylinux2014"}

// Supported returns the tags that the target takes, best first: what pip prints in
// it with "pip debug --verbose". It is empty for a Python that is not 3.N.
func (t Target) Supported() []Tag {
	minor, ok := t.minor()
	if !ok {
		return nil
	}
	var tags []Tag
	platforms := t.platforms()
	add := func(interpreter, abi string) {
		for _, p := range platforms {
			tags = append(tags, Tag{interpreter, abi, p})
		}
	}
	own := fmt.Sprintf("cp3%d", minor)
	add(own, own)
	add(own, "abi3")
	add(own, "none")
	for m := minor - 1; m >= 2; m-- {
		add(fmt.Sprintf("cp3%d", m), "abi3")
	}
	generic := genericPythons(minor)
	for _, py := range generic {
		add(py, "none")
	}
	tags = append(tags, Tag{own, "none", "any"})
	for _, py := range generic {
		tags = append(tags, Tag{py, "none", "any"})
	}
	return tags
}

// genericPythons are py313, py3, and then all older ones.
func genericPythons(minor int) []string {
	list := []string{fmt.Sprintf("py3%d", minor), "py3"}
	for m := minor - 1; m >= 0; m-- {
		list = append(list, fmt.Sprintf("py3%d", m))
	}
	return list
}

// minor is the 13 of "3.13".
func (t Target) minor() (int, bool) {
	text, ok := strings.CutPrefix(t.Python, "3.")
	n, err := strconv.Atoi(text)
	return n, ok && err == nil && n >= 2 && n < 1000
}

// platforms are those that glibc can carry, newest first, and plain Linux last.
func (t Target) platforms() []string {
	oldest := 17
	if t.Arch == "x86_64" {
		oldest = 5
	}
	var list []string
	if t.GlibcMajor == 2 {
		for m := min(t.GlibcMinor, 999); m >= oldest; m-- {
			list = append(list, fmt.Sprintf("manylinux_2_%d_%s", m, t.Arch))
			if old := legacyManylinux[m]; old != "" {
				list = append(list, old+"_"+t.Arch)
			}
		}
	}
	return append(list, "linux_"+t.Arch)
}

// Best is that of Chooser, for one question.
func (t Target) Best(wheels []Wheel) (int, bool) { return t.Chooser().Best(wheels) }

// Why is that of Chooser, for one question.
func (t Target) Why(w Wheel) string { return t.Chooser().Why(w) }

// Chooser answers for a target, whose tags it has at hand: making it takes longer
// than asking. It may be used by several goroutines at once.
type Chooser struct {
	target    Target
	ranks     map[Tag]int     // lower is better
	platforms map[string]bool // that the target carries, "any" among them
}

// Chooser makes one.
func (t Target) Chooser() Chooser {
	c := Chooser{t, map[Tag]int{}, map[string]bool{"any": true}}
	for _, p := range t.platforms() {
		c.platforms[p] = true
	}
	for i, tag := range t.Supported() {
		if _, ok := c.ranks[tag]; !ok {
			c.ranks[tag] = i
		}
	}
	return c
}

// Best returns the index of the wheel that the target would rather have, or false
// where it can use none: the best tag, among those the highest build, and then the
// first. It does not look at names and versions.
func (c Chooser) Best(wheels []Wheel) (int, bool) {
	best := -1
	var bestRank int
	for i, w := range wheels {
		rank, ok := c.rank(w)
		if !ok {
			continue
		}
		if best < 0 || cmp.Or(cmp.Compare(bestRank, rank), compareBuild(w.Build, wheels[best].Build)) > 0 {
			best, bestRank = i, rank
		}
	}
	return best, best >= 0
}

// rank is that of a wheel's best tag.
func (c Chooser) rank(w Wheel) (rank int, ok bool) {
	for _, tag := range w.Tags {
		if n, known := c.ranks[tag]; known && (!ok || n < rank) {
			rank, ok = n, true
		}
	}
	return rank, ok
}

// compareBuild orders build tags: none first, then by number, then by what follows.
func compareBuild(a, b string) int {
	numA, restA := splitBuild(a)
	numB, restB := splitBuild(b)
	return cmp.Or(cmp.Compare(len(numA), len(numB)), strings.Compare(numA, numB), strings.Compare(restA, restB))
}

// splitBuild returns the number, never empty where there is a build, and the rest.
func splitBuild(build string) (number, rest string) {
	end := strings.IndexFunc(build, func(r rune) bool { return r < '0' || r > '9' })
	if end < 0 {
		end = len(build)
	}
	number = strings.TrimLeft(build[:end], "0")
	if number == "" && build != "" {
		number = "0"
	}
	return number, build[end:]
}

// Why says in a few words why the target cannot use a wheel, or "" where it can.
func (c Chooser) Why(w Wheel) string {
	if _, ok := c.rank(w); ok {
		return ""
	}
	var reasons []string
	for _, tag := range w.Tags {
		if why := c.whyTag(tag); !slices.Contains(reasons, why) {
			reasons = append(reasons, why)
		}
		if len(reasons) == 3 {
			break
		}
	}
	return strings.Join(reasons, ", ")
}

func (c Chooser) whyTag(tag Tag) string {
	p, t := tag.Platform, c.target
	switch {
	case strings.HasPrefix(p, "macosx"):
		return "for macOS"
	case strings.HasPrefix(p, "win"):
		return "for Windows"
	case strings.HasPrefix(p, "musllinux"):
		return "for musl, and the image has glibc"
	case strings.HasPrefix(p, "ios"), strings.HasPrefix(p, "android"), strings.HasPrefix(p, "pyodide"), strings.HasPrefix(p, "wasm"), strings.HasPrefix(p, "emscripten"):
		return "for " + strings.SplitN(p, "_", 2)[0]
	case p != "any" && !strings.HasSuffix(p, "_"+t.Arch):
		return "for another processor (" + p + ")"
	case c.platforms[p]:
		return t.whyPython(tag)
	case strings.HasPrefix(p, "manylinux"):
		return fmt.Sprintf("for another glibc (%s; the image has %d.%d)", p, t.GlibcMajor, t.GlibcMinor)
	}
	return "for " + p
}

// whyPython is about a tag whose platform fits.
func (t Target) whyPython(tag Tag) string {
	return fmt.Sprintf("for another Python (%s-%s; the image has CPython %s)", tag.Interpreter, tag.ABI, t.Python)
}

// Example is the tag that a wheel with compiled code would have for this target at
// best, for messages.
func (t Target) Example() string {
	nodot := strings.ReplaceAll(t.Python, ".", "")
	return fmt.Sprintf("cp%s-cp%s-manylinux_2_17_%s", nodot, nodot, t.Arch)
}

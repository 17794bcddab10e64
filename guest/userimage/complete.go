package userimage

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/pybox/pybox/guest/pep440"
	"github.com/pybox/pybox/guest/pep508"
)

// maxProblems bounds what is listed.
const maxProblems = 30

// checkComplete makes sure that every package finds what it needs among the packages
// and in the base: what its metadata asks for in the guest, with the extras that were
// locked and those that other packages ask for. The error matches ErrIncomplete and
// lists everything. The notes are about what cannot be known, and about packages of
// the base that a new version of another breaks.
func checkComplete(b *base, packages []dist) (notes []string, err error) {
	c := &checker{base: b, have: map[string]dist{}, extras: map[string][]string{}}
	for _, d := range b.dists {
		c.have[d.key()] = d
	}
	for _, d := range packages {
		c.have[d.key()] = d
		for _, e := range d.extras {
			c.ask(d.key(), e)
		}
	}
	for _, d := range packages {
		c.python(d)
	}
	c.all(packages)
	for _, d := range b.dists {
		if c.have[d.key()].wheel == "" {
			c.broken(d)
		}
	}
	if len(c.problems) > 0 {
		return nil, fmt.Errorf("%w:%s", ErrIncomplete, list(c.problems))
	}
	return c.notes, nil
}

func list(problems []string) string {
	more := ""
	if n := len(problems) - maxProblems; n > 0 {
		problems, more = problems[:maxProblems], fmt.Sprintf("\n  and %d more", n)
	}
	return "\n  " + strings.Join(problems, "\n  ") + more
}

type checker struct {
	base            *base
	have            map[string]dist     // by normalised name
	extras          map[string][]string // that are asked for, by normalised name
	problems, notes []string
}

// ask notes that an extra of a package is wanted, and tells whether that is new.
func (c *checker) ask(key, extra string) bool {
	extra = pep508.NormalizeName(extra)
	if slices.Contains(c.extras[key], extra) {
		return false
	}
	c.extras[key] = append(c.extras[key], extra)
	return true
}

// python compares Requires-Python.
func (c *checker) python(d dist) {
	if d.RequiresPython == "" {
		return
	}
	want, err := pep440.ParseSpecifiers(d.RequiresPython)
	if err != nil {
		c.notes = append(c.notes, fmt.Sprintf("%s says for which Python it is in a way that cannot be read: %.80q", d, d.RequiresPython))
		return
	}
	if v, err := pep440.Parse(c.base.python); err != nil || !want.Contains(v) {
		c.problems = append(c.problems, fmt.Sprintf("%s is for Python %s: the image %s has %s", d, d.RequiresPython, c.base.Name, c.base.python))
	}
}

// all looks at what packages need, until no new extras come up.
func (c *checker) all(packages []dist) {
	seen := map[string]bool{} // what was said already
	for again := true; again; {
		again = false
		for _, d := range packages {
			for _, text := range d.RequiresDist {
				r, applies := c.requirement(d, text, seen)
				if !applies {
					continue
				}
				for _, e := range r.Extras {
					if c.ask(r.Name, e) {
						again = true
					}
				}
				if why := c.lacks(r); why != "" && !seen[d.key()+"\n"+text] {
					seen[d.key()+"\n"+text] = true
					c.problems = append(c.problems, fmt.Sprintf("%s needs %s: %s", d, r, why))
				}
			}
		}
	}
}

// requirement reads one and tells whether it applies in the guest.
func (c *checker) requirement(d dist, text string, seen map[string]bool) (pep508.Requirement, bool) {
	r, err := pep508.ParseRequirement(text)
	applies := false
	if err == nil {
		applies, err = c.applies(r.Marker, c.extras[d.key()])
	}
	if err != nil && !seen[d.key()+"\n"+text] {
		seen[d.key()+"\n"+text] = true
		why := "cannot be read"
		if errors.Is(err, pep508.ErrUnknown) {
			why = "depends on what is only known when the machine runs"
		}
		c.notes = append(c.notes, fmt.Sprintf("one thing that %s needs %s, so it was not looked for: %.120q", d, why, text))
	}
	return r, applies && err == nil
}

// applies tells whether a marker does, with no extra or with one of those.
func (c *checker) applies(m pep508.Marker, extras []string) (bool, error) {
	ok, err := m.Eval(c.base.env)
	for _, e := range extras {
		if ok || err != nil {
			break
		}
		ok, err = m.Eval(c.base.env.With(e))
	}
	return ok, err
}

// lacks says why a requirement is not met, or "".
func (c *checker) lacks(r pep508.Requirement) string {
	d, ok := c.have[r.Name]
	switch {
	case !ok:
		return fmt.Sprintf("not in the lock, nor in the image %s", c.base.Name)
	case r.URL != "" || c.meets(d, r):
		return ""
	case d.wheel == "":
		return fmt.Sprintf("the image %s has %s, and the lock nothing of that name", c.base.Name, d.Version)
	}
	return fmt.Sprintf("the lock has %s", d.Version)
}

func (c *checker) meets(d dist, r pep508.Requirement) bool {
	v, err := pep440.Parse(d.Version)
	return err == nil && r.Specifiers.Contains(v)
}

// broken notes where a package of the base finds another version than it needs since
// a wheel brought one. What the base lacks by itself was its maker's decision.
func (c *checker) broken(d dist) {
	for _, text := range d.RequiresDist {
		r, err := pep508.ParseRequirement(text)
		if err != nil {
			continue
		}
		applies, err := c.applies(r.Marker, nil)
		if have := c.have[r.Name]; err == nil && applies && have.wheel != "" && !c.meets(have, r) {
			c.notes = append(c.notes, fmt.Sprintf("%s of the image %s needs %s and now finds %s", d, c.base.Name, r, have.Version))
		}
	}
}

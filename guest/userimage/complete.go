package userimage

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/pybox/pybox/guest/pep440"
	"github.com/pybox/pybox/guest/pep508"
)

// maxProblems bounds what is listed.
const maxProblems = 30

// maxExtras bounds the extras of one package that are looked at: each is a reading of all
// that it needs.
const maxExtras = 300

// checkComplete makes sure that every package finds what it needs among the packages
// and in the base: what its metadata asks for in the guest, with the extras that were
// locked and those that other packages ask for. The error matches ErrIncomplete and
// lists everything, or is ctx's. The notes are about what cannot be known, and about
// packages of the base that a new version of another breaks.
func checkComplete(ctx context.Context, b *base, packages []dist) (notes []string, err error) {
	c := &checker{base: b, have: map[string]dist{}, asking: map[string]*asking{}}
	for _, d := range b.dists {
		c.have[d.key()] = d
	}
	for _, d := range packages {
		c.have[d.key()] = d
		c.asking[d.key()] = newAsking(d)
		c.todo = append(c.todo, part{d.key(), ""})
		c.python(d)
	}
	for _, d := range packages {
		for _, e := range d.extras {
			c.ask(d.key(), pep508.NormalizeName(e))
		}
	}
	for len(c.todo) > 0 {
		next := c.todo[0]
		c.todo = c.todo[1:]
		if err := c.look(ctx, c.asking[next.key], next.extra); err != nil {
			return nil, err
		}
	}
	for _, d := range b.dists {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if c.have[d.key()].wheel == "" {
			c.broken(d)
		}
	}
	if len(c.problems) > 0 {
		return nil, fmt.Errorf("%w:%s", ErrIncomplete, list(c.problems))
	}
	if n := len(c.notes) - maxProblems; n > 0 {
		c.notes = append(c.notes[:maxProblems], fmt.Sprintf("and %d more like these", n))
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
	have            map[string]dist    // by normalised name
	asking          map[string]*asking // the packages, by normalised name
	todo            []part
	problems, notes []string
}

// part is what a package needs by itself, or for an extra.
type part struct{ key, extra string }

// asking is a package whose needs are looked at.
type asking struct {
	dist
	needs []need
	parts map[string]bool // the extras that were asked for
}

// need is something that a package needs, until it is known that it does.
type need struct {
	text string
	r    pep508.Requirement
	err  error
	done bool
}

func newAsking(d dist) *asking {
	a := &asking{dist: d, needs: make([]need, len(d.RequiresDist)), parts: map[string]bool{}}
	for i, text := range d.RequiresDist {
		r, err := pep508.ParseRequirement(text)
		a.needs[i] = need{text: text, r: r, err: err}
	}
	return a
}

// ask has an extra of a package looked at, once. Those of packages of the base are the
// business of its maker.
func (c *checker) ask(key, extra string) {
	a := c.asking[key]
	if a == nil || a.parts[extra] || len(a.parts) > maxExtras {
		return
	}
	if a.parts[extra] = true; len(a.parts) > maxExtras {
		c.problems = append(c.problems, fmt.Sprintf("more than %d extras of %s are asked for", maxExtras, a.dist))
		return
	}
	c.todo = append(c.todo, part{key, extra})
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

// look looks at what a package needs by itself, where extra is "", or for an extra.
func (c *checker) look(ctx context.Context, a *asking, extra string) error {
	env := c.base.env
	if extra != "" {
		env = env.With(extra)
	}
	for i := range a.needs {
		n := &a.needs[i]
		if n.done {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		applies, err := false, n.err
		if err == nil {
			applies, err = n.r.Marker.Eval(env)
		}
		// What does not depend on extras is known now.
		n.done = applies || err != nil || !strings.Contains(n.r.Marker.String(), "extra")
		switch {
		case err != nil:
			c.unknown(a.dist, n.text, err)
		case applies:
			c.needed(a.dist, n.r)
		}
	}
	return nil
}

// needed makes sure that something is there.
func (c *checker) needed(d dist, r pep508.Requirement) {
	for _, e := range r.Extras {
		c.ask(r.Name, e)
	}
	if why := c.lacks(r); why != "" {
		c.problems = append(c.problems, fmt.Sprintf("%s needs %s: %s", d, r, why))
	}
}

// unknown notes that something was not looked for.
func (c *checker) unknown(d dist, text string, err error) {
	why := "cannot be read"
	if errors.Is(err, pep508.ErrUnknown) {
		why = "depends on what is only known when the machine runs"
	}
	c.notes = append(c.notes, fmt.Sprintf("one thing that %s needs %s, so it was not looked for: %.120q", d, why, text))
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
		applies, err := r.Marker.Eval(c.base.env)
		if have := c.have[r.Name]; err == nil && applies && have.wheel != "" && !c.meets(have, r) {
			c.notes = append(c.notes, fmt.Sprintf("%s of the image %s needs %s and now finds %s", d, c.base.Name, r, have.Version))
		}
	}
}

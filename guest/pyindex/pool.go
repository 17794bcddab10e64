package pyindex

import "github.com/pybox/pybox/guest/pytag"

// maxKept is how many wheels of a kind are kept for what is said of them.
const maxKept = 20

// sample are the first of many wheels.
type sample struct {
	list  []candidate
	count int
}

func (s *sample) add(c candidate) {
	if s.count++; len(s.list) < maxKept {
		s.list = append(s.list, c)
	}
}

// pool are the wheels of one package that were seen. It keeps the best, and of the
// others as many as can be spoken of.
type pool struct {
	tags pytag.Chooser
	best *candidate // what pip would take
	all  sample
	// Why the others cannot be used.
	newer  sample // for another Python by what the page says
	good   sample // the lock has their digest, and they do not fit
	usable sample // they fit, and the lock has not their digest
}

func (p *pool) add(c candidate) {
	p.all.add(c)
	_, fits := p.tags.Best([]pytag.Wheel{c.wheel})
	switch {
	case c.good && fits && c.python:
		if p.best == nil || p.better(c) {
			p.best = &c
		}
	case c.good && fits:
		p.newer.add(c)
	case c.good:
		p.good.add(c)
	case fits && c.python:
		p.usable.add(c)
	}
}

// better tells whether c is rather taken than the best so far: by state and version,
// then by tag and build. The first of equals stays.
func (p *pool) better(c candidate) bool {
	if order := compare(c, *p.best); order != 0 {
		return order > 0
	}
	i, _ := p.tags.Best([]pytag.Wheel{p.best.wheel, c.wheel})
	return i == 1
}

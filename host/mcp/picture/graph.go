package picture

import "fmt"

const (
	// maxShapes bounds the elements of an SVG with all that its references stand for: a
	// few of them that refer to one another can stand for any number.
	maxShapes = 100_000
	// maxNested bounds how deep they nest then.
	maxNested = 4 * maxDepth
)

// graph is what elements have in them and refer to.
type graph struct {
	root *shape
	open []*shape
	ids  map[string][]*shape
}

// shape is an element.
type shape struct {
	children []*shape
	uses     []string // ids
	seen     bool     // it is looked at, or was
	count    int      // of elements; 0: not yet known
	depth    int
}

func newGraph() *graph { return &graph{ids: map[string][]*shape{}} }

func (g *graph) start() {
	s := &shape{}
	if len(g.open) > 0 {
		in := g.open[len(g.open)-1]
		in.children = append(in.children, s)
	} else {
		g.root = s
	}
	g.open = append(g.open, s)
}

func (g *graph) end() { g.open = g.open[:len(g.open)-1] }

// named gives the innermost open element an id. Of several with the same one every
// reference counts as one to all.
func (g *graph) named(id string) { g.ids[id] = append(g.ids[id], g.open[len(g.open)-1]) }

func (g *graph) uses(id string) {
	s := g.open[len(g.open)-1]
	s.uses = append(s.uses, id)
}

// check refuses what stands for too much, or for itself. There must have been an element.
func (g *graph) check() error { return g.measure(g.root, 0) }

// measure counts what an element stands for.
func (g *graph) measure(s *shape, above int) error {
	switch {
	case s.count > 0 && above+s.depth <= maxNested:
		return nil
	case above > maxNested || s.count > 0:
		return fmt.Errorf("%w: its elements nest deeper than %d with what they refer to", ErrLimit, maxNested)
	case s.seen:
		return fmt.Errorf("%w: it refers to itself", ErrActive)
	}
	s.seen = true
	count, depth := 1, 0
	add := func(of *shape) error {
		if err := g.measure(of, above+1); err != nil {
			return err
		}
		count, depth = count+of.count, max(depth, of.depth)
		if count > maxShapes {
			return fmt.Errorf("%w of %d elements, with what they refer to", ErrLimit, maxShapes)
		}
		return nil
	}
	for _, c := range s.children {
		if err := add(c); err != nil {
			return err
		}
	}
	for _, id := range s.uses {
		for _, c := range g.ids[id] {
			if err := add(c); err != nil {
				return err
			}
		}
	}
	s.count, s.depth = count, depth+1
	return nil
}

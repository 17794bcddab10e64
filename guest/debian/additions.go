package debian

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Addition is what a person has in a set beside what PyBox's recipe asks for.
type Addition struct {
	Set string `json:"set"`
	// Packages are the names asked for, sorted; their dependencies follow them.
	Packages []string `json:"packages"`
}

// ParseAddition reads "SET=PACKAGE[,PACKAGE…]". It checks the form alone: see
// CheckAdditions for whether there is such a set.
func ParseAddition(s string) (Addition, error) {
	set, list, ok := strings.Cut(s, "=")
	if !ok || !isWord(set) {
		return Addition{}, fmt.Errorf("%.80q: want SET=PACKAGE, such as root=strace", s)
	}
	a := Addition{Set: set, Packages: strings.Split(list, ",")}
	for _, p := range a.Packages {
		if !isPackageName(p) {
			return Addition{}, fmt.Errorf("%.80q: %.80q is no name of a Debian package", s, p)
		}
	}
	slices.Sort(a.Packages)
	a.Packages = slices.Compact(a.Packages)
	return a, nil
}

// CheckAdditions tells whether every addition is to a set that takes some.
func CheckAdditions(recipes []Recipe, list []Addition) error {
	var open []string
	for _, r := range recipes {
		if r.extensible() {
			open = append(open, r.Set)
		}
	}
	for _, a := range list {
		if !slices.Contains(open, a.Set) {
			return fmt.Errorf("no package can be added to the set %.40q; there are: %s", a.Set, strings.Join(open, ", "))
		}
	}
	return nil
}

// extensible tells whether more packages in the set have a meaning: not where it is
// read for one package.
func (r Recipe) extensible() bool { return !r.Alone && !r.Behind }

// ChangeAdditions returns have with the packages of add and without those of drop,
// in the form that a lock holds. A package to drop that is not there is an error,
// and so is one to add and to drop.
func ChangeAdditions(have, add, drop []Addition) ([]Addition, error) {
	all, gone := pairs(have), pairs(drop)
	for p := range gone {
		if !all[p] {
			return nil, fmt.Errorf("%s was not added to the set %s", p.pkg, p.set)
		}
		delete(all, p)
	}
	for p := range pairs(add) {
		if gone[p] {
			return nil, fmt.Errorf("%s is both to be added to the set %s and to be dropped", p.pkg, p.set)
		}
		all[p] = true
	}
	bySet := map[string][]string{}
	for p := range all {
		bySet[p.set] = append(bySet[p.set], p.pkg)
	}
	var out []Addition
	for _, set := range slices.Sorted(maps.Keys(bySet)) {
		slices.Sort(bySet[set])
		out = append(out, Addition{Set: set, Packages: bySet[set]})
	}
	return out, nil
}

// pair is a package in a set.
type pair struct{ set, pkg string }

func pairs(list []Addition) map[pair]bool {
	out := map[pair]bool{}
	for _, a := range list {
		for _, p := range a.Packages {
			out[pair{a.Set, p}] = true
		}
	}
	return out
}

// added are the packages that a list has for a set.
func added(list []Addition, set string) []string {
	for _, a := range list {
		if a.Set == set {
			return a.Packages
		}
	}
	return nil
}

// resolveWith is resolve with packages added to the seeds. What is there because of
// them alone, and what they name themselves, is marked.
func (r Recipe) resolveWith(x *Index, arch string, more []string) ([]Entry, error) {
	plain, err := r.resolve(x, arch)
	if err != nil {
		return nil, err
	}
	all := plain
	if len(more) > 0 {
		grown := r
		grown.Seeds = slices.Concat(r.Seeds, more)
		if all, err = grown.resolve(x, arch); err != nil {
			return nil, err
		}
	}
	own := map[string]bool{}
	for _, p := range plain {
		own[p.Name] = true
	}
	entries := make([]Entry, len(all))
	for i, p := range all {
		entries[i] = p.entry()
		entries[i].Added = !own[p.Name] || slices.Contains(more, p.Name)
	}
	return entries, nil
}

// validateAdditions holds the marks in the sets to the list of additions.
func (l *Lock) validateAdditions() error {
	for i, a := range l.Additions {
		switch {
		case i > 0 && l.Additions[i-1].Set >= a.Set:
			return lockErr("additions: set %.40q is out of order or stands twice", a.Set)
		case len(a.Packages) == 0 || len(a.Packages) > maxSetPackages:
			return lockErr("additions to set %.40q: %d packages", a.Set, len(a.Packages))
		case !slices.ContainsFunc(l.Sets, func(s Set) bool { return s.Name == a.Set }):
			return lockErr("additions: there is no set %.40q", a.Set)
		}
		for j, p := range a.Packages {
			if !isPackageName(p) || j > 0 && a.Packages[j-1] >= p {
				return lockErr("additions to set %s: %.40q is no package's name, out of order or there twice", a.Set, p)
			}
		}
	}
	for _, s := range l.Sets {
		if err := s.validateAdded(added(l.Additions, s.Name)); err != nil {
			return err
		}
	}
	return nil
}

func (s *Set) validateAdded(want []string) error {
	marked := map[string]bool{}
	for _, p := range s.Packages {
		if p.Added {
			marked[p.Name] = true
		}
	}
	if len(want) == 0 && len(marked) > 0 {
		return lockErr("set %s %s has added packages and the additions name none", s.Name, s.Arch)
	}
	for _, p := range want {
		if !marked[p] {
			return lockErr("set %s %s lacks the added package %s: run pybox-guest relock", s.Name, s.Arch, p)
		}
	}
	return nil
}

// isPackageName holds for names as Debian Policy 5.6.7 allows them.
func isPackageName(s string) bool {
	if len(s) < 2 || len(s) > maxWordBytes {
		return false
	}
	for i := range len(s) {
		b := s[i]
		alnum := b >= 'a' && b <= 'z' || b >= '0' && b <= '9'
		if !alnum && (i == 0 || strings.IndexByte("+-.", b) < 0) {
			return false
		}
	}
	return true
}

// Package twins finds file names that are different for Linux and one for other file
// systems: such as ignore case (APFS and NTFS as a rule), and such as take the several
// ways to write a character in Unicode for one. It knows nothing of files.
package twins

import (
	"strings"

	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"
)

// Set are names that have no twins among them. The zero value is empty. It is not safe
// for concurrent use.
type Set struct {
	names map[string]string // as they were added, each folder above one too, by their keys
}

// Add adds a relative path with "/" between its parts, unless it, or a folder that it
// lies in, is a twin of what is there: then it gives that, and false. The same name may
// be added again.
func (s *Set) Add(name string) (twin string, ok bool) {
	parts := strings.Split(name, "/")
	keys := make([]string, len(parts))
	path := 0 // its length
	for i, part := range parts {
		if keys[i] = key(part); i > 0 {
			path++
			keys[i] = keys[i-1] + "/" + keys[i]
		}
		path += len(part)
		if other, there := s.names[keys[i]]; there && other != name[:path] {
			return other, false
		}
	}
	if s.names == nil {
		s.names = map[string]string{}
	}
	path = 0
	for i, part := range parts {
		path += len(part)
		s.names[keys[i]] = name[:path]
		path++
	}
	return "", true
}

// key is the same for parts of names that are twins: canonical caseless matching of the
// Unicode Standard, section 3.13, D145. It finds more than any one file system does,
// and leaves what only looks alike, such as "m2" and "m\u00b2", which none takes for one.
func key(part string) string {
	fold := cases.Fold() // has a state
	return norm.NFD.String(fold.String(norm.NFD.String(part)))
}

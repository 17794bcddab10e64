package mcp

import (
	"path"
	"strings"
)

// matches tells whether a name that a program left is meant by a name or a pattern:
// path.Match for each part between slashes, "**" for any number of them, and, without
// a slash, the last part of a name in any folder. The error is path.ErrBadPattern.
func matches(pattern, name string) (bool, error) {
	pattern = strings.TrimPrefix(pattern, "./")
	if pattern == name {
		return true, nil
	}
	parts := strings.Split(pattern, "/")
	if len(parts) == 1 && parts[0] != "**" {
		return path.Match(pattern, path.Base(name))
	}
	for _, p := range parts {
		if _, err := path.Match(p, ""); err != nil {
			return false, err
		}
	}
	return matchParts(parts, strings.Split(name, "/"))
}

// matchParts matches part by part. reach[i] tells whether the patterns so far can stand
// for the first i names, so that no pattern takes more than their product.
func matchParts(patterns, names []string) (bool, error) {
	reach := make([]bool, len(names)+1)
	reach[0] = true
	for _, p := range patterns {
		next := make([]bool, len(reach))
		for i := range reach {
			if p == "**" {
				next[i] = reach[i] || i > 0 && next[i-1]
				continue
			}
			if i == 0 || !reach[i-1] {
				continue
			}
			ok, err := path.Match(p, names[i-1])
			if err != nil {
				return false, err
			}
			next[i] = ok
		}
		reach = next
	}
	return reach[len(names)], nil
}

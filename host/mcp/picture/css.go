package picture

import (
	"regexp"
	"strings"
)

var (
	// call is where CSS begins to call a function, with what it is given.
	call = regexp.MustCompile(`(?s)([A-Za-z0-9_-]*)[ \t\r\n\f]*\(`)
	// part is a reference to a part of the file itself.
	part = regexp.MustCompile(`(?i)url\([ \t\r\n]*["']?#([^"'() \t\r\n]+)["']?[ \t\r\n]*\)`)
)

// active tells whether CSS, in an attribute or in a style sheet, may do more than say how
// to draw: it calls a function that is not known here, refers to anything but a part of
// the file itself, has rules with "@", or escapes, which could hide all of this.
func active(css string) bool {
	if strings.ContainsAny(css, `\@`) || strings.Contains(strings.ToLower(css), "javascript:") {
		return true
	}
	for _, m := range call.FindAllStringSubmatch(part.ReplaceAllString(css, " "), -1) {
		if m[1] != "" && !functions[strings.ToLower(m[1])] {
			return true
		}
	}
	return false
}

// references are the ids of the parts that CSS refers to.
func references(css string) (ids []string) {
	for _, m := range part.FindAllStringSubmatch(css, -1) {
		ids = append(ids, m[1])
	}
	return ids
}

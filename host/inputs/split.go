package inputs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
)

// Split reads PATH[=NAME]. A path may have "=" in it: the longest that is there is the
// PATH, whatever follows it the NAME. name is empty where there is none, and "." for
// the working folder itself.
func Split(arg string) (path, name string, err error) {
	end := len(arg)
	for {
		if end > 0 && exists(arg[:end]) {
			break
		}
		if end = strings.LastIndexByte(arg[:end], '='); end < 0 {
			return "", "", missing(arg)
		}
	}
	if end == len(arg) {
		return arg, "", nil
	}
	if name = strings.TrimPrefix(strings.TrimRight(arg[end+1:], "/"), "./"); name == "" {
		return "", "", fmt.Errorf("%q: there is no NAME after the \"=\"", arg)
	}
	return arg[:end], name, nil
}

// exists tells whether something is there, be it a link that leads nowhere. What
// cannot be looked at is there: opening it tells why.
func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil || !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) && !errors.Is(err, syscall.ENAMETOOLONG)
}

// missing is the error about an argument that names nothing.
func missing(arg string) error {
	path, _, named := strings.Cut(arg, "=")
	switch {
	case arg == "":
		return errors.New("want a file or a folder, PATH or PATH=NAME")
	case !named, path == "":
		return fmt.Errorf("%q: no such file or folder", arg)
	}
	return fmt.Errorf("%q: no such file or folder, and neither is %q", path, arg)
}

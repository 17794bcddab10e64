// Package layout says what every image of a box has to have, however it was
// made: the folders that a box's file systems are mounted on; and where what it may
// have for the guest's use is. Whoever makes or takes in an image checks it, and the
// guest does so again before it uses one.
package layout

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
)

// Err marks an image without the folders that a box needs.
var Err = errors.New("unusable image")

// dirs are where proc, tmpfs and the working folder of a box are mounted. Each
// must be a folder itself: the runtime mounts on what the path leads to, so a
// link would let an image choose what is hidden and what is not.
var dirs = []string{"box", "dev", "proc", "sys", "tmp"}

// What an image may have besides, made when its byte code is. Paths are relative to
// the image's root.
const (
	// Preread is a file that lists what programs touch of the image when they import
	// what they import most: paths of regular files, one a line, sorted.
	Preread = "usr/share/pybox/preread"
	// MaxPrereadBytes bounds that file.
	MaxPrereadBytes = 1 << 20
	// Seeds is a folder whose files are in /tmp of every box when its program starts.
	Seeds = "usr/share/pybox/tmp"
	// Sources is a folder that only an image has whose guest compiles byte code, and
	// for that time: what is below it is compiled as if it stood at the root, and
	// nothing else is, or is recorded. No module is found there.
	Sources = "usr/share/pybox/sources"
)

// Triplet is Debian's name for an architecture, as the folders of libraries and the
// names of compiled modules have it; "" where there are no images for it.
func Triplet(arch string) string { return Triplets()[arch] }

// Triplets gives those of all architectures.
func Triplets() map[string]string {
	return map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}
}

// Dirs returns the folders, sorted, relative to the image's root.
func Dirs() []string { return append([]string(nil), dirs...) }

// Check makes sure that an image has every folder. lstat gives the mode of what
// stands at a path relative to the image's root, as lstat(2) does, without
// following a link. The error matches Err and names everything that is amiss.
func Check(lstat func(path string) (fs.FileMode, error)) error {
	var bad []string
	for _, d := range dirs {
		mode, err := lstat(d)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			bad = append(bad, "/"+d+" is missing")
		case err != nil:
			return fmt.Errorf("%w: /%s: %w", Err, d, err)
		case !mode.IsDir():
			bad = append(bad, fmt.Sprintf("/%s is no folder (%v)", d, mode.Type()))
		}
	}
	if len(bad) > 0 {
		return fmt.Errorf("%w: %s; a box needs real folders there", Err, strings.Join(bad, ", "))
	}
	return nil
}

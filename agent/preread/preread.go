// Package preread brings the files of an image that programs touch when they import
// into the page cache, on the agent's account: a page is charged to the cgroup that
// touches it first, and that is to be no box. Which files those are is recorded when
// the image is made (package layout). What is in an image is not trusted: nothing
// outside of it is read, and no more than a share of the memory that is free.
//
// It does not keep pages: under pressure the kernel drops them as any others, and then
// the next box that needs one is charged for it.
package preread

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/pybox/pybox/guest/layout"
)

// MaxBytes bounds what is read of one image: the files that "data" lists have 135 MiB.
const MaxBytes = 256 << 20

// share is the part of the free memory that may be filled: one in so many bytes.
const share = 8

// chunk is how much is asked for at once: of more, Linux would leave the rest out
// (force_page_cache_ra in mm/readahead.c, read_ahead_kb of the disk).
const chunk = 128 << 10

// Stats say what was read.
type Stats struct {
	// Files and Bytes were read, Skipped files are listed and were not: they would
	// have gone beyond the bound, are not there, or are no regular files.
	Files, Skipped int
	Bytes          int64
}

// Budget is how many bytes may be read now, by what proc, the proc file system, says is
// available.
func Budget(proc fs.FS) (int64, error) {
	f, err := proc.Open("meminfo")
	if err != nil {
		return 0, fmt.Errorf("free memory: %w", err)
	}
	defer f.Close()
	for s := bufio.NewScanner(io.LimitReader(f, 16<<10)); s.Scan(); {
		rest, ok := strings.CutPrefix(s.Text(), "MemAvailable:")
		if !ok {
			continue
		}
		kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(rest, " kB")), 10, 64)
		if err != nil || kib < 0 || kib > 1<<40 {
			return 0, fmt.Errorf("free memory: /proc/meminfo says %.40q", rest)
		}
		return min(kib<<10/share, MaxBytes), nil
	}
	return 0, errors.New("free memory: /proc/meminfo does not say what is available")
}

// Read has the kernel read the files that the image at root lists, whole, up to max
// bytes in all. When it returns, all pages have been allocated, and the last may still
// be on their way from the disk. An image without a list is no error. A file that cannot
// be read is skipped. Between two pieces it looks at ctx.
func Read(ctx context.Context, root string, max int64) (Stats, error) {
	var s Stats
	r, err := os.OpenRoot(root)
	if err != nil {
		return s, fmt.Errorf("read ahead: %w", err)
	}
	defer r.Close()
	list, err := open(r, layout.Preread)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, fmt.Errorf("read ahead: %w", err)
	}
	text, err := io.ReadAll(io.LimitReader(list, layout.MaxPrereadBytes))
	if err := errors.Join(err, list.Close()); err != nil {
		return s, fmt.Errorf("read ahead: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		n, err := file(ctx, r, strings.TrimSuffix(line, "\n"), max-s.Bytes)
		s.Bytes += n
		if ctx.Err() != nil {
			return s, fmt.Errorf("read ahead: %w", context.Cause(ctx))
		}
		if err != nil {
			s.Skipped++
			continue
		}
		s.Files++
	}
	return s, nil
}

// errTooLarge marks a file that does not fit what is left.
var errTooLarge = errors.New("too large")

// file has a file of at most max bytes read.
func file(ctx context.Context, r *os.Root, name string, max int64) (n int64, err error) {
	f, err := open(r, name)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return 0, err
	}
	if st.Size() > max {
		return 0, errTooLarge
	}
	for n < st.Size() && ctx.Err() == nil {
		piece := min(chunk, st.Size()-n)
		if err := fetch(f, n, piece); err != nil {
			return n, err
		}
		n += piece
	}
	return n, ctx.Err()
}

// open opens a regular file of an image, and nothing else.
func open(r *os.Root, name string) (*os.File, error) {
	f, err := r.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = &fs.PathError{Op: "read", Path: name, Err: errors.New("no regular file")}
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

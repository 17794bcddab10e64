package collect

import (
	"container/heap"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/pybox/pybox/agent/api"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
)

const (
	// batch is how many entries of a folder are read at a time.
	batch = 256
	// bufferBytes is how much of a file is read at a time to be compared.
	bufferBytes = 64 << 10
)

// item is a file, a folder or something else.
type item struct {
	name               string // from the working folder on
	bytes              int64  // of a regular file
	executable, folder bool
	reason             string // why it does not come back
}

// look is one look at a working folder. Folders are read in the order in which the
// kernel gives their entries, so that none need be held whole: what is chosen of
// them does not depend on it.
type look struct {
	ctx    context.Context
	found  *Found
	known  *Known
	bounds Bounds
	back   *first // what may come back, and some more for those of it that do not fit
	seen   int
	buf    []byte
}

// folder looks at the entries of one folder; parts is how many parts its name has.
// It reports whether to go on.
func (l *look) folder(dir *os.Root, name string, parts int) bool {
	f, err := dir.Open(".")
	if err != nil {
		l.found.miss("the folder %q could not be read: %v", name, err)
		return true
	}
	defer f.Close()
	for {
		entries, err := f.ReadDir(batch)
		for _, e := range entries {
			if !l.goesOn() {
				return false
			}
			full := e.Name()
			if name != "" {
				full = name + "/" + full
			}
			if !l.entry(dir, e, full, parts+1) {
				return false
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return true
		case err != nil:
			l.found.miss("not all of the folder %q could be read: %v", name, err)
			return true
		}
	}
}

// goesOn counts an entry, and tells whether there is time and room for it.
func (l *look) goesOn() bool {
	if l.ctx.Err() != nil {
		l.found.miss("only %d entries were looked at: %v", l.seen, context.Cause(l.ctx))
		return false
	}
	if l.seen == MaxSeen {
		l.found.miss("only %d entries are looked at", MaxSeen)
		return false
	}
	l.seen++
	return true
}

// entry looks at one entry of dir. It reports whether to go on.
func (l *look) entry(dir *os.Root, e fs.DirEntry, name string, parts int) bool {
	i := item{name: name, folder: e.IsDir()}
	if e.Type().IsRegular() {
		info, err := dir.Lstat(e.Name())
		if err != nil || !info.Mode().IsRegular() {
			l.found.lose(i, api.LeftUnreadable)
			return true
		}
		i.bytes, i.executable = info.Size(), info.Mode()&0o100 != 0
	}
	switch {
	case parts > api.MaxNameDepth:
		l.found.lose(i, api.LeftTooDeep)
	case e.Type()&fs.ModeSymlink != 0:
		l.found.lose(i, api.LeftLink)
	case i.folder:
		return l.subfolder(dir, e.Name(), i, parts)
	case !e.Type().IsRegular():
		l.found.lose(i, api.LeftSpecial)
	default:
		l.file(dir, e.Name(), i)
	}
	return true
}

func (l *look) subfolder(dir *os.Root, base string, i item, parts int) bool {
	sub, err := dir.OpenRoot(base)
	if err != nil {
		l.found.lose(i, api.LeftUnreadable)
		l.found.miss("the folder %q could not be opened: %v", i.name, err)
		return true
	}
	defer sub.Close()
	if !l.known.folders[i.name] {
		l.take(i)
	}
	return l.folder(sub, i.name, parts)
}

func (l *look) file(dir *os.Root, base string, i item) {
	if k := l.known.files[i.name]; k != nil && l.unchanged(dir, base, i, k) {
		return
	}
	l.take(i)
}

// unchanged tells whether a file is as it was put there. One that cannot be read to
// its end is not known to be.
func (l *look) unchanged(dir *os.Root, base string, i item, k *File) bool {
	if i.bytes != k.bytes || i.executable != k.executable {
		return false
	}
	f, err := open(dir, base, i.bytes)
	if err != nil {
		return false
	}
	defer f.Close()
	h := hash{key: l.known.key}
	for left := i.bytes; left > 0 && l.ctx.Err() == nil; {
		b := l.buf[:min(left, int64(len(l.buf)))]
		if _, err := io.ReadFull(f, b); err != nil {
			return false
		}
		_, _ = h.Write(b)
		left -= int64(len(b))
	}
	if l.ctx.Err() != nil {
		l.found.miss("there was no time to tell whether %q was changed", i.name)
		return true
	}
	return h.Sum() == k.hash.Sum()
}

// take puts down a file or a folder that may come back.
func (l *look) take(i item) {
	switch {
	case api.CheckFileName(i.name) != nil:
		l.found.lose(i, api.LeftName)
	case !l.bounds.Collect:
		l.found.lose(i, api.LeftNotAsked)
	case i.bytes > l.bounds.Bytes:
		l.found.lose(i, api.LeftTooLarge)
	default:
		if out, full := l.back.offer(i); full {
			l.found.lose(out, api.LeftTooMany)
		}
	}
}

// choose decides what comes back: in the order of the names, what fits.
func (l *look) choose() {
	names, bytes := 0, int64(0)
	for _, i := range l.back.sorted() {
		switch {
		case int64(len(l.found.files)) >= l.bounds.Files, names+len(i.name) > api.MaxNames:
			l.found.lose(i, api.LeftTooMany)
			continue
		case bytes+i.bytes > l.bounds.Bytes:
			l.found.lose(i, api.LeftTooLarge)
			continue
		}
		names, bytes = names+len(i.name), bytes+i.bytes
		l.found.files = append(l.found.files, &agentv1.LeftFile{Name: i.name, Bytes: i.bytes, Executable: i.executable, Folder: i.folder})
	}
}

// first keeps the items whose names come first, up to a number of them.
type first struct {
	items lastOnTop
	most  int
}

func newFirst(most int) *first { return &first{most: most} }

// offer takes i. Once there are most items one falls out: the last, which may be i.
func (f *first) offer(i item) (out item, full bool) {
	switch {
	case len(f.items) < f.most:
		heap.Push(&f.items, i)
		return item{}, false
	case f.most == 0 || i.name >= f.items[0].name:
		return i, true
	}
	out, f.items[0] = f.items[0], i
	heap.Fix(&f.items, 0)
	return out, true
}

// sorted gives the items in the order of their names.
func (f *first) sorted() []item {
	all := slices.Clone(f.items)
	slices.SortFunc(all, func(a, b item) int { return strings.Compare(a.name, b.name) })
	return all
}

// lastOnTop is a heap with the last name on top.
type lastOnTop []item

func (h lastOnTop) Len() int           { return len(h) }
func (h lastOnTop) Less(i, j int) bool { return h[i].name > h[j].name }
func (h lastOnTop) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }

// Push implements heap.Interface.
func (h *lastOnTop) Push(x any) { *h = append(*h, x.(item)) }

// Pop implements heap.Interface.
func (h *lastOnTop) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

// Package collect tells what a program left in its working folder: what of it comes
// back, what does not and why. It is for a folder that nobody changes any more,
// since the box that it belongs to has no process left, and that may hold anything:
// a hundred thousand files, links to everywhere, FIFOs, names that are no text,
// files of more bytes than there are. All of that costs bounded time and memory. It
// opens regular files and folders only, none through a link, and nothing outside of
// the folder.
//
// It removes nothing, writes nothing, and knows neither boxes nor clients.
package collect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/pybox/pybox/agent/api"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
)

// MaxSeen bounds the entries of a folder that are looked at.
const MaxSeen = 1 << 17

// ErrChanged: a file is not what it was when it was looked at.
var ErrChanged = errors.New("a file changed while it was read")

// Bounds are those of what comes back.
type Bounds struct {
	// Files bounds the files and folders, 0 to api.MaxLeft, and Bytes their bytes
	// together.
	Files, Bytes int64
	// Collect is whether anything comes back at all.
	Collect bool
}

// Found is what was left. Its methods are for one goroutine at a time.
type Found struct {
	root     *os.Root
	files    []*agentv1.LeftFile
	others   *first
	unlisted map[string]*agentv1.LeftCount
	why      []string
}

// Look looks at the working folder dir, into which known was put. What of it was
// not seen when ctx ended or a bound was reached is no error: Missing tells. Close
// what it returns.
func Look(ctx context.Context, dir string, known *Known, b Bounds) (*Found, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("look at the working folder: %w", err)
	}
	f := &Found{root: root, others: newFirst(api.MaxNotReturned), unlisted: map[string]*agentv1.LeftCount{}}
	l := &look{ctx: ctx, found: f, known: known, bounds: b, back: newFirst(int(b.Files) + api.MaxNotReturned), buf: make([]byte, bufferBytes)}
	l.folder(root, "", 0)
	l.choose()
	return f, nil
}

// Close lets go of the folder, which could not be unmounted before.
func (f *Found) Close() error { return f.root.Close() }

// Missing says why not everything that was left is accounted for; empty: it is.
func (f *Found) Missing() string { return strings.Join(f.why, "; ") }

// Sends tells whether anything comes back.
func (f *Found) Sends() bool { return len(f.files) > 0 }

// Left is the account: final once Send has returned.
func (f *Found) Left() *agentv1.Left {
	left := &agentv1.Left{Files: f.files, Complete: len(f.why) == 0}
	for _, i := range f.others.sorted() {
		left.Others = append(left.Others, &agentv1.NotReturned{Name: api.Text(i.name, api.MaxLeftName), Bytes: bounded(i.bytes), Reason: i.reason})
	}
	// Escaping may have changed the order of the names.
	slices.SortStableFunc(left.Others, func(a, b *agentv1.NotReturned) int { return strings.Compare(a.Name, b.Name) })
	for _, c := range f.unlisted {
		left.Unlisted = append(left.Unlisted, c)
	}
	slices.SortFunc(left.Unlisted, func(a, b *agentv1.LeftCount) int { return strings.Compare(a.Reason, b.Reason) })
	return left
}

// bounded gives a size as it is told.
func bounded(size int64) int64 { return min(size, api.MaxLeftSize) }

// lose puts down what does not come back: by name where there is room, else counted.
func (f *Found) lose(i item, reason string) {
	i.reason = reason
	out, full := f.others.offer(i)
	if !full {
		return
	}
	c := f.unlisted[out.reason]
	if c == nil {
		c = &agentv1.LeftCount{Reason: out.reason}
		f.unlisted[out.reason] = c
	}
	c.Count++
	c.Bytes = bounded(c.Bytes + bounded(out.bytes))
}

// miss says that something was not seen.
func (f *Found) miss(format string, a ...any) {
	const most = 3 // the first is what matters
	if len(f.why) < most {
		f.why = append(f.why, api.Text(fmt.Sprintf(format, a...), 150))
	}
}

// Sink takes what comes back, one file after the other: Begin, then Data until all
// bytes are there. It may keep the bytes of a Data until the next call returns.
type Sink struct {
	Begin func(*agentv1.LeftFile) error
	Data  func([]byte) error
}

// Send gives everything that comes back to sink, in order. A file that cannot be
// opened does not come back. When stop ends nothing more is sent, and Missing tells:
// the last file may have been cut then, also by an error of Data, and the account has
// it all the same. Any other error is the sink's, or tells that a file could not be read to its end: then what was begun
// cannot be finished.
func (f *Found) Send(stop context.Context, sink Sink) error {
	all := f.files
	f.files = nil
	var buffers [2][]byte
	for n, file := range all {
		if stop.Err() != nil {
			f.miss("%d of %d files were not sent: %v", len(all)-n, len(all), context.Cause(stop))
			return nil
		}
		if err := f.send(stop, file, sink, &buffers); err != nil {
			return fmt.Errorf("send %q: %w", api.Text(file.GetName(), 100), err)
		}
	}
	return nil
}

func (f *Found) send(stop context.Context, file *agentv1.LeftFile, sink Sink, buffers *[2][]byte) error {
	if file.GetFolder() {
		f.files = append(f.files, file)
		return sink.Begin(file)
	}
	r, err := open(f.root, file.GetName(), file.GetBytes())
	if err != nil {
		f.lose(item{name: file.GetName(), bytes: file.GetBytes()}, api.LeftUnreadable)
		return nil
	}
	defer r.Close()
	f.files = append(f.files, file)
	if err := sink.Begin(file); err != nil {
		return err
	}
	cut := func(left int64) {
		f.miss("%q was cut, with %d of its %d bytes not sent: %v", file.GetName(), left, file.GetBytes(), context.Cause(stop))
	}
	for left := file.GetBytes(); left > 0; {
		if stop.Err() != nil {
			cut(left)
			return nil
		}
		b := buffers[0]
		if b == nil {
			b = make([]byte, api.MaxDataPiece)
		}
		buffers[0], buffers[1] = buffers[1], b
		b = b[:min(left, api.MaxDataPiece)]
		if _, err := io.ReadFull(r, b); err != nil {
			return fmt.Errorf("%w: %w", ErrChanged, err)
		}
		if err := sink.Data(b); err != nil && stop.Err() != nil {
			cut(left) // some of it may have been taken
			return nil
		} else if err != nil {
			return err
		}
		left -= int64(len(b))
	}
	return nil
}

// open opens a regular file of that size. Whatever else stands there is not waited
// for, and not followed.
func open(root *os.Root, name string, size int64) (*os.File, error) {
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && (!info.Mode().IsRegular() || info.Size() != size) {
		err = ErrChanged
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Package readback compares a box that was made with the Config it was to be
// made from. It reads what the kernel, containerd and crun say about it, from
// outside; nothing of the box is asked. It changes nothing, and draws no
// conclusion: whoever calls it refuses a box with a check that is not OK.
//
// That the system call filter is byte for byte the intended one cannot be read
// back from the kernel, only that there is one and what crun was told.
package readback

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/pybox/pybox/agent/oci"
)

// Check is one setting of a box.
type Check struct {
	// Setting names it; together with Source it is unique.
	Setting string
	// Expected and Found are for people: where they are long they are cut, and
	// end with their digest.
	Expected, Found string
	// Source is where it was read: "cgroup memory.max", "/proc/PID/status",
	// "containerd", "crun".
	Source string
	// OK says that it is as expected.
	OK bool
}

// Subject is a box and where to read about it.
type Subject struct {
	// Config is what the box was to be.
	Config oci.Config
	// PID is the box's first process, as the guest sees it.
	PID int
	// RootDevice is the "major:minor" of the image's disk.
	RootDevice string
	// Streams are what descriptors 0 to 2 of the first process are to be, as
	// links below /proc/PID/fd: "pipe:[4711]".
	Streams [3]string
	// Proc is the guest's /proc. It must implement fs.ReadLinkFS.
	Proc fs.FS
	// Cgroup is the directory of the box's cgroup.
	Cgroup fs.FS
	// HostName returns the host name in the UTS namespace of the first process.
	HostName func() (string, error)
	// StoredSpec returns the specification in containerd's record, as JSON.
	StoredSpec func() ([]byte, error)
	// Runtime returns what crun recorded.
	Runtime func() (Runtime, error)
}

// Runtime is what the OCI runtime has recorded of a box.
type Runtime struct {
	// PID is the first process, as the guest sees it.
	PID int
	// Cgroup is the path of the cgroup below the cgroup root, Rootfs the folder
	// of the image.
	Cgroup, Rootfs string
	// Spec is the specification that it worked from, as JSON.
	Spec []byte
}

// Full compares every setting. A setting that cannot be read, or not before ctx
// is done, is a check that is not OK.
func Full(ctx context.Context, s Subject) []Check {
	r := newReader(ctx, s)
	r.cgroup()
	r.processes()
	r.descriptors()
	r.credentials()
	r.idMaps()
	r.namespaces()
	r.mounts()
	r.rlimits()
	r.cgroupPath()
	r.network()
	r.identity()
	r.surroundings()
	r.personality()
	r.specifications()
	return r.checks
}

// Quick compares again what could have changed since Full without a new program
// in the box: its limits, processes, open files, privileges, mounts and network.
func Quick(ctx context.Context, s Subject) []Check {
	r := newReader(ctx, s)
	r.quick()
	return r.checks
}

// Waited is Quick for a box that was left alone for long since Full: it also compares
// what somebody with privileges outside could have changed meanwhile. What it leaves out
// no file can change any more: the id maps and namespaces of a process, and what it was
// started with. The records of crun and containerd it does not ask for.
func Waited(ctx context.Context, s Subject) []Check {
	r := newReader(ctx, s)
	r.quick()
	r.rlimits()
	r.cgroupPath()
	r.surroundings()
	return r.checks
}

func (r *reader) quick() {
	r.cgroup()
	r.processes()
	r.descriptors()
	r.credentials()
	r.mounts()
	r.network()
}

// reader collects the checks of one comparison.
type reader struct {
	Subject
	ctx    context.Context
	checks []Check
	buf    []byte // for files, one after the other
}

func newReader(ctx context.Context, s Subject) *reader {
	return &reader{Subject: s, ctx: ctx, checks: make([]Check, 0, 96)}
}

// compare adds a check of two values that should be equal; err says why found was
// not read.
func (r *reader) compare(setting, source, expected, found string, err error) {
	r.add(setting, source, expected, found, found == expected, err)
}

// add adds a check.
func (r *reader) add(setting, source, expected, found string, ok bool, err error) {
	if err != nil {
		ok, found = false, "not readable: "+err.Error()
	}
	c := Check{Setting: setting, Source: source, Expected: short(expected), OK: ok}
	if c.Found = c.Expected; found != expected {
		c.Found = short(found)
	}
	r.checks = append(r.checks, c)
}

// maxShown is how much of a value is shown, in bytes.
const maxShown = 512

// short cuts a value for people. Values that differ look different even so.
func short(s string) string {
	if len(s) <= maxShown {
		return s
	}
	return fmt.Sprintf("%s… (%d bytes, SHA-256 %x)", strings.ToValidUTF8(s[:maxShown], ""), len(s), sha256.Sum256([]byte(s)))
}

// procPath is where a file of the first process is, for people.
func (r *reader) procPath(name string) string {
	return path.Join("/proc", strconv.Itoa(r.PID), name)
}

// proc reads a file of the first process, up to limit bytes.
func (r *reader) proc(name string, limit int64) ([]byte, error) {
	return r.read(r.Proc, path.Join(strconv.Itoa(r.PID), name), limit)
}

// maxSmall bounds files that hold one value, in bytes.
const maxSmall = 4096

// read reads a file of up to limit bytes.
func (r *reader) read(fsys fs.FS, name string, limit int64) ([]byte, error) {
	if err := r.ctx.Err(); err != nil {
		return nil, context.Cause(r.ctx)
	}
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	// Each piece of a file of the kernel's costs about as much as all of it.
	r.buf = slices.Grow(r.buf[:0], 16<<10)
	b := bytes.NewBuffer(r.buf)
	_, err = b.ReadFrom(io.LimitReader(f, limit+1))
	r.buf = b.Bytes()
	if err == nil && int64(b.Len()) > limit {
		err = fmt.Errorf("more than %d bytes", limit)
	}
	return bytes.Clone(r.buf), err
}

// value reads a file of one line.
func (r *reader) value(fsys fs.FS, name string) (string, error) {
	b, err := r.read(fsys, name, maxSmall)
	return strings.TrimSuffix(string(b), "\n"), err
}

// absent tells whether err says that there is no such file.
func absent(err error) bool { return errors.Is(err, fs.ErrNotExist) }

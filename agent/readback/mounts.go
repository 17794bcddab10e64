package readback

import (
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/pybox/pybox/agent/oci"
)

// table are the mounts of a box that no check has accounted for yet.
type table struct {
	left []mount
	err  error
}

// take removes the first mount at target.
func (t *table) take(target string) (mount, bool) {
	i := slices.IndexFunc(t.left, func(m mount) bool { return m.target == target })
	if i < 0 {
		return mount{}, false
	}
	m := t.left[i]
	t.left = slices.Delete(t.left, i, i+1)
	return m, true
}

// mounts compares every mount of the box, and that there is no other.
func (r *reader) mounts() {
	t := new(table)
	b, err := r.proc("mountinfo", maxMounts)
	if err == nil {
		t.left, err = parseMounts(b)
	}
	t.err = err
	r.root(t)
	for _, m := range oci.Mounts(r.Config.Limits) {
		found, ok := t.take(m.Target)
		r.mount(t, m.Target, r.describeWanted(m), r.describe(m, found), ok)
	}
	for _, device := range oci.Devices() {
		found, ok := t.take(device)
		r.mount(t, device, "devtmpfs rw of "+strings.TrimPrefix(device, "/dev"),
			fmt.Sprintf("%s %s of %s%s", found.kind, access(found), found.root, propagation(found)), ok)
	}
	for _, p := range oci.MaskedPaths() {
		r.masked(t, p)
	}
	for _, p := range oci.ReadonlyPaths() {
		r.readonly(t, p)
	}
	var others []string
	for _, m := range t.left {
		others = append(others, m.target)
	}
	r.compare("other mounts", r.procPath("mountinfo"), "[]", quoted(others), t.err)
}

// mount compares one mount.
func (r *reader) mount(t *table, target, expected, found string, there bool) {
	if !there {
		found = "not mounted"
	}
	r.compare("mount "+target, r.procPath("mountinfo"), expected, found, t.err)
}

// root expects the whole image, from its disk.
func (r *reader) root(t *table) {
	const flags = "ro,nosuid,nodev"
	m, ok := t.take("/")
	found := fmt.Sprintf("%s %s of %s on %s%s", m.kind, flagsOf(m), m.root, m.device, propagation(m))
	r.mount(t, "/", fmt.Sprintf("erofs %s of / on %s", flags, r.RootDevice), found, ok)
}

// access is "ro" or "rw".
func access(m mount) string {
	if m.has("ro") || !m.has("rw") {
		return "ro"
	}
	return "rw"
}

// flagsOf are the flags of a mount that count here, in a fixed order.
func flagsOf(m mount) string {
	flags := access(m)
	for _, f := range []string{"nosuid", "nodev", "noexec"} {
		if m.has(f) {
			flags += "," + f
		}
	}
	return flags
}

// propagation is what lets a mount appear elsewhere too: none of a box's has it.
func propagation(m mount) string {
	if len(m.propagation) == 0 {
		return ""
	}
	return " " + strings.Join(m.propagation, " ")
}

// describeWanted writes how a mount should be.
func (r *reader) describeWanted(m oci.Mount) string {
	w := mount{kind: m.Type, root: "/", options: []string{"rw"}}
	if m.ReadOnly {
		w.options[0] = "ro"
	}
	for flag, on := range map[string]bool{"nosuid": m.NoSuid, "nodev": m.NoDev, "noexec": m.NoExec} {
		if on {
			w.options = append(w.options, flag)
		}
	}
	if m.Bytes != 0 {
		// tmpfs(5) rounds up to whole pages and shows KiB.
		pages := (m.Bytes + oci.PageSize - 1) / oci.PageSize
		w.super = append(w.super, fmt.Sprintf("size=%dk", pages*(oci.PageSize>>10)))
	}
	if m.Files != 0 {
		w.super = append(w.super, fmt.Sprintf("nr_inodes=%d", m.Files))
	}
	if m.Mode != 0 {
		w.super = append(w.super, fmt.Sprintf("mode=%o", m.Mode))
	}
	if m.Target == oci.WorkDir {
		w.super = append(w.super, fmt.Sprintf("uid=%d", r.Config.HostUID()), fmt.Sprintf("gid=%d", r.Config.HostGID()))
	}
	return r.describe(m, w)
}

// describe writes how a mount is, as far as it was wanted.
func (r *reader) describe(wanted oci.Mount, m mount) string {
	s := fmt.Sprintf("%s %s of %s", m.kind, flagsOf(m), m.root)
	if wanted.Bytes != 0 {
		s += m.option("size", "unlimited")
	}
	if wanted.Files != 0 {
		s += m.option("nr_inodes", "unlimited")
	}
	if wanted.Mode != 0 {
		s += m.option("mode", "1777") // tmpfs's own default, which is not shown
	}
	if wanted.Target == oci.WorkDir {
		s += m.option("uid", "0") + m.option("gid", "0")
	}
	return s + propagation(m)
}

// option writes an option of a file system, or what holds without it.
func (m mount) option(name, missing string) string {
	value, ok := m.superOption(name)
	if !ok {
		value = missing
	}
	return " " + name + "=" + value
}

// hidden is what a masked path should be.
const hidden = "hidden, or not in the kernel"

// masked expects a path to be covered by something empty.
func (r *reader) masked(t *table, p string) {
	found := hidden
	m, ok := t.take(p)
	isNull := m.kind == "devtmpfs" && m.root == "/null"
	// Nobody ever wrote to it: it is read-only from the start.
	isEmpty := m.kind == "tmpfs" && m.root == "/" && m.has("ro")
	switch {
	case !ok && r.inKernel(p):
		found = "visible"
	case ok && (!isNull && !isEmpty || len(m.propagation) > 0):
		found = fmt.Sprintf("covered by %s %s of %s%s", m.kind, flagsOf(m), m.root, propagation(m))
	}
	r.compare("masked "+p, r.procPath("mountinfo"), hidden, found, t.err)
}

// readonly expects a path below /proc to be a read-only mount of itself.
func (r *reader) readonly(t *table, p string) {
	expected := "proc ro,nosuid,nodev,noexec of " + strings.TrimPrefix(p, "/proc")
	m, ok := t.take(p)
	found := fmt.Sprintf("%s %s of %s%s", m.kind, flagsOf(m), m.root, propagation(m))
	switch {
	case ok:
	case r.inKernel(p):
		found = "writable"
	default:
		expected, found = "not in the kernel", "not in the kernel"
	}
	r.compare("read-only "+p, r.procPath("mountinfo"), expected, found, t.err)
}

// inKernel tells whether a path below /proc is there at all: the guest's own
// /proc has the same.
func (r *reader) inKernel(p string) bool {
	_, err := fs.Stat(r.Proc, strings.TrimPrefix(p, "/proc/"))
	return !absent(err)
}

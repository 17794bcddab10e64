package readback

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/pybox/pybox/agent/oci"
)

// cgroup compares the limits, as the kernel shows them in the control files: see
// Documentation/admin-guide/cgroup-v2.rst.
func (r *reader) cgroup() {
	l := r.Config.Limits
	for _, row := range []struct{ file, expected string }{
		{"memory.max", strconv.FormatInt(l.MemoryBytes, 10)},
		{"memory.high", "max"},
		// The kernel chooses one victim: a program whose child is killed goes on.
		{"memory.oom.group", "0"},
		{"pids.max", strconv.FormatInt(l.PIDs, 10)},
		{"cpu.max", fmt.Sprintf("%d %d", l.CPUQuota().Microseconds(), oci.CPUPeriod.Microseconds())},
	} {
		found, err := r.value(r.Cgroup, row.file)
		r.compare(row.file, "cgroup "+row.file, row.expected, found, err)
	}
	r.swap()
}

// swap expects no swap, or a kernel that knows none.
func (r *reader) swap() {
	const file = "memory.swap.max"
	expected := "0"
	found, err := r.value(r.Cgroup, file)
	if absent(err) {
		expected, found, err = "none in the kernel", "none in the kernel", nil
	}
	r.compare(file, "cgroup "+file, expected, found, err)
}

// processes expects the first process alone, and no cgroup below the box's in
// which others could be.
func (r *reader) processes() {
	b, err := r.read(r.Cgroup, "cgroup.procs", maxSmall)
	r.compare("processes", "cgroup cgroup.procs", strconv.Itoa(r.PID), strings.Join(strings.Fields(string(b)), " "), err)

	const key = "nr_descendants"
	b, err = r.read(r.Cgroup, "cgroup.stat", maxSmall)
	var found string
	if err == nil {
		found, err = flatKey(b, key)
	}
	r.compare("child cgroups", "cgroup cgroup.stat", "0", found, err)
}

// flatKey finds the value of a key in a "flat keyed" file.
func flatKey(b []byte, key string) (string, error) {
	for line := range strings.Lines(string(b)) {
		if value, ok := strings.CutPrefix(line, key+" "); ok {
			return strings.TrimSuffix(value, "\n"), nil
		}
	}
	return "", fmt.Errorf("no line %q", key)
}

// cgroupPath expects one hierarchy, the second version's, and the box's place in
// it: cgroups(7).
func (r *reader) cgroupPath() {
	found, err := r.value(r.Proc, strconv.Itoa(r.PID)+"/cgroup")
	r.compare("cgroup", r.procPath("cgroup"), "0::"+r.Config.Cgroup(), found, err)
}

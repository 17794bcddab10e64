package oci

import (
	"slices"
	"strconv"
	"strings"
)

// Env returns the environment of a box with these limits: the same for every
// box, then extra (NAME=VALUE each), of which a name that is there already takes
// the place of the earlier one. Of its result Config.Env is made.
func Env(l Limits, extra []string) []string {
	threads := strconv.Itoa(l.Threads())
	env := []string{
		"PATH=/usr/local/bin:/usr/bin:/bin",
		// A writable place that is not the work folder: what libraries leave in
		// a home is nothing that the program made.
		"HOME=/tmp",
		"LANG=C.UTF-8",
		"TZ=UTC",
		"PYTHONDONTWRITEBYTECODE=1",
		// They count the machine's CPUs otherwise; OpenBLAS even crashes when it
		// may not start that many threads.
		"OPENBLAS_NUM_THREADS=" + threads,
		"OMP_NUM_THREADS=" + threads,
		"MPLCONFIGDIR=/tmp/matplotlib",
	}
	for _, e := range extra {
		key, _, _ := strings.Cut(e, "=")
		same := func(old string) bool { return strings.HasPrefix(old, key+"=") }
		if i := slices.IndexFunc(env, same); i >= 0 {
			env[i] = e
		} else {
			env = append(env, e)
		}
	}
	return env
}

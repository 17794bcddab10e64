package config

// BootArgs are the words of the kernel command line that belong to this
// configuration: what cannot be decided when the kernel is built, and what
// Debian's source has another default for. Whoever boots our kernel adds them.
// They are the same for every architecture, and another kernel passes over
// those it does not know (Documentation/admin-guide/kernel-parameters.txt).
func BootArgs() []string {
	return []string{
		// The end of the machine for whatever makes its kernel doubtful; our
		// kernel does both by itself, another one has to be told.
		"panic=-1", "oops=panic",
		// Nothing may take a controller away from cgroup v2.
		"cgroup_no_v1=all,named",
		// Only root makes user namespaces; a process traces its own children
		// only; nobody, not even root, is told a kernel address.
		"sysctl.kernel.unprivileged_userns_clone=0",
		"sysctl.kernel.yama.ptrace_scope=1",
		"sysctl.kernel.kptr_restrict=2",
	}
}

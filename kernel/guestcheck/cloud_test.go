//go:build linux

package main

// cloudWeaker are the checks that Debian's cloud kernel does not pass, although it is
// booted with everything that a command line can take away: a general-purpose kernel
// has what other machines than this guest need. docs/promises.md says what it means.
func cloudWeaker(arch string) map[string]bool {
	weaker := []string{
		// It is another configuration, and does not show it.
		"configuration equals the fragments",
		"file systems", "device nodes", "virtio drivers",
		"socket families",  // packets and XDP
		"netlink families", // xfrm
		"transport protocols",
		"overlay over erofs copies up into tmpfs", // a module that the guest does without
		// Only the mount that PyBox's init makes is "noexec".
		"device nodes of devtmpfs are not executable",
	}
	for _, file := range []string{
		"/proc/kcore", "/proc/modules", "/proc/sysrq-trigger", "/proc/swaps", "/proc/sys/kernel/core_pattern",
		"/proc/sys/kernel/modprobe", "/proc/sys/fs/binfmt_misc", "/proc/sys/net/netfilter", "/sys/kernel/tracing",
		"/sys/kernel/kexec_loaded", "/sys/power/state",
	} {
		weaker = append(weaker, "no "+file)
	}
	// What of these needs privileges is forbidden nevertheless, to root too: modules,
	// kexec and io_uring. Boxes get none of them past their seccomp filter.
	calls := []string{
		"io_uring_setup", "io_uring_enter", "io_uring_register", "io_setup", "userfaultfd", "kexec_load",
		"init_module", "finit_module", "delete_module", "keyctl", "add_key", "request_key", "kcmp", "process_vm_readv",
		"process_vm_writev", "name_to_handle_at", "open_by_handle_at", "swapon", "acct", "quotactl", "fanotify_init",
		"memfd_secret", "mbind", "move_pages",
	}
	if arch == "amd64" {
		calls = append(calls, "kexec_file_load", "modify_ldt", "iopl", "ioperm")
	}
	for _, c := range calls {
		weaker = append(weaker, "no system call "+c)
	}
	set := map[string]bool{}
	for _, name := range weaker {
		set[name] = true
	}
	return set
}

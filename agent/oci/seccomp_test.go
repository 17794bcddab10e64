package oci

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

var architectures = []string{"amd64", "arm64"}

func filterFor(t *testing.T, arch string) *specs.LinuxSeccomp {
	t.Helper()
	p, err := Seccomp(arch)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// verdict is what a filter makes of a system call: "allow" or the error number.
type verdict string

const (
	allow = verdict("allow")
	perm  = verdict("1")
	inval = verdict("22")
	nosys = verdict("38")
	proto = verdict("93") // EPROTONOSUPPORT
)

// decide interprets a filter as seccomp_rule_add(3) describes: a rule counts when
// all its comparisons hold, and what no rule is about has the default action. Two
// rules that both count and differ are a fault of the filter.
func decide(t *testing.T, p *specs.LinuxSeccomp, name string, args [6]uint64) verdict {
	t.Helper()
	action := func(a specs.LinuxSeccompAction, errno *uint) verdict {
		if a == specs.ActAllow {
			return allow
		}
		return verdict(fmt.Sprint(*errno))
	}
	var found []verdict
	for _, s := range p.Syscalls {
		if !slices.Contains(s.Names, name) {
			continue
		}
		if !slices.ContainsFunc(s.Args, func(a specs.LinuxSeccompArg) bool { return !holds(t, a, args[a.Index]) }) {
			found = append(found, action(s.Action, s.ErrnoRet))
		}
	}
	if len(found) > 1 {
		t.Errorf("%s%x: %d rules count", name, args, len(found))
	}
	if len(found) == 0 {
		return action(p.DefaultAction, p.DefaultErrnoRet)
	}
	return found[0]
}

func holds(t *testing.T, a specs.LinuxSeccompArg, v uint64) bool {
	switch a.Op {
	case specs.OpEqualTo:
		return v == a.Value
	case specs.OpNotEqual:
		return v != a.Value
	case specs.OpLessThan:
		return v < a.Value
	case specs.OpGreaterThan:
		return v > a.Value
	case specs.OpMaskedEqual:
		return v&a.Value == a.ValueTwo
	}
	t.Fatalf("a comparison %q that this test does not know", a.Op)
	return false
}

func TestSeccompGolden(t *testing.T) {
	for _, arch := range architectures {
		golden(t, "testdata/seccomp-"+arch+".json", filterFor(t, arch))
	}
	if p, err := Seccomp("riscv64"); err == nil || p != nil {
		t.Errorf("riscv64: %v, %v; want an error", p, err)
	}
}

func TestSeccompSHA256(t *testing.T) {
	a, b := SeccompSHA256(filterFor(t, "amd64")), SeccompSHA256(filterFor(t, "amd64"))
	if a != b || len(a) != 64 {
		t.Errorf("%s and %s", a, b)
	}
	p := filterFor(t, "amd64")
	p.Syscalls[0].Names = p.Syscalls[0].Names[1:]
	if SeccompSHA256(p) == a || SeccompSHA256(filterFor(t, "arm64")) == a {
		t.Error("filters that differ have the same digest")
	}
}

// TestSeccompPython: what CPython 3.13 and its standard library, numpy and OpenBLAS
// call on Linux, from their sources and from strace(1) of them.
func TestSeccompPython(t *testing.T) {
	common := []string{
		"brk", "mmap", "munmap", "mprotect", "mremap", "madvise", "read", "write", "pread64", "pwrite64", "readv", "writev",
		"openat", "close", "close_range", "fstat", "newfstatat", "statx", "lseek", "getdents64", "readlinkat", "faccessat2",
		"getcwd", "chdir", "fchdir", "mkdirat", "unlinkat", "renameat2", "linkat", "symlinkat", "fchmod", "fchmodat", "fchownat",
		"utimensat", "truncate", "ftruncate", "fallocate", "fsync", "fdatasync", "flock", "fcntl", "dup", "dup3", "pipe2",
		"execve", "exit", "exit_group", "wait4", "waitid", "kill", "tgkill", "pidfd_open", "pidfd_send_signal",
		"getpid", "getppid", "gettid", "getuid", "geteuid", "getgid", "getegid", "getgroups", "getpgid", "setpgid", "setsid",
		"getrandom", "getrusage", "getpriority", "setpriority", "sysinfo", "uname", "umask", "times",
		"rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "rt_sigtimedwait", "rt_sigpending", "sigaltstack", "signalfd4",
		"set_robust_list", "get_robust_list", "rseq", "futex", "set_tid_address", "membarrier",
		"sched_getaffinity", "sched_setaffinity", "sched_yield", "sched_getparam", "sched_getscheduler",
		"clock_gettime", "clock_getres", "clock_nanosleep", "nanosleep", "gettimeofday", "setitimer", "getitimer",
		"timerfd_create", "timerfd_settime", "timerfd_gettime", "eventfd2", "epoll_create1", "epoll_ctl", "epoll_pwait",
		"ppoll", "pselect6", "memfd_create", "copy_file_range", "sendfile", "splice",
		"bind", "listen", "accept4", "connect", "getsockname", "getpeername", "setsockopt", "getsockopt", "sendto", "recvfrom",
		"sendmsg", "recvmsg", "shutdown", "getxattr", "setxattr", "listxattr", "removexattr", "inotify_init1",
		"inotify_add_watch", "mlock", "munlock", "msync", "setresuid", "setresgid", "setrlimit", "getrlimit", "prctl",
		"statfs", "fstatfs", "sync", "posix_fadvise",
	}
	common[len(common)-1] = "fadvise64" // as the kernel names it
	amd64 := []string{"open", "stat", "lstat", "access", "fork", "vfork", "poll", "select", "pipe", "dup2", "arch_prctl", "rename", "mkdir", "rmdir", "unlink", "readlink", "epoll_wait", "chmod", "time", "alarm", "pause"}
	for _, arch := range architectures {
		p := filterFor(t, arch)
		calls := common
		if arch == "amd64" {
			calls = append(slices.Clone(common), amd64...)
		}
		for _, name := range calls {
			if v := decide(t, p, name, [6]uint64{}); v != allow {
				t.Errorf("%s: %s gives %s", arch, name, v)
			}
		}
	}
}

// TestSeccompForbids: what must never pass, and how it fails.
func TestSeccompForbids(t *testing.T) {
	for name, want := range map[string]verdict{
		"ptrace": perm, "process_vm_readv": perm, "process_vm_writev": perm, "pidfd_getfd": perm, "kcmp": perm,
		"process_madvise": perm, "keyctl": perm, "add_key": perm, "request_key": perm, "bpf": perm, "perf_event_open": perm,
		"userfaultfd": perm, "io_uring_setup": perm, "io_uring_enter": perm, "io_uring_register": perm,
		"mount": perm, "umount2": perm, "pivot_root": perm, "chroot": perm, "fsopen": perm, "fsconfig": perm, "fsmount": perm,
		"fspick": perm, "move_mount": perm, "open_tree": perm, "mount_setattr": perm, "setns": perm, "unshare": perm,
		"open_by_handle_at": perm, "kexec_load": perm, "kexec_file_load": perm, "init_module": perm, "finit_module": perm,
		"delete_module": perm, "swapon": perm, "swapoff": perm, "reboot": perm, "settimeofday": perm, "clock_settime": perm,
		"clock_adjtime": perm, "adjtimex": perm, "sethostname": perm, "setdomainname": perm, "syslog": perm, "acct": perm,
		"quotactl": perm, "fanotify_init": perm, "vhangup": perm, "clone3": nosys, "name_to_handle_at": nosys, "io_setup": nosys,
		"io_submit": nosys, "mbind": nosys, "get_mempolicy": nosys, "statmount": nosys, "listmount": nosys, "socketcall": nosys, "ipc": nosys,
		"a_call_of_2030": nosys,
	} {
		for _, arch := range architectures {
			if v := decide(t, filterFor(t, arch), name, [6]uint64{}); v != want {
				t.Errorf("%s: %s gives %s, want %s", arch, name, v, want)
			}
		}
	}
	for _, name := range []string{"ioperm", "iopl", "modify_ldt"} {
		if v := decide(t, filterFor(t, "amd64"), name, [6]uint64{}); v != perm {
			t.Errorf("%s gives %s", name, v)
		}
	}
}

func TestSeccompArguments(t *testing.T) {
	const upper = 1 << 40
	for _, k := range []struct {
		name string
		args [6]uint64
		want verdict
	}{
		{"socket", [6]uint64{1, 1}, allow}, {"socket", [6]uint64{2, 2}, allow}, {"socket", [6]uint64{10, 1}, allow},
		{"socket", [6]uint64{16, 3, 0}, allow}, {"socket", [6]uint64{16, 3, 15}, perm}, {"socket", [6]uint64{16, 3, upper}, perm},
		{"socket", [6]uint64{40, 1}, perm}, {"socket", [6]uint64{38, 5}, perm}, {"socket", [6]uint64{17, 3}, perm},
		{"socket", [6]uint64{0, 1}, perm}, {"socket", [6]uint64{3, 1}, perm}, {"socket", [6]uint64{15, 1}, perm},
		{"socket", [6]uint64{upper | 40, 1}, perm}, {"socket", [6]uint64{upper | 1, 1}, perm}, {"socket", [6]uint64{^uint64(0)}, perm},
		// MPTCP, which one of the kernels has, whatever the type and its flags are.
		{"socket", [6]uint64{2, 1, 262}, proto}, {"socket", [6]uint64{2, 0x80801, 262}, proto}, {"socket", [6]uint64{10, 1, 262}, proto},
		{"socket", [6]uint64{2, 1, upper | 262}, inval}, {"socket", [6]uint64{10, 1, upper | 262}, inval}, {"socket", [6]uint64{upper | 2, 1, 262}, perm},
		{"socket", [6]uint64{2, 1, 6}, allow}, {"socket", [6]uint64{2, 2, 17}, allow}, {"socket", [6]uint64{2, 2, 136}, allow}, {"socket", [6]uint64{2, 1, 261}, allow},
		{"socket", [6]uint64{2, 1, 263}, inval}, {"socket", [6]uint64{2, 1, ^uint64(0)}, inval}, {"socket", [6]uint64{1, 1, 262}, allow},
		{"socketpair", [6]uint64{1}, allow}, {"socketpair", [6]uint64{2}, perm}, {"socketpair", [6]uint64{upper | 1}, perm},
		{"clone", [6]uint64{0x01200011}, allow}, {"clone", [6]uint64{0x4111}, allow}, {"clone", [6]uint64{0x003d0f00}, allow},
		{"clone", [6]uint64{0x10000011}, perm}, {"clone", [6]uint64{0x00020000}, perm}, {"clone", [6]uint64{0x7e020011}, perm},
		{"clone", [6]uint64{0x02000000 | upper}, perm},
		{"ioctl", [6]uint64{0, 0x5401}, allow}, {"ioctl", [6]uint64{0, 0x5413}, allow}, {"ioctl", [6]uint64{0, 0x541b}, allow},
		{"ioctl", [6]uint64{0, 0x541d}, allow}, {"ioctl", [6]uint64{0, 0}, allow}, {"ioctl", [6]uint64{0, 0xffffffff}, allow},
		{"ioctl", [6]uint64{0, 0x5412}, perm}, {"ioctl", [6]uint64{0, 0x541c}, perm},
		{"ioctl", [6]uint64{0, upper | 0x5412}, perm}, {"ioctl", [6]uint64{0, upper | 0x541c}, perm},
		{"prlimit64", [6]uint64{0, 7}, allow}, {"prlimit64", [6]uint64{1, 7}, perm}, {"prlimit64", [6]uint64{upper, 7}, perm},
		{"personality", [6]uint64{0}, allow}, {"personality", [6]uint64{0xffffffff}, allow},
		{"personality", [6]uint64{0x0040000}, nosys}, {"personality", [6]uint64{upper | 0x0040000}, nosys},
	} {
		for _, arch := range architectures {
			if v := decide(t, filterFor(t, arch), k.name, k.args); v != k.want {
				t.Errorf("%s: %s%x gives %s, want %s", arch, k.name, k.args, v, k.want)
			}
		}
	}
}

// TestOthers: comparisons of the complement cover it, and nothing twice.
func TestOthers(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, values := range [][]uint32{{0}, {0xffffffff}, {0x5412, 0x541c}, {1, 2, 3, 4}, {0, 0x80000000}, {7, 7}} {
		rules := others(1, values...)
		try := slices.Clone(values)
		for _, v := range values {
			for bit := range 32 {
				try = append(try, v^1<<bit)
			}
		}
		for range 1000 {
			try = append(try, rng.Uint32())
		}
		for _, v := range try {
			count := 0
			for _, r := range rules {
				if holds(t, r, uint64(rng.Uint32())<<32|uint64(v)) {
					count++
				}
			}
			want := 1
			if slices.Contains(values, v) {
				want = 0
			}
			if count != want {
				t.Fatalf("all but %x: %d rules hold for %x, want %d", values, count, v, want)
			}
		}
	}
}

func TestListsAreSets(t *testing.T) {
	for _, l := range [][]string{slices.Concat(allowed, allowedAMD64, forbidden, forbiddenAMD64)} {
		slices.Sort(l)
		for i := range l[1:] {
			if l[i] == l[i+1] {
				t.Errorf("%s is listed twice", l[i])
			}
		}
		for _, r := range byArguments() {
			if slices.Contains(l, r.name) {
				t.Errorf("%s has rules and is listed", r.name)
			}
		}
	}
}

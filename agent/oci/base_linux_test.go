package oci

import (
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/contrib/seccomp"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// base is what containerd's default profile lets a process without capabilities
// call with some arguments.
func base() map[string]bool {
	p := seccomp.DefaultProfile(&specs.Spec{Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{}}})
	calls := map[string]bool{}
	for _, s := range p.Syscalls {
		for _, name := range s.Names {
			if s.Action == specs.ActAllow {
				calls[name] = true
			}
		}
	}
	return calls
}

// TestSeccompWithinContainerd: nothing passes that containerd's default profile
// does not let pass.
func TestSeccompWithinContainerd(t *testing.T) {
	calls := base()
	for _, s := range filterFor(t, runtime.GOARCH).Syscalls {
		for _, name := range s.Names {
			if s.Action == specs.ActAllow && !calls[name] {
				t.Errorf("%s passes, in containerd's profile it does not", name)
			}
		}
	}
}

// TestSeccompDropped lists what containerd lets pass and we do not, so that an
// update of containerd that adds a system call asks for a decision.
func TestSeccompDropped(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("the list is amd64's")
	}
	dropped := map[string]string{
		"capabilities and clocks":                  "adjtimex clock_adjtime",
		"asynchronous input and output":            "io_cancel io_destroy io_getevents io_pgetevents io_pgetevents_time64 io_setup io_submit",
		"files by handle, watching all of a mount": "name_to_handle_at fanotify_mark",
		"mounts, security modules":                 "listmount statmount lsm_get_self_attr lsm_list_modules lsm_set_self_attr",
		"other processes":                          "process_mrelease process_vm_readv process_vm_writev ptrace",
		"the processor":                            "modify_ldt get_thread_area set_thread_area",
		"memory":                                   "memfd_secret remap_file_pages uretprobe",
		"not in 6.12":                              "getxattrat listxattrat removexattrat setxattrat",
		"never made":                               "epoll_ctl_old epoll_wait_old",
		"32 bit": `_llseek _newselect chown32 clock_adjtime64 clock_getres_time64 clock_gettime64 clock_nanosleep_time64
			fadvise64_64 fchown32 fcntl64 fstat64 fstatat64 fstatfs64 ftruncate64 futex_time64 getegid32 geteuid32 getgid32
			getgroups32 getresgid32 getresuid32 getuid32 ipc lchown32 lstat64 mmap2 mq_timedreceive_time64 mq_timedsend_time64
			ppoll_time64 pselect6_time64 recv recvmmsg_time64 rt_sigtimedwait_time64 sched_rr_get_interval_time64
			semtimedop_time64 send sendfile64 setfsgid32 setfsuid32 setgid32 setgroups32 setregid32 setresgid32 setresuid32
			setreuid32 setuid32 sigprocmask sigreturn socketcall stat64 statfs64 timer_gettime64 timer_settime64
			timerfd_gettime64 timerfd_settime64 truncate64 ugetrlimit utimensat_time64 waitpid`,
	}
	want := map[string]bool{}
	for _, names := range dropped {
		for _, n := range strings.Fields(names) {
			want[n] = true
		}
	}
	pass := map[string]bool{}
	for _, s := range filterFor(t, "amd64").Syscalls {
		for _, name := range s.Names {
			if s.Action == specs.ActAllow {
				pass[name] = true
			}
		}
	}
	var missing []string
	for name := range base() {
		if !pass[name] && !want[name] {
			missing = append(missing, name)
		}
		if want[name] && pass[name] {
			t.Errorf("%s is listed here and passes", name)
		}
	}
	slices.Sort(missing)
	if len(missing) > 0 {
		t.Errorf("containerd lets pass, and no decision is written down: %q", missing)
	}
	for name := range want {
		if !base()[name] {
			t.Errorf("%s is listed here and containerd does not let it pass", name)
		}
	}
}

package oci

// The lists follow containerd's default profile (contrib/seccomp), for the two
// architectures' own system call tables and a process without capabilities. A
// test compares them with the profile of the containerd that is in use.

// allowed are the system calls that pass whatever their arguments are.
var allowed = []string{
	"accept", "accept4", "bind", "brk", "cachestat", "capget", "capset", "chdir", "clock_getres", "clock_gettime",
	"clock_nanosleep", "close", "close_range", "connect", "copy_file_range", "dup", "dup3", "epoll_create1", "epoll_ctl",
	"epoll_pwait", "epoll_pwait2", "eventfd2", "execve", "execveat", "exit", "exit_group", "faccessat", "faccessat2",
	"fadvise64", "fallocate", "fchdir", "fchmod", "fchmodat", "fchmodat2", "fchown", "fchownat", "fcntl", "fdatasync",
	"fgetxattr", "flistxattr", "flock", "fremovexattr", "fsetxattr", "fstat", "fstatfs", "fsync", "ftruncate", "futex",
	"futex_requeue", "futex_wait", "futex_waitv", "futex_wake", "get_robust_list", "getcpu", "getcwd", "getdents64",
	"getegid", "geteuid", "getgid", "getgroups", "getitimer", "getpeername", "getpgid", "getpid", "getppid",
	"getpriority", "getrandom", "getresgid", "getresuid", "getrlimit", "getrusage", "getsid", "getsockname",
	"getsockopt", "gettid", "gettimeofday", "getuid", "getxattr", "inotify_add_watch", "inotify_init1",
	"inotify_rm_watch", "ioprio_get", "ioprio_set", "kill", "landlock_add_rule", "landlock_create_ruleset",
	"landlock_restrict_self", "lgetxattr", "linkat", "listen", "listxattr", "llistxattr", "lremovexattr", "lseek",
	"lsetxattr", "madvise", "membarrier", "memfd_create", "mincore", "mkdirat", "mknodat", "mlock", "mlock2", "mlockall",
	"mmap", "mprotect", "mq_getsetattr", "mq_notify", "mq_open", "mq_timedreceive", "mq_timedsend", "mq_unlink", "mremap",
	"mseal", "msgctl", "msgget", "msgrcv", "msgsnd", "msync", "munlock", "munlockall", "munmap", "nanosleep",
	"newfstatat", "openat", "openat2", "pidfd_open", "pidfd_send_signal", "pipe2", "pkey_alloc", "pkey_free",
	"pkey_mprotect", "ppoll", "prctl", "pread64", "preadv", "preadv2", "pselect6", "pwrite64", "pwritev", "pwritev2",
	"read", "readahead", "readlinkat", "readv", "recvfrom", "recvmmsg", "recvmsg", "removexattr", "renameat",
	"renameat2", "restart_syscall", "rseq", "rt_sigaction", "rt_sigpending", "rt_sigprocmask", "rt_sigqueueinfo",
	"rt_sigreturn", "rt_sigsuspend", "rt_sigtimedwait", "rt_tgsigqueueinfo", "sched_get_priority_max",
	"sched_get_priority_min", "sched_getaffinity", "sched_getattr", "sched_getparam", "sched_getscheduler",
	"sched_rr_get_interval", "sched_setaffinity", "sched_setattr", "sched_setparam", "sched_setscheduler", "sched_yield",
	"seccomp", "semctl", "semget", "semop", "semtimedop", "sendfile", "sendmmsg", "sendmsg", "sendto", "set_robust_list",
	"set_tid_address", "setfsgid", "setfsuid", "setgid", "setgroups", "setitimer", "setpgid", "setpriority", "setregid",
	"setresgid", "setresuid", "setreuid", "setrlimit", "setsid", "setsockopt", "setuid", "setxattr", "shmat", "shmctl",
	"shmdt", "shmget", "shutdown", "sigaltstack", "signalfd4", "splice", "statfs", "statx", "symlinkat", "sync",
	"sync_file_range", "syncfs", "sysinfo", "tee", "tgkill", "timer_create", "timer_delete", "timer_getoverrun",
	"timer_gettime", "timer_settime", "timerfd_create", "timerfd_gettime", "timerfd_settime", "times", "tkill",
	"truncate", "umask", "uname", "unlinkat", "utimensat", "vmsplice", "wait4", "waitid", "write", "writev",
}

// allowedAMD64 are those that only amd64 has: older forms of the above, and the
// processor's.
var allowedAMD64 = []string{
	"access", "alarm", "arch_prctl", "chmod", "chown", "creat", "dup2", "epoll_create", "epoll_wait", "eventfd", "fork",
	"futimesat", "getdents", "getpgrp", "inotify_init", "lchown", "link", "lstat", "map_shadow_stack", "mkdir", "mknod",
	"open", "pause", "pipe", "poll", "readlink", "rename", "rmdir", "select", "signalfd", "stat", "symlink", "time",
	"unlink", "utime", "utimes", "vfork",
}

// forbidden are the system calls that exist to change or look into what a box
// must not: they fail with EPERM, as they do for whoever lacks the capability.
var forbidden = []string{
	"acct", "add_key", "adjtimex", "bpf", "chroot", "clock_adjtime", "clock_settime", "delete_module", "fanotify_init",
	"fanotify_mark", "finit_module", "fsconfig", "fsmount", "fsopen", "fspick", "init_module", "io_uring_enter",
	"io_uring_register", "io_uring_setup", "kcmp", "kexec_file_load", "kexec_load", "keyctl", "lookup_dcookie",
	"memfd_secret", "mount", "mount_setattr", "move_mount", "open_by_handle_at", "open_tree", "perf_event_open",
	"pidfd_getfd", "pivot_root", "process_madvise", "process_mrelease", "process_vm_readv", "process_vm_writev", "ptrace",
	"quotactl", "quotactl_fd", "reboot", "request_key", "setdomainname", "sethostname", "setns", "settimeofday", "swapoff",
	"swapon", "syslog", "umount2", "unshare", "userfaultfd", "vhangup",
}

// forbiddenAMD64 are those that only amd64 has.
var forbiddenAMD64 = []string{"ioperm", "iopl", "modify_ldt"}

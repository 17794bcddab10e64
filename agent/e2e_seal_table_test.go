//go:build linux && pyboxtest

package agent_test

// sealTable is what every attempt comes to:
//
//	attempt | in a box | in a box without its system call filter | as root without a box's walls | why the last is as the first
//
// Sockets have one outcome for each type; "done" among them means that one type
// can be had.
const sealTable = `
# Sockets. Unix and IPv4 are open, and routing netlink, which lists interfaces; what
# would reach the host or the kernel's odd corners is not: 16 netlink, 17 packet, 30
# TIPC, 38 crypto (AF_ALG), 40 virtual machine sockets.
socket family {0-46}                        | EPERM | EAFNOSUPPORT | EAFNOSUPPORT |
socket family 1                             | ESOCKTNOSUPPORT/done | = | = | open
socket family 2                             | EPROTONOSUPPORT/ESOCKTNOSUPPORT/done | = | = | open
socket family 10                            | EAFNOSUPPORT | = | = | the filter would let IPv6 through, the kernel has none
socket family 16                            | ESOCKTNOSUPPORT/done | = | = | open
socket family 40                            | EPERM | ENODEV/ESOCKTNOSUPPORT/done | ENODEV/ESOCKTNOSUPPORT/done |
socket family {17,38} with bit 32 set       | EPERM | EAFNOSUPPORT | EAFNOSUPPORT |
socket family 16 with bit 32 set            | EPERM | ESOCKTNOSUPPORT/done | ESOCKTNOSUPPORT/done |
socket family 40 with bit 32 set            | EPERM | ENODEV/ESOCKTNOSUPPORT/done | ENODEV/ESOCKTNOSUPPORT/done |
socket pair of family {0-46}                | EPERM | EAFNOSUPPORT | EAFNOSUPPORT |
socket pair of family 1                     | done | = | = | open
socket pair of family {2,40}                | EPERM | ENOTSUP | ENOTSUP |
socket pair of family 16                    | EPERM | ESOCKTNOSUPPORT | ESOCKTNOSUPPORT |
netlink protocol {1-31}                     | EPERM | EPROTONOSUPPORT | EPROTONOSUPPORT |
netlink protocol {2,4,10,15,16}             | EPERM | done | done |
netlink protocol 15 with bit 32 set         | EPERM | done | done |
raw IPv4 socket, {ICMP,RAW}                 | EPERM | EPERM | done |
ping socket                                 | EACCES | = | = | ping_group_range is empty, for root too
packet socket                               | EPERM | EAFNOSUPPORT | EAFNOSUPPORT |
IPv4 socket, {SCTP,DCCP,MPTCP,L2TP}         | EPROTONOSUPPORT | = | = | not in the kernel; of MPTCP the filter says the same
IPv4 socket, UDP-Lite                       | done | = | = | open
vsock stream to {1,2}:{1024,1025}           | EPERM | ECONNRESET | ECONNRESET |
vsock stream to 3:{1024,1025}               | EPERM | ENODEV | ENODEV |
vsock dgram to {1,2,3}:{1024,1025}          | EPERM | ENODEV | ENODEV |
vsock seqpacket to {1,2,3}:{1024,1025}      | EPERM | ESOCKTNOSUPPORT | ESOCKTNOSUPPORT |
vsock listener                              | EPERM | done | done |
/dev/vsock                                  | ENOENT | = | = | not put into boxes
sockets                                     | over | = | = | the end

# The network ends at lo. That the machine has no other is why nothing changes
# without walls.
{TCP,UDP} to {8.8.8.8,10.0.2.2,169.254.169.254,192.168.1.1,224.0.0.1,255.255.255.255} | ENETUNREACH | = | = | no route
look up {example.com,host.docker.internal,box.local}                                  | EAI_NONAME | = | = | no name server
TCP to a closed port of 127.0.0.1           | ECONNREFUSED | = | = | lo is there
interfaces                                  | lo | = | = | all there is
netlink, set lo up                          | EPERM | EPERM | done |
netlink, set lo down and up                 | EPERM | EPERM | done |
netlink, new {address,route,neighbour}      | EPERM | EPERM | done |
netlink, new {link,rule}                    | EPERM | EPERM | ENOTSUP |
netlink, new namespace id                   | EPERM | EPERM | EINVAL |
socket option SO_DEBUG                      | EACCES | EACCES | done |
socket option {SO_MARK,SO_PRIORITY 7,SO_RCVBUFFORCE,SO_SNDBUFFORCE,IP_TRANSPARENT,TCP_REPAIR} | EPERM | EPERM | done |
socket option TCP_ULP tls                   | ENOENT | = | = | not in the kernel
socket option iptables                      | ENOPROTOOPT | = | = | not in the kernel
ioctl {SIOCSIFFLAGS,SIOCSIFADDR,SIOCSIFNAME,SIOCETHTOOL,SIOCADDRT} | EPERM | EPERM | done |
ioctl SIOCBRADDBR                           | ENOPKG | = | = | not in the kernel
port 80                                     | EACCES | EACCES | done |
credentials of {root,PID 1}                 | EPERM | EPERM | done |
foreign Unix sockets                        | /run/pybox/boxes/seal/work/.pybox/s | = | = | the agent's end of the box's own PID 1

# Namespaces and mounts.
unshare {NEWTIME,NEWNS,NEWCGROUP,NEWUTS,NEWIPC,NEWUSER,NEWPID,NEWNET}        | EPERM | EPERM | done |
unshare NEWUSER and {NEWTIME,NEWNS,NEWCGROUP,NEWUTS,NEWIPC,NEWPID,NEWNET}    | EPERM | EPERM | done |
unshare FILES                               | EPERM | done | done |
clone {NEWNS,NEWCGROUP,NEWUTS,NEWIPC,NEWUSER,NEWPID,NEWNET}                  | EPERM | EPERM | done |
clone NEWUSER and {NEWNS,NEWCGROUP,NEWUTS,NEWIPC,NEWPID,NEWNET}              | EPERM | EPERM | done |
clone3 plain                                | ENOSYS | done | done |
clone3 NEWUSER                              | ENOSYS | EPERM | done |
setns /proc/{self,1}/ns/{cgroup,ipc,mnt,net,pid,pid_for_children,time,time_for_children,uts} | EPERM | EPERM | done |
setns /proc/{self,1}/ns/user                | EPERM | EINVAL | EINVAL |
setns of PID 1 by descriptor                | EPERM | EPERM | done |
mount {tmpfs,proc,sysfs,cgroup2,devpts,mqueue,devtmpfs,ramfs,securityfs,bpf,overlay} | EPERM | EPERM | done |
mount cgroup                                | EPERM | EPERM | EINVAL |
mount erofs                                 | EPERM | EPERM | ENOENT |
bind /proc                                  | EPERM | EPERM | done |
remount / for writing                       | EPERM | EPERM | done |
remount /tmp with exec, suid and dev        | EPERM | EPERM | done |
make / private                              | EPERM | EPERM | done |
move /dev/shm                               | EPERM | EPERM | done |
umount2 {/tmp,/proc,/box}                   | EPERM | EPERM | done |
umount2 {/proc/sys,/dev/null}               | EPERM | EPERM | EINVAL |
umount2 /proc/kcore                         | EPERM | ENOENT | ENOENT |
{chroot,chroot /,pivot_root}                | EPERM | EPERM | done |
fsopen {tmpfs,proc,cgroup2}                 | EPERM | EPERM | done |
fsconfig                                    | EPERM | EINVAL | EINVAL |
fsmount                                     | EPERM | EPERM | EBADF |
open_tree, no clone                         | EPERM | done | done |
{fspick,open_tree,move_mount,mount_setattr} | EPERM | EPERM | done |
namespaces                                  | over | = | = | the end

# Other processes: a child, which is the program's own, and the box's PID 1, which
# is PyBox's and has the same user.
ptrace {attach to,seize} {a child,PID 1}    | EPERM | EPERM | done |
ptrace peek at {a child,PID 1}              | EPERM | ESRCH | ESRCH |
ptrace traceme                              | EPERM | EPERM | done |
{process_vm_readv,process_vm_writev} of {a child,PID 1} | EPERM | ENOSYS | ENOSYS |
kcmp with {a child,PID 1}                   | EPERM | ENOSYS | ENOSYS |
/proc/PID/mem of {a child,PID 1}, {read,write} | EACCES | EACCES | done |
process_madvise of {a child,PID 1}          | EPERM | EPERM | EINVAL |
process_mrelease of {a child,PID 1}         | EPERM | EINVAL | EINVAL |
{move_pages,migrate_pages} of {a child,PID 1} | ENOSYS | = | = | not in the kernel
pidfd_getfd 0 of a child                    | EPERM | EPERM | done |
pidfd_getfd 3 of a child                    | EPERM | EPERM | EBADF |
pidfd_getfd 0 of PID 1                      | EPERM | EPERM | EBADF |
pidfd_getfd 3 of PID 1                      | EPERM | EPERM | done |
prlimit64 of {a child,PID 1}, {read,write}  | EPERM | done | done |
prlimit64 of PID 1, with bit 32 set         | EPERM | done | done |
read /proc/1/{auxv,cgroup,cmdline,environ,limits,map_files,maps,mountinfo,pagemap,smaps,status,wchan} | done | = | = | its own user's
read /proc/1/{io,stack,timers}              | ENOENT | = | = | not in the kernel
read /proc/1/{personality,syscall}          | EPERM | EPERM | done |
write /proc/1/{attr/current,clear_refs,comm,gid_map,oom_adj,projid_map,timens_offsets,timerslack_ns,uid_map} | done | = | = | opens; a write then needs a capability, or harms the program alone
write /proc/1/setgroups                     | EACCES | EACCES | done |
write /proc/1/{autogroup,coredump_filter,fail-nth,loginuid,sched} | ENOENT | = | = | not in the kernel
/proc/1/cmdline                             | /usr/bin/python3 seal.py sockets namespaces processes kernel privileges files machinecode | = | = | the program's
/proc/1/environ                             | HOME LANG MPLCONFIGDIR OMP_NUM_THREADS OPENBLAS_NUM_THREADS PATH PYTHONDONTWRITEBYTECODE PYTHONPATH TZ | = | = | the program's, and where the runner was
/proc/1/fd                                  | socket | = | = | the agent's other end
open a descriptor of PID 1, socket          | ENXIO | = | = | no socket can be opened
/proc/1/root                                | / | = | = | the box's
/proc/1/root is this root                   | True | = | = | the box's
/proc/1/oom_score_adj, lower than it is     | EACCES | EACCES | done |
/proc/1/oom_score_adj, higher than it is    | done | = | = | the program alone is hurt: the record then says whom the kernel killed
PID 1 after every signal                    | alive | = | = | the kernel's own rule for a namespace's first process
PID 1, {SIGKILL by descriptor,SIGSTOP to its thread} | done | = | = | sent, and ignored
PID 1 after that                            | alive | = | = | the kernel's own rule for a namespace's first process
forged signal of the kernel to {a child,PID 1} | EPERM | = | = | nobody may
nice -1                                     | EPERM | EPERM | done |
priority -5 of {itself,PID 1,the user}      | EACCES | EACCES | done |
real-time scheduling ({FIFO,RR}) of {itself,PID 1} | EPERM | EPERM | done |
deadline scheduling of {itself,PID 1}       | EPERM | EPERM | done |
real-time input and output of {itself,PID 1} | EPERM | EPERM | done |
NUMA policy                                 | ENOSYS | = | = | not in the kernel
processes but PID 1 and this one            | none | = | = | its PID namespace
parent                                      | 1 | = | = | its PID namespace
processes                                   | over | = | = | the end

# The kernel's interfaces. Where the filter is all that differs, the kernel is built
# without.
{add_key,keyctl,request_key}                | EPERM | ENOSYS | ENOSYS |
bpf {map,program}                           | EPERM | EPERM | done |
{io_uring_setup,io_uring_enter,io_uring_register} | EPERM | ENOSYS | ENOSYS |
{io_setup,name_to_handle_at,get_mempolicy}  | ENOSYS | = | = | not in the kernel
perf_event_open, its own instructions       | EPERM | EACCES | ENOENT or done |
perf_event_open, its own clock              | EPERM | EACCES | done |
{userfaultfd,kexec_load,kexec_file_load,init_module,finit_module,delete_module} | EPERM | ENOSYS | ENOSYS |
{open_by_handle_at,memfd_secret,lookup_dcookie,quotactl,quotactl_fd,acct,swapon,swapoff,fanotify_init} | EPERM | ENOSYS | ENOSYS |
reboot                                      | EPERM | EPERM | EINVAL |
syslog, {read,size}                         | EPERM | EPERM | done |
vhangup                                     | EPERM | EPERM | done |
personality {no random addresses,read implies exec,BSD,32 bit}                 | ENOSYS | done | done |
personality {no random addresses,read implies exec,BSD,32 bit}, with bit 32 set | ENOSYS | done | done |
{clock_settime,settimeofday,adjtimex,clock_adjtime,sethostname,setdomainname}  | EPERM | EPERM | done |
write /proc/sys/kernel/{hostname,domainname,unprivileged_userns_clone,yama/ptrace_scope,shmmax} | EACCES | EACCES | done |
write /proc/sys/kernel/{core_pattern,modprobe,ns_last_pid} | ENOENT | = | = | not in the kernel
write /proc/sys/{fs/suid_dumpable,vm/overcommit_memory,vm/drop_caches,net/ipv4/ip_forward,net/ipv4/ping_group_range} | EACCES | EACCES | done |
write /proc/sys/{net/core/somaxconn,user/max_user_namespaces,fs/mqueue/queues_max} | EACCES | EACCES | done |
files of /proc/sys                          | some hundreds | = | = | all were tried
files of /proc/sys that can be written      | none | none | some hundreds |
{read,write} /proc/{kmsg,kpagecount,kpageflags,pagetypeinfo,vmallocinfo} | EACCES | EACCES | done |
{read,write} /proc/{slabinfo,sysrq-trigger} | ENOENT | = | = | not in the kernel
/proc/acpi                                  | empty | = | = | masked; the kernel has nothing there either
/proc/{kcore,keys,modules}                  | ENOENT | = | = | not in the kernel
/proc/{interrupts,pressure,timer_list}      | empty | empty | visible |
/proc/kallsyms                              | no addresses | = | = | kptr_restrict is 2
/proc/iomem                                 | no addresses | no addresses | addresses |
PSI trigger of {memory,cpu,io}              | ENOENT | ENOENT | done |
/sys                                        | empty | = | = | not mounted
cgroup.procs below /proc                    | none | = | = | there is no such thing
/proc/self/cgroup                           | 0::/ | = | = | its cgroup namespace
kernel                                      | over | = | = | the end

# Privileges.
{setuid,setreuid,setresuid,seteuid,setfsuid,setgid,setresgid,setfsgid,setgroups} {0,1,65534} | EPERM | EPERM | done |
setgroups none                              | EPERM | EPERM | done |
ids                                         | (1000, 1000, 1000) (1000, 1000, 1000) [] | (1000, 1000, 1000) (1000, 1000, 1000) [] | (0, 0, 0) (0, 0, 0) [] |
write /proc/self/{uid_map,gid_map}          | EPERM | = | = | a map is written once
write /proc/self/projid_map                 | done | done | EPERM |
write /proc/self/setgroups                  | EACCES | EACCES | EPERM |
write /proc/self/loginuid                   | ENOENT | = | = | not in the kernel
capabilities                                | 0 0 0 0 0 | 0 0 0 0 0 | 1ffffffffff 1ffffffffff 1ffffffffff 1ffffffffff 1ffffffffff |
capset {all,CAP_SYS_ADMIN,CAP_NET_ADMIN}    | EPERM | EPERM | done |
bounding set                                | 0 | 0 | 41 |
{bounding set, drop;ambient set, raise;secure bits} | EPERM | EPERM | done |
no_new_privs off                            | EINVAL | = | = | it cannot be taken back
no_new_privs                                | 1 | 1 | 0 |
{own memory map (PR_SET_MM),IO flusher}     | EPERM | EPERM | done |
raise RLIMIT_{CORE,MEMLOCK,NICE,RTPRIO} {by one,without end} | EPERM | EPERM | done |
raise RLIMIT_NOFILE by one                  | EPERM | EPERM | done |
raise RLIMIT_NOFILE without end             | EPERM | = | = | sysctl fs.nr_open bounds it
raise RLIMIT_{MSGQUEUE,SIGPENDING} {by one,without end} | done | = | = | there is none but memory
{mlock 1 MiB,mlockall}                      | ENOMEM | ENOMEM | done |
huge pages                                  | EINVAL | = | = | not in the kernel
pipe above the limit                        | EPERM | EPERM | done |
oom_score_adj {-1,-1000}                    | EACCES | EACCES | done |
oom_score_adj 1000                          | done | = | = | the program alone is hurt
oom_adj -17                                 | EACCES | EACCES | done |
mknod {disk,kmsg,null} in {/tmp,/dev/shm,/box} | EPERM | EPERM | done |
mknod {FIFO,socket} in {/tmp,/dev/shm,/box} | done | = | = | no devices
mknod {disk,kmsg,null,FIFO,socket} in /dev  | EACCES | EACCES | done |
mknod whiteout                              | done | = | = | no device: a mark for overlayfs
open /dev/{vda,vdb,vdc,mem,kmem,port,kmsg,hvc0,ttyS0,ttyAMA0,console,tty0,loop-control,loop0,fuse,kvm,vsock} | ENOENT | = | = | not put into boxes
open /dev/{vhost-vsock,net/tun,rtc0,hwrng,ptmx,pts/0,pts/ptmx,mapper/control,userfaultfd,cpu_dma_latency,vport0p1,ptp0,snapshot,autofs} | ENOENT | = | = | not put into boxes
open a disk by a node of its own            | EPERM | EPERM | done |
{TIOCSTI,TIOCLINUX}                         | EPERM | ENOTTY | ENOTTY |
{TIOCSTI,TIOCLINUX} with bit 32 set         | EPERM | ENOTTY | ENOTTY |
{TIOCSCTTY,TIOCCONS}                        | ENOTTY | = | = | there is no terminal
new terminal                                | ENOENT | = | = | there is no terminal
open /dev/tty                               | ENXIO | = | = | there is no terminal
chown to {root,nobody,uid 1,group 0}        | EPERM | EPERM | done |
chown to a user beyond the range            | EINVAL | EINVAL | done |
execute a set-id file of its own            | EACCES | EACCES | done |
attribute {security.capability,security.selinux,trusted.overlay.opaque} | EPERM | EPERM | done |
execute a file in {/tmp,/dev/shm,/box}      | EACCES | EACCES | done |
execute a file in {/tmp,/dev/shm,/box} by the loader | refused by the loader | refused by the loader | done |
map a file in {/tmp,/dev/shm,/box} as code  | EPERM | EPERM | done |
execute a memfd                             | 1000 CapEff 0 NoNewPrivs 1 Seccomp 2 | 1000 CapEff 0 NoNewPrivs 1 Seccomp 0 | 0 CapEff 1ffffffffff NoNewPrivs 0 Seccomp 0 |
privileges                                  | over | = | = | the end

# Files.
files of the image                          | thousands | = | = | all were looked at
owners                                      | 0:0 1000:1000 65534:65534 | 0:0 1000:1000 65534:65534 | 0:0 101000:101000 |
set-id files                                | none | = | = | the image has none
devices                                     | /dev/full /dev/null /dev/random /dev/tty /dev/urandom /dev/zero | = | = | all that are put there
writable places                             | /box /dev/full /dev/null /dev/random /dev/shm /dev/tty /dev/urandom /dev/zero /tmp | /box /dev/full /dev/null /dev/random /dev/shm /dev/tty /dev/urandom /dev/zero /tmp | /box /dev /dev/full /dev/null /dev/random /dev/shm /dev/tty /dev/urandom /dev/zero /tmp |
unreadable files                            | /root | /root | none |
new file in {/,/usr,/usr/lib,/etc,/var,/sys,/run} | EROFS | = | = | erofs cannot be written
new file in /root                           | EACCES | EACCES | EROFS |
new file in /dev                            | EACCES | EACCES | done |
new file in {/proc,/home}                   | ENOENT | = | = | nobody can; not in the image
new file in {/tmp,/dev/shm,/box}            | done | = | = | open
{write to the interpreter,write to the running interpreter,write to a module} | EROFS | = | = | erofs cannot be written
{rename,mode of,times of} a module          | EROFS | = | = | erofs cannot be written
files of /proc/self that can be written     | clear_refs comm gid_map mem oom_adj oom_score_adj projid_map timens_offsets timerslack_ns uid_map | clear_refs comm gid_map mem oom_adj oom_score_adj projid_map timens_offsets timerslack_ns uid_map | arch_status auxv cgroup clear_refs cmdline comm environ gid_map limits maps mem mountinfo mounts mountstats oom_adj oom_score oom_score_adj pagemap personality projid_map setgroups smaps smaps_rollup stat statm status syscall timens_offsets timerslack_ns uid_map wchan |
files of /proc that can be written          | /proc/interrupts /proc/timer_list | /proc/interrupts /proc/timer_list | dozens |
descriptors                                 | 0=pipe 1=pipe 2=pipe | = | = | all that a program gets
arguments                                   | /usr/bin/python3 seal.py | = | = | the program's
environment                                 | HOME LANG MPLCONFIGDIR OMP_NUM_THREADS OPENBLAS_NUM_THREADS PATH PYTHONDONTWRITEBYTECODE TZ | = | = | the program's
environment at start                        | HOME LANG MPLCONFIGDIR OMP_NUM_THREADS OPENBLAS_NUM_THREADS PATH PYTHONDONTWRITEBYTECODE PYTHONPATH TZ | = | = | the program's, and where the runner was
python path                                 | /box | = | = | as python3 NAME has it
work folder                                 | only what was put there | = | = | the runner is gone
folders of the root                         | bin box dev etc lib lib64 proc root run sbin sys tmp usr var | = | = | the image's
/dev                                        | core fd full null ptmx random shm stderr stdin stdout tty urandom zero | = | = | crun's
/run                                        | empty | = | = | the image's
host name                                   | box Linux | = | = | its UTS namespace
mounts                                      | /=erofs /box=tmpfs /dev/full=devtmpfs /dev/null=devtmpfs /dev/random=devtmpfs /dev/shm=tmpfs /dev/tty=devtmpfs /dev/urandom=devtmpfs /dev/zero=devtmpfs /dev=tmpfs /proc/acpi=tmpfs /proc/bus=proc /proc/fs=proc /proc/interrupts=devtmpfs /proc/irq=proc /proc/pressure=tmpfs /proc/sys=proc /proc/timer_list=devtmpfs /proc=proc /tmp=tmpfs | /=erofs /box=tmpfs /dev/full=devtmpfs /dev/null=devtmpfs /dev/random=devtmpfs /dev/shm=tmpfs /dev/tty=devtmpfs /dev/urandom=devtmpfs /dev/zero=devtmpfs /dev=tmpfs /proc/acpi=tmpfs /proc/bus=proc /proc/fs=proc /proc/interrupts=devtmpfs /proc/irq=proc /proc/pressure=tmpfs /proc/sys=proc /proc/timer_list=devtmpfs /proc=proc /tmp=tmpfs | /=erofs /box=tmpfs /dev/shm=tmpfs /dev=tmpfs /proc=proc /tmp=tmpfs |
mounts with something of elsewhere          | none | = | = | each is the whole of a file system of its own
network files                               | lo | = | = | its network namespace
crash                                       | SIGQUIT, no core | = | = | not in the kernel
core files                                  | none | = | = | not in the kernel
hard link to a module                       | EXDEV | = | = | another file system
open through a symbolic link out of /box    | EROFS | = | = | it leads to the image
files                                       | over | = | = | the end

# The processor's doors to the kernel.
system call by the usual one                | done | = | = | the way of every program
machinecode                                 | over | = | = | the end
`

// sealTableAMD64 has what this architecture alone knows. Where nothing changes, the
// kernel has no 32-bit programs and no vsyscalls.
const sealTableAMD64 = `
{iopl,ioperm,modify_ldt}                    | EPERM | ENOSYS | ENOSYS |
read /proc/mtrr                             | EPERM | EPERM | done |
write /proc/mtrr                            | EACCES | EACCES | done |
system call by x32                          | killed by SIGSYS | ENOSYS | ENOSYS |
system call by {int 0x80,vsyscall}          | killed by SIGSEGV | = | = | not in the kernel
system call by sysenter                     | killed by SIGILL or killed by SIGSEGV | = | = | not in the kernel
`

// sealTableARM64 has what differs there: no ACPI, no memory type ranges, and no
// driver for the processor's performance counters.
const sealTableARM64 = `
/proc/acpi                                  | ENOENT | = | = | not in the kernel
{read,write} /proc/mtrr                     | ENOENT | = | = | not in the kernel
perf_event_open, its own {clock,instructions} | EPERM | ENOSYS | ENOSYS |
mounts                                      | /=erofs /box=tmpfs /dev/full=devtmpfs /dev/null=devtmpfs /dev/random=devtmpfs /dev/shm=tmpfs /dev/tty=devtmpfs /dev/urandom=devtmpfs /dev/zero=devtmpfs /dev=tmpfs /proc/bus=proc /proc/fs=proc /proc/interrupts=devtmpfs /proc/irq=proc /proc/pressure=tmpfs /proc/sys=proc /proc/timer_list=devtmpfs /proc=proc /tmp=tmpfs | /=erofs /box=tmpfs /dev/full=devtmpfs /dev/null=devtmpfs /dev/random=devtmpfs /dev/shm=tmpfs /dev/tty=devtmpfs /dev/urandom=devtmpfs /dev/zero=devtmpfs /dev=tmpfs /proc/bus=proc /proc/fs=proc /proc/interrupts=devtmpfs /proc/irq=proc /proc/pressure=tmpfs /proc/sys=proc /proc/timer_list=devtmpfs /proc=proc /tmp=tmpfs | /=erofs /box=tmpfs /dev/shm=tmpfs /dev=tmpfs /proc=proc /tmp=tmpfs |
files of /proc/self that can be written     | clear_refs comm gid_map mem oom_adj oom_score_adj projid_map timens_offsets timerslack_ns uid_map | clear_refs comm gid_map mem oom_adj oom_score_adj projid_map timens_offsets timerslack_ns uid_map | auxv cgroup clear_refs cmdline comm environ gid_map limits maps mem mountinfo mounts mountstats oom_adj oom_score oom_score_adj pagemap personality projid_map setgroups smaps smaps_rollup stat statm status syscall timens_offsets timerslack_ns uid_map wchan |
`

// neighbourTable is what an intruder finds of a secret, in the box of whoever keeps
// it and in another.
//
// The image is one file system for all boxes, and /dev/null one file: whoever watches
// them learns that somebody opened them, and a lock on them is one for all. Nobody
// learns anything else that way, but two programs that want to can talk. docs/boxes.md
// says so.
const neighbourTable = `
environment of others                       | found | nothing | |
memory of others                            | EACCES | nothing | | tracing is for nobody: see the walls
names of others                             | found | nothing | |
signal                                      | found | nothing | |
file {/tmp/kept,/dev/shm/kept,/box/kept}    | found | ENOENT | |
file {/tmp/kept,/dev/shm/kept,/box/kept} by another's root | found | nothing | |
POSIX shared memory                         | found | ENOENT | |
POSIX messages                              | found | ENOENT | |
System V {shared memory,messages,semaphores} | found | ENOENT | |
abstract Unix socket                        | found | ECONNREFUSED | |
Unix socket                                 | found | ENOENT | |
TCP                                         | found | ECONNREFUSED | |
lease on a file of the image                | EACCES | EACCES | | for its owner alone
lock on {a file of the image,/dev/null}     | found | found | | one file for all boxes
watch on {a file of the image,a folder of the image,/dev/null} | found | found | | one file for all boxes
intruder                                    | over | over | | the end
`

// worksTable is what ordinary programs do.
const worksTable = `
subprocess                                  | 42 | | |
shell                                       | ENOENT | | | the image has none
exit code of a child                        | 9 | | |
kill a child                                | -15 | | |
os.fork                                     | from the child | | |
orphans are reaped                          | done | | |
multiprocessing, {fork,spawn,forkserver}    | 42 | | |
multiprocessing.Lock                        | done | | |
shared memory                               | abc | | |
{process pool,thread pool}                  | [0, 2, 4, 6] | | |
threads                                     | 28 | | |
signal.{alarm,setitimer}                    | came | | |
{signal mask,sched_getaffinity,sched_setaffinity,nice 1,lower a limit} | done | | |
{TCP,UDP} on 127.0.0.1                      | hello | | |
{Unix socket,abstract Unix socket,asyncio streams,asyncio subprocess,mmap of a file} | hello | | |
{localhost,localhost by gethostbyname,own host name's address} | 127.0.0.1 | | |
own host name                               | box | | |
getfqdn                                     | localhost | | |
{socketpair,ssl,fcntl locks,extended attribute,memfd,sendfile,disk_usage,os.urandom} | done | | |
tempfile                                    | /tmp /tmp | | |
{sqlite3,sqlite3 in /tmp,eventfd}           | 3 | | |
FIFO                                        | x | | |
links                                       | True | | |
sparse file                                 | 0 blocks | | |
/dev/{null,stdout,fd}                       | done | | |
/dev/zero                                   | b'\x00\x00' | | |
/dev/full                                   | ENOSPC | | |
select                                      | ([], [], []) | | |
poll                                        | [] | | |
{epoll,timerfd,pidfd,signalfd}              | done | | |
inotify                                     | made | | |
ctypes callback                             | [1, 2, 3] | | |
time zones                                  | 2:00:00 | | |
local time                                  | UTC | | |
locale                                      | C.UTF-8 | | |
encodings                                   | utf-8 utf-8 UTF-8 | | |
decimal                                     | 0.333333 | | |
hashlib                                     | e3b0c442 | | |
scrypt                                      | done | | |
faulthandler                                | -11 Segmentation fault | | |
{home,temporary folder}                     | /tmp | | |
user                                        | box | | |
working folder                              | /box | | |
import {bz2,lzma,zlib,curses,dbm.gnu,readline,uuid,xml.etree.ElementTree,unittest,venv} | done | | |
works                                       | over | | |
`

// greedTable is how much a greedy program must get of what the kernel counts, so
// that it would be more than the kernel gives to all boxes together by default, and
// why it gets no more; what is then left in its own box; and in another.
const greedTable = `
inotify instances                           | 200 EMFILE | as many as it wanted | as many as it wanted |
inotify watches                             | 9000 as many as it wanted | as many as it wanted | as many as it wanted |
pipe space                                  | 16 EPERM | EPERM | as many as it wanted |
queued signals                              | 5000 as many as it wanted | as many as it wanted | as many as it wanted |
message queues                              | 250 as many as it wanted | as many as it wanted | as many as it wanted |
locked pages                                | 16 ENOMEM | as many as it wanted | as many as it wanted |
open files                                  | 55000 as many as it wanted | as many as it wanted | as many as it wanted |
`

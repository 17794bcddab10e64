//go:build linux && pyboxtest

package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"github.com/moby/sys/mountinfo"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/pybox/pybox/agent/cgroup"
	"github.com/pybox/pybox/agent/initd"
	"github.com/pybox/pybox/agent/oci"
)

// The tampers of this file change one thing of a box each, or the same thing in
// several places, that a reading of its settings must see.
func init() {
	addCgroupTampers()
	addSpecTampers()
	addNamespaceTampers()
	addMountTampers()
	addProcessTampers()
	addNetworkTampers()
	addRecordTampers()
}

// onMade adds a tamper that acts on the made box.
func onMade(name string, f func(id string, pid int) error) { tampers[name] = tamper{made: f} }

// onSpec adds a tamper that changes the specification.
func onSpec(name string, f func(*specs.Spec)) { tampers[name] = tamper{spec: f} }

// onWritten adds one that acts after the files were written.
func onWritten(name string, f func(id string, pid int) error) { tampers[name] = tamper{written: f} }

// boxCgroup is the cgroup of the box id.
func boxCgroup(id string) string { return filepath.Join(initd.BoxesCgroup, id) }

func write(path, value string) error { return os.WriteFile(path, []byte(value), 0) }

func addCgroupTampers() {
	limit := func(file, value string) func(string, int) error {
		return func(id string, _ int) error { return write(filepath.Join(boxCgroup(id), file), value) }
	}
	onMade("memory.max", limit("memory.max", "max"))
	onMade("memory.high", limit("memory.high", "1073741824"))
	onMade("memory.oom.group", limit("memory.oom.group", "1"))
	onMade("pids.max", limit("pids.max", "33"))
	onMade("cpu.max", limit("cpu.max", "1000001 1000000"))
	onWritten("memory.max late", limit("memory.max", "1073741824"))
	tampers["swap"] = tamper{made: shadowCgroup, ended: func(id string) error { return unix.Unmount(boxCgroup(id), unix.MNT_DETACH) }}
	onMade("process", func(id string, _ int) error { return sleepIn(boxCgroup(id)) })
	onWritten("process late", func(id string, _ int) error { return sleepIn(boxCgroup(id)) })
	tampers["other cgroup"] = tamper{
		made: func(id string, pid int) error {
			dir := filepath.Join(boxCgroup(id), "other")
			if err := os.Mkdir(dir, 0o755); err != nil {
				return err
			}
			return write(filepath.Join(dir, "cgroup.procs"), strconv.Itoa(pid))
		},
		ended: func(id string) error { return removeCgroup(filepath.Join(boxCgroup(id), "other")) },
	}
}

// shadowCgroup covers the box's cgroup with files of the same content, and one
// that this kernel, which has no swap, does not have.
func shadowCgroup(id string, _ int) error {
	dir := boxCgroup(id)
	files := map[string][]byte{"memory.swap.max": []byte("max\n")}
	for _, name := range []string{"memory.max", "memory.high", "memory.oom.group", "pids.max", "cpu.max", "cgroup.procs", "cgroup.stat"} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		files[name] = b
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		return err
	}
	for name, b := range files {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// removeCgroup removes a cgroup as soon as its processes, which were killed, have
// left it.
func removeCgroup(dir string) error {
	d, err := cgroup.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.KillWait(tamperWait); err != nil {
		return err
	}
	return until("the cgroup to go", func() (bool, error) {
		err := os.Remove(dir)
		return err == nil, ignore(err, unix.EBUSY)
	})
}

// until polls until ok.
func until(what string, ok func() (bool, error)) error {
	for end := time.Now().Add(tamperWait); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if done, err := ok(); done || err != nil {
			return err
		}
	}
	return errors.New("waited too long for " + what)
}

// ignore gives err unless it is one of those.
func ignore(err error, those ...error) error {
	for _, e := range those {
		if errors.Is(err, e) {
			return nil
		}
	}
	return err
}

// specParts change one part of a specification each, to something that a box can
// be made from.
var specParts = map[string]func(*specs.Spec){
	"process":    func(s *specs.Spec) { s.Process.Env = append(s.Process.Env, "X=1") },
	"root":       func(s *specs.Spec) { s.Root.Readonly = false },
	"mounts":     func(s *specs.Spec) { s.Mounts = append(s.Mounts, hostFolder) },
	"namespaces": func(s *specs.Spec) { without(s, specs.CgroupNamespace) },
	"user ids":   func(s *specs.Spec) { s.Linux.UIDMappings[0].Size--; s.Linux.GIDMappings[0].Size-- },
	"cgroup": func(s *specs.Spec) {
		more := 2 * *s.Linux.Resources.Memory.Limit
		s.Linux.Resources.Memory.Limit, s.Linux.Resources.Memory.Swap = &more, &more
	},
	"seccomp": func(s *specs.Spec) {
		allowed := &s.Linux.Seccomp.Syscalls[0]
		allowed.Names = append(allowed.Names, "ptrace")
	},
	"masked and read-only paths": func(s *specs.Spec) {
		s.Linux.MaskedPaths = slices.DeleteFunc(s.Linux.MaskedPaths, func(p string) bool { return p == "/proc/interrupts" })
		s.Linux.ReadonlyPaths = slices.DeleteFunc(s.Linux.ReadonlyPaths, func(p string) bool { return p == "/proc/irq" })
	},
	"hooks": func(s *specs.Spec) {
		s.Hooks = &specs.Hooks{CreateRuntime: []specs.Hook{{Path: crunPath, Args: []string{"crun", "--version"}}}}
	},
	"everything else": func(s *specs.Spec) { s.Annotations = map[string]string{"x": "y"} },
}

// hostFolder is a folder of the guest in the box.
var hostFolder = specs.Mount{Destination: "/sys", Type: "bind", Source: stateDir, Options: []string{"bind", "ro", "nosuid", "nodev", "noexec"}}

func without(s *specs.Spec, kind specs.LinuxNamespaceType) {
	s.Linux.Namespaces = slices.DeleteFunc(s.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == kind })
}

func addSpecTampers() {
	for part, f := range specParts {
		onSpec("specification: "+part, f)
	}
	onSpec("new privileges", func(s *specs.Spec) { s.Process.NoNewPrivileges = false })
	onSpec("inheritable", func(s *specs.Spec) {
		s.Process.Capabilities.Bounding, s.Process.Capabilities.Inheritable = []string{"CAP_SYS_ADMIN"}, []string{"CAP_SYS_ADMIN"}
	})
	onSpec("capabilities", func(s *specs.Spec) {
		one := []string{"CAP_NET_RAW"}
		*s.Process.Capabilities = specs.LinuxCapabilities{Bounding: one, Inheritable: one, Permitted: one, Effective: one, Ambient: one}
	})
	onSpec("no seccomp", func(s *specs.Spec) { s.Linux.Seccomp = nil })
	onSpec("user", func(s *specs.Spec) {
		s.Process.User = specs.User{UID: oci.UID + 1, GID: oci.GID + 1, AdditionalGids: []uint32{5}}
		openWork(s)
	})
	onSpec("arguments", func(s *specs.Spec) { s.Process.Args = append(s.Process.Args, "more") })
	onSpec("no personality", func(s *specs.Spec) { s.Linux.Personality = nil }) // then crun's own stays
	onSpec("tmp", func(s *specs.Spec) { option(s, "/tmp", "mode=1777", "mode=700") })
}

// option replaces an option of a mount.
func option(s *specs.Spec, target, old, new string) {
	for _, m := range s.Mounts {
		if i := slices.Index(m.Options, old); m.Destination == target && i >= 0 {
			m.Options[i] = new
			return
		}
	}
	panic("no " + old + " at " + target)
}

// work is the box's working folder in the guest.
func work(s *specs.Spec) string {
	i := slices.IndexFunc(s.Mounts, func(m specs.Mount) bool { return m.Destination == oci.WorkDir })
	return s.Mounts[i].Source
}

// openWork lets every user reach the runner, so that a box of another user comes
// far enough to be read back.
func openWork(s *specs.Spec) {
	must(os.Chmod(work(s), 0o755))
	must(os.Chmod(filepath.Join(work(s), ".pybox/s"), 0o666))
}

// must ends the agent, and with it the test, where a test's own step fails.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

func addNamespaceTampers() {
	for _, kind := range []specs.LinuxNamespaceType{specs.NetworkNamespace, specs.IPCNamespace} {
		onSpec("no namespace: "+string(kind), func(s *specs.Spec) { without(s, kind) })
	}
	onSpec("no namespace: uts", func(s *specs.Spec) { without(s, specs.UTSNamespace); s.Hostname = "" })
	onSpec("no namespace: user", noUserNamespace)
	onSpec("no namespace: pid", func(s *specs.Spec) {
		without(s, specs.PIDNamespace)
		s.Mounts[0] = specs.Mount{Destination: "/proc", Type: "bind", Source: "/proc", Options: []string{"rbind", "rw", "nosuid", "nodev", "noexec"}}
	})
	// Its own user namespace forbids a box mounts in another mount namespace.
	onSpec("no namespace: mount", func(s *specs.Spec) { without(s, specs.MountNamespace) })
	tampers["no namespace: user, mount"] = tamper{
		spec:  func(s *specs.Spec) { noUserNamespace(s); without(s, specs.MountNamespace) },
		ended: unmountImages,
	}
}

func noUserNamespace(s *specs.Spec) {
	without(s, specs.UserNamespace)
	s.Linux.UIDMappings, s.Linux.GIDMappings = nil, nil
	openWork(s)
}

// unmountImages takes away what a box without a mount namespace has mounted on its
// image in the guest, and gives the image the flags back that it has changed.
func unmountImages(string) error {
	list, err := mountinfo.GetMounts(mountinfo.PrefixFilter(filepath.Join(stateDir, "images")))
	if err != nil {
		return err
	}
	for _, m := range slices.Backward(list) {
		if filepath.Dir(m.Mountpoint) == filepath.Join(stateDir, "images") {
			const flags = unix.MS_REMOUNT | unix.MS_BIND | unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV
			if err := unix.Mount("", m.Mountpoint, "", flags, ""); err != nil {
				return fmt.Errorf("remount %s: %w", m.Mountpoint, err)
			}
			continue
		}
		if err := unix.Unmount(m.Mountpoint, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount %s: %w", m.Mountpoint, err)
		}
	}
	return nil
}

// remount changes the flags of a mount in the box, or with data those of its file
// system.
func remount(pid int, target string, flags uintptr, data string) error {
	if data == "" {
		flags |= unix.MS_BIND
	}
	return inside(pid, "mnt", func() error {
		if err := unix.Mount("", target, "", unix.MS_REMOUNT|flags, data); err != nil {
			return fmt.Errorf("remount %s: %w", target, err)
		}
		return nil
	})
}

const allFlags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC

func addMountTampers() {
	// mounted are the mounts that were made in the box, with their flags.
	mounted := map[string]uintptr{"/proc": allFlags, "/dev": unix.MS_NOSUID | unix.MS_NOEXEC, "/dev/shm": allFlags, "/tmp": allFlags}
	// each remounts each of these with other flags, and the working folder too:
	// the flags that the agent has given that one cannot be taken away in the box.
	each := func(workToo bool, change func(flags uintptr) uintptr) func(string, int) error {
		return func(_ string, pid int) error {
			for target, flags := range mounted {
				if err := remount(pid, target, change(flags), ""); err != nil {
					return err
				}
			}
			if workToo {
				return remount(pid, oci.WorkDir, change(allFlags), "")
			}
			return nil
		}
	}
	onMade("mounts read-only", each(true, func(f uintptr) uintptr { return f | unix.MS_RDONLY }))
	onMade("mounts suid", each(false, func(f uintptr) uintptr { return f &^ unix.MS_NOSUID }))
	onMade("mounts dev", each(false, func(f uintptr) uintptr { return f ^ unix.MS_NODEV })) // on for /dev
	onMade("mounts exec", each(false, func(f uintptr) uintptr { return f &^ unix.MS_NOEXEC }))
	onMade("mounts sizes", func(_ string, pid int) error {
		return errors.Join(remount(pid, "/dev", mounted["/dev"], "size=128k"), remount(pid, "/dev/shm", allFlags, "size=128m"),
			remount(pid, "/tmp", allFlags, "size=1g"), remount(pid, oci.WorkDir, allFlags, "size=1g"))
	})
	onMade("mounts inodes", func(_ string, pid int) error {
		return errors.Join(remount(pid, "/dev/shm", allFlags, "nr_inodes=0"), remount(pid, "/tmp", allFlags, "nr_inodes=16385"),
			remount(pid, oci.WorkDir, allFlags, "nr_inodes=99999"))
	})
	onMade("mounts shared", func(_ string, pid int) error {
		return inside(pid, "mnt", func() error { return unix.Mount("", "/", "", unix.MS_SHARED|unix.MS_REC, "") })
	})
	onMade("tmp over tmp", inMounts(func() error { return unix.Mount("tmpfs", "/tmp", "tmpfs", allFlags, "") }))
	onMade("work replaced", inMounts(func() error {
		options := "size=65536k,nr_inodes=16384,mode=700,uid=101000,gid=0"
		return errors.Join(unix.Unmount(oci.WorkDir, unix.MNT_DETACH), unix.Mount("tmpfs", oci.WorkDir, "tmpfs", 0, options))
	}))
	onMade("mounts replaced", func(_ string, pid int) error {
		replace := inMounts(func() error {
			return errors.Join(unix.Unmount("/tmp", 0), unix.Unmount("/dev/full", 0),
				unix.Unmount("/dev/shm", 0), unix.Mount("ramfs", "/dev/shm", "ramfs", allFlags, ""))
		})
		return errors.Join(replace("", pid), bindInto(pid, "/dev/kmsg", "/dev/full"))
	})
	onMade("devices read-only", func(_ string, pid int) error {
		for _, d := range oci.Devices() {
			if err := remount(pid, d, unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NOEXEC, ""); err != nil {
				return err
			}
		}
		return nil
	})
	onMade("unmasked", inMounts(func() error {
		return errors.Join(ifThere(unix.Unmount("/proc/acpi", 0)), unix.Unmount("/proc/interrupts", 0),
			unix.Unmount("/proc/pressure", 0), unix.Unmount("/proc/timer_list", 0))
	}))
	onMade("masks writable", inMounts(func() error {
		return errors.Join(ifThere(unix.Mount("", "/proc/acpi", "", unix.MS_REMOUNT|unix.MS_BIND, "")),
			unix.Unmount("/proc/timer_list", 0), unix.Mount("/dev/zero", "/proc/timer_list", "", unix.MS_BIND, ""))
	}))
	onMade("proc writable", func(_ string, pid int) error {
		for _, p := range []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys"} {
			if err := remount(pid, p, allFlags, ""); err != nil {
				return err
			}
		}
		return nil
	})
	onMade("other proc", inMounts(otherProc))
	tampers["other root"] = tamper{spec: otherRoot, ended: otherRootEnd}
	onWritten("tmp exec late", func(_ string, pid int) error { return remount(pid, "/tmp", unix.MS_NOSUID|unix.MS_NODEV, "") })
	onWritten("guest folder late", func(_ string, pid int) error { return bindInto(pid, stateDir, "/sys") })
}

// otherProc puts a file system over /proc in which every masked and read-only path
// is, also those that this kernel does not have, and something at each.
func otherProc() error {
	if err := unix.Mount("tmpfs", "/proc", "tmpfs", allFlags, "size=64k"); err != nil {
		return err
	}
	for _, p := range slices.Concat(oci.MaskedPaths(), oci.ReadonlyPaths()) {
		if err := os.Mkdir(p, 0o755); err != nil {
			return err
		}
		if err := unix.Mount("tmpfs", p, "tmpfs", allFlags, "size=64k"); err != nil {
			return err
		}
	}
	return nil
}

// overlayDir is where otherRoot makes a root.
const overlayDir = stateDir + "/tamper-root"

// otherRoot gives the box a root that looks like the image and can be written to.
func otherRoot(s *specs.Spec) {
	for _, d := range []string{"", "up", "work", "root"} {
		must(os.Mkdir(filepath.Join(overlayDir, d), 0o755))
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s/up,workdir=%[2]s/work", s.Root.Path, overlayDir)
	must(unix.Mount("overlay", overlayDir+"/root", "overlay", unix.MS_NOSUID|unix.MS_NODEV, options))
	s.Root.Path, s.Root.Readonly = overlayDir+"/root", false
}

func otherRootEnd(string) error {
	return errors.Join(unix.Unmount(overlayDir+"/root", unix.MNT_DETACH), os.RemoveAll(overlayDir))
}

// inMounts is a tamper that runs f in the box's mount namespace.
func inMounts(f func() error) func(string, int) error {
	return func(_ string, pid int) error { return inside(pid, "mnt", f) }
}

// bindInto makes a path of the guest appear in the box.
func bindInto(pid int, path, target string) error {
	tree, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return fmt.Errorf("open_tree of %s: %w", path, err)
	}
	defer unix.Close(tree)
	return inside(pid, "mnt", func() error {
		return os.NewSyscallError("move_mount", unix.MoveMount(tree, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH))
	})
}

// namespaceFlags are those of setns(2).
var namespaceFlags = map[string]int{"mnt": unix.CLONE_NEWNS, "uts": unix.CLONE_NEWUTS, "net": unix.CLONE_NEWNET}

// inside runs f on a thread that visits a namespace of the process pid.
func inside(pid int, kind string, f func() error) error {
	done := make(chan error, 1)
	go func() {
		// As in package readback: the thread comes back and does not end, since
		// the shim would end with it.
		runtime.LockOSThread()
		err, back := visit(pid, kind, f)
		if back == nil {
			runtime.UnlockOSThread()
		}
		done <- errors.Join(err, back)
	}()
	return <-done
}

func visit(pid int, kind string, f func() error) (err, back error) {
	home, err := os.Open("/proc/thread-self/ns/" + kind)
	if err != nil {
		return err, nil
	}
	defer home.Close()
	there, err := os.Open(fmt.Sprintf("/proc/%d/ns/%s", pid, kind))
	if err != nil {
		return err, nil
	}
	defer there.Close()
	if kind == "mnt" { // setns(2): not while other threads share its root
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return os.NewSyscallError("unshare", err), nil
		}
	}
	if err := unix.Setns(int(there.Fd()), namespaceFlags[kind]); err != nil {
		return fmt.Errorf("setns to the %s of %d: %w", kind, pid, err), nil
	}
	err = f()
	return err, os.NewSyscallError("setns", unix.Setns(int(home.Fd()), namespaceFlags[kind]))
}

func addProcessTampers() {
	onMade("prlimit", func(_ string, pid int) error {
		for _, n := range []int{
			unix.RLIMIT_CORE, unix.RLIMIT_MEMLOCK, unix.RLIMIT_MSGQUEUE, unix.RLIMIT_NICE, unix.RLIMIT_NOFILE, unix.RLIMIT_RTPRIO,
			unix.RLIMIT_SIGPENDING, unix.RLIMIT_STACK,
		} {
			var l unix.Rlimit
			if err := unix.Prlimit(pid, n, nil, &l); err != nil {
				return err
			}
			l.Cur++
			if l.Max != unix.RLIM_INFINITY {
				l.Max++
			}
			if err := unix.Prlimit(pid, n, &l, nil); err != nil {
				return fmt.Errorf("prlimit %d: %w", n, err)
			}
		}
		return nil
	})
	onMade("host name", func(_ string, pid int) error {
		return inside(pid, "uts", func() error { return unix.Sethostname([]byte("other")) })
	})
	onMade("oom_score_adj", func(_ string, pid int) error { return write(fmt.Sprintf("/proc/%d/oom_score_adj", pid), "-1") })
	onMade("timer slack", func(_ string, pid int) error { return write(fmt.Sprintf("/proc/%d/timerslack_ns", pid), "1000000") })
	onSpec("open file", func(s *specs.Spec) {
		source := fmt.Sprintf("import os; os.dup2(os.open('/', 0), 9); os.execv('%s', %s)", s.Process.Args[0], pyList(s.Process.Args))
		s.Process.Args = []string{s.Process.Args[0], "-I", "-S", "-c", source}
	})
	tampers["open file late"] = tamper{spec: openOnSignal, written: func(_ string, pid int) error {
		if err := unix.Kill(pid, unix.SIGUSR1); err != nil {
			return err
		}
		return until("an open file", func() (bool, error) {
			open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
			return len(open) > 4, err
		})
	}}
}

// pyList writes strings as a list in Python.
func pyList(all []string) string {
	quoted := make([]string, len(all))
	for i, s := range all {
		quoted[i] = strconv.QuoteToASCII(s)
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

// openOnSignal has the runner open a file when it gets a signal.
func openOnSignal(s *specs.Spec) {
	path := filepath.Join(work(s), ".pybox/sitecustomize.py")
	source, err := os.ReadFile(path)
	must(err)
	more := "import posix, _signal\n_signal.signal(_signal.SIGUSR1, lambda *_: posix.open('/', 0))\n"
	must(os.WriteFile(path, append([]byte(more), source...), 0))
}

func addNetworkTampers() {
	net := func(f func(socket int) error) func(string, int) error {
		return func(_ string, pid int) error {
			return inside(pid, "net", func() error {
				socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
				if err != nil {
					return err
				}
				defer unix.Close(socket)
				return f(socket)
			})
		}
	}
	onMade("lo down", net(func(s int) error { return setUp(s, "lo", false) }))
	onMade("address", net(addAddress))
	onMade("route to elsewhere", net(func(s int) error { return errors.Join(rename(s, "lo", "eth0"), addRoute()) }))
	onWritten("address late", net(addAddress))
}

// request is a struct ifreq: netdevice(7).
type request struct {
	name [unix.IFNAMSIZ]byte
	data [24]byte
}

func interfaceCall(socket int, call uintptr, name string, data []byte) error {
	var r request
	copy(r.name[:], name)
	copy(r.data[:], data)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(socket), call, uintptr(unsafe.Pointer(&r))); errno != 0 {
		return fmt.Errorf("ioctl %#x of %s: %w", call, name, errno)
	}
	return nil
}

func setUp(socket int, name string, up bool) error {
	flags := byte(unix.IFF_LOOPBACK)
	if up {
		flags |= unix.IFF_UP
	}
	return interfaceCall(socket, unix.SIOCSIFFLAGS, name, []byte{flags, 0})
}

// rename names an interface otherwise, which has to be down for it.
func rename(socket int, old, new string) error {
	return errors.Join(setUp(socket, old, false), interfaceCall(socket, unix.SIOCSIFNAME, old, []byte(new)), setUp(socket, new, true))
}

// addAddress gives lo a second address.
func addAddress(socket int) error {
	return interfaceCall(socket, unix.SIOCSIFADDR, "lo:1", []byte{unix.AF_INET, 0, 0, 0, 10, 0, 0, 1})
}

// addRoute adds one to 10.0.0.0/8 over interface 1, which is the only one:
// rtnetlink(7).
func addRoute() error {
	s, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	message := []byte{
		44, 0, 0, 0, unix.RTM_NEWROUTE, 0, unix.NLM_F_REQUEST | unix.NLM_F_ACK, unix.NLM_F_CREATE >> 8, 1, 0, 0, 0, 0, 0, 0, 0,
		unix.AF_INET, 8, 0, 0, unix.RT_TABLE_MAIN, unix.RTPROT_STATIC, unix.RT_SCOPE_LINK, unix.RTN_UNICAST, 0, 0, 0, 0,
		8, 0, unix.RTA_DST, 0, 10, 0, 0, 0,
		8, 0, unix.RTA_OIF, 0, 1, 0, 0, 0,
	}
	if err := unix.Sendto(s, message, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	answer := make([]byte, 4096)
	n, _, err := unix.Recvfrom(s, answer, 0)
	if err != nil {
		return err
	}
	if n < 20 || answer[4] != unix.NLMSG_ERROR {
		return fmt.Errorf("an answer that is none: %x", answer[:n])
	}
	if !bytes.Equal(answer[16:20], make([]byte, 4)) {
		return fmt.Errorf("the route is refused: %x", answer[16:20])
	}
	return nil
}

// crunFile is a file that crun has of a box.
func crunFile(id, name string) string {
	return filepath.Join(stateDir, "containerd/state/crun/pybox", id, name)
}

// alterCrun adds a tamper that changes a file of crun's; it is as before when the
// box is to be removed.
func alterCrun(name, file string, f func([]byte) (any, error)) {
	tampers[name] = tamper{
		made: func(id string, _ int) error {
			path := crunFile(id, file)
			old, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			changed, err := f(old)
			if err != nil {
				return err
			}
			b, err := json.Marshal(changed)
			if err != nil {
				return err
			}
			return errors.Join(os.WriteFile(path+".old", old, 0o600), os.WriteFile(path, b, 0o600))
		},
		ended: restoreCrun(file),
	}
}

func restoreCrun(file string) func(string) error {
	return func(id string) error { return os.Rename(crunFile(id, file)+".old", crunFile(id, file)) }
}

// addRecordTampers change what containerd and crun have recorded of a box that is
// as it should be.
func addRecordTampers() {
	all := func(s *specs.Spec) {
		for _, f := range specParts {
			f(s)
		}
	}
	onMade("containerd's record", func(id string, _ int) error {
		ctx, cancel := context.WithTimeout(context.Background(), tamperWait)
		defer cancel()
		return pending.boxes.AlterRecord(ctx, id, all)
	})
	alterCrun("crun's specification", "config.json", func(b []byte) (any, error) {
		s := new(specs.Spec)
		err := json.Unmarshal(b, s)
		if err == nil {
			all(s)
		}
		return s, err
	})
	alterCrun("crun's state", "status", func(b []byte) (any, error) {
		s := map[string]any{}
		err := json.Unmarshal(b, &s)
		for name, value := range map[string]any{"pid": 1, "cgroup-path": "/pybox/boxes/other", "rootfs": "/"} {
			if _, there := s[name]; !there {
				err = errors.Join(err, errors.New("crun tells no "+name))
			}
			s[name] = value
		}
		return s, err
	})
	tampers["crun's state gone"] = tamper{
		made:  func(id string, _ int) error { return os.Rename(crunFile(id, "status"), crunFile(id, "status")+".old") },
		ended: restoreCrun("status"),
	}
}

// ifThere is for what the kernel of one architecture alone has.
func ifThere(err error) error {
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

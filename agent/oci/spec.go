package oci

import (
	"errors"
	"fmt"
	"math"
	"path"
	"runtime"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// ErrConfig marks a Config that no box can be made from.
var ErrConfig = errors.New("not a valid box")

// Bounds of a Config that Spec checks. What a person may ask for at most is
// policy and none of this package's business.
const (
	// MaxID bounds Config.ID, in bytes.
	MaxID = 40
	// PageSize is what Limits.MemoryBytes is a multiple of: the kernel rounds
	// memory.max down to whole pages, and what is read back must be equal.
	PageSize = 4096
	// MinMemory is the least that starting a process in a box leaves alive.
	MinMemory = 8 << 20
	// MinPIDs leaves room for the OCI runtime beside the box's own PID 1.
	MinPIDs = 4
	// MaxPIDs is PID_MAX_LIMIT of the kernel.
	MaxPIDs = 4 << 20
	// MaxMilliCPU is 1024 CPUs.
	MaxMilliCPU = 1024 * 1000
	// MaxStrings bounds Args and Env together, in bytes with a NUL each: half
	// of what execve(2) takes with a stack of StackBytes.
	MaxStrings = 1 << 20
	// maxString is MAX_ARG_STRLEN of the kernel.
	maxString = 128 << 10
	// maxPath is PATH_MAX of the kernel.
	maxPath = 4096
)

// Namespaces returns the kinds of the namespaces that every box has for itself,
// which are all that the specification knows but "time".
func Namespaces() []specs.LinuxNamespaceType {
	return []specs.LinuxNamespaceType{
		specs.UserNamespace, specs.PIDNamespace, specs.NetworkNamespace, specs.IPCNamespace,
		specs.UTSNamespace, specs.MountNamespace, specs.CgroupNamespace,
	}
}

// IDMap returns the one line of a box's uid_map, which is its gid_map too.
func IDMap(slot int) specs.LinuxIDMapping {
	return specs.LinuxIDMapping{ContainerID: 0, HostID: uint32(FirstID + IDRange*slot), Size: IDRange}
}

// StackBytes is the soft limit of the stack, and what glibc gives a thread. A
// program may raise its own: what it touches counts as its memory anyway.
const StackBytes = 8 << 20

// Rlimits returns the resource limits of every process in a box; setrlimit(2)
// has their units. What is missing here is bounded by the
// cgroup (processes, memory) or by the size of a file system (files: a limit on
// a file's size would end a program by a signal instead of "no space left").
//
// Of queued signals and message queues there is no limit but memory: whatever
// holds here when the user namespace is made the kernel takes for the use of all
// namespaces that its maker has made (set_userns_rlimit_max and
// inc_rlimit_ucounts), so that one box could leave the others nothing.
func Rlimits() []specs.POSIXRlimit {
	both := func(kind string, n uint64) specs.POSIXRlimit {
		return specs.POSIXRlimit{Type: kind, Hard: n, Soft: n}
	}
	return []specs.POSIXRlimit{
		both("RLIMIT_CORE", 0),
		both("RLIMIT_MEMLOCK", 64<<10),
		both("RLIMIT_MSGQUEUE", math.MaxUint64),
		both("RLIMIT_NICE", 0),
		both("RLIMIT_NOFILE", 1024),
		both("RLIMIT_RTPRIO", 0),
		both("RLIMIT_SIGPENDING", math.MaxUint64),
		{Type: "RLIMIT_STACK", Hard: math.MaxUint64, Soft: StackBytes},
	}
}

// MaskedPaths returns what a box sees nothing of: a folder is covered by an
// empty read-only file system, a file by /dev/null. The runtime passes over what
// the kernel does not have. They are containerd's, without those below /sys,
// which no box has, and the pressure of the guest as a whole: whoever may wait for
// it takes memory of the kernel that no box is charged for.
func MaskedPaths() []string {
	return []string{
		"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
		"/proc/pressure", "/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats",
	}
}

// ReadonlyPaths returns what a box can only read, whoever it is. The runtime
// passes over what the kernel does not have.
func ReadonlyPaths() []string {
	return []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
}

// Spec makes the runtime specification of a box (OCI runtime-spec 1.3) for the
// architecture that this program runs on. Equal Configs give equal
// specifications. It fails with ErrConfig, saying what is wrong.
func Spec(c Config) (*specs.Spec, error) {
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	filter, err := Seccomp(runtime.GOARCH)
	if err != nil {
		return nil, err
	}
	return &specs.Spec{
		Version:  specs.Version,
		Root:     &specs.Root{Path: c.ImageRoot, Readonly: true},
		Hostname: HostName,
		Process:  process(c),
		Mounts:   specMounts(c),
		Linux:    linux(c, filter),
	}, nil
}

func process(c Config) *specs.Process {
	noScore := 0
	return &specs.Process{
		Args: slices.Clone(c.Args),
		Env:  slices.Clone(c.Env),
		Cwd:  WorkDir,
		User: specs.User{UID: UID, GID: GID},
		// All five sets are empty. Were they absent, a runtime might keep its own.
		Capabilities:    &specs.LinuxCapabilities{},
		NoNewPrivileges: true,
		Rlimits:         Rlimits(),
		// Whoever started the runtime may be protected from the OOM killer.
		OOMScoreAdj: &noScore,
	}
}

func linux(c Config, filter *specs.LinuxSeccomp) *specs.Linux {
	var namespaces []specs.LinuxNamespace
	for _, kind := range Namespaces() {
		namespaces = append(namespaces, specs.LinuxNamespace{Type: kind})
	}
	ids := []specs.LinuxIDMapping{IDMap(c.Slot)}
	return &specs.Linux{
		Namespaces:    namespaces,
		UIDMappings:   ids,
		GIDMappings:   slices.Clone(ids),
		CgroupsPath:   c.Cgroup(),
		Resources:     resources(c.Limits),
		Seccomp:       filter,
		MaskedPaths:   MaskedPaths(),
		ReadonlyPaths: ReadonlyPaths(),
		// Whoever started the runtime may have had another one: random addresses are
		// switched off by a flag of it (personality(2)).
		Personality: &specs.LinuxPersonality{Domain: specs.PerLinux},
	}
}

// resources lists no devices: a box cannot make device nodes, the file systems
// that it mounts honour none (user_namespaces(7)), and of the guest's it gets
// those of Devices. A list would be one more eBPF program for every box.
func resources(l Limits) *specs.LinuxResources {
	memory, pids := l.MemoryBytes, l.PIDs
	quota, period := l.CPUQuota().Microseconds(), uint64(CPUPeriod.Microseconds())
	return &specs.LinuxResources{
		// Swap is the sum of memory and swap: none. A runtime passes over it
		// where the kernel has none to limit.
		Memory: &specs.LinuxMemory{Limit: &memory, Swap: &memory},
		Pids:   &specs.LinuxPids{Limit: &pids},
		CPU:    &specs.LinuxCPU{Quota: &quota, Period: &period},
	}
}

// check reports the first thing that is wrong with c.
func (c Config) check() error {
	if err := checkID(c.ID); err != nil {
		return err
	}
	if c.Slot < 0 || c.Slot >= MaxSlots {
		return fmt.Errorf("slot %d: want 0 to %d", c.Slot, MaxSlots-1)
	}
	if err := checkPath("the image's root", c.ImageRoot); err != nil {
		return err
	}
	if err := checkPath("the work folder", c.Work); err != nil {
		return err
	}
	if len(c.Args) == 0 || c.Args[0] == "" {
		return errors.New("no program: Args[0] is its name")
	}
	if err := checkStrings(slices.Concat(c.Args, c.Env)); err != nil {
		return err
	}
	if err := checkEnv(c.Env); err != nil {
		return err
	}
	return c.Limits.check()
}

func checkID(id string) error {
	if id == "" || len(id) > MaxID {
		return fmt.Errorf("an id of %d bytes: want 1 to %d", len(id), MaxID)
	}
	a, b, two := strings.Cut(id, ".")
	const allowed = "abcdefghijklmnopqrstuvwxyz0123456789-"
	if strings.Trim(a+b, allowed) != "" || two && (a == "" || b == "") {
		return fmt.Errorf("id %q: want only a-z, 0-9 and -, or two of such with a . between them", id)
	}
	return nil
}

func checkPath(what, p string) error {
	switch {
	case len(p) >= maxPath:
		return fmt.Errorf("%s has a path of %d bytes: want fewer than %d", what, len(p), maxPath)
	case !path.IsAbs(p) || path.Clean(p) != p || p == "/" || strings.ContainsRune(p, 0):
		return fmt.Errorf("%s is %q: want a clean absolute path below /", what, p)
	}
	return nil
}

func checkStrings(all []string) error {
	total := 0
	for _, s := range all {
		if strings.ContainsRune(s, 0) {
			return errors.New("an argument or environment variable with a zero byte: no program can receive it")
		}
		if len(s) >= maxString {
			return fmt.Errorf("an argument or environment variable of %d bytes: want fewer than %d", len(s), maxString)
		}
		total += len(s) + 1
	}
	if total > MaxStrings {
		return fmt.Errorf("arguments and environment of %d bytes: want at most %d", total, MaxStrings)
	}
	return nil
}

func checkEnv(env []string) error {
	seen := map[string]bool{}
	for _, e := range env {
		key, _, ok := strings.Cut(e, "=")
		if !ok || key == "" {
			return fmt.Errorf("environment variable %.60q: want NAME=VALUE", e)
		}
		if seen[key] {
			return fmt.Errorf("environment variable %.60q is set twice", key)
		}
		seen[key] = true
	}
	return nil
}

func (l Limits) check() error {
	switch {
	case l.MemoryBytes < MinMemory || l.MemoryBytes%PageSize != 0:
		return fmt.Errorf("memory of %d bytes: want at least %d, and a multiple of %d", l.MemoryBytes, MinMemory, PageSize)
	case l.PIDs < MinPIDs || l.PIDs > MaxPIDs:
		return fmt.Errorf("%d processes: want %d to %d", l.PIDs, MinPIDs, MaxPIDs)
	case l.MilliCPU < 1 || l.MilliCPU > MaxMilliCPU:
		return fmt.Errorf("%d thousandths of a CPU: want 1 to %d", l.MilliCPU, MaxMilliCPU)
	case l.WorkBytes < PageSize:
		return fmt.Errorf("a work folder of %d bytes: want at least %d", l.WorkBytes, PageSize)
	case l.WorkFiles < 1:
		return fmt.Errorf("a work folder for %d files: want at least 1", l.WorkFiles)
	}
	return nil
}

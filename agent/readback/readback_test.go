package readback

import (
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/pybox/pybox/agent/oci"
)

// What the kernel showed of a real box that crun 1.21 made.
//
//go:embed testdata/*
var testdata embed.FS

func sample(t testing.TB, name string) string {
	t.Helper()
	b, err := testdata.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

const pid = 123

// box is a box that a test can spoil.
type box struct {
	t            testing.TB
	proc, cgroup fstest.MapFS
	hostName     string
	stored, crun *specs.Spec
	runtime      Runtime
	s            Subject
}

func newBox(t testing.TB) *box {
	t.Helper()
	l := oci.Limits{MemoryBytes: 128 << 20, PIDs: 32, MilliCPU: 500, WorkBytes: 32 << 20, WorkFiles: 1024}
	cfg := oci.Config{
		ID: "5319e024", Slot: 3, ImageRoot: "/run/pybox/images/img-0123456789abcdef", Work: "/run/pybox/boxes/5319e024/work",
		Args: []string{"python3", "main.py", "an argument", ""}, Env: oci.Env(l, []string{"A=1", "B=x y"}), Limits: l,
	}
	b := &box{
		t: t, hostName: "box", stored: spec(t, cfg),
		runtime: Runtime{PID: pid, Cgroup: cfg.Cgroup(), Rootfs: cfg.ImageRoot}, crun: spec(t, cfg),
		cgroup: fstest.MapFS{
			"memory.max": file("134217728\n"), "memory.high": file("max\n"), "memory.oom.group": file("0\n"),
			"pids.max": file("32\n"), "cpu.max": file("500000 1000000\n"), "cgroup.procs": file("123\n"),
			"cgroup.stat": file("nr_descendants 0\nnr_subsys_cpu 1\nnr_dying_descendants 0\n"),
		},
		proc: fstest.MapFS{
			// What the kernel has below /proc.
			"acpi": folder(), "interrupts": file(""), "keys": file(""), "timer_list": file(""),
			"bus": folder(), "fs": folder(), "irq": folder(), "sys": folder(),

			"123/status": file(sample(t, "status")), "123/limits": file(sample(t, "limits")),
			"123/uid_map": file(sample(t, "uid_map")), "123/gid_map": file(sample(t, "gid_map")),
			"123/mountinfo": file(sample(t, "mountinfo")), "123/cgroup": file("0::/pybox/boxes/5319e024\n"),
			"123/net/dev": file(sample(t, "net_dev")), "123/net/route": file(sample(t, "net_route")),
			"123/net/fib_trie": file(sample(t, "net_fib_trie")),
			"123/fd/0":         link("pipe:[20]"), "123/fd/1": link("pipe:[21]"), "123/fd/2": link("pipe:[22]"),
			"123/fd/3":    link("socket:[23]"),
			"123/cmdline": file("python3\x00main.py\x00an argument\x00\x00"),
			"123/environ": file(strings.Join(cfg.Env, "\x00") + "\x00"), "123/oom_score_adj": file("0\n"),
			"123/personality": file("00000000\n"), "123/timerslack_ns": file("50000\n"),
			"123/cwd": link("/box"),
		},
	}
	for i, ns := range []string{"user", "pid", "net", "ipc", "uts", "mnt", "cgroup"} {
		b.proc["thread-self/ns/"+ns] = link(fmt.Sprintf("%s:[40265318%d]", ns, 30+i))
		b.proc["123/ns/"+ns] = link(fmt.Sprintf("%s:[40265321%d]", ns, 80+i))
	}
	b.s = Subject{
		Config: cfg, PID: pid, RootDevice: "254:16", Streams: [3]string{"pipe:[20]", "pipe:[21]", "pipe:[22]"},
		Proc: b.proc, Cgroup: b.cgroup,
		HostName:   func() (string, error) { return b.hostName, nil },
		StoredSpec: func() ([]byte, error) { return inJSON(t, b.stored), nil },
		Runtime: func() (Runtime, error) {
			b.runtime.Spec = inJSON(t, b.crun)
			return b.runtime, nil
		},
	}
	return b
}

func file(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s), Mode: 0o444} }
func folder() *fstest.MapFile       { return &fstest.MapFile{Mode: fs.ModeDir | 0o555} }
func link(s string) *fstest.MapFile {
	return &fstest.MapFile{Data: []byte(s), Mode: fs.ModeSymlink | 0o777}
}

func inJSON(t testing.TB, s *specs.Spec) []byte {
	t.Helper()
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// spec is a specification as it comes back out of JSON.
func spec(t testing.TB, c oci.Config) *specs.Spec {
	t.Helper()
	s, err := oci.Spec(c)
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	out := new(specs.Spec)
	if err := json.Unmarshal(b, out); err != nil {
		t.Fatal(err)
	}
	return out
}

// edit replaces text, which must be there, in a file below /proc/123.
func (b *box) edit(name, old, new string) {
	b.t.Helper()
	f := b.proc["123/"+name]
	if !strings.Contains(string(f.Data), old) {
		b.t.Fatalf("%q is not in %s", old, name)
	}
	f.Data = []byte(strings.Replace(string(f.Data), old, new, 1))
}

func (b *box) append(name, more string) {
	b.proc["123/"+name].Data = append(b.proc["123/"+name].Data, more...)
}

// status sets a line of /proc/123/status.
func (b *box) status(key, value string) {
	b.t.Helper()
	f := b.proc["123/status"]
	for line := range strings.Lines(string(f.Data)) {
		if strings.HasPrefix(line, key+":") {
			b.edit("status", line, key+":\t"+value+"\n")
			return
		}
	}
	b.t.Fatalf("no %s", key)
}

// key names a check.
func key(c Check) string {
	return c.Setting + " (" + strings.ReplaceAll(c.Source, "/proc/123", "proc") + ")"
}

// failed are the checks that are not OK.
func failed(checks []Check) []string {
	var keys []string
	for _, c := range checks {
		if !c.OK {
			keys = append(keys, key(c))
		}
	}
	return keys
}

func TestAGoodBox(t *testing.T) {
	for name, read := range map[string]func(context.Context, Subject) []Check{"full": Full, "quick": Quick} {
		checks := read(t.Context(), newBox(t).s)
		seen := map[string]bool{}
		for _, c := range checks {
			if !c.OK {
				t.Errorf("%s: %+v", name, c)
			}
			if seen[key(c)] {
				t.Errorf("%s: %s twice", name, key(c))
			}
			seen[key(c)] = true
			if c.Expected != c.Found && !strings.HasPrefix(c.Setting, "namespace: ") {
				t.Errorf("%s: shows a difference: %+v", name, c)
			}
		}
		t.Logf("%s: %d checks", name, len(checks))
	}
}

// alterations spoil one setting each; the check of that name, and no other, must
// fail.
func alterations() map[string][]func(*box) {
	cgroup := func(file, value string) func(*box) {
		return func(b *box) { b.cgroup[file].Data = []byte(value + "\n") }
	}
	status := func(key, value string) func(*box) { return func(b *box) { b.status(key, value) } }
	edit := func(file, old, new string) func(*box) { return func(b *box) { b.edit(file, old, new) } }
	more := func(file, text string) func(*box) { return func(b *box) { b.append(file, text) } }
	without := func(file, line string) func(*box) { return edit(file, line, "") }
	fd := func(n, to string) func(*box) { return func(b *box) { b.proc["123/fd/"+n] = link(to) } }
	const all = "0000003fffffffff"
	one := "0000000000000001"

	a := map[string][]func(*box){
		"memory.max (cgroup memory.max)":             {cgroup("memory.max", "max"), cgroup("memory.max", "134217729"), cgroup("memory.max", "")},
		"memory.high (cgroup memory.high)":           {cgroup("memory.high", "1")},
		"memory.oom.group (cgroup memory.oom.group)": {cgroup("memory.oom.group", "1")},
		"memory.swap.max (cgroup memory.swap.max)": {
			func(b *box) { b.cgroup["memory.swap.max"] = file("max\n") },
			func(b *box) { b.cgroup["memory.swap.max"] = file("4096\n") },
		},
		"pids.max (cgroup pids.max)":         {cgroup("pids.max", "max"), cgroup("pids.max", "33")},
		"cpu.max (cgroup cpu.max)":           {cgroup("cpu.max", "max 1000000"), cgroup("cpu.max", "500000 100000"), cgroup("cpu.max", "500001 1000000")},
		"processes (cgroup cgroup.procs)":    {cgroup("cgroup.procs", "123\n124"), cgroup("cgroup.procs", "124"), cgroup("cgroup.procs", "")},
		"child cgroups (cgroup cgroup.stat)": {cgroup("cgroup.stat", "nr_descendants 1"), cgroup("cgroup.stat", "nr_dying_descendants 0")},
		"open files (proc/fd)": {
			fd("4", "/etc/passwd"), fd("4", "socket:[24]"), fd("4", "pipe:[20]"), fd("10", "anon_inode:[eventpoll]"),
			fd("0", "/dev/null"), fd("1", "pipe:[20]"), fd("2", "socket:[22]"), fd("3", "/run/pybox"),
			func(b *box) { delete(b.proc, "123/fd/3") },
			func(b *box) { delete(b.proc, "123/fd/0") },
		},
		"no_new_privs (proc/status)":         {status("NoNewPrivs", "0")},
		"seccomp mode (proc/status)":         {status("Seccomp", "0"), status("Seccomp", "1")},
		"seccomp filters (proc/status)":      {status("Seccomp_filters", "0"), status("Seccomp_filters", "2")},
		"supplementary groups (proc/status)": {status("Groups", "0"), status("Groups", "297608 ")},
		"user (proc/status)":                 {status("Uid", "0\t0\t0\t0"), status("Uid", "297608\t0\t297608\t297608"), status("Uid", "297608\t297608\t296608\t297608")},
		"group (proc/status)":                {status("Gid", "297608\t297608\t297608\t0")},
		"process ids (proc/status)":          {status("NSpid", "123"), status("NSpid", "123\t2"), status("NSpid", "123\t7\t1"), status("NSpid", "124\t1")},
		"uid_map (proc/uid_map)":             {edit("uid_map", "296608", "0"), edit("uid_map", "65536", "65537"), more("uid_map", "         1 0 1\n")},
		"gid_map (proc/gid_map)":             {edit("gid_map", "296608", "100000"), func(b *box) { b.proc["123/gid_map"].Data = nil }},
		"cgroup (proc/cgroup)":               {edit("cgroup", "/boxes", ""), edit("cgroup", "5319e024", "other"), more("cgroup", "1:name=x:/\n")},
		"other mounts (proc/mountinfo)": {
			more("mountinfo", "199 177 0:99 / /mnt rw - tmpfs tmpfs rw\n"),
			more("mountinfo", "199 177 0:99 / /box rw,nosuid,nodev,noexec,relatime - tmpfs tmpfs rw\n"), // over another
			more("mountinfo", `199 177 0:99 / /a\040b rw - tmpfs tmpfs rw`+"\n"),
		},
		"network interfaces (proc/net/dev)": {
			more("net/dev", "  eth0: 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n"),
			edit("net/dev", "lo:", "eth0:"),
			without("net/dev", "    lo:       0       0    0    0    0     0          0         0        0       0    0    0    0     0       0          0\n"),
		},
		"addresses and routes (proc/net/fib_trie)": {
			func(b *box) {
				f := b.proc["123/net/fib_trie"] // both tables
				f.Data = bytes.ReplaceAll(f.Data, []byte("           /32 host LOCAL\n"), nil)
			},
			func(b *box) { b.proc["123/net/fib_trie"].Data = []byte("Main:\nLocal:\n") }, // an interface that is down
			func(b *box) { b.proc["123/net/fib_trie"].Data = nil },
			more("net/fib_trie", "     |-- 10.0.0.0\n        /8 universe UNICAST\n"),
			more("net/fib_trie", "Id 200:\n  |-- 0.0.0.0\n     /0 universe UNICAST\n"),
			more("net/fib_trie", "     |-- 127.0.0.1\n        /8 host LOCAL\n        /32 host LOCAL tos=16\n"),
		},
		"routes to elsewhere (proc/net/route)": {more("net/route", "eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n")},
		"IPv6 routes to elsewhere (proc/net/ipv6_route)": {func(b *box) {
			b.proc["123/net/ipv6_route"] = file(route6("lo") + route6("eth0"))
		}},
		"arguments (proc/cmdline)": {
			edit("cmdline", "main.py", "other.py"), edit("cmdline", "main.py\x00", ""), edit("cmdline", "\x00\x00", "\x00"),
			edit("cmdline", "an argument\x00", "an\x00argument\x00"),
		},
		"environment (proc/environ)": {
			more("environ", "LD_PRELOAD=x\x00"), edit("environ", "A=1\x00", ""), edit("environ", "B=x y", "B=x\x00y"),
			func(b *box) { b.proc["123/environ"].Data = nil },
		},
		"host name (uname(2) in its UTS namespace)": {func(b *box) { b.hostName = "pybox" }},
		"oom_score_adj (proc/oom_score_adj)":        {edit("oom_score_adj", "0", "-999")},
		"personality (proc/personality)":            {edit("personality", "00000000", "00040000"), edit("personality", "0\n", "8\n")},
		"timer slack (proc/timerslack_ns)":          {edit("timerslack_ns", "50000", "1000000")},
		"working folder (proc/cwd)":                 {func(b *box) { b.proc["123/cwd"] = link("/tmp") }},
		"first process (crun)":                      {func(b *box) { b.runtime.PID = 124 }},
		"cgroup path (crun)":                        {func(b *box) { b.runtime.Cgroup = "/" }},
		"image (crun)":                              {func(b *box) { b.runtime.Rootfs = "/" }},
	}
	for _, set := range []string{"CapInh inheritable", "CapPrm permitted", "CapEff effective", "CapBnd bounding", "CapAmb ambient"} {
		line, name, _ := strings.Cut(set, " ")
		a["capabilities: "+name+" (proc/status)"] = []func(*box){status(line, one), status(line, all)}
	}
	for kind, file := range map[string]string{"user": "user", "pid": "pid", "network": "net", "ipc": "ipc", "uts": "uts", "mount": "mnt", "cgroup": "cgroup"} {
		a["namespace: "+kind+" (proc/ns/"+file+")"] = []func(*box){
			func(b *box) { b.proc["123/ns/"+file] = b.proc["thread-self/ns/"+file] },
			func(b *box) { b.proc["123/ns/"+file] = link("time:[1]") },
		}
	}
	for _, r := range [][3]string{
		{"RLIMIT_CORE", "Max core file size        0                    0 ", "Max core file size        0                    unlimited "},
		{"RLIMIT_MEMLOCK", "65536                65536 ", "65536                unlimited "},
		{"RLIMIT_MSGQUEUE", "Max msgqueue size         unlimited", "Max msgqueue size         819200   "},
		{"RLIMIT_NICE", "Max nice priority         0                    0", "Max nice priority         0                    40"},
		{"RLIMIT_NOFILE", "1024                 1024                 files", "1024                 1048576              files"},
		{"RLIMIT_RTPRIO", "Max realtime priority     0 ", "Max realtime priority     1 "},
		{"RLIMIT_SIGPENDING", "Max pending signals       unlimited", "Max pending signals       1024     "},
		{"RLIMIT_STACK", "8388608              unlimited", "8388608              8388608"},
	} {
		a[r[0]+" (proc/limits)"] = []func(*box){edit("limits", r[1], r[2])}
	}
	a["RLIMIT_NICE (proc/limits)"] = append(a["RLIMIT_NICE (proc/limits)"],
		without("limits", "Max nice priority         0                    0                    \n"))
	addMounts(a, edit, without)
	addSpecs(a)
	return a
}

func route6(iface string) string {
	return "00000000000000000000000000000001 80 00000000000000000000000000000000 00 " +
		"00000000000000000000000000000000 00000000 00000002 00000000 80200001       " + iface + "\n"
}

// addMounts spoils every mount in every flag and size.
func addMounts(a map[string][]func(*box), edit func(file, old, new string) func(*box), without func(file, line string) func(*box)) {
	line := func(target string) string {
		data, err := testdata.ReadFile("testdata/mountinfo")
		if err != nil {
			panic(err)
		}
		for l := range strings.Lines(string(data)) {
			if strings.Fields(l)[4] == target {
				return l
			}
		}
		panic("no mount " + target)
	}
	change := func(setting, target, old, new string) {
		l := line(target)
		if !strings.Contains(l, old) {
			panic(fmt.Sprintf("%q is not in %q", old, l))
		}
		k := setting + " " + target + " (proc/mountinfo)"
		a[k] = append(a[k], edit("mountinfo", l, strings.Replace(l, old, new, 1)))
	}
	remove := func(setting, target string) {
		k := setting + " " + target + " (proc/mountinfo)"
		a[k] = append(a[k], without("mountinfo", line(target)))
	}
	const m = "mount"
	change(m, "/", " ro,nosuid", " rw,nosuid")
	change(m, "/", "nosuid,", "")
	change(m, "/", "nodev,", "")
	change(m, "/", "erofs", "ext4")
	change(m, "/", "254:16", "254:32")
	change(m, "/", " / / ", " /etc / ")
	change(m, "/", " - ", " shared:1 - ")
	remove(m, "/")
	for _, target := range []string{"/proc", "/dev/shm", "/tmp", "/box"} {
		change(m, target, "rw,nosuid", "ro,nosuid")
		change(m, target, ",nosuid", "")
		change(m, target, ",nodev", "")
		change(m, target, ",noexec", "")
		change(m, target, " - ", " master:1 - ")
		change(m, target, map[bool]string{true: " - proc ", false: " - tmpfs "}[target == "/proc"], " - ext4 ")
		remove(m, target)
		if target == "/proc" {
			continue
		}
		change(m, target, "size=", "size=1")
		change(m, target, "nr_inodes=", "nr_inodes=1")
	}
	change(m, "/dev", ",nosuid", "")
	change(m, "/dev", ",noexec", ",nodev,noexec")
	change(m, "/dev", "size=64k", "size=65k")
	change(m, "/dev", "mode=755", "mode=777")
	change(m, "/dev", ",mode=755", "")
	change(m, "/tmp", "size=65536k,", "")
	change(m, "/tmp", "nr_inodes=16384,", "")
	change(m, "/tmp", "uid=296608", "mode=700,uid=296608")
	change(m, "/box", "uid=297608", "uid=296608")
	change(m, "/box", ",gid=297608", "")
	for _, d := range oci.Devices() {
		change(m, d, " /"+strings.TrimPrefix(d, "/dev/")+" /dev", " /mem /dev")
		change(m, d, "devtmpfs", "tmpfs")
		change(m, d, " rw,nosuid", " ro,nosuid")
		remove(m, d)
	}
	for _, p := range oci.MaskedPaths() {
		k := "masked " + p + " (proc/mountinfo)"
		switch p {
		case "/proc/acpi":
			change("masked", p, " ro,", " rw,")
			change("masked", p, "- tmpfs", "- proc")
			change("masked", p, " / /proc", " /x /proc")
			remove("masked", p)
		case "/proc/interrupts", "/proc/keys", "/proc/timer_list":
			change("masked", p, " /null ", " /zero ")
			change("masked", p, "- devtmpfs", "- proc")
			change("masked", p, " - ", " shared:5 - ")
			remove("masked", p)
		default: // not in that kernel; one that has it must hide it
			a[k] = append(a[k], func(b *box) { b.proc[strings.TrimPrefix(p, "/proc/")] = file("") })
		}
	}
	for _, p := range oci.ReadonlyPaths() {
		k := "read-only " + p + " (proc/mountinfo)"
		if p == "/proc/sysrq-trigger" {
			a[k] = append(a[k], func(b *box) { b.proc["sysrq-trigger"] = file("") })
			continue
		}
		change("read-only", p, " ro,", " rw,")
		change("read-only", p, ",noexec", "")
		change("read-only", p, " /"+strings.TrimPrefix(p, "/proc/")+" ", " / ")
		remove("read-only", p)
	}
}

// addSpecs spoils the specification that containerd or crun has.
func addSpecs(a map[string][]func(*box)) {
	for part, spoil := range map[string][]func(*specs.Spec){
		"process": {
			func(s *specs.Spec) { s.Process.Args[0] = "sh" },
			func(s *specs.Spec) { s.Process.Env = append(s.Process.Env, "X=1") },
			func(s *specs.Spec) { s.Process.Capabilities.Effective = []string{"CAP_SYS_ADMIN"} },
			func(s *specs.Spec) { s.Process.NoNewPrivileges = false },
			func(s *specs.Spec) { s.Process.User.UID = 0 },
			func(s *specs.Spec) { s.Process.Rlimits = s.Process.Rlimits[1:] },
			func(s *specs.Spec) { s.Process = nil },
		},
		"root":       {func(s *specs.Spec) { s.Root.Readonly = false }, func(s *specs.Spec) { s.Root.Path = "/" }, func(s *specs.Spec) { s.Root = nil }},
		"mounts":     {func(s *specs.Spec) { s.Mounts = append(s.Mounts, specs.Mount{Destination: "/mnt"}) }, func(s *specs.Spec) { s.Mounts[0].Options = nil }},
		"namespaces": {func(s *specs.Spec) { s.Linux.Namespaces = s.Linux.Namespaces[1:] }, func(s *specs.Spec) { s.Linux.Namespaces[2].Path = "/proc/1/ns/net" }},
		"user ids":   {func(s *specs.Spec) { s.Linux.UIDMappings[0].HostID = 0 }, func(s *specs.Spec) { s.Linux.GIDMappings = nil }},
		"cgroup": {
			func(s *specs.Spec) { s.Linux.CgroupsPath = "/x" },
			func(s *specs.Spec) { *s.Linux.Resources.Memory.Limit++ },
			func(s *specs.Spec) { s.Linux.Resources.Pids = nil },
			func(s *specs.Spec) { s.Linux.Resources = nil },
		},
		"seccomp": {
			func(s *specs.Spec) { s.Linux.Seccomp = nil },
			func(s *specs.Spec) { s.Linux.Seccomp.DefaultAction = specs.ActAllow },
			func(s *specs.Spec) { s.Linux.Seccomp.Syscalls = s.Linux.Seccomp.Syscalls[1:] },
		},
		"masked and read-only paths": {func(s *specs.Spec) { s.Linux.MaskedPaths = s.Linux.MaskedPaths[1:] }, func(s *specs.Spec) { s.Linux.ReadonlyPaths = nil }},
		"hooks":                      {func(s *specs.Spec) { s.Hooks = &specs.Hooks{CreateContainer: []specs.Hook{{Path: "/bin/sh"}}} }},
		"everything else": {
			func(s *specs.Spec) { s.Hostname = "x" },
			func(s *specs.Spec) { s.Linux.RootfsPropagation = "shared" },
			func(s *specs.Spec) { s.Linux.Sysctl = map[string]string{"net.ipv4.ip_forward": "1"} },
			func(s *specs.Spec) { s.Annotations = map[string]string{"run.oci.keep_original_groups": "1"} },
			func(s *specs.Spec) {
				s.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/mem", Type: "c", Major: 1, Minor: 1}}
			},
		},
	} {
		for _, f := range spoil {
			k := "specification: " + part
			a[k+" (containerd)"] = append(a[k+" (containerd)"], func(b *box) { f(b.stored) })
			a[k+" (crun)"] = append(a[k+" (crun)"], func(b *box) { f(b.crun) })
		}
	}
}

// Whatever is altered, the check of that name fails, and only it; and there is an
// alteration of every check.
func TestEveryAlterationIsSeen(t *testing.T) {
	all := alterations()
	of := func(checks []Check) map[string]bool {
		all := map[string]bool{"IPv6 routes to elsewhere (proc/net/ipv6_route)": true} // not there in a good box
		for _, c := range checks {
			all[key(c)] = true
		}
		return all
	}
	quick, waited := of(Quick(t.Context(), newBox(t).s)), of(Waited(t.Context(), newBox(t).s))
	for _, c := range Full(t.Context(), newBox(t).s) {
		if len(all[key(c)]) == 0 {
			t.Errorf("nothing alters %s", key(c))
		}
	}
	for _, k := range slices.Sorted(maps.Keys(all)) {
		for i, alter := range all[k] {
			b := newBox(t)
			alter(b)
			checks := Full(t.Context(), b.s)
			if got := failed(checks); !slices.Equal(got, []string{k}) {
				t.Errorf("%s, alteration %d: %q failed", k, i, got)
			}
			for _, c := range checks {
				if !c.OK && c.Expected == c.Found {
					t.Errorf("%s, alteration %d: shows no difference: %+v", k, i, c)
				}
			}
			got := failed(Quick(t.Context(), b.s))
			if quick[k] && !slices.Equal(got, []string{k}) || !quick[k] && got != nil {
				t.Errorf("quick, %s, alteration %d: %q failed", k, i, got)
			}
			got = failed(Waited(t.Context(), b.s))
			if waited[k] && !slices.Equal(got, []string{k}) || !waited[k] && got != nil {
				t.Errorf("waited, %s, alteration %d: %q failed", k, i, got)
			}
		}
	}
}

// What somebody outside could change at any time is seen of a box that has waited.
func TestWaited(t *testing.T) {
	b := newBox(t)
	b.proc["123/limits"] = file(strings.ReplaceAll(sample(t, "limits"), "1024", "1025"))
	b.proc["123/oom_score_adj"] = file("-998\n")
	b.proc["123/timerslack_ns"] = file("0\n")
	b.proc["123/cwd"] = link("/tmp")
	b.proc["123/cgroup"] = file("0::/pybox/boxes/other\n")
	b.cgroup["pids.max"] = file("33\n")
	b.hostName = "other"
	if got := failed(Waited(t.Context(), b.s)); len(got) != 7 {
		t.Errorf("%q failed, want seven", got)
	}
}

func isFD(name string, _ *fstest.MapFile) bool { return strings.HasPrefix(name, "123/fd/") }

// What cannot be read is not OK, and nothing is left out.
func TestUnreadable(t *testing.T) {
	want := len(Full(t.Context(), newBox(t).s))
	cause := errors.New("the client went away")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	for name, tc := range map[string]struct {
		ctx   context.Context
		spoil func(*box)
		fails int // at least
	}{
		"no process":     {t.Context(), func(b *box) { clear(b.proc) }, want - 32},
		"no cgroup":      {t.Context(), func(b *box) { clear(b.cgroup) }, 7},
		"no host name":   {t.Context(), func(b *box) { b.s.HostName = func() (string, error) { return "box", cause } }, 1},
		"no record":      {t.Context(), func(b *box) { b.s.StoredSpec = func() ([]byte, error) { return nil, cause } }, len(parts)},
		"garbage":        {t.Context(), func(b *box) { b.s.StoredSpec = func() ([]byte, error) { return []byte("{"), nil } }, len(parts)},
		"empty record":   {t.Context(), func(b *box) { b.stored = nil }, len(parts)},
		"no state":       {t.Context(), func(b *box) { b.s.Runtime = func() (Runtime, error) { return b.runtime, cause } }, len(parts) + 3},
		"empty state":    {t.Context(), func(b *box) { b.crun = nil }, len(parts)},
		"bad status":     {t.Context(), func(b *box) { b.append("status", "x\n") }, 12},
		"huge status":    {t.Context(), func(b *box) { b.append("status", strings.Repeat("x:\n", maxStatus)) }, 12},
		"bad limits":     {t.Context(), func(b *box) { b.append("limits", "x\n") }, 8},
		"bad mountinfo":  {t.Context(), func(b *box) { b.append("mountinfo", "x\n") }, 28},
		"huge mountinfo": {t.Context(), func(b *box) { b.append("mountinfo", strings.Repeat("x", maxMounts)) }, 28},
		"bad uid_map":    {t.Context(), func(b *box) { b.append("uid_map", "x\n") }, 1},
		"bad net/dev":    {t.Context(), func(b *box) { b.append("net/dev", "x\n") }, 1},
		"bad fib_trie":   {t.Context(), func(b *box) { b.append("net/fib_trie", "x y\n") }, 1},
		"bad descriptor": {t.Context(), func(b *box) { b.proc["123/fd/x"] = link("pipe:[1]") }, 1},
		"no link":        {t.Context(), func(b *box) { b.proc["123/fd/3"] = file("") }, 1},
		"no folder":      {t.Context(), func(b *box) { maps.DeleteFunc(b.proc, isFD); b.proc["123/fd"] = file("") }, 1},
		"many files": {t.Context(), func(b *box) {
			for n := range maxDescriptors {
				b.proc[fmt.Sprintf("123/fd/%d", 4+n)] = link("pipe:[1]")
			}
		}, 1},
		"bad net/route": {t.Context(), func(b *box) { b.append("net/route", "x\n") }, 1},
		"cut cmdline":   {t.Context(), func(b *box) { b.append("cmdline", "x") }, 1},
		"bad namespace": {t.Context(), func(b *box) { b.proc["thread-self/ns/user"] = link("user:[x]") }, 1},
		"bad Config":    {t.Context(), func(b *box) { b.s.Config.Limits.WorkBytes = 0 }, 2 * len(parts)},
		"no time":       {ctx, func(*box) {}, 60},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBox(t)
			tc.spoil(b)
			checks := Full(tc.ctx, b.s)
			if len(checks) < want {
				t.Errorf("%d checks, want at least %d", len(checks), want)
			}
			n := 0
			for _, c := range checks {
				if c.OK {
					continue
				}
				n++
				if len(c.Found) > 2*maxShown || !strings.Contains(c.Found, "not readable: ") && name != "bad Config" {
					t.Errorf("%+v", c)
				}
			}
			if n < tc.fails {
				t.Errorf("%d checks failed, want at least %d", n, tc.fails)
			}
		})
	}
}

// An environment that differs at its end looks different too.
func TestLongValuesDiffer(t *testing.T) {
	b := newBox(t)
	long := "LONG=" + strings.Repeat("ä", 5000)
	b.s.Config.Env = append(b.s.Config.Env, long+"1")
	b.append("environ", long+"2\x00")
	for _, c := range Full(t.Context(), b.s) {
		if c.Setting == "environment" && (c.OK || c.Expected == c.Found || len(c.Expected) > 2*maxShown) {
			t.Errorf("%+v", c)
		}
	}
}

func BenchmarkFull(b *testing.B) {
	s := newBox(b).s
	for b.Loop() {
		if failed(Full(b.Context(), s)) != nil {
			b.Fatal("failed")
		}
	}
}

func BenchmarkQuick(b *testing.B) {
	s := newBox(b).s
	for b.Loop() {
		if failed(Quick(b.Context(), s)) != nil {
			b.Fatal("failed")
		}
	}
}

// TestSameSpecOtherwiseWritten: not the bytes of a specification count, but what it says.
func TestSameSpecOtherwiseWritten(t *testing.T) {
	b := newBox(t)
	stored := b.s.StoredSpec
	b.s.StoredSpec = func() ([]byte, error) {
		same, err := stored()
		return append(append([]byte(" \n"), same...), '\n'), err
	}
	for _, c := range Full(t.Context(), b.s) {
		if !c.OK {
			t.Errorf("%+v", c)
		}
	}
}

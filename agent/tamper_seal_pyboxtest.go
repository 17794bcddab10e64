//go:build linux && pyboxtest

package agent

import (
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// capabilities are all that Linux 6.12 knows: capabilities(7).
var capabilities = []string{
	"CAP_AUDIT_CONTROL", "CAP_AUDIT_READ", "CAP_AUDIT_WRITE", "CAP_BLOCK_SUSPEND", "CAP_BPF", "CAP_CHECKPOINT_RESTORE",
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_FSETID", "CAP_IPC_LOCK", "CAP_IPC_OWNER",
	"CAP_KILL", "CAP_LEASE", "CAP_LINUX_IMMUTABLE", "CAP_MAC_ADMIN", "CAP_MAC_OVERRIDE", "CAP_MKNOD", "CAP_NET_ADMIN",
	"CAP_NET_BIND_SERVICE", "CAP_NET_BROADCAST", "CAP_NET_RAW", "CAP_PERFMON", "CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP",
	"CAP_SETUID", "CAP_SYSLOG", "CAP_SYS_ADMIN", "CAP_SYS_BOOT", "CAP_SYS_CHROOT", "CAP_SYS_MODULE", "CAP_SYS_NICE",
	"CAP_SYS_PACCT", "CAP_SYS_PTRACE", "CAP_SYS_RAWIO", "CAP_SYS_RESOURCE", "CAP_SYS_TIME", "CAP_SYS_TTY_CONFIG",
	"CAP_WAKE_ALARM",
}

// The tampers of the seal's tests leave walls of a box out, to show what stands
// behind them, and that what is tried against them would be noticed.
func init() {
	tampers["no filter"] = tamper{tolerate: true, spec: func(s *specs.Spec) { s.Linux.Seccomp = nil }}
	tampers["no walls"] = tamper{tolerate: true, spec: noWalls}
}

// noWalls makes the program the guest's root, with what that can do. It keeps the
// namespaces that keep the guest itself from harm.
func noWalls(s *specs.Spec) {
	l := s.Linux
	l.Seccomp, l.MaskedPaths, l.ReadonlyPaths, l.UIDMappings, l.GIDMappings = nil, nil, nil, nil, nil
	l.Namespaces = slices.DeleteFunc(l.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == specs.UserNamespace })
	s.Root.Readonly = false
	p := s.Process
	p.NoNewPrivileges, p.Rlimits, p.User = false, nil, specs.User{}
	c := p.Capabilities
	for _, set := range []*[]string{&c.Bounding, &c.Effective, &c.Inheritable, &c.Permitted, &c.Ambient} {
		*set = slices.Clone(capabilities)
	}
	for i := range s.Mounts {
		m := &s.Mounts[i]
		m.Options = slices.DeleteFunc(m.Options, func(o string) bool { return o == "nosuid" || o == "nodev" || o == "noexec" })
	}
}

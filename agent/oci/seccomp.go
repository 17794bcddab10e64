package oci

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/bits"
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// Numbers of Linux that are equal on amd64 and arm64, from its
// include/uapi/linux and include/uapi/asm-generic.
const (
	eperm, einval, enosys, eprotonosupport = 1, 22, 38, 93

	afUnix, afInet, afInet6, afNetlink = 1, 2, 10, 16
	netlinkRoute                       = 0
	ipprotoMPTCP                       = 262

	tiocsti, tioclinux = 0x5412, 0x541c

	cloneNewNS, cloneNewCgroup, cloneNewUTS, cloneNewIPC   = 0x00020000, 0x02000000, 0x04000000, 0x08000000
	cloneNewUser, cloneNewPID, cloneNewNet, cloneNewSpaces = 0x10000000, 0x20000000, 0x40000000,
		cloneNewNS | cloneNewCgroup | cloneNewUTS | cloneNewIPC | cloneNewUser | cloneNewPID | cloneNewNet

	// personaQuery asks personality(2) for the present one.
	personaQuery = 0xffffffff
)

// Seccomp returns the system call filter of every box on arch, "amd64" or
// "arm64": what is in allowed passes, some of it by its arguments; what is in
// forbidden fails with EPERM, or as a kernel without it answers; everything else, system calls that do not exist yet
// among it, fails with ENOSYS, which libraries take as "this kernel is older" and
// then do without. Other system call tables of the architecture (32 bit, x32) are
// not reachable: the process is killed.
func Seccomp(arch string) (*specs.LinuxSeccomp, error) {
	var table specs.Arch
	allow, deny := slices.Clone(allowed), slices.Clone(forbidden)
	switch arch {
	case "amd64":
		table = specs.ArchX86_64
		allow, deny = append(allow, allowedAMD64...), append(deny, forbiddenAMD64...)
	case "arm64":
		table = specs.ArchAARCH64
	default:
		return nil, fmt.Errorf("no system call filter for the architecture %q: want amd64 or arm64", arch)
	}
	slices.Sort(allow)
	slices.Sort(deny)
	unknown, denied := uint(enosys), uint(eperm)
	rules := []specs.LinuxSyscall{
		{Names: allow, Action: specs.ActAllow},
		{Names: deny, Action: specs.ActErrno, ErrnoRet: &denied},
	}
	for _, r := range byArguments() {
		s := specs.LinuxSyscall{Names: []string{r.name}, Action: specs.ActAllow, Args: r.args}
		if r.errno != 0 {
			s.Action, s.ErrnoRet = specs.ActErrno, &r.errno
		}
		rules = append(rules, s)
	}
	return &specs.LinuxSeccomp{
		DefaultAction:   specs.ActErrno,
		DefaultErrnoRet: &unknown,
		Architectures:   []specs.Arch{table},
		Syscalls:        rules,
	}, nil
}

// SeccompSHA256 is the digest, in hex, of the filter's JSON as encoding/json
// writes it, with no white space and in the order of the rules. Equal filters
// have equal digests.
func SeccompSHA256(p *specs.LinuxSeccomp) string {
	b, err := json.Marshal(p)
	if err != nil {
		panic(err) // strings and numbers only
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// rule decides a system call by its arguments: it passes, or fails with errno.
type rule struct {
	name  string
	errno uint // 0: it passes
	args  []specs.LinuxSeccompArg
}

// byArguments are the rules that look at arguments. Those of one system call
// never overlap: what libseccomp makes of two that do is not documented.
//
// Arguments are compared as the 64 bits of a register, of which the kernel may
// use 32. So what is allowed is an exact value or a range of small ones, with
// which a program that sets the upper half gains nothing, or a comparison of the
// lower half alone.
func byArguments() []rule {
	var all []rule
	fail := func(name string, errno uint, args ...specs.LinuxSeccompArg) {
		all = append(all, rule{name, errno, args})
	}
	add := func(name string, allow bool, args ...specs.LinuxSeccompArg) {
		if allow {
			fail(name, 0, args...)
		} else {
			fail(name, eperm, args...)
		}
	}

	// Sockets: of the network namespace, which is empty, and of Unix. Virtual
	// machine sockets know no namespaces; AF_ALG, AF_PACKET and the like are
	// attack surface. Of netlink glibc uses routing, to list interfaces.
	for family := range uint64(afNetlink) {
		if family == afInet || family == afInet6 {
			// Debian's kernel has MPTCP and ours has not. A box is answered as by
			// ours, also beyond: from IPPROTO_MAX on, which is one more, by
			// EINVAL (inet_create in net/ipv4/af_inet.c).
			add("socket", true, is(0, family), below(2, ipprotoMPTCP))
			fail("socket", eprotonosupport, is(0, family), is(2, ipprotoMPTCP))
			fail("socket", einval, is(0, family), above(2, ipprotoMPTCP))
			continue
		}
		add("socket", family == afUnix, is(0, family))
	}
	add("socket", true, is(0, afNetlink), is(2, netlinkRoute))
	add("socket", false, is(0, afNetlink), isNot(2, netlinkRoute))
	add("socket", false, above(0, afNetlink))
	add("socketpair", true, is(0, afUnix))
	add("socketpair", false, isNot(0, afUnix))

	// No new namespaces. A filter cannot see the arguments of clone3: without it
	// glibc uses clone.
	add("clone", true, masked(0, cloneNewSpaces, 0))
	for _, args := range anyOf(0, cloneNewSpaces) {
		add("clone", false, args)
	}

	// The terminal's input and console: a box has neither.
	add("ioctl", false, masked(1, 0xffffffff, tiocsti))
	add("ioctl", false, masked(1, 0xffffffff, tioclinux))
	for _, args := range others(1, tiocsti, tioclinux) {
		add("ioctl", true, args)
	}

	// Its own limits only: those of the box's PID 1 are no business of a program.
	add("prlimit64", true, is(0, 0))
	add("prlimit64", false, isNot(0, 0))

	// The ordinary personality: others switch randomised addresses off.
	add("personality", true, is(0, 0))
	add("personality", true, is(0, personaQuery))
	return all
}

func is(index uint, value uint64) specs.LinuxSeccompArg {
	return specs.LinuxSeccompArg{Index: index, Value: value, Op: specs.OpEqualTo}
}

func isNot(index uint, value uint64) specs.LinuxSeccompArg {
	return specs.LinuxSeccompArg{Index: index, Value: value, Op: specs.OpNotEqual}
}

func below(index uint, value uint64) specs.LinuxSeccompArg {
	return specs.LinuxSeccompArg{Index: index, Value: value, Op: specs.OpLessThan}
}

func above(index uint, value uint64) specs.LinuxSeccompArg {
	return specs.LinuxSeccompArg{Index: index, Value: value, Op: specs.OpGreaterThan}
}

// masked holds where the bits of mask are those of value.
func masked(index uint, mask, value uint64) specs.LinuxSeccompArg {
	return specs.LinuxSeccompArg{Index: index, Value: mask, ValueTwo: value, Op: specs.OpMaskedEqual}
}

// anyOf returns comparisons of which exactly one holds where a bit of mask is
// set, and none where none is.
func anyOf(index uint, mask uint64) []specs.LinuxSeccompArg {
	var out []specs.LinuxSeccompArg
	for seen := uint64(0); mask != 0; mask &= mask - 1 {
		bit := uint64(1) << bits.TrailingZeros64(mask)
		seen |= bit
		out = append(out, masked(index, seen, bit))
	}
	return out
}

// others returns comparisons of which exactly one holds where the lower 32 bits
// are none of values, and none where they are one: for each length of a prefix of
// these bits, the prefixes that leave the values' common tree.
func others(index uint, values ...uint32) []specs.LinuxSeccompArg {
	var out []specs.LinuxSeccompArg
	known := map[uint32]bool{0: true} // the values' prefixes of one bit less
	for length := 1; length <= 32; length++ {
		shift := 32 - length
		next := map[uint32]bool{}
		for _, v := range values {
			next[v>>shift] = true
		}
		var leave []uint32
		for prefix := range known {
			for _, p := range []uint32{prefix << 1, prefix<<1 | 1} {
				if !next[p] {
					leave = append(leave, p)
				}
			}
		}
		slices.Sort(leave)
		for _, p := range leave {
			out = append(out, masked(index, uint64(^uint32(0)<<shift), uint64(p<<shift)))
		}
		known = next
	}
	return out
}

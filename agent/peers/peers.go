// Package peers runs a Python program under other container engines, as PyBox does in
// a box, so that a benchmark can compare them in one guest. The engines come from a
// disk of their own, which host/bench/peersdisk makes. It is no part of PyBox: nothing
// but a test build of the agent (build tag pyboxtest) has it, and it keeps nothing from
// a program that means harm.
package peers

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/pybox/pybox/agent/oci"
)

// Peer is a way to run a program.
type Peer string

// The peers. The first two get the very specification of a box, the others what can be
// said in their own options.
const (
	Crun       Peer = "crun"       // crun run
	Runc       Peer = "runc"       // runc run
	Containerd Peer = "containerd" // ctr run --rm: containerd with runc
	Docker     Peer = "docker"     // docker run --rm: Docker's engine with containerd and runc
	// DockerPeriod is Docker with the CPU limit in PyBox's period, ten times as long as
	// that of --cpus: what uses little is not held up by it.
	DockerPeriod Peer = "docker-period"
	// DockerVersion runs nothing: it is Docker's command with a question to its daemon.
	DockerVersion Peer = "docker-version"
)

// All are the peers that run a program, the leanest first.
func All() []Peer { return []Peer{Crun, Runc, Containerd, Docker, DockerPeriod} }

// Serial is the serial number of the engines' disk.
const Serial = "peers"

// Empty is the program that is measured.
const Empty = "pass"

// Limits are those of every run: what a box of PyBox has by default.
func Limits() oci.Limits {
	return oci.Limits{MemoryBytes: 128 << 20, PIDs: 32, MilliCPU: 500, WorkBytes: 128 << 20, WorkFiles: 16384}
}

// Where things are in the peers' part of the guest.
const (
	imageDir         = "/images"
	workDir          = "/run/work"
	bundleDir        = "/run/bundle"
	containerdSocket = "/run/containerd/containerd.sock"
	dockerSocket     = "/run/docker.sock"
	// image is the name of the image of boxes with Docker, fullName with containerd.
	image     = "python:bench"
	fullName  = "docker.io/library/" + image
	namespace = "bench" // containerd's
)

// env is the environment of all that is started, containers aside.
func env() []string { return []string{"PATH=/usr/bin:/usr/sbin", "HOME=/root", "LANG=C.UTF-8"} }

// daemon is a server and the socket at which it answers.
type daemon struct {
	name   string
	args   []string
	socket string
}

// daemons are in the order of their start. Docker's sets no network up, since the guest
// has none: no bridge, no rules of a firewall.
func daemons() []daemon {
	return []daemon{
		{"containerd", []string{"/usr/bin/containerd"}, containerdSocket},
		{"dockerd", []string{
			"/usr/sbin/dockerd", "--containerd", containerdSocket, "--host", "unix://" + dockerSocket, "--storage-driver", "overlay2",
			"--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-forward=false", "--userland-proxy=false",
		}, dockerSocket},
	}
}

// run is one run of a program.
type run struct {
	id, program string
	// stdin tells that the program reads its standard input.
	stdin bool
}

// python is the program's command line in every container.
func (r run) python() []string { return []string{"/usr/bin/python3", "-I", "-S", "-c", r.program} }

// command is the command line of the peer for a run.
func (p Peer) command(r run) ([]string, error) {
	switch p {
	case Crun:
		return []string{"/usr/bin/crun", "run", "--bundle", bundleDir, r.id}, nil
	case Runc:
		return []string{"/usr/sbin/runc", "run", "--bundle", bundleDir, r.id}, nil
	case Containerd:
		return slices.Concat([]string{"/usr/bin/ctr", "--namespace", namespace, "run"}, ctrOptions(Limits()), []string{fullName, r.id}, r.python()), nil
	case DockerVersion:
		return []string{"/usr/bin/docker", "version"}, nil
	case Docker, DockerPeriod:
		options := dockerOptions(Limits(), p == DockerPeriod)
		if r.stdin {
			options = append(options, "--interactive")
		}
		return slices.Concat([]string{"/usr/bin/docker", "run"}, options, []string{image}, r.python()), nil
	}
	return nil, fmt.Errorf("no peer %.40q; there are: %v", p, All())
}

// bundled tells whether the peer reads its specification from bundleDir.
func (p Peer) bundled() bool { return p == Crun || p == Runc }

// cgroups is a pattern for the cgroup of the only container of the peer, below the
// cgroup root.
func (p Peer) cgroups(id string) string {
	switch p {
	case Containerd:
		return filepath.Join(namespace, id)
	case Docker, DockerPeriod:
		return "docker/*"
	}
	return id
}

// ctrOptions are limits in the words of ctr, which has none for the number of
// processes. It drops capabilities by name, and sets no_new_privileges by itself.
func ctrOptions(l oci.Limits) []string {
	options := []string{"--rm", "--read-only", "--seccomp", "--memory-limit", strconv.FormatInt(l.MemoryBytes, 10), "--cpus", cpus(l)}
	for _, c := range defaultCapabilities {
		options = append(options, "--cap-drop", c)
	}
	return options
}

// defaultCapabilities are those of containerd (defaultUnixCaps in pkg/oci/spec.go).
var defaultCapabilities = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_MKNOD", "CAP_NET_RAW", "CAP_SETGID", "CAP_SETUID",
	"CAP_SETFCAP", "CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_KILL", "CAP_AUDIT_WRITE",
}

// dockerOptions are limits in Docker's words. Its own seccomp profile holds.
func dockerOptions(l oci.Limits, period bool) []string {
	memory := strconv.FormatInt(l.MemoryBytes, 10)
	options := []string{
		"--rm", "--network", "none", "--memory", memory, "--memory-swap", memory, "--pids-limit", strconv.FormatInt(l.PIDs, 10),
		"--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges",
	}
	if !period {
		return append(options, "--cpus", cpus(l))
	}
	return append(options, "--cpu-period", strconv.FormatInt(oci.CPUPeriod.Microseconds(), 10), "--cpu-quota", strconv.FormatInt(l.CPUQuota().Microseconds(), 10))
}

func cpus(l oci.Limits) string { return strconv.FormatFloat(float64(l.MilliCPU)/1000, 'f', -1, 64) }

// spec is the specification of a box for the run, but for its arguments and its
// cgroup, as a runtime that is started by itself reads it. Without swap in the kernel
// crun passes over the limit of that, and runc fails: it is not told.
func (p Peer) spec(r run) ([]byte, error) {
	l := Limits()
	s, err := oci.Spec(oci.Config{ID: r.id, ImageRoot: imageDir, Work: workDir, Args: r.python(), Env: oci.Env(l, nil), Limits: l})
	if err != nil {
		return nil, err
	}
	s.Linux.CgroupsPath = "/" + r.id
	if p == Runc {
		s.Linux.Resources.Memory.Swap = nil
	}
	return json.Marshal(s)
}

package peers

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"

	"github.com/pybox/pybox/agent/oci"
)

// Facts are what holds for a program that a peer runs: what it sees itself, and the
// limits of its cgroup, read from outside.
type Facts struct {
	// UID is the program's in its container. Capabilities are its effective and
	// its bounding set, in hexadecimal digits.
	UID          int       `json:"uid"`
	Capabilities [2]string `json:"capabilities"`
	// NoNewPrivileges and Seccomp are the numbers of proc_pid_status(5).
	NoNewPrivileges string `json:"no_new_privileges"`
	Seccomp         string `json:"seccomp"`
	// ReadOnly tells whether the root is, Interfaces are those of its network.
	ReadOnly   bool     `json:"read_only"`
	Interfaces []string `json:"interfaces"`
	// Memory, PIDs and CPU are memory.max, pids.max and cpu.max.
	Memory string `json:"memory"`
	PIDs   string `json:"pids"`
	CPU    string `json:"cpu"`
}

// Check holds f to what every run of the peer is to be limited by. ctr has no word for
// the number of processes.
func (p Peer) Check(f Facts) error {
	l := Limits()
	want := Facts{
		Capabilities: [2]string{noCapabilities, noCapabilities}, NoNewPrivileges: "1", Seccomp: "2", ReadOnly: true, Interfaces: []string{"lo"},
		Memory: strconv.FormatInt(l.MemoryBytes, 10), PIDs: strconv.FormatInt(l.PIDs, 10),
		CPU: fmt.Sprintf("%d %d", l.CPUQuota().Microseconds(), oci.CPUPeriod.Microseconds()),
	}
	switch p {
	case Crun, Runc:
		want.UID = oci.UID
	case Containerd:
		want.PIDs, want.CPU = "max", stockCPU(l)
	case Docker:
		want.CPU = stockCPU(l)
	}
	if !reflect.DeepEqual(f, want) {
		return fmt.Errorf("what runs by %s has %+v, want %+v", p, f, want)
	}
	return nil
}

// noCapabilities is an empty set.
const noCapabilities = "0000000000000000"

// stockCPU is cpu.max in the period of 100 ms that containerd and Docker set, as the
// kernel does.
func stockCPU(l oci.Limits) string {
	const period = 100_000
	return fmt.Sprintf("%d %d", l.MilliCPU*period/1000, period)
}

// factsProgram prints the program's part of Facts in one line, and lives until its
// standard input ends.
const factsProgram = `
import json, os, sys
status = {key: value.strip() for key, _, value in (line.partition(":") for line in open("/proc/self/status"))}
print(json.dumps({
    "uid": os.getuid(),
    "capabilities": [status["CapEff"], status["CapBnd"]],
    "no_new_privileges": status["NoNewPrivs"],
    "seccomp": status["Seccomp"],
    "read_only": bool(os.statvfs("/").f_flag & os.ST_RDONLY),
    "interfaces": [line.split(":")[0].strip() for line in open("/proc/net/dev").readlines()[2:]],
}), flush=True)
sys.stdin.read()
`

// maxFacts bounds the line that factsProgram prints, in bytes.
const maxFacts = 4096

// parseFacts reads that line.
func parseFacts(line []byte) (f Facts, err error) {
	if err := json.Unmarshal(line, &f); err != nil {
		return f, fmt.Errorf("the program's facts %.200q: %w", line, err)
	}
	return f, nil
}

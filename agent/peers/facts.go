package peers

import (
	"encoding/json"
	"fmt"
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

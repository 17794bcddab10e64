package runs

import (
	"fmt"

	agentapi "github.com/pybox/pybox/agent/api"
	"github.com/pybox/pybox/agent/oci"
	"github.com/pybox/pybox/host/policy"
	"github.com/pybox/pybox/host/receipt"
)

// seccompProfile names the filter of oci.Seccomp.
const seccompProfile = "pybox"

// Configured is what a run with the limits l has configured, as the host decides it:
// the limits, and what is the same for every box. No list in it is null. The image,
// the program, its arguments, environment and standard input are left to the caller,
// as is the digest of the seccomp filter, which only the guest can tell.
func Configured(l policy.Limits) receipt.Configured {
	c := receipt.Configured{
		Args: []string{}, Env: []string{},
		Limits: receipt.Limits{
			MemoryBytes: l.MemoryBytes, PIDs: l.PIDs, CPUs: l.CPUs(),
			TimeoutMS: receipt.MS(l.Timeout), TimerMS: receipt.MS(agentapi.TimerAfter),
			StdoutBytes: l.OutputBytes, StderrBytes: l.OutputBytes,
			WorkBytes: l.MemoryBytes, WorkFiles: workFiles,
			Files: l.Files, FilesBytes: l.FilesBytes,
		},
		Network: "none", HostFolders: []string{}, Root: "read-only",
		User: fmt.Sprintf("%d:%d", oci.UID, oci.GID), Capabilities: []string{}, NoNewPrivs: true,
		Seccomp: receipt.Seccomp{Profile: seccompProfile}, Namespaces: []string{}, Inputs: []receipt.Input{},
	}
	for _, n := range oci.Namespaces() {
		c.Namespaces = append(c.Namespaces, string(n))
	}
	return c
}

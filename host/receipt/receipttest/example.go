package receipttest

import (
	"strings"
	"time"

	"github.com/pybox/pybox/host/receipt"
)

// Example is the receipt of a run in which all went well: print(6*7).
func Example() *receipt.Receipt {
	started := time.Date(2026, 11, 29, 23, 20, 47, 123_000_000, time.UTC)
	gone := []receipt.Confirmation{
		{Source: "task", Gone: true}, {Source: "container", Gone: true}, {Source: "cgroup", Gone: true},
		{Source: "processes", Gone: true}, {Source: "mounts", Gone: true},
	}
	stream := func(bytes int64, digit string) receipt.Stream {
		return receipt.Stream{Bytes: &bytes, KeptBytes: bytes, SHA256: ptr(strings.Repeat(digit, 64)), Complete: true}
	}
	return &receipt.Receipt{
		Schema: receipt.Schema,
		Run: receipt.Run{
			ID: "5319e024", StartedAt: started, EndedAt: started.Add(312 * time.Millisecond), QueuedMS: ptr(0.2),
			HostElapsedMS: 312.4, GuestElapsedMS: ptr(166.1),
			Stages: []receipt.Stage{{Name: "admitted", MS: 0.2}, {Name: "created", MS: 61.5}, {Name: "removed", MS: 40}},
		},
		Configured: receipt.Configured{
			Image:   receipt.Image{Name: "stdlib", Digest: "sha256:" + strings.Repeat("ab", 32)},
			Program: receipt.Input{Name: "main.py", Bytes: 11, SHA256: ptr(strings.Repeat("0", 64))},
			Args:    []string{}, Env: []string{},
			Limits: receipt.Limits{
				MemoryBytes: 128 << 20, PIDs: 32, CPUs: 0.5, TimeoutMS: 2000, TimerMS: 1000, StdoutBytes: 1 << 20, StderrBytes: 1 << 20,
				WorkBytes: 128 << 20, WorkFiles: 8192, Files: 32, FilesBytes: 32 << 20,
			},
			Network: "none", HostFolders: []string{}, Root: "read-only", User: "1000:1000", Capabilities: []string{}, NoNewPrivs: true,
			Seccomp:    receipt.Seccomp{Profile: "pybox", SHA256: ptr(strings.Repeat("1", 64))},
			Namespaces: []string{"user", "pid", "network", "ipc", "uts", "mount", "cgroup"}, Inputs: []receipt.Input{},
		},
		Observed: receipt.Observed{
			Engine: receipt.Engine{
				SettingsChecked: true,
				Checks: []receipt.Check{
					{Setting: "memory limit", Expected: "134217728", Found: "134217728", Source: "memory.max", OK: true},
					{Setting: "process limit", Expected: "32", Found: "32", Source: "pids.max", OK: true, Again: true},
				},
				Exit: &receipt.Exit{Code: ptr(0)}, RuntimeVersions: map[string]string{"containerd": "2.4.2", "crun": "1.21"},
				Box: receipt.Box{Kind: ptr("cold"), Preimported: []string{}, RunnerSHA256: ptr(strings.Repeat("2", 64)), Removed: true, Confirmations: gone},
			},
			Kernel: receipt.Kernel{
				MemoryPeakBytes: ptr(int64(2_621_440)), PIDsPeak: ptr(int64(2)), CPUUsec: ptr(int64(81_000)), Periods: ptr(int64(1)),
				ThrottledPeriods: ptr(int64(0)), ThrottledUsec: ptr(int64(0)), OOM: ptr(int64(0)), OOMKill: ptr(int64(0)),
				OOMGroupKill: ptr(int64(0)), PIDsMaxHits: ptr(int64(0)), Final: true, Source: "cgroup",
				Samples: []receipt.Sample{{MS: 100, MemoryBytes: 2_500_000, PIDs: 2, CPUUsec: 50_000}},
			},
			VM: receipt.VM{
				Driver: "qemu", VMM: "QEMU 7.2.9", Acceleration: "kvm", GuestArch: "amd64", BootID: "7b2f2b0e-6f0c-4d6e-8c60-3d1f0f2d9d11",
				KernelKind: "own", KernelRelease: "6.12.1", KernelSHA256: strings.Repeat("3", 64), RootSHA256: strings.Repeat("4", 64),
				Agent: "1.0.0", Clock: &receipt.Clock{OffsetMS: -1.2, BoundMS: 0.4},
			},
		},
		Program: receipt.Program{Stdout: stream(3, "5"), Stderr: stream(0, "6"), Files: []receipt.File{}, FilesUnlisted: []receipt.FileCount{}},
		Ending: receipt.Ending{
			How: receipt.HowExited, By: receipt.ByProgram,
			Evidence: []string{"the box's PID 1 reports that the main process exited with code 0"},
		},
		Cleanup: receipt.Cleanup{Status: receipt.CleanupRemoved, Confirmations: gone},
		Unknown: []receipt.Unknown{
			{Fact: receipt.FactFilter, Why: "the kernel does not give it back"},
			{Fact: receipt.FactClock + " (within ±0.4 ms)", Why: "the clocks of host and guest are compared by messages, which take their time"},
		},
	}
}

// Ended is Example with another ending and wait status, and another id.
func Ended(id string, e receipt.Ending, exit *receipt.Exit) *receipt.Receipt {
	r := Example()
	r.Run.ID, r.Ending, r.Observed.Engine.Exit = id, e, exit
	return r
}

// Lost is the receipt of a run whose VM was lost: nobody gave a record.
func Lost() *receipt.Receipt {
	r := Ended("lost", receipt.Ending{How: receipt.HowVMLost, By: receipt.ByHost, Evidence: []string{"the machine was killed: 'vm stop --force'"}}, nil)
	r.Run.QueuedMS, r.Run.GuestElapsedMS, r.Run.Stages = nil, nil, []receipt.Stage{}
	r.Configured.Seccomp.SHA256 = nil
	e := &r.Observed.Engine
	e.SettingsChecked, e.Checks, e.Box = false, []receipt.Check{}, receipt.Box{Confirmations: []receipt.Confirmation{}}
	r.Observed.Kernel = receipt.Kernel{Source: "none", Samples: []receipt.Sample{}}
	r.Program.Stdout.Bytes, r.Program.Stdout.SHA256, r.Program.Stdout.Complete = nil, nil, false
	r.Program.Stderr.Bytes, r.Program.Stderr.SHA256, r.Program.Stderr.Complete = nil, nil, false
	r.Unknown = append(r.Unknown, receipt.Unknown{Fact: receipt.FactFiles, Why: receipt.WhyFiles})
	r.Cleanup = receipt.Cleanup{Status: receipt.CleanupVMGone, Confirmations: []receipt.Confirmation{{Source: "vm", Gone: true}}}
	for _, fact := range []string{
		"run.queued_ms", "run.guest_elapsed_ms", "observed.engine.exit", "memory_peak_bytes", "pids_peak", "cpu_usec", "periods", "throttled_periods", "throttled_usec",
		"oom", "oom_kill", "oom_group_kill", "pids_max_hits", "program.stdout.bytes", "program.stderr.bytes",
	} {
		r.Unknown = append(r.Unknown, receipt.Unknown{Fact: fact, Why: "the guest gave no record of the run"})
	}
	return r
}

// WithFiles is Example with two inputs, of a program that left some files: three came
// back, and others did not.
func WithFiles() *receipt.Receipt {
	r := Example()
	r.Configured.Inputs = []receipt.Input{
		{Name: "data", Folder: true},
		{Name: "data/in.csv", Bytes: 2048, SHA256: ptr(strings.Repeat("7", 64))},
	}
	r.Program.Files = []receipt.File{
		{Name: "Out", Folder: true, Returned: true},
		{Name: "Out/plot.png", Bytes: 20_480, SHA256: ptr(strings.Repeat("8", 64)), Returned: true, File: strings.Repeat("9", 32)},
		{Name: "out", Folder: true, Reason: receipt.FileTwin},
		{Name: "run.sh", Bytes: 9, SHA256: ptr(strings.Repeat("a", 64)), Executable: true, Returned: true},
		{Name: "cache", Reason: receipt.FileLink},
		{Name: "giant", Bytes: 1<<53 - 1, Reason: receipt.FileTooLarge},
	}
	r.Program.FilesUnlisted = []receipt.FileCount{{Reason: receipt.FileTooMany, Count: 9000, Bytes: 90_000}}
	return r
}

func ptr[T any](v T) *T { return &v }

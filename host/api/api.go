// Package api is the HTTP API of the PyBox daemon: the plain types that travel as
// JSON over its Unix socket, and a client for it. It has no logic of its own, so
// that every program may import it. Any HTTP/1.1 client can speak it:
//
//	curl --unix-socket ~/.pybox/pybox.sock http://pybox/v1/status
package api

import (
	"time"

	"github.com/pybox/pybox/vm"
)

// Paths of the API.
const (
	PathStatus  = "/v1/status"
	PathOpenAPI = "/v1/openapi.json" // GET: the description of this API, OpenAPI 3.1
	PathVMStart = "/v1/vm/start"     // POST; waits until the VM is ready or has failed
	PathVMStop  = "/v1/vm/stop"      // POST, StopRequest; waits until the VM is gone
)

// State is where the VM is in its life.
type State string

// The states of a VM. A daemon lives as long as its VM, so "stopped" is only ever
// told by a client that found no daemon.
const (
	StateStopped  State = "stopped"
	StateStarting State = "starting"
	StateRunning  State = "running"
	StateStopping State = "stopping"
)

// Status answers PathStatus.
type Status struct {
	State   State  `json:"state"`
	Version string `json:"version"`
	// Since is when the state was entered.
	Since time.Time `json:"since"`
	// Stages are the steps of the start that are done, in order.
	Stages []Stage `json:"stages,omitempty"`
	Daemon Daemon  `json:"daemon"`
	VM     *VM     `json:"vm,omitempty"`
	Guest  *Guest  `json:"guest,omitempty"`
	// Runs counts the runs in progress, nil when there is no VM.
	Runs *RunCount `json:"runs,omitempty"`
	// LastEnd is how the VM before this one ended, or this one when stopped.
	LastEnd *End `json:"last_end,omitempty"`
}

// RunCount counts runs.
type RunCount struct {
	// Active are those in progress, Queued those of them that wait for room.
	Active int `json:"active"`
	Queued int `json:"queued"`
}

// Stage is one step of a start. Steps that the guest goes through beside each other
// overlap, and some of them end after the hello.
type Stage struct {
	Name string `json:"name"`
	// MS is how long it took, AtMS when it was done, in milliseconds: since the daemon
	// started by the host's clock, since the kernel started by the guest's.
	MS   float64 `json:"ms"`
	AtMS float64 `json:"at_ms"`
	// Source says whose clock measured it: "host" or "guest".
	Source string `json:"source"`
}

// Daemon describes the process that owns the VM.
type Daemon struct {
	PID    int    `json:"pid"`
	Socket string `json:"socket"`
	Home   string `json:"home"`
	// Listen is the TCP address where the API is served beside the socket, to who has
	// the token in the file api-token of Home; empty: nowhere.
	Listen string `json:"listen,omitempty"`
	// RSSBytes is its own memory, anonymous and of files. Guest RAM that the
	// socket device maps is shared memory and counts for the VM. 0 where the
	// host does not tell.
	RSSBytes int64 `json:"rss_bytes,omitempty"`
}

// VM describes the machine from the host's side.
type VM struct {
	vm.Facts
	Arch        string `json:"arch"`
	CPUs        int    `json:"cpus"`
	MemoryBytes int64  `json:"memory_bytes"`
	// Bundle is the SHA-256 of the bundle's manifest, which names all inputs below.
	Bundle string `json:"bundle"`
	// KernelKind is "own" (PyBox's configuration), "custom" (a person's) or
	// "debian-cloud".
	KernelKind    string `json:"kernel_kind"`
	KernelVersion string `json:"kernel_version"`
	KernelSHA256  string `json:"kernel_sha256"`
	// KernelConfigSHA256 is the digest of the kernel's configuration, "" where it
	// was not built from one here.
	KernelConfigSHA256 string `json:"kernel_config_sha256,omitempty"`
	// KernelArgs is the kernel's command line but for "console=", which the driver
	// puts before it.
	KernelArgs []string `json:"kernel_args"`
	// InitramfsSHA256 is "" for a kernel that needs none.
	InitramfsSHA256 string `json:"initramfs_sha256,omitempty"`
	RootSHA256      string `json:"root_sha256"`
	// InitSHA256 and AgentSHA256 are the digests of the two programs of PyBox in
	// the root, AgentVersion the version that the bundle was made with.
	InitSHA256   string `json:"init_sha256,omitempty"`
	AgentSHA256  string `json:"agent_sha256"`
	AgentVersion string `json:"agent_version"`
	// LockSHA256 is the digest of the lock file, which names every Debian package.
	LockSHA256 string `json:"lock_sha256"`
	// Images are the file systems that boxes can have: those of the bundle, and
	// then those of one's own.
	Images []Image `json:"images"`
	// LeftOut are the images of one's own that this VM has not, because of what was
	// wrong with them when it started.
	LeftOut []LeftOut `json:"left_out,omitempty"`
	// IdleStopAt is when the VM stops unless something uses it (zero: never).
	IdleStopAt time.Time `json:"idle_stop_at,omitzero"`
}

// Guest is what the agent said. Nothing of it is trusted; it was bounded and
// checked for form.
type Guest struct {
	// Answering is false when the agent did not answer within the daemon's
	// deadline for a status; the readings are then those of ReadAt.
	Answering       bool      `json:"answering"`
	ReadAt          time.Time `json:"read_at,omitzero"`
	BootID          string    `json:"boot_id"`
	KernelRelease   string    `json:"kernel_release"`
	Agent           string    `json:"agent"`
	ProtocolVersion uint32    `json:"protocol_version"`
	ShellEnabled    bool      `json:"shell_enabled"`

	MemoryTotalBytes int64   `json:"memory_total_bytes"`
	MemoryUsedBytes  int64   `json:"memory_used_bytes"`
	AgentRSSBytes    int64   `json:"agent_rss_bytes"`
	InitRSSBytes     int64   `json:"init_rss_bytes"`
	UptimeMS         float64 `json:"uptime_ms"`
	Boxes            uint32  `json:"boxes"`
	// Waiting are runs that wait for room.
	Waiting uint32 `json:"waiting"`
	// Engine is what makes boxes: "starting", "ready", "recovering", or
	// "failed: " and why; empty while it has not been read.
	Engine string `json:"engine,omitempty"`
	// ShimRSSBytes is the memory of containerd's shim, 0 while none runs.
	ShimRSSBytes int64  `json:"shim_rss_bytes,omitempty"`
	Clock        *Clock `json:"clock,omitempty"`
	// Ready are the boxes that are made ahead, by image.
	Ready []ReadyBoxes `json:"ready,omitempty"`
}

// ReadyBoxes are the boxes of one image that are made ahead, for runs that ask for
// nothing but that.
type ReadyBoxes struct {
	Image string `json:"image"`
	// Wanted is how many there are to be, Ready how many wait for a run.
	Wanted int `json:"wanted"`
	Ready  int `json:"ready"`
	Making int `json:"making"`
	// FirstMS is when the first was ready, in milliseconds since the guest's hello; nil:
	// none was yet.
	FirstMS *float64 `json:"first_ms,omitempty"`
	// Trouble is why the last one could not be made or kept.
	Trouble string `json:"trouble,omitempty"`
}

// Image is the read-only file system of boxes.
type Image struct {
	Name   string `json:"name"`
	SHA256 string `json:"sha256"`
	Bytes  int64  `json:"bytes"`
	// Own tells an image that a person built or imported from those of the bundle.
	Own bool `json:"own,omitempty"`
}

// LeftOut is an image that a VM has not.
type LeftOut struct {
	// Name is "" where none of the images of one's own could be used.
	Name string `json:"name"`
	// SHA256 and CreatedAt are those of its record when the VM started, and missing
	// where that was damaged: what has others was made since.
	SHA256    string    `json:"sha256,omitempty"`
	CreatedAt time.Time `json:"created_at,omitzero"`
	// Why and Next are a sentence each: what was wrong, and what to do.
	Why  string `json:"why"`
	Next string `json:"next"`
}

// ClockHolds is how long a Clock tells of the present. Without one that is younger the
// guest's clock is not known.
const ClockHolds = time.Minute

// Clock is how the guest's wall clock compares with the host's.
type Clock struct {
	// OffsetMS is guest minus host, BoundMS half the round trip of the
	// measurement: the truth is within OffsetMS ± BoundMS.
	OffsetMS float64 `json:"offset_ms"`
	BoundMS  float64 `json:"bound_ms"`
	// Stepped tells that the guest's clock was set right before the measurement.
	Stepped    bool      `json:"stepped"`
	MeasuredAt time.Time `json:"measured_at"`
}

// End is how a VM ended, or why it did not start.
type End struct {
	At time.Time `json:"at"`
	// PID is the daemon's that had it.
	PID int `json:"pid"`
	// Started is false when the VM never became ready.
	Started bool `json:"started"`
	// Reason is one sentence; By is "client", "idle", "signal", "guest",
	// "vmm", "daemon" or "host".
	Reason string `json:"reason"`
	By     string `json:"by"`
	// Problem is set when it was not wanted.
	Problem *Problem `json:"problem,omitempty"`
}

// StopRequest is the body of PathVMStop; an empty body is the zero value.
type StopRequest struct {
	// TimeoutMS is how long the guest may take to power off before it is
	// killed: 0 means the default, 5 s; at most MaxStopTimeout.
	TimeoutMS int64 `json:"timeout_ms,omitempty"`
	// Force kills it at once.
	Force bool `json:"force,omitempty"`
	// IfIdle stops it only if nothing uses it: no run and no connection to its
	// shell, no start that is going on, no file that is being stored or waits for its
	// run, and nothing that a run gave or left and its client has not taken. Otherwise
	// the answer is a ProblemInUse, and nothing has changed. From the moment that it
	// is granted no run begins.
	IfIdle bool `json:"if_idle,omitempty"`
}

// MaxStopTimeout bounds StopRequest.TimeoutMS.
const MaxStopTimeout = time.Minute

// Problem is an error as RFC 9457 problem details, with PyBox's own members.
type Problem struct {
	// Type is a stable word: ProblemStart and so on, prefixed as a URN.
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status,omitempty"`
	// Detail says what happened.
	Detail string `json:"detail"`
	// VMState, LikelyCause, Next and ConsoleTail belong to a failed start:
	// what the VMM did, what it probably means, what to do, and the last lines
	// of the guest's console (hostile text, without control characters).
	VMState     string   `json:"vm_state,omitempty"`
	LikelyCause string   `json:"likely_cause,omitempty"`
	Next        string   `json:"next,omitempty"`
	ConsoleTail []string `json:"console_tail,omitempty"`
	// Stages are the steps that a failed start had done.
	Stages []Stage `json:"stages,omitempty"`
}

// Types of problems.
const (
	ProblemStart      = "urn:pybox:vm-start-failed"
	ProblemStopping   = "urn:pybox:vm-stopping"
	ProblemInUse      = "urn:pybox:vm-in-use"
	ProblemBadRequest = "urn:pybox:bad-request"
	ProblemNotFound   = "urn:pybox:not-found"
	ProblemInternal   = "urn:pybox:internal"
	ProblemNotAllowed = "urn:pybox:not-allowed" // over TCP: no token, or from elsewhere
)

// Error implements error with the sentence that matters.
func (p *Problem) Error() string {
	if p.Detail == "" {
		return p.Title
	}
	return p.Detail
}

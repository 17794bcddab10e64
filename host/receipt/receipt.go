// Package receipt is the record of a run, as plain types that every program may
// import. It keeps four kinds of fact apart: what was configured, what the engine
// and the kernel observed, what the program printed (untrusted), and what is not
// known. It composes, stores and shows nothing. docs/receipt.md says of each fact
// where it is read and what it can and cannot tell; docs/receipt.v1.schema.json is
// the same as a JSON Schema.
package receipt

import "time"

// Schema names the format. A reader refuses any other.
const Schema = "pybox.receipt/v1"

// How a run ended: Ending.How.
const (
	HowExited    = "exited"    // the program ended by itself
	HowDeadline  = "deadline"  // the agent killed it when its time was over
	HowBoxTimer  = "box_timer" // PID 1 of the guest did, since the agent had not
	HowCancelled = "cancelled" // the client gave it up
	HowMemory    = "memory"    // its box's memory limit was reached and the kernel killed it
	HowSignal    = "signal"    // a signal ended it, of unknown cause unless By says it
	HowRefused   = "refused"   // it was never started; Reason says why
	HowVMLost    = "vm_lost"   // the VM was lost while it ran
	HowUnknown   = "unknown"   // none of the above is established
)

// Who ended a run: Ending.By.
const (
	ByProgram    = "program"
	ByAgent      = "agent"
	ByPID1       = "pid1"
	ByGuestPanic = "guest_panic"
	ByHost       = "host"
	ByKernelOOM  = "kernel_oom"
	ByClient     = "client"
	ByUnknown    = "unknown"
)

// Why a run was refused: Ending.Reason.
const (
	ReasonSettings    = "settings"    // a setting of the made box differs from the policy
	ReasonInterpreter = "interpreter" // the image's python3 did not become ready
	ReasonFiles       = "files"       // the files could not be written
	ReasonTimer       = "timer"       // PID 1 of the guest did not take the last-resort timer
	ReasonEngine      = "engine"      // the box could not be made
)

// Receipt is the record of a run. Numbers that could not be read are null, and
// Unknown then says why.
type Receipt struct {
	Schema     string     `json:"schema"`
	Run        Run        `json:"run"`
	Configured Configured `json:"configured"`
	Observed   Observed   `json:"observed"`
	Program    Program    `json:"program"`
	Ending     Ending     `json:"ending"`
	Cleanup    Cleanup    `json:"cleanup"`
	// Unknown is what could not be established.
	Unknown []Unknown `json:"unknown"`
}

// Run says which run it was and how long things took.
type Run struct {
	// ID is 1 to 40 of a-z, 0-9 and "-".
	ID string `json:"id"`
	// StartedAt and EndedAt are the request and the verdict by the host's wall
	// clock, in UTC.
	StartedAt time.Time `json:"started_at"`
	EndedAt   time.Time `json:"ended_at"`
	// QueuedMS is the wait for room in the VM, and before that for the files that the run
	// may leave, and for nothing else. It is no part of
	// the program's time; null when the guest gave no record and it did not come to the box.
	QueuedMS *float64 `json:"queued_ms"`
	// HostElapsedMS is from the request to the verdict, by the host's monotonic
	// clock; GuestElapsedMS is the program's time, from the go to the end of its
	// main process, by the guest's; null when that is not known.
	HostElapsedMS  float64  `json:"host_elapsed_ms"`
	GuestElapsedMS *float64 `json:"guest_elapsed_ms"`
	// Stages are the steps of the run by the guest's clock, in order. The first one,
	// which is all that comes before the making of the box, is there when the guest
	// gave a record.
	Stages []Stage `json:"stages"`
}

// Stage is one step and how long it took.
type Stage struct {
	Name string  `json:"name"`
	MS   float64 `json:"ms"`
}

// Configured is what was asked for and decided before the run.
type Configured struct {
	Image   Image `json:"image"`
	Program Input `json:"program"`
	// Args are those behind the program's name; Env is what the client added to
	// the box's own environment, as NAME=value.
	Args   []string `json:"args"`
	Env    []string `json:"env"`
	Limits Limits   `json:"limits"`
	// Stdin is the standard input that was given; null: it was empty.
	Stdin *Input `json:"stdin"`
	// Network is "none"; HostFolders is empty; Root is "read-only".
	Network     string   `json:"network"`
	HostFolders []string `json:"host_folders"`
	Root        string   `json:"root"`
	// User is the user and group id of the program in its user namespace.
	User         string   `json:"user"`
	Capabilities []string `json:"capabilities"`
	NoNewPrivs   bool     `json:"no_new_privileges"`
	Seccomp      Seccomp  `json:"seccomp"`
	Namespaces   []string `json:"namespaces"`
	Inputs       []Input  `json:"inputs"`
}

// Image is the read-only file system of the box.
type Image struct {
	Name string `json:"name"`
	// Digest is "sha256:" and 64 hexadecimal digits.
	Digest string `json:"digest"`
}

// Input is a file that was put into the box, or a folder. SHA256 is hexadecimal, null
// for a folder and where the file was not sent whole.
type Input struct {
	Name   string  `json:"name"`
	Bytes  int64   `json:"bytes"`
	SHA256 *string `json:"sha256"`
	Folder bool    `json:"folder,omitempty"`
}

// Limits are what the box and the program were held to.
type Limits struct {
	MemoryBytes int64   `json:"memory_bytes"`
	PIDs        int64   `json:"pids"`
	CPUs        float64 `json:"cpus"`
	// TimeoutMS is the program's time, TimerMS how much later PID 1 of the guest
	// ends it when the agent has not.
	TimeoutMS float64 `json:"timeout_ms"`
	TimerMS   float64 `json:"timer_ms"`
	// StdoutBytes and StderrBytes are how much of each stream is kept.
	StdoutBytes int64 `json:"stdout_bytes"`
	StderrBytes int64 `json:"stderr_bytes"`
	// WorkBytes is the size of the working folder, whose content counts as
	// memory, and WorkFiles how many files and folders it can hold.
	WorkBytes int64 `json:"work_bytes"`
	WorkFiles int64 `json:"work_files"`
	// Files and FilesBytes bound what is put into the working folder beside the
	// program, and what comes back of it: files and folders, and their bytes.
	Files      int64 `json:"files"`
	FilesBytes int64 `json:"files_bytes"`
}

// Seccomp is the filter of system calls that the box was given.
type Seccomp struct {
	Profile string `json:"profile"`
	// SHA256 is hexadecimal, and the guest's word; null when it gave no record.
	SHA256 *string `json:"sha256"`
}

// Observed is what was seen from outside the box.
type Observed struct {
	Engine Engine `json:"engine"`
	Kernel Kernel `json:"kernel"`
	VM     VM     `json:"vm"`
}

// Engine is what the engine of boxes reports: the agent, containerd, crun.
type Engine struct {
	// SettingsChecked tells that every setting was read back from the made box
	// and was as configured, before the program started.
	SettingsChecked bool    `json:"settings_checked"`
	Checks          []Check `json:"checks"`
	// Exit is how the main process ended, null when that is not known.
	Exit *Exit `json:"exit"`
	// RuntimeVersions are those of what makes boxes, by name.
	RuntimeVersions map[string]string `json:"runtime_versions"`
	Box             Box               `json:"box"`
}

// Check is one setting of the made box. Again marks the second reading, after the
// files were written.
type Check struct {
	Setting  string `json:"setting"`
	Expected string `json:"expected"`
	Found    string `json:"found"`
	Source   string `json:"source"`
	OK       bool   `json:"ok"`
	Again    bool   `json:"again"`
}

// Exit is a wait status: Code of a process that exited, else Signal.
type Exit struct {
	Code   *int `json:"code"`
	Signal *int `json:"signal"`
}

// Box is the box of the run.
type Box struct {
	// Kind is "cold": made for this run, or "ready": made ahead, for whatever run came.
	// Null: no box was made, or the guest gave no record.
	Kind *string `json:"kind"`
	// WaitedMS is how long a box that was made ahead had waited; null for a cold one.
	WaitedMS *float64 `json:"waited_ms"`
	// Preimported are the modules that such a box had imported before the run. Null: a
	// box may have been made, and the guest gave no record of it.
	Preimported []string `json:"preimported"`
	// RunnerSHA256 is the digest of what waits in the box for the program.
	RunnerSHA256 *string `json:"runner_sha256"`
	// Removed tells that every source confirms that it is gone; Confirmations
	// are those of Cleanup.
	Removed       bool           `json:"removed"`
	Confirmations []Confirmation `json:"confirmations"`
}

// Kernel is what the kernel of the guest counted for the box. A null could not be
// read.
type Kernel struct {
	MemoryPeakBytes  *int64 `json:"memory_peak_bytes"`
	PIDsPeak         *int64 `json:"pids_peak"`
	CPUUsec          *int64 `json:"cpu_usec"`
	Periods          *int64 `json:"periods"`
	ThrottledPeriods *int64 `json:"throttled_periods"`
	ThrottledUsec    *int64 `json:"throttled_usec"`
	OOM              *int64 `json:"oom"`
	OOMKill          *int64 `json:"oom_kill"`
	OOMGroupKill     *int64 `json:"oom_group_kill"`
	PIDsMaxHits      *int64 `json:"pids_max_hits"`
	// Final tells that they were read after the end of the box's last process
	// and before its cgroup was removed.
	Final bool `json:"final"`
	// Source is "cgroup" for the box's own, "parent" where that was gone and the
	// cgroup of all boxes had to do, "none" where there is no reading.
	Source  string   `json:"source"`
	Samples []Sample `json:"samples"`
}

// Sample is a reading while the program ran, MS after its go.
type Sample struct {
	MS          float64 `json:"ms"`
	MemoryBytes int64   `json:"memory_bytes"`
	PIDs        int64   `json:"pids"`
	CPUUsec     int64   `json:"cpu_usec"`
}

// VM is the virtual machine that the box was in.
type VM struct {
	Driver       string `json:"driver"`
	VMM          string `json:"vmm"`
	Acceleration string `json:"acceleration"`
	GuestArch    string `json:"guest_arch"`
	BootID       string `json:"boot_id"`
	// KernelKind is "own" (PyBox's configuration), "custom" (a person's) or
	// "debian-cloud".
	KernelKind string `json:"kernel_kind"`
	// KernelRelease is uname -r of the guest.
	KernelRelease string `json:"kernel_release"`
	KernelSHA256  string `json:"kernel_sha256"`
	RootSHA256    string `json:"root_sha256"`
	Agent         string `json:"agent"`
	// ShellEnabled tells that a shell had been opened in the guest when the run ended.
	ShellEnabled bool `json:"shell_enabled"`
	// Clock is null when no comparison with the host's holds for that moment.
	Clock *Clock `json:"clock"`
}

// Clock is the guest's wall clock less the host's: OffsetMS ± BoundMS.
type Clock struct {
	OffsetMS float64 `json:"offset_ms"`
	BoundMS  float64 `json:"bound_ms"`
}

// Program is what the program wrote. Nothing of it is to be trusted.
type Program struct {
	Stdout Stream `json:"stdout"`
	Stderr Stream `json:"stderr"`
	// Files are those that the program left in its working folder, new or changed:
	// first those that were returned. FilesUnlisted are those that are too many for
	// the list, by reason. Whatever is missing in both is listed in Unknown as
	// FactFiles.
	Files         []File      `json:"files"`
	FilesUnlisted []FileCount `json:"files_unlisted"`
}

// Stream is one output stream. Bytes and SHA256 cover everything that was printed
// and are null when the guest gave no record; KeptBytes is what of it reached the
// host, from its beginning. Complete tells that the stream was read to its end and
// that everything kept has reached the host.
type Stream struct {
	Bytes     *int64  `json:"bytes"`
	KeptBytes int64   `json:"kept_bytes"`
	SHA256    *string `json:"sha256"`
	Complete  bool    `json:"complete"`
	// Text is the kept part where it is UTF-8, Base64 where it is not. Neither is
	// there in a stored receipt or beside a stream of events.
	Text   *string `json:"text,omitempty"`
	Base64 *string `json:"base64,omitempty"`
}

// Why a file was not returned: File.Reason and FileCount.Reason.
const (
	FileNotAsked   = "not_asked"  // the client asked for no files
	FileTooMany    = "too_many"   // limits.files is reached
	FileTooLarge   = "too_large"  // limits.files_bytes would be exceeded
	FileTooDeep    = "too_deep"   // more folders above it than are looked into
	FileName       = "name"       // no name that a file may have on every system
	FileTwin       = "twin"       // a name that some file systems take for that of another one
	FileLink       = "link"       // a symbolic link
	FileSpecial    = "special"    // neither file nor folder: a FIFO, a socket
	FileUnreadable = "unreadable" // the guest could not read it
	FileNotKept    = "not_kept"   // the host could not store it, or it did not come whole
)

// File is a file or a folder that the program left in its working folder.
type File struct {
	// Name is a relative path with "/" between its parts. Of what was not returned
	// it may be cut or changed to be shown.
	Name  string `json:"name"`
	Bytes int64  `json:"bytes"`
	// SHA256 is of the bytes that reached the host; null for what was not
	// returned, and for a folder.
	SHA256     *string `json:"sha256"`
	Folder     bool    `json:"folder,omitempty"`
	Executable bool    `json:"executable,omitempty"`
	Returned   bool    `json:"returned"`
	// Reason is one of the File constants for what was not returned, else empty.
	Reason string `json:"reason,omitempty"`
	// File is the id that the daemon has its bytes under for a while, in the
	// answer to the run alone: no stored receipt has one.
	File string `json:"file,omitempty"`
}

// FileCount is how many files no list has, and their bytes.
type FileCount struct {
	Reason string `json:"reason"`
	Count  int64  `json:"count"`
	Bytes  int64  `json:"bytes"`
}

// Ending is how the run ended, by whom, and why that is known.
type Ending struct {
	How string `json:"how"`
	By  string `json:"by"`
	// Reason is one of the Reason constants for a refused run, else empty.
	Reason   string   `json:"reason,omitempty"`
	Evidence []string `json:"evidence"`
}

// States of a cleanup.
const (
	CleanupRemoved    = "removed"    // every source confirms that the box is gone
	CleanupIncomplete = "incomplete" // not confirmed in time; a stored receipt is completed later
	CleanupVMGone     = "vm_gone"    // the VM has ended, and every box with it
	CleanupNone       = "none"       // no box was made
	CleanupUnknown    = "unknown"
)

// Cleanup is the removal of the box.
type Cleanup struct {
	Status        string         `json:"status"`
	Confirmations []Confirmation `json:"confirmations"`
}

// Confirmation is what one source says about the box.
type Confirmation struct {
	// Source is "task", "container", "cgroup", "processes", "mounts", or "vm".
	Source string `json:"source"`
	Gone   bool   `json:"gone"`
	// Detail is what is left, or why it could not be asked; empty when gone.
	Detail string `json:"detail,omitempty"`
}

// Facts that no run of a program can establish: Unknown.Fact. FactClock is followed
// by how close the clocks are known to be. FactFiles is a key of the receipt; WhyFiles
// is why nothing is known of it.
const (
	FactFiles  = "program.files"
	WhyFiles   = "the guest gave no list of what the program left"
	FactFilter = "whether the active seccomp filter is byte for byte the one we hashed"
	FactClock  = "exact clock alignment"
)

// Unknown is a fact that could not be established, and why.
type Unknown struct {
	Fact string `json:"fact"`
	Why  string `json:"why"`
}

// MS is a time as receipts have it, in milliseconds; no receipt has one below 0.
func MS(d time.Duration) float64 { return float64(max(d, 0)) / float64(time.Millisecond) }

// UTC is a moment as receipts have it: in UTC, and without the monotonic reading.
func UTC(t time.Time) time.Time { return t.Round(0).UTC() }

// Exit codes of a command that runs a program, where they are not the program's
// own. A program can end with each of them by itself: Ending tells.
const (
	ExitDeadline  = 124 // its time was over
	ExitFailed    = 125 // PyBox could not run it to its end: it had no VM, or none any more
	ExitRefused   = 126 // it was not started: a setting differed, or it asked for too much
	ExitSignal    = 128 // plus the number of the signal that ended it
	ExitCancelled = 130 // a client cancelled it, as by an interrupt from the keyboard
)

// sigkill is SIGKILL of signal(7), by which the kernel ends a process for want of
// memory.
const sigkill = 9

// ExitCode is the exit code of a command that ran the program: the program's own,
// or one of the constants.
func (r *Receipt) ExitCode() int {
	exit := r.Observed.Engine.Exit
	switch r.Ending.How {
	case HowExited:
		if exit != nil && exit.Code != nil {
			return *exit.Code
		}
	case HowSignal, HowMemory:
		if r.Ending.By == ByKernelOOM {
			return ExitSignal + sigkill // the status may have been lost with it
		}
		if exit != nil && exit.Signal != nil {
			return ExitSignal + *exit.Signal
		}
	case HowDeadline, HowBoxTimer:
		return ExitDeadline
	case HowCancelled:
		if r.Ending.By == ByClient {
			return ExitCancelled
		}
	case HowRefused:
		if r.Ending.Reason == ReasonSettings {
			return ExitRefused
		}
	}
	return ExitFailed
}

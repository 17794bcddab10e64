package api

// How a run ended: Ending.how.
const (
	HowExited    = "exited"    // the program ended by itself
	HowDeadline  = "deadline"  // the agent killed it when its time was over
	HowBoxTimer  = "box_timer" // PID 1 did, since the agent had not
	HowCancelled = "cancelled" // the client gave it up
	HowMemory    = "memory"    // its box's memory limit was reached: the kernel killed it
	HowSignal    = "signal"    // a signal ended it, of unknown cause unless Ending.by says it
	HowRefused   = "refused"   // it was never started; Ending.reason says why
	HowVMLost    = "vm_lost"   // the guest was lost; only the host can say so
	HowUnknown   = "unknown"
)

// Who ended a run: Ending.by.
const (
	ByProgram    = "program"
	ByAgent      = "agent"
	ByPID1       = "pid1"
	ByGuestPanic = "guest_panic"
	ByHost       = "host"
	ByKernelOOM  = "kernel_oom" // with HowSignal: for want of memory in the guest, not in the box
	ByClient     = "client"
	ByUnknown    = "unknown"
)

// Why a run was refused: Ending.reason.
const (
	ReasonSettings    = "settings"    // a setting of the made box differs from the policy
	ReasonInterpreter = "interpreter" // the image's python3 did not become ready
	ReasonFiles       = "files"       // the files could not be written
	ReasonTimer       = "timer"       // PID 1 did not take the last-resort timer
	ReasonEngine      = "engine"      // the box could not be made
)

// Why something in the working folder did not come back: NotReturned.reason and
// LeftCount.reason.
const (
	LeftNotAsked   = "not_asked"  // RunStart.collect is false
	LeftTooMany    = "too_many"   // RunStart.files is reached, or MaxNames; or more than MaxNotReturned before it did not fit
	LeftTooLarge   = "too_large"  // RunStart.files_bytes would be exceeded
	LeftTooDeep    = "too_deep"   // below more folders than are looked into; a folder stands for what is in it
	LeftName       = "name"       // no name that RunFile could have
	LeftLink       = "link"       // a symbolic link
	LeftSpecial    = "special"    // neither file nor folder
	LeftUnreadable = "unreadable" // it could not be read
)

// FactLeft is the fact of RunRecord.unknown where Left.complete is false, or where
// a program's end was seen and not its working folder.
const FactLeft = "program.files"

// Kinds of boxes: RunRecord.box_kind.
const (
	BoxCold  = "cold"  // made for this run
	BoxReady = "ready" // made ahead, for whatever run came
)

// Where counters come from: Counters.source.
const (
	CountersCgroup = "cgroup" // the box's own control group
	CountersParent = "parent" // that of all boxes: the own one was gone
)

// States of a cleanup: Cleanup.status.
const (
	CleanupRemoved    = "removed"
	CleanupIncomplete = "incomplete"
)

// Sources that confirm a removal: Confirmation.source.
const (
	GoneTask      = "task"
	GoneContainer = "container"
	GoneCgroup    = "cgroup"
	GoneProcesses = "processes"
	GoneMounts    = "mounts"
)

// States of what makes boxes: StatusResponse.engine, which is empty for an agent
// without boxes. EngineFailed is followed by why.
const (
	EngineStarting   = "starting"
	EngineReady      = "ready"
	EngineRecovering = "recovering" // after its shim was lost
	EngineFailed     = "failed: "
)

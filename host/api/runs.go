package api

import (
	"time"

	"github.com/pybox/pybox/host/receipt"
)

// Paths of runs, and of what belongs to them.
const (
	// PathRuns: POST a RunRequest to run a program. The answer is its receipt
	// with the output in it, or, to a client that accepts MediaEvents, one Event
	// a line as things happen. GET lists the runs in progress.
	PathRuns = "/v1/runs"
	// PathRun: DELETE cancels a run, whose own answer then tells how it ended.
	PathRun = "/v1/runs/{id}"
	// PathFiles: POST a body to keep it for one run; the answer is a StoredFile.
	PathFiles = "/v1/files"
	// PathFile: GET the bytes of a file that a run left, by the id that the
	// receipt of its answer has for it. It can be read more than once, until it is
	// forgotten: after ten minutes, or when the client DELETEs it.
	PathFile = "/v1/files/{file}"
	// PathImages: GET the images that a run can name.
	PathImages = "/v1/images"
	// PathReceipts: GET the newest of the kept receipts, ?limit= of them.
	PathReceipts = "/v1/receipts"
	// PathReceipt: GET one of them whole.
	PathReceipt = "/v1/receipts/{id}"
)

// MediaEvents is the media type of a stream of events: JSON, one value a line.
const MediaEvents = "application/x-ndjson"

// Types of problems of runs.
const (
	ProblemCeiling = "urn:pybox:above-ceiling" // more than the owner allows; exit code 126
	ProblemImage   = "urn:pybox:no-such-image"
	ProblemExists  = "urn:pybox:run-exists"   // the id is in use, or was
	ProblemBusy    = "urn:pybox:busy"         // there was no room in time
	ProblemNotRun  = "urn:pybox:not-run"      // the guest did not take it, or its files could not be sent
	ProblemFile    = "urn:pybox:no-such-file" // no stored file has that id
)

// Bounds of requests.
const (
	// MaxInline bounds a program or a standard input inside a RunRequest, in
	// bytes; larger ones go through PathFiles.
	MaxInline = 1 << 20
	// MaxProgramBytes bounds a program. It is memory in the box.
	MaxProgramBytes = 16 << 20
	// MaxStdinBytes bounds a standard input.
	MaxStdinBytes = 256 << 20
)

// What a run has that names none: its image, and the file name of its program.
const (
	DefaultImage   = "stdlib"
	DefaultProgram = "main.py"
)

// RunRequest asks for one run of a program.
type RunRequest struct {
	// ID names the run: 1 to 40 of a-z, 0-9 and "-", not in use, and of no kept
	// receipt. A run with an id of the client's goes on when the client hangs up;
	// one without is cancelled then. Who asks for the same again within ten minutes
	// of its end gets the same run; who asks for another with that id a ProblemExists.
	ID string `json:"id,omitempty"`
	// Image is DefaultImage when empty.
	Image   string `json:"image,omitempty"`
	Program Source `json:"program"`
	// Args are the arguments behind the program's name, at most 256 and 64 KiB.
	Args []string `json:"args,omitempty"`
	// Env is added to the environment of the box, as NAME=value, with the same
	// bounds.
	Env []string `json:"env,omitempty"`
	// Stdin is the program's standard input; nil: it is empty.
	Stdin *Source `json:"stdin,omitempty"`
	// Inputs are put into the working folder beside the program.
	Inputs []InputFile `json:"inputs,omitempty"`
	// Collect keeps what the program leaves in its working folder, new or
	// changed, for the client: see PathFile. Without it that is only listed.
	Collect bool   `json:"collect,omitempty"`
	Limits  Limits `json:"limits,omitzero"`
	// Watch asks for the events of stages, settings and samples too.
	Watch bool `json:"watch,omitempty"`
}

// Source is the content of a file. It has exactly one of Text, Base64 and File.
type Source struct {
	// Name is the program's file name in the box, DefaultProgram when empty; a
	// standard input has none.
	Name   string  `json:"name,omitempty"`
	Text   *string `json:"text,omitempty"`
	Base64 *string `json:"base64,omitempty"`
	// File is the id of a StoredFile, which is gone after it was used.
	File string `json:"file,omitempty"`
}

// InputFile is a file or folder of the working folder. Its content is a Source
// whose Name is the relative path, with "/" between its parts; the folders above it
// are made too.
type InputFile struct {
	Source
	// Executable lets the program execute it, as far as the box allows that.
	Executable bool `json:"executable,omitempty"`
	// Folder makes a folder: it has a name and no content.
	Folder bool `json:"folder,omitempty"`
}

// Limits is what a run asks for; what is nil is the image's default, and nothing
// can be above the owner's ceiling.
type Limits struct {
	TimeoutMS   *float64 `json:"timeout_ms,omitempty"`
	MemoryBytes *int64   `json:"memory_bytes,omitempty"`
	CPUs        *float64 `json:"cpus,omitempty"`
	PIDs        *int64   `json:"pids,omitempty"`
	// OutputBytes is how much of each output stream is kept.
	OutputBytes *int64 `json:"output_bytes,omitempty"`
	Files       *int64 `json:"files,omitempty"`
	FilesBytes  *int64 `json:"files_bytes,omitempty"`
}

// Kinds of events: Event.Event. Each run has EventAccepted first and EventReceipt
// or EventProblem last; EventStage, EventCheck and EventSample are there for a
// client that watches.
const (
	EventAccepted = "accepted" // ID
	EventQueued   = "queued"   // Ahead, For: the run waits for room
	EventAdmitted = "admitted" // there is room
	EventStage    = "stage"    // Stage: a step of the making or the removal of the box is done
	EventCheck    = "check"    // Check: a setting was read back
	EventStarted  = "started"  // the program got its go
	EventOutput   = "output"   // Stream, and Text or Base64
	EventSample   = "sample"   // Sample
	EventExited   = "exited"   // Ending, Exit: how the program ended, as soon as that is known
	EventReceipt  = "receipt"  // Receipt, without output
	EventProblem  = "problem"  // Problem: there was no run
)

// ForFiles is Event.For where a run waits in the daemon, for room for the files that it
// may leave; without it the run waits in the VM.
const ForFiles = "files"

// Event is one thing that happened in a run.
type Event struct {
	Event string `json:"event"`
	// MS is since the daemon took the request, by the host's monotonic clock.
	MS     float64         `json:"ms"`
	ID     string          `json:"id,omitempty"`
	Ahead  *int            `json:"ahead,omitempty"`
	For    string          `json:"for,omitempty"`
	Stage  *receipt.Stage  `json:"stage,omitempty"`
	Check  *receipt.Check  `json:"check,omitempty"`
	Sample *receipt.Sample `json:"sample,omitempty"`
	// Stream is "stdout" or "stderr"; Text is there when the piece is UTF-8, else
	// Base64.
	Stream  string           `json:"stream,omitempty"`
	Text    *string          `json:"text,omitempty"`
	Base64  *string          `json:"base64,omitempty"`
	Ending  *receipt.Ending  `json:"ending,omitempty"`
	Exit    *receipt.Exit    `json:"exit,omitempty"`
	Receipt *receipt.Receipt `json:"receipt,omitempty"`
	Problem *Problem         `json:"problem,omitempty"`
	// NotKept says, beside a receipt, why it could not be stored.
	NotKept string `json:"not_kept,omitempty"`
	// Replay tells, with EventAccepted, that an earlier request began the run.
	Replay bool `json:"replay,omitempty"`
}

// StoredFile answers PathFiles. The file is forgotten after ten minutes.
type StoredFile struct {
	File   string `json:"file"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}

// ActiveRun is a run in progress.
type ActiveRun struct {
	ID        string    `json:"id"`
	Image     string    `json:"image"`
	Program   string    `json:"program"`
	StartedAt time.Time `json:"started_at"`
	// State is "queued", "making", "running" or "ending".
	State string `json:"state"`
}

// Runs answers a GET of PathRuns.
type Runs struct {
	Runs []ActiveRun `json:"runs"`
}

// Images answers PathImages.
type Images struct {
	Images []Image `json:"images"`
}

// ReceiptSummary is a line of a list of receipts.
type ReceiptSummary struct {
	ID        string    `json:"id"`
	StartedAt time.Time `json:"started_at"`
	Image     string    `json:"image"`
	Program   string    `json:"program"`
	How       string    `json:"how"`
	ExitCode  int       `json:"exit_code"`
	// ElapsedMS is the program's time, null when it is not known.
	ElapsedMS *float64 `json:"elapsed_ms"`
	// Damaged says why the kept file cannot be read: then only ID and StartedAt,
	// which its name tells, are true.
	Damaged string `json:"damaged,omitempty"`
}

// Receipts answers PathReceipts, newest first.
type Receipts struct {
	Receipts []ReceiptSummary `json:"receipts"`
}

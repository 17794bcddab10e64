package mcp

import (
	"github.com/pybox/pybox/host/mcp/frame"
	"github.com/pybox/pybox/host/receipt"
	"github.com/pybox/pybox/host/show"
)

// Output is the structured content of a result: what is known of the run, and what the
// program printed and left, which is untrusted.
type Output struct {
	OK       bool    `json:"ok" jsonschema:"the program ended by itself with exit code 0"`
	ExitCode *int    `json:"exit_code" jsonschema:"the program's own; null when it did not end by itself"`
	Signal   *int    `json:"signal" jsonschema:"the signal that ended it; null when none did"`
	Ending   Ending  `json:"ending"`
	Stdout   Printed `json:"stdout"`
	Stderr   Printed `json:"stderr"`
	Files    []Left  `json:"files" jsonschema:"what the program left in its working folder, new or changed"`
	Unlisted int64   `json:"files_unlisted" jsonschema:"how many more files it left than are listed"`
	Receipt  Receipt `json:"receipt"`
}

// Ending is how the run ended, by whom, and why that is known.
type Ending struct {
	How    string `json:"how" jsonschema:"exited, deadline, box_timer, memory, signal, cancelled, refused, vm_lost or unknown"`
	By     string `json:"by"`
	Reason string `json:"reason,omitempty" jsonschema:"why it was refused"`
}

// Printed is an output stream.
type Printed struct {
	Bytes    *int64  `json:"bytes" jsonschema:"how many bytes were printed; null when that is not known"`
	Kept     int64   `json:"kept_bytes" jsonschema:"how many of them were kept, from the beginning"`
	SHA256   *string `json:"sha256" jsonschema:"of everything that was printed"`
	Complete bool    `json:"complete"`
	Text     string  `json:"text" jsonschema:"untrusted: what was printed, or the beginning of it, with control characters escaped"`
	Omitted  int64   `json:"omitted_bytes" jsonschema:"how many bytes between text and tail are left out here"`
	Tail     string  `json:"tail,omitempty" jsonschema:"untrusted: the end of what was kept"`
}

// How a file is given: Left.Given.
const (
	givenImage = "image"
	givenText  = "text"
	givenBlob  = "blob"
)

// Left is a file that the program left.
type Left struct {
	Name   string  `json:"name" jsonschema:"untrusted; control characters are escaped"`
	Bytes  int64   `json:"bytes"`
	SHA256 *string `json:"sha256" jsonschema:"of the file as the program left it; null when it did not come back"`
	Given  string  `json:"given,omitempty" jsonschema:"image, text or blob: it is in the content of this result"`
	Note   string  `json:"note,omitempty" jsonschema:"why it is not, or how it differs"`
	URI    string  `json:"uri,omitempty" jsonschema:"of the embedded resource"`
}

// Receipt is the record of the run in short; 'pybox receipt show ID' has all of it.
type Receipt struct {
	ID           string   `json:"id"`
	Image        string   `json:"image"`
	ImageDigest  string   `json:"image_digest"`
	Limits       Limits   `json:"limits"`
	ElapsedMS    *float64 `json:"elapsed_ms" jsonschema:"the program's time"`
	QueuedMS     *float64 `json:"queued_ms" jsonschema:"the wait for room in the VM"`
	MemoryPeak   *int64   `json:"memory_peak_bytes"`
	PIDsPeak     *int64   `json:"pids_peak"`
	CPUUsec      *int64   `json:"cpu_usec"`
	OOMKill      *int64   `json:"oom_kill" jsonschema:"how many processes the kernel killed for want of memory"`
	Network      string   `json:"network"`
	Settings     bool     `json:"settings_checked" jsonschema:"the box was checked before the program started"`
	Cleanup      string   `json:"cleanup"`
	Acceleration string   `json:"acceleration"`
	Unknown      []string `json:"unknown" jsonschema:"facts that could not be established"`
}

// Limits are what the run was held to.
type Limits struct {
	TimeoutMS   float64 `json:"timeout_ms"`
	MemoryBytes int64   `json:"memory_bytes"`
	CPUs        float64 `json:"cpus"`
	PIDs        int64   `json:"pids"`
	OutputBytes int64   `json:"output_bytes"`
}

// maxWord bounds what is told of a word of the guest's.
const maxWord = 200

// outputOf is what a receipt tells; files are added by who gives them.
func outputOf(r *receipt.Receipt, stdout, stderr frame.Short) Output {
	o := Output{
		OK:      r.Ending.How == receipt.HowExited && r.ExitCode() == 0,
		Ending:  Ending{word(r.Ending.How), word(r.Ending.By), word(r.Ending.Reason)},
		Stdout:  printed(r.Program.Stdout, stdout),
		Stderr:  printed(r.Program.Stderr, stderr),
		Files:   []Left{},
		Receipt: receiptOf(r),
	}
	if e := r.Observed.Engine.Exit; e != nil {
		o.ExitCode, o.Signal = e.Code, e.Signal
	}
	for _, n := range r.Program.FilesUnlisted {
		o.Unlisted += n.Count
	}
	return o
}

func word(s string) string { return show.Escape(s, maxWord) }

func printed(s receipt.Stream, short frame.Short) Printed {
	return Printed{
		Bytes: s.Bytes, Kept: s.KeptBytes, SHA256: s.SHA256, Complete: s.Complete,
		Text: short.Head, Omitted: short.Omitted, Tail: short.Tail,
	}
}

func receiptOf(r *receipt.Receipt) Receipt {
	k, l := r.Observed.Kernel, r.Configured.Limits
	c := Receipt{
		ID: word(r.Run.ID), Image: word(r.Configured.Image.Name), ImageDigest: word(r.Configured.Image.Digest),
		Limits:    Limits{l.TimeoutMS, l.MemoryBytes, l.CPUs, l.PIDs, l.StdoutBytes},
		ElapsedMS: r.Run.GuestElapsedMS, QueuedMS: r.Run.QueuedMS,
		MemoryPeak: k.MemoryPeakBytes, PIDsPeak: k.PIDsPeak, CPUUsec: k.CPUUsec, OOMKill: k.OOMKill,
		Network: word(r.Configured.Network), Settings: r.Observed.Engine.SettingsChecked,
		Cleanup: word(r.Cleanup.Status), Acceleration: word(r.Observed.VM.Acceleration), Unknown: []string{},
	}
	for _, u := range r.Unknown {
		c.Unknown = append(c.Unknown, word(u.Fact))
	}
	return c
}

// Package history is the record of a repair, as plain types: every round with its
// code, its diff and its receipt, what was spent, and what ended it. docs/repair.md
// describes it. It composes and stores nothing.
package history

import (
	"time"

	"github.com/pybox/pybox/host/receipt"
	"github.com/pybox/pybox/host/repair/model"
)

// Schema names the format. A reader refuses any other.
const Schema = "pybox.repair/v1"

// What ended a repair: End.By.
const (
	EndFine        = "fine"         // the program worked as it was
	EndRepaired    = "repaired"     // the last round's works
	EndRounds      = "rounds"       // all rounds are over
	EndWall        = "wall_budget"  // the time of the whole is
	EndModelTime   = "model_budget" // the time for the model is
	EndRunTime     = "run_budget"   // the time for runs is
	EndTokens      = "token_budget" // the tokens are spent
	EndRepetition  = "repetition"   // the model gave code that it had given before
	EndModel       = "model_failed" // the model could not be asked any more
	EndRun         = "run_failed"   // PyBox could not run the program
	EndInterrupted = "interrupted"  // somebody gave it up
	EndUnfinished  = "unfinished"   // nothing: the record is of one that goes on, or was killed
)

// Reasons for which an answer is refused, beside those of package answer:
// Answer.Refused.
const (
	RefusedNoChange = "no_change"  // it is the program as it was
	RefusedRepeated = "repetition" // it was there before
	RefusedCut      = "cut_off"    // it was not complete at its bound
	RefusedDeclined = "declined"   // the model, or its provider, declined
	RefusedKey      = "has_key"    // it has the key in it; it is not kept
)

// History is the record of a repair.
type History struct {
	Schema    string    `json:"schema"`
	StartedAt time.Time `json:"started_at"`
	EndedAt   time.Time `json:"ended_at"`
	// OK tells that the last round's program works: EndFine or EndRepaired.
	OK      bool    `json:"ok"`
	End     End     `json:"end"`
	Asked   Asked   `json:"asked"`
	Model   Model   `json:"model"`
	Budgets Budgets `json:"budgets"`
	Spent   Spent   `json:"spent"`
	// Rounds begin with round 0, the program as it was.
	Rounds []Round `json:"rounds"`
	// Output is the file that the program was written to; empty: none.
	Output string `json:"output,omitempty"`
}

// End is what ended a repair, with a sentence about it.
type End struct {
	By     string `json:"by"`
	Detail string `json:"detail"`
}

// Asked is what was to be achieved. Program and Check are names in the box.
type Asked struct {
	Program string  `json:"program"`
	Goal    string  `json:"goal,omitempty"`
	Expect  *string `json:"expect,omitempty"`
	Check   string  `json:"check,omitempty"`
}

// Model is who was asked.
type Model struct {
	// Provider is "openai" or "anthropic", the format that was spoken.
	Provider string `json:"provider"`
	// Server is the base URL.
	Server string `json:"server"`
	Name   string `json:"name"`
}

// Budgets are what a repair could spend.
type Budgets struct {
	Rounds  int     `json:"rounds"`
	WallMS  float64 `json:"wall_ms"`
	ModelMS float64 `json:"model_ms"`
	RunMS   float64 `json:"run_ms"`
	Tokens  int64   `json:"tokens"`
}

// Spent is what it did spend. WallMS is without VMStartMS, the wait for a VM to start,
// which no budget has to pay for.
type Spent struct {
	Rounds    int          `json:"rounds"`
	WallMS    float64      `json:"wall_ms"`
	ModelMS   float64      `json:"model_ms"`
	RunMS     float64      `json:"run_ms"`
	VMStartMS float64      `json:"vm_start_ms"`
	Tokens    model.Tokens `json:"tokens"`
}

// Round is an answer of the model and what became of it; round 0 has no answer.
type Round struct {
	Round  int     `json:"round"`
	Answer *Answer `json:"answer,omitempty"`
	// Program is what was run; nil: the answer was refused, or there was none.
	Program *Program `json:"program,omitempty"`
	// Diff is from the program that the model was shown to that of this round, as a
	// unified diff.
	Diff string `json:"diff,omitempty"`
	// Run is the run of the program, Check that of the check after it.
	Run   *Run `json:"run,omitempty"`
	Check *Run `json:"check,omitempty"`
	// OK tells that the program works, and Why why it does not: a sentence, which for
	// a refused answer the model is told too.
	OK  bool   `json:"ok"`
	Why string `json:"why,omitempty"`
}

// Answer is what came from the model.
type Answer struct {
	MS float64 `json:"ms"`
	// Tries is how often the question was put.
	Tries int        `json:"tries"`
	Stop  model.Stop `json:"stop,omitempty"`
	// Tokens are those of all tries.
	Tokens model.Tokens `json:"tokens"`
	// Refused is why it was not taken; empty: it was. Text is its beginning then.
	Refused string `json:"refused,omitempty"`
	Text    string `json:"text,omitempty"`
	// Error is why there is no answer.
	Error string `json:"error,omitempty"`
}

// Program is a program's text.
type Program struct {
	SHA256 string `json:"sha256"`
	Bytes  int    `json:"bytes"`
	Text   string `json:"text"`
}

// Run is a run in a box of its own.
type Run struct {
	// ID is the run's, under which its receipt is kept; empty: it was never accepted.
	ID string `json:"id,omitempty"`
	// MS is what it took here, from the request on and without the start of a VM.
	MS float64 `json:"ms"`
	// Receipt has the output that was kept in it; null: the run was given up before
	// there was one, or there was none.
	Receipt *receipt.Receipt `json:"receipt"`
	// NotKept is why the receipt is not kept.
	NotKept string `json:"not_kept,omitempty"`
	// Error is why the run came to no end.
	Error string `json:"error,omitempty"`
}

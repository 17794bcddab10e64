package loop

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pybox/pybox/host/engine"
	"github.com/pybox/pybox/host/repair/answer"
	"github.com/pybox/pybox/host/repair/history"
	"github.com/pybox/pybox/host/repair/model"
	"github.com/pybox/pybox/host/repair/prompt"
	"github.com/pybox/pybox/host/units"
)

const (
	// maxAnswer is what an answer may have in tokens, thinking included: as much as many
	// models take. A server that refuses it is asked for less.
	maxAnswer = 16 << 10
	// maxRefused bounds what is kept of an answer that was refused, in bytes.
	maxRefused = 16 << 10
)

// Runner runs programs; *engine.Engine is the real one.
type Runner interface {
	Run(ctx context.Context, j engine.Job, on func(engine.Step)) (*engine.Result, error)
}

// Settings are what was decided before anything is asked. No model changes them.
type Settings struct {
	// Job is how the program is run, in each round the same but for its text. Its
	// program has a name.
	Job engine.Job
	// Check is a program that judges the other one, which lies beside it under its
	// name, as do Job.Inputs; nil: there is none. It runs in a box of its own with the
	// limits of Job, without arguments, and its exit code 0 is a success.
	Check *engine.File
	// Expect is what the program must print on standard output, white space at the
	// end aside; nil: anything.
	Expect *string
	// Goal is what the program is for, in its owner's words; empty: not said.
	Goal string
	// ModelName is the model's.
	ModelName string
	// Rounds is how many answers the model may give.
	Rounds int
	// Wall is the time of the whole, Model and Run are the times for the model and for
	// runs: all without the start of a VM. Those that are as long as the whole end
	// nothing by themselves.
	Wall, Model, Run time.Duration
	// Tokens bounds those of all questions and answers together.
	Tokens int64
}

// Events are told to who shows progress, from the goroutine of Loop.Run. Each may be nil.
type Events struct {
	// Starting: a VM starts. Running: a run begins; check tells which program's.
	Starting func(engine.Step)
	Running  func(round int, check bool)
	// Asking: a question is put. Receiving: so many bytes of the answer have come.
	// Waiting: it is put again after a pause.
	Asking    func(round int)
	Receiving func(bytes int)
	Waiting   func(err *model.Error, pause time.Duration)
	// Round: a round is over.
	Round func(r *history.Round)
	// Record: this is the record so far, of a repair that is not over. It must not be
	// kept or changed.
	Record func(h *history.History)
}

// Loop repairs programs. It is safe for concurrent use.
type Loop struct {
	Runner Runner
	Client model.Client
	Events Events
}

// Run repairs a program and gives the record of it, whatever came of it. Its Asked,
// Budgets, Spent, Rounds and End are set. The end of ctx ends it.
func (l *Loop) Run(ctx context.Context, s Settings) *history.History {
	r := &repair{
		Loop: l, s: s, runs: part(s.Run, s.Wall, errRun), asks: part(s.Model, s.Wall, errModel),
		answers: map[string]int{}, most: maxAnswer,
	}
	r.h = &history.History{
		Schema: history.Schema, StartedAt: time.Now().Round(0).UTC(),
		End:   history.End{By: history.EndUnfinished, Detail: "it was not over yet when this was written"},
		Asked: history.Asked{Program: s.Job.Program.Name, Goal: s.Goal, Expect: s.Expect},
		Budgets: history.Budgets{
			Rounds: s.Rounds, WallMS: ms(s.Wall), ModelMS: ms(s.Model), RunMS: ms(s.Run), Tokens: s.Tokens,
		},
	}
	if s.Check != nil {
		r.h.Asked.Check = s.Check.Name
	}
	whole := budget{total: s.Wall, over: errWall}
	ctx, r.wall = whole.spend(ctx)
	r.h.End = r.repair(ctx)
	r.finish(r.wall.end())
	return r.h
}

// repair is one use of a Loop.
type repair struct {
	*Loop
	s          Settings
	h          *history.History
	wall       *piece
	runs, asks budget
	starts     time.Duration // of VMs
	most       int64         // what an answer may have in tokens

	code    string         // that the model is shown next
	answers map[string]int // those of the model, by what they come to, and their rounds
	facts   prompt.Facts
}

func (r *repair) finish(wall time.Duration) {
	r.h.OK = r.h.End.By == history.EndFine || r.h.End.By == history.EndRepaired
	r.account(wall)
}

// account writes down what was spent until now.
func (r *repair) account(wall time.Duration) {
	h := r.h
	h.EndedAt = time.Now().Round(0).UTC()
	h.Spent.Rounds = max(len(h.Rounds)-1, 0)
	h.Spent.WallMS, h.Spent.ModelMS, h.Spent.RunMS, h.Spent.VMStartMS = ms(wall), ms(r.asks.used), ms(r.runs.used), ms(r.starts)
}

// repair goes through the rounds and gives what ended them.
func (r *repair) repair(ctx context.Context) history.End {
	first := history.Round{}
	if end := r.try(ctx, &first, string(r.s.Job.Program.Data)); end != nil {
		return *end
	}
	if first.OK {
		return history.End{By: history.EndFine, Detail: "it works as it is"}
	}
	for n := 1; n <= r.s.Rounds; n++ {
		round := history.Round{Round: n}
		if end := r.round(ctx, &round); end != nil {
			return *end
		}
		if round.OK {
			return history.End{By: history.EndRepaired, Detail: fmt.Sprintf("it works since round %d", n)}
		}
	}
	return history.End{By: history.EndRounds, Detail: fmt.Sprintf("all %d rounds are over", r.s.Rounds)}
}

// round asks for a program and tries it. It gives an end when there is no next round.
func (r *repair) round(ctx context.Context, round *history.Round) *history.End {
	text, end := r.ask(ctx, round)
	if end != nil {
		if round.Answer != nil { // it was asked
			r.keep(round)
		}
		return end
	}
	code, end := r.take(round, text)
	if end != nil || code == "" {
		r.keep(round)
		return end
	}
	round.Diff = diffOf(r.s.Job.Program.Name, r.code, code)
	return r.try(ctx, round, code)
}

// keep puts a round into the history, with what the model is told of it later.
func (r *repair) keep(round *history.Round) {
	r.h.Rounds = append(r.h.Rounds, *round)
	r.facts.Refused = ""
	switch {
	case round.Answer != nil && round.Answer.Refused != "":
		r.facts.Refused = round.Why
		r.facts.Earlier = append(r.facts.Earlier, fmt.Sprintf("round %d: the answer was refused: %s", round.Round, round.Why))
	case round.Round > 0 && round.Program != nil:
		r.facts.Earlier = append(r.facts.Earlier, fmt.Sprintf("round %d: %s", round.Round, round.Why))
	}
	if r.Events.Round != nil {
		r.Events.Round(round)
	}
	if r.Events.Record != nil {
		r.account(r.s.Wall - r.wall.left())
		r.Events.Record(r.h)
	}
}

// ask puts the question to the model.
func (r *repair) ask(ctx context.Context, round *history.Round) (string, *history.End) {
	q, end := r.question()
	if end != nil {
		return "", end
	}
	if r.Events.Asking != nil {
		r.Events.Asking(round.Round)
	}
	ctx, p := r.asks.spend(ctx)
	left := func() time.Duration { return min(p.left(), r.wall.left()) }
	patient := model.Patient{Client: r.Client, Left: left, Tokens: r.s.Tokens - r.h.Spent.Tokens.Sum(), Waits: r.Events.Waiting}
	a, did, err := patient.Ask(ctx, q, r.Events.Receiving)
	cause := context.Cause(ctx)
	round.Answer = &history.Answer{MS: ms(p.end()), Tries: did.Tries, Tokens: did.Failed}
	if did.Less > 0 {
		r.most = did.Less
	}
	if err != nil {
		r.h.Spent.Tokens = r.h.Spent.Tokens.Add(did.Failed)
		round.Answer.Error = err.Error()
		by := history.EndModel
		if errors.Is(err, model.ErrTokens) {
			by = history.EndTokens
		}
		return "", r.ended(cause, by, err)
	}
	round.Answer.Stop, round.Answer.Tokens = a.Stop, did.Failed.Add(a.Tokens)
	r.h.Spent.Tokens = r.h.Spent.Tokens.Add(round.Answer.Tokens)
	switch a.Stop {
	case model.StopRefusal:
		r.refuse(round, a.Text, history.RefusedDeclined, "the model declined to answer")
		return "", nil
	case model.StopKey:
		r.refuse(round, "", history.RefusedKey, "it has the key of the model's server in it, which no program is given")
		return "", nil
	case model.StopLength:
		r.refuse(round, a.Text, history.RefusedCut, fmt.Sprintf("it was not complete after %d tokens; be shorter", a.Tokens.Output))
		return "", nil
	}
	return a.Text, nil
}

// question composes the question, as far as the tokens reach.
func (r *repair) question() (model.Question, *history.End) {
	q := model.Question{Model: r.s.ModelName, System: prompt.System, User: prompt.User(r.facts)}
	asks := q.Estimate()
	left := r.s.Tokens - r.h.Spent.Tokens.Sum() - asks
	if left < model.MinAnswer {
		return q, &history.End{By: history.EndTokens, Detail: fmt.Sprintf(
			"%d of %d tokens are spent, and the next question has about %d", r.h.Spent.Tokens.Sum(), r.s.Tokens, asks)}
	}
	q.MaxTokens = min(left, r.most)
	return q, nil
}

// take takes the code of an answer; it is empty when that is refused.
func (r *repair) take(round *history.Round, text string) (string, *history.End) {
	if round.Answer.Refused != "" {
		return "", nil
	}
	code, err := answer.Code(text, string(r.s.Job.Program.Data))
	var bad *answer.Refusal
	if errors.As(err, &bad) {
		r.refuse(round, text, bad.Reason, bad.Detail)
		return "", nil
	}
	key, first := normal(code), sameLines(code, string(r.s.Job.Program.Data))
	if first {
		key = "" // white space that changed meant something
	}
	before, again := r.answers[key]
	r.answers[key] = round.Round
	switch {
	case again:
		r.refuse(round, text, history.RefusedRepeated, fmt.Sprintf("it is what round %d gave", before))
		return "", &history.End{By: history.EndRepetition, Detail: fmt.Sprintf("round %d gave what round %d had given", round.Round, before)}
	case first && !sameLines(code, r.code):
		r.refuse(round, text, history.RefusedRepeated, "it is the program as it was in the beginning")
		return "", &history.End{By: history.EndRepetition, Detail: fmt.Sprintf("round %d gave the program as it was in the beginning", round.Round)}
	case first:
		r.refuse(round, text, history.RefusedNoChange, "it changes nothing")
		return "", nil
	}
	return answer.EndedAs(code, string(r.s.Job.Program.Data)), nil
}

// sameLines tells whether two programs have the same lines, however these end.
func sameLines(a, b string) bool {
	return strings.TrimRight(answer.Unix(a), "\n") == strings.TrimRight(answer.Unix(b), "\n")
}

func (r *repair) refuse(round *history.Round, text, reason, why string) {
	round.Answer.Refused, round.Why = reason, why
	round.Answer.Text = strings.ToValidUTF8(text[:min(len(text), maxRefused)], "")
}

// normal is what a program comes to without the white space that hardly ever means
// anything: at ends of lines, and lines of nothing else. It tells two answers apart that
// a model gave; what is wrong with the program that it was given can be just that.
func normal(code string) string {
	var b strings.Builder
	for line := range strings.Lines(code) {
		if line = strings.TrimRight(line, " \t\r\n\f"); line != "" {
			b.WriteString(line)
			b.WriteByte('\n')
		}
	}
	return b.String()
}

// ended says what ended a step that failed: what ended its context, or the failure.
func (r *repair) ended(cause error, by string, err error) *history.End {
	switch {
	case cause == nil:
		return &history.End{By: by, Detail: err.Error()}
	case errors.Is(cause, errWall):
		return &history.End{By: history.EndWall, Detail: fmt.Sprintf("the %s of the whole are over", units.Elapsed(r.s.Wall))}
	case errors.Is(cause, errModel):
		return &history.End{By: history.EndModelTime, Detail: fmt.Sprintf("the %s for the model are over", units.Elapsed(r.s.Model))}
	case errors.Is(cause, errRun):
		return &history.End{By: history.EndRunTime, Detail: fmt.Sprintf("the %s for runs are over", units.Elapsed(r.s.Run))}
	}
	return &history.End{By: history.EndInterrupted, Detail: "it was interrupted"}
}

// inputNames are the names of files, as a model is told them.
func inputNames(files []engine.File) []string {
	var names []string
	for _, f := range files {
		name := f.Name
		if f.Folder {
			name += "/"
		}
		names = append(names, name)
	}
	return names
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

package loop

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/engine"
	"github.com/pybox/pybox/host/receipt"
	"github.com/pybox/pybox/host/repair/answer"
	"github.com/pybox/pybox/host/repair/history"
	"github.com/pybox/pybox/host/repair/prompt"
)

// try runs a program, and the check after it, and judges it. It gives an end when
// there is no next round. The round is in the history then.
func (r *repair) try(ctx context.Context, round *history.Round, code string) *history.End {
	defer r.keep(round) // as what becomes of it here
	sum := sha256.Sum256([]byte(code))
	round.Program = &history.Program{SHA256: hex.EncodeToString(sum[:]), Bytes: len(code), Text: code}
	r.code = code
	job := r.s.Job
	job.Program = engine.File{Name: r.s.Job.Program.Name, Data: []byte(code)}
	var ran, checked *engine.Result
	var end *history.End
	if ran, round.Run, end = r.run(ctx, round, job, false); end != nil {
		round.Why = end.Detail
		return end
	}
	if round.Why = r.judge(ran); round.Why == "" && r.s.Check != nil {
		if checked, round.Check, end = r.run(ctx, round, r.checkJob(job), true); end != nil {
			round.Why = end.Detail
			return end
		}
		if why := failed(checked); why != "" {
			round.Why = "the check " + why
		}
	}
	round.OK = round.Why == ""
	r.tell(code, ran, checked, round.Why)
	return nil
}

// checkJob is the run of the check beside a program.
func (r *repair) checkJob(job engine.Job) engine.Job {
	c := job
	c.Inputs = append(slices.Clone(job.Inputs), job.Program)
	c.Program, c.Args, c.Stdin = *r.s.Check, nil, nil
	return c
}

// tell makes the facts for the model of a program that was tried.
func (r *repair) tell(code string, ran, checked *engine.Result, why string) {
	j := r.s.Job
	f := &r.facts
	f.Name, f.Code, f.Goal, f.Expect, f.Why = j.Program.Name, answer.Unix(code), r.s.Goal, r.s.Expect, why
	f.Image, f.Args, f.Inputs, f.Stdin = ran.Receipt.Configured.Image.Name, j.Args, inputNames(j.Inputs), len(j.Stdin) > 0
	f.Run, f.Check = outcome(ran), outcome(checked)
}

func outcome(r *engine.Result) *prompt.Outcome {
	if r == nil {
		return nil
	}
	return &prompt.Outcome{Receipt: r.Receipt, Stdout: r.Stdout, Stderr: r.Stderr}
}

// errNoRun: PyBox did not run the program, whatever that is.
var errNoRun = errors.New("PyBox could not run the program to its end")

// run runs a program on the budget for runs.
func (r *repair) run(ctx context.Context, round *history.Round, j engine.Job, check bool) (*engine.Result, *history.Run, *history.End) {
	if r.Events.Running != nil {
		r.Events.Running(round.Round, check)
	}
	ctx, p := r.runs.spend(ctx)
	h := &history.Run{}
	var began time.Time // of the start of a VM
	out, err := r.Runner.Run(ctx, j, func(s engine.Step) {
		switch {
		case s.Status != nil:
			if began.IsZero() {
				began = time.Now()
			}
			p.pause()
			r.wall.pause()
			if r.Events.Starting != nil {
				r.Events.Starting(s)
			}
		case s.Event != nil:
			r.started(&began, p)
			if s.Event.Event == api.EventAccepted {
				h.ID = s.Event.ID
			}
		}
	})
	r.started(&began, p)
	cause := context.Cause(ctx)
	h.MS = ms(p.end())
	if err != nil {
		h.Error = err.Error()
		return nil, h, r.ended(cause, history.EndRun, err)
	}
	h.ID, h.NotKept, h.Receipt = out.Receipt.Run.ID, out.NotKept, withOutput(out)
	if !programs(out.Receipt) {
		return nil, h, r.ended(cause, history.EndRun, fmt.Errorf("%w: it %s", errNoRun, prompt.Ending(out.Receipt)))
	}
	return out, h, nil
}

// started ends the wait for a VM, if there is one.
func (r *repair) started(began *time.Time, p *piece) {
	if began.IsZero() {
		return
	}
	r.starts += time.Since(*began)
	*began = time.Time{}
	p.resume()
	r.wall.resume()
}

// programs tells whether a run ended by what the program did.
func programs(rec *receipt.Receipt) bool {
	switch rec.Ending.How {
	case receipt.HowExited, receipt.HowDeadline, receipt.HowBoxTimer, receipt.HowMemory, receipt.HowSignal:
		return true
	}
	return false
}

// withOutput is the receipt of a run with its output in it, as 'pybox exec --json' has
// it.
func withOutput(out *engine.Result) *receipt.Receipt {
	rec := *out.Receipt
	put(&rec.Program.Stdout, out.Stdout)
	put(&rec.Program.Stderr, out.Stderr)
	return &rec
}

func put(s *receipt.Stream, b []byte) {
	if utf8.Valid(b) {
		s.Text = new(string(b))
	} else {
		s.Base64 = new(base64.StdEncoding.EncodeToString(b))
	}
}

// judge says why a run of the program is no success; empty: it is one.
func (r *repair) judge(out *engine.Result) string {
	if why := failed(out); why != "" {
		return "the program " + why
	}
	if r.s.Expect == nil {
		return ""
	}
	s := out.Receipt.Program.Stdout
	switch {
	case s.Bytes == nil || !s.Complete || *s.Bytes != s.KeptBytes:
		return "its standard output is longer than what is kept of it, and not what is expected"
	case !bytes.Equal(bytes.TrimRight(out.Stdout, blank), bytes.TrimRight([]byte(*r.s.Expect), blank)):
		return "its standard output is not what is expected"
	}
	return ""
}

// blank is the white space that is left aside at the end of an output.
const blank = " \t\r\n"

// failed says how a run failed, as what follows "the program"; empty: it did not.
func failed(out *engine.Result) string {
	x := out.Receipt.Observed.Engine.Exit
	if out.Receipt.Ending.How == receipt.HowExited && x != nil && x.Code != nil && *x.Code == 0 {
		return ""
	}
	return prompt.Ending(out.Receipt)
}

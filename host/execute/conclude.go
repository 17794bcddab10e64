package execute

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/receipt"
	"github.com/pybox/pybox/host/show"
)

// conclude shows and writes the receipt, and gives the exit code.
func (x *execution) conclude(out *api.Outcome) int {
	r := out.Receipt
	var unwritten error
	if x.target != nil && x.target.replace {
		unwritten = x.writeReceipt(r) // whether or not anybody takes the output
	}
	x.display.flush()
	if x.target != nil && !x.target.replace {
		unwritten = x.writeReceipt(r) // it may be where the output goes, and follows it
	}
	if x.watch != nil {
		x.display.text(writes(x.watch.receipt(r)))
	}
	switch {
	case x.JSON:
		x.display.record(x.record(r))
	case !x.Quiet && !isPipe(x.outFailure()):
		x.display.text(func(w io.Writer) {
			fmt.Fprintln(w)
			show.Receipt(w, r, show.Style{Width: x.Terminal.columns(), Color: x.Terminal.Color})
		})
	}
	x.display.flush()
	return x.judge(out, unwritten, x.outFailure())
}

// outFailure is why standard output failed, if it has by now.
func (x *execution) outFailure() error {
	select {
	case <-x.display.failed:
		return x.display.failure
	default:
		return nil
	}
}

// judge says what went wrong around the run, and gives the exit code.
func (x *execution) judge(out *api.Outcome, unwritten, broken error) int {
	r := out.Receipt
	code := x.sayDelivered(r)
	kept := "it is kept: 'pybox receipt show " + r.Run.ID + "'"
	switch {
	case x.elsewhere:
		x.display.line("pybox: the connection to the daemon has ended, and the daemon has not: 'pybox receipt show %s' shows the receipt that it keeps, once the run has ended", r.Run.ID)
		kept = "the daemon keeps its own"
	case out.NotKept != "":
		x.display.line("pybox: %s", out.NotKept)
		kept = "it is not safe elsewhere either"
	}
	if unwritten != nil {
		x.display.line("pybox: --receipt: the receipt could not be written to %s: %v; %s. The run itself: exit code %d", x.Receipt, unwritten, kept, r.ExitCode())
		code = receipt.ExitFailed
	}
	switch {
	case isPipe(broken):
		code = exitPipe
	case broken != nil:
		x.display.line("pybox: writing to standard output: %v. The run itself: exit code %d", broken, r.ExitCode())
		code = receipt.ExitFailed
	}
	if x.wasInterrupted() {
		code = receipt.ExitCancelled
	}
	return code
}

// writeReceipt writes the receipt to where it was asked for, without output.
func (x *execution) writeReceipt(r *receipt.Receipt) error {
	b, err := show.JSON(withoutIDs(r))
	if err != nil {
		return err
	}
	if d := x.delivered; d != nil && x.target.replace && x.job.place.Has(x.target.path, d.files) {
		return errThere // what the program left took its place
	}
	return x.target.write(b)
}

// record is the receipt with the output in it.
func (x *execution) record(r *receipt.Receipt) []byte {
	full := *r
	if x.delivered == nil || !x.delivered.left {
		full = *withoutIDs(r)
	}
	for i, s := range []*receipt.Stream{&full.Program.Stdout, &full.Program.Stderr} {
		kept := x.seen.streams[i].kept
		if utf8.Valid(kept) {
			s.Text = new(string(kept))
		} else {
			s.Base64 = new(base64.StdEncoding.EncodeToString(kept))
		}
	}
	b, err := show.JSON(&full)
	if err != nil {
		return problemRecord(&api.Problem{Type: api.ProblemInternal, Title: "the record has no JSON form", Detail: err.Error()})
	}
	return b
}

func problemRecord(p *api.Problem) []byte {
	b, err := show.JSON(struct {
		Problem *api.Problem `json:"problem"`
	}{p})
	if err != nil {
		return nil // a problem is text and numbers
	}
	return b
}

// explain says why there is no receipt, and gives the exit code.
func (x *execution) explain(err error) int {
	x.display.flush()
	code, p := x.reason(err)
	if p == nil {
		return code
	}
	if x.JSON {
		x.display.record(problemRecord(p))
	}
	x.display.text(func(w io.Writer) { show.Problem(w, p) })
	x.display.flush()
	if isPipe(x.outFailure()) && code != receipt.ExitCancelled {
		return exitPipe
	}
	return code
}

// reason is the exit code of a command without a receipt, and what there is to say.
func (x *execution) reason(err error) (int, *api.Problem) {
	broken := x.outFailure()
	var r *refusal
	var p *api.Problem
	switch {
	case x.wasInterrupted():
		return receipt.ExitCancelled, x.givenUp("interrupted")
	case isPipe(broken):
		return exitPipe, nil
	case broken != nil:
		return receipt.ExitFailed, x.givenUp("writing to standard output: " + broken.Error())
	case errors.As(err, &p) && p.Type == api.ProblemCeiling:
		return receipt.ExitRefused, p
	case errors.As(err, &p):
		return receipt.ExitFailed, p
	case errors.As(err, &r) && r.code == receipt.ExitRefused:
		return r.code, &api.Problem{Type: api.ProblemCeiling, Title: r.Error()}
	case errors.As(err, &r):
		return r.code, &api.Problem{Type: api.ProblemBadRequest, Title: r.Error()}
	}
	return receipt.ExitFailed, &api.Problem{Type: api.ProblemInternal, Title: err.Error()}
}

// givenUp is what there is to say of a run that was given up and has no receipt
// here.
func (x *execution) givenUp(why string) *api.Problem {
	id := x.runID()
	if id == "" {
		return &api.Problem{Type: api.ProblemNotRun, Title: why + "; the program was not started"}
	}
	return &api.Problem{Type: api.ProblemNotRun, Title: why + "; the run was cancelled",
		Next: fmt.Sprintf("'pybox receipt show %s' shows how it ended", id)}
}

// writes gives what writes s.
func writes(s string) func(io.Writer) {
	return func(w io.Writer) { _, _ = io.WriteString(w, s) } // of a standard error that fails nobody can be told
}

package engine_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"

	agentapi "github.com/pybox/pybox/agent/api"
	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/engine"
	"github.com/pybox/pybox/host/engine/enginetest"
	"github.com/pybox/pybox/host/receipt"
)

// content is what a source holds, however it went.
func content(r *enginetest.Run, s api.Source) (way, data string) {
	switch {
	case s.Text != nil:
		return "text", *s.Text
	case s.Base64 != nil:
		b, _ := base64.StdEncoding.DecodeString(*s.Base64)
		return "base64", string(b)
	}
	return "stored", string(r.Stored[s.File])
}

func TestRunCarriesEverything(t *testing.T) {
	large := strings.Repeat("x", 600<<10)
	job := engine.Job{
		Image: "data", Program: engine.File{Name: "p.py", Data: []byte("print(1)")}, Args: []string{"a b"}, Env: []string{"A=1"}, Stdin: []byte("\xff\x00"),
		Inputs:  []engine.File{{Name: "a.txt", Data: []byte("ä")}, {Name: "b", Data: []byte(large)}, {Name: "c", Data: []byte(large), Executable: true}, {Name: "d/e", Folder: true}},
		Collect: true, Limits: api.Limits{PIDs: new(int64(7))},
	}
	h := &enginetest.Host{Program: func(_ context.Context, r *enginetest.Run) error {
		q := r.Request
		if q.Image != "data" || q.Program.Name != "p.py" || len(q.Args) != 1 || q.Args[0] != "a b" || q.Env[0] != "A=1" || !q.Collect || *q.Limits.PIDs != 7 || q.ID != "" {
			t.Errorf("the request is %+v", q)
		}
		if in := q.Inputs; len(in) != 4 || in[1].Executable || !in[2].Executable || in[2].Folder || in[3] != (api.InputFile{Source: api.Source{Name: "d/e"}, Folder: true}) {
			t.Errorf("the inputs are %+v", in)
		}
		for i, want := range []struct {
			s         api.Source
			way, data string
		}{
			{q.Program, "text", "print(1)"}, {*q.Stdin, "base64", "\xff\x00"},
			{q.Inputs[0].Source, "text", "ä"}, {q.Inputs[1].Source, "base64", large}, {q.Inputs[2].Source, "stored", large},
		} {
			if way, data := content(r, want.s); way != want.way || data != want.data {
				t.Errorf("content %d went as %s, %d bytes, want %s, %d bytes", i, way, len(data), want.way, len(want.data))
			}
		}
		r.Leave("out.bin", []byte("left"))
		r.Print("stderr", "oops")
		return errors.Join(r.Print("stdout", "one "), r.Print("stdout", "two"))
	}}
	e := engine.New(h, engine.Options{})
	var seen []string
	r, err := e.Run(t.Context(), job, func(s engine.Step) { seen = append(seen, s.Event.Event) })
	if err != nil {
		t.Fatal(err)
	}
	if string(r.Stdout) != "one two" || string(r.Stderr) != "oops" || r.Receipt.Ending.How != receipt.HowExited {
		t.Errorf("stdout %q, stderr %q, ending %+v", r.Stdout, r.Stderr, r.Receipt.Ending)
	}
	if got := strings.Join(seen, " "); got != "accepted output output output" {
		t.Errorf("steps: %s", got)
	}
	f, err := e.Open(t.Context(), r.Receipt.Program.Files[0].File)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if b, err := io.ReadAll(f); err != nil || string(b) != "left" {
		t.Errorf("the file is %q, %v", b, err)
	}
	if n := h.Files(); n != 1 {
		t.Errorf("%d files are stored, want the one that was left", n)
	}
	e.Forget(t.Context(), r)
	if n := h.Files(); n != 0 {
		t.Errorf("%d files are stored after all were forgotten", n)
	}
}

func TestRunStartsTheVM(t *testing.T) {
	h := &enginetest.Host{Down: true}
	var steps []engine.Step
	r, err := engine.New(h, engine.Options{}).Run(t.Context(), engine.Job{Program: engine.File{Data: []byte("1")}}, func(s engine.Step) { steps = append(steps, s) })
	if err != nil || r.Receipt == nil || h.Starts() != 1 {
		t.Fatalf("%v, %v after %d starts", r, err, h.Starts())
	}
	if len(steps) != 2 || steps[0].Status == nil || steps[1].Event == nil {
		t.Errorf("steps: %+v", steps)
	}
}

// TestRunStoresAgain: what a daemon that is gone had is sent to the next one.
func TestRunStoresAgain(t *testing.T) {
	large := bytes.Repeat([]byte("y"), 2<<20)
	h := &enginetest.Host{Down: true, Program: func(_ context.Context, r *enginetest.Run) error {
		if way, data := content(r, r.Request.Inputs[0].Source); way != "stored" || data != string(large) {
			t.Errorf("the input went as %s, %d bytes", way, len(data))
		}
		return nil
	}}
	job := engine.Job{Inputs: []engine.File{{Name: "large", Data: large}}}
	if _, err := engine.New(h, engine.Options{}).Run(t.Context(), job, nil); err != nil || h.Starts() != 1 || h.Files() != 0 {
		t.Errorf("%v, %d starts, %d files stored", err, h.Starts(), h.Files())
	}
}

func TestRunWithoutAVM(t *testing.T) {
	h := &enginetest.Host{Down: true}
	if _, err := engine.New(h, engine.Options{NoStart: true}).Run(t.Context(), engine.Job{}, nil); !errors.Is(err, engine.ErrNoVM) || h.Starts() != 0 {
		t.Errorf("%v after %d starts", err, h.Starts())
	}
	broken := &api.Problem{Type: api.ProblemStart, Detail: "no bundle"}
	h.StartErr = broken
	if _, err := engine.New(h, engine.Options{}).Run(t.Context(), engine.Job{}, nil); !errors.Is(err, broken) || h.Starts() != 1 {
		t.Errorf("%v after %d starts", err, h.Starts())
	}
}

// TestRunGivesUpWhatItStored: of a run that never was nothing is left.
func TestRunGivesUpWhatItStored(t *testing.T) {
	h := &refusing{}
	job := engine.Job{Inputs: []engine.File{{Name: "large", Data: make([]byte, 2<<20)}}}
	if _, err := engine.New(h, engine.Options{}).Run(t.Context(), job, nil); err == nil {
		t.Fatal("it was run")
	}
	if h.Files() != 0 || h.refused != 1 {
		t.Errorf("%d files are stored, %d runs refused", h.Files(), h.refused)
	}
}

// refusing is a host whose daemon takes no run.
type refusing struct {
	enginetest.Host
	refused int
}

func (r *refusing) Run(context.Context, api.RunRequest, func(api.Event) error) (*api.Outcome, error) {
	r.refused++
	return nil, &api.Problem{Type: api.ProblemCeiling, Detail: "too much"}
}

// TestRunIsNotRepeated: what the daemon took is never asked for again.
func TestRunIsNotRepeated(t *testing.T) {
	runs := 0
	h := &enginetest.Host{Program: func(context.Context, *enginetest.Run) error { runs++; return api.ErrHungUp }}
	if _, err := engine.New(h, engine.Options{}).Run(t.Context(), engine.Job{}, nil); !errors.Is(err, api.ErrHungUp) || runs != 1 || h.Starts() != 0 {
		t.Errorf("%v after %d runs and %d starts", err, runs, h.Starts())
	}
}

func TestRunCancelled(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	h := &enginetest.Host{Program: func(ctx context.Context, r *enginetest.Run) error {
		cancel(why)
		<-ctx.Done()
		return context.Cause(ctx)
	}}
	if _, err := engine.New(h, engine.Options{}).Run(ctx, engine.Job{}, nil); !errors.Is(err, why) {
		t.Errorf("%v, want %v", err, why)
	}
}

func TestRunBoundsOutput(t *testing.T) {
	piece := strings.Repeat("z", 1<<20)
	h := &enginetest.Host{Program: func(_ context.Context, r *enginetest.Run) error {
		for range agentapi.MaxOutputBytes/len(piece) + 1 {
			if err := r.Print("stdout", piece); err != nil {
				return err
			}
		}
		return nil
	}}
	if _, err := engine.New(h, engine.Options{}).Run(t.Context(), engine.Job{}, nil); !errors.Is(err, api.ErrStream) {
		t.Errorf("%v, want %v", err, api.ErrStream)
	}
}

// TestRunOfWhatJSONMakesLong: contents of which JSON makes six times as much fit into a
// request all the same, as many as go inside it.
func TestRunOfWhatJSONMakesLong(t *testing.T) {
	odd := strings.Repeat("<", 64<<10)
	job := engine.Job{Program: engine.File{Data: []byte(strings.Repeat("\x01", 1<<20))}, Stdin: []byte(strings.Repeat("&", 1<<20))}
	for i := range 20 {
		job.Inputs = append(job.Inputs, engine.File{Name: string(rune('a' + i)), Data: []byte(odd)})
	}
	h := &enginetest.Host{Program: func(_ context.Context, r *enginetest.Run) error {
		b, err := json.Marshal(r.Request)
		if err != nil || len(b) > 8<<20 {
			t.Errorf("the request has %d bytes, %v", len(b), err)
		}
		for _, in := range r.Request.Inputs {
			if way, data := content(r, in.Source); data != odd || way == "text" {
				t.Errorf("%s went as %s with %d bytes", in.Name, way, len(data))
			}
		}
		return nil
	}}
	if _, err := engine.New(h, engine.Options{}).Run(t.Context(), job, nil); err != nil {
		t.Fatal(err)
	}
}

package daemontest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"strings"
	"sync"

	"connectrpc.com/connect"

	agentapi "github.com/pybox/pybox/agent/api"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
)

// goAt is CLOCK_BOOTTIME of every go, in nanoseconds.
const goAt = 1e9

// runs are those in progress.
type runs struct {
	mu      sync.Mutex
	cancels map[string]context.CancelFunc
	ended   <-chan struct{} // the machine's
}

// stream is a run's.
type stream = connect.BidiStream[agentv1.RunRequest, agentv1.RunEvent]

// Run implements the service. There is no box: each line of the program is an order,
//
//	print TEXT, error TEXT   a line on standard output, or standard error
//	flood N                  N bytes on standard output
//	cat                      the standard input, on standard output
//	wait                     until the run is cancelled
//	hang                     says nothing more, cancelled or not
//	exit N                   ends with that code, as the end of the program does with 0
func (a *Agent) Run(ctx context.Context, st *stream) error {
	m, err := st.Receive()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	id := m.GetStart().GetId()
	a.runs.mu.Lock()
	if a.runs.cancels == nil {
		a.runs.cancels = map[string]context.CancelFunc{}
	}
	a.runs.cancels[id] = cancel
	a.runs.mu.Unlock()
	defer func() {
		a.runs.mu.Lock()
		defer a.runs.mu.Unlock()
		delete(a.runs.cancels, id)
	}()
	p := &program{a: a, st: st, start: m.GetStart(), sums: [3]hash.Hash{nil, sha256.New(), sha256.New()}}
	return p.run(ctx)
}

// CancelRun implements the service.
func (a *Agent) CancelRun(_ context.Context, r *connect.Request[agentv1.CancelRunRequest]) (*connect.Response[agentv1.CancelRunResponse], error) {
	a.runs.mu.Lock()
	defer a.runs.mu.Unlock()
	cancel := a.runs.cancels[r.Msg.GetId()]
	if cancel == nil {
		return nil, connect.NewError(connect.CodeNotFound, errors.New("no such run"))
	}
	cancel()
	return connect.NewResponse(&agentv1.CancelRunResponse{}), nil
}

// Program is what Agent.Interpret executes.
type Program struct {
	Name        string
	Text, Stdin []byte
	Args, Env   []string
}

// program is a run in progress.
type program struct {
	a     *Agent
	st    *stream
	start *agentv1.RunStart
	text  []byte
	stdin bool
	sums  [3]hash.Hash
	bytes [3]int64
	kept  [3]int64
}

func (p *program) run(ctx context.Context) error {
	if err := p.st.Send(&agentv1.RunEvent{Event: &agentv1.RunEvent_Admitted{Admitted: &agentv1.Admitted{}}}); err != nil {
		return err
	}
	if err := p.upload(); err != nil {
		return err
	}
	obey := p.obey
	if p.a.Interpret != nil {
		obey = p.interpret
	}
	if err := p.st.Send(&agentv1.RunEvent{Event: &agentv1.RunEvent_Started{Started: &agentv1.Started{AtNs: goAt}}}); err != nil {
		return err
	}
	code, err := obey(ctx)
	if err != nil {
		return err
	}
	ending := &agentv1.Ending{How: agentapi.HowExited, By: agentapi.ByProgram, Evidence: []string{"the main process exited"}}
	exit := &agentv1.Exit{Known: true, RawStatus: code << 8}
	if ctx.Err() != nil {
		ending = &agentv1.Ending{How: agentapi.HowCancelled, By: agentapi.ByClient, Evidence: []string{"the host asked for it"}}
		exit = &agentv1.Exit{Known: true, RawStatus: 9}
	}
	if err := p.st.Send(&agentv1.RunEvent{Event: &agentv1.RunEvent_Exited{Exited: &agentv1.Exited{Ending: ending, Exit: exit, AtNs: goAt + 1}}}); err != nil {
		return err
	}
	return p.st.Send(&agentv1.RunEvent{Event: &agentv1.RunEvent_Record{Record: p.record(ending, exit)}})
}

// upload takes the files, of which there is one.
func (p *program) upload() error {
	for {
		m, err := p.st.Receive()
		if err != nil {
			return err
		}
		switch part := m.GetPart().(type) {
		case *agentv1.RunRequest_Data:
			p.text = append(p.text, part.Data...)
		case *agentv1.RunRequest_Go:
			p.stdin = part.Go.GetStdin()
			return nil
		}
	}
}

// interpret lets Agent.Interpret execute the program.
func (p *program) interpret(ctx context.Context) (int32, error) {
	in, err := p.input()
	if err != nil {
		return 0, err
	}
	stdout, stderr, code := p.a.Interpret(ctx, Program{
		Name: p.start.GetProgram(), Text: p.text, Stdin: in, Args: p.start.GetArgs(), Env: p.start.GetEnv(),
	})
	return int32(code), errors.Join(p.print(1, stdout), p.print(2, stderr))
}

// obey gives the exit code.
func (p *program) obey(ctx context.Context) (int32, error) {
	for line := range strings.Lines(string(p.text)) {
		word, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		n := 0
		var err error
		switch word {
		case "":
		case "print":
			err = p.print(1, []byte(rest+"\n"))
		case "error":
			err = p.print(2, []byte(rest+"\n"))
		case "flood":
			if _, err = fmt.Sscan(rest, &n); err == nil {
				err = p.print(1, make([]byte, n))
			}
		case "cat":
			var in []byte
			if in, err = p.input(); err == nil {
				err = p.print(1, in)
			}
		case "wait":
			<-ctx.Done()
		case "hang":
			<-p.a.runs.ended
			err = context.Canceled
		case "exit":
			_, err = fmt.Sscan(rest, &n)
			return int32(n), err
		default:
			err = fmt.Errorf("the program says %q", line)
		}
		if err != nil || ctx.Err() != nil {
			return 0, err
		}
	}
	return 0, nil
}

// input is the whole standard input.
func (p *program) input() ([]byte, error) {
	var in []byte
	for p.stdin {
		m, err := p.st.Receive()
		if err != nil {
			return nil, err
		}
		if len(m.GetStdin()) == 0 { // its end
			break
		}
		in = append(in, m.GetStdin()...)
	}
	return in, nil
}

func (p *program) print(stream uint32, b []byte) error {
	p.sums[stream].Write(b)
	p.bytes[stream] += int64(len(b))
	for len(b) > 0 && p.kept[stream] < p.start.GetStdoutBytes() {
		piece := b[:min(int64(len(b)), agentapi.MaxOutputPiece, p.start.GetStdoutBytes()-p.kept[stream])]
		e := &agentv1.RunEvent{Event: &agentv1.RunEvent_Output{Output: &agentv1.Output{Stream: stream, Data: bytes.Clone(piece)}}}
		if err := p.st.Send(e); err != nil {
			return err
		}
		p.kept[stream] += int64(len(piece))
		b = b[len(piece):]
	}
	return nil
}

func (p *program) record(e *agentv1.Ending, x *agentv1.Exit) *agentv1.RunRecord {
	sum := sha256.Sum256(p.text)
	r := &agentv1.RunRecord{
		Id: p.start.GetId(), Ending: e, Exit: x, BoxKind: agentapi.BoxCold, Limits: p.start.GetLimits(), StartedAtNs: goAt,
		Inputs: []*agentv1.FileSum{{Name: p.start.GetProgram(), Bytes: int64(len(p.text)), Sha256: sum[:]}},
		Stdout: p.printed(1), Stderr: p.printed(2), Cleanup: &agentv1.Cleanup{Status: agentapi.CleanupRemoved},
	}
	for _, s := range []string{agentapi.GoneTask, agentapi.GoneContainer, agentapi.GoneCgroup, agentapi.GoneProcesses, agentapi.GoneMounts} {
		r.Cleanup.Confirmations = append(r.Cleanup.Confirmations, &agentv1.Confirmation{Source: s, Gone: true})
	}
	return r
}

func (p *program) printed(stream int) *agentv1.Printed {
	return &agentv1.Printed{Bytes: p.bytes[stream], KeptBytes: p.kept[stream], Sha256: p.sums[stream].Sum(nil), Complete: true}
}

package daemontest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"slices"
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
//	files                    the names and sizes of the inputs, on standard output
//	leave N NAME             leaves a file of N bytes
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

// Program is what Agent.Interpret executes. Inputs are the files beside it.
type Program struct {
	Name        string
	Text, Stdin []byte
	Args, Env   []string
	Inputs      []File
}

// File is an input, or what a program left.
type File struct {
	Name               string
	Content            []byte
	Folder, Executable bool
}

// Done is what became of a Program. Left are the files that it left, in any order.
type Done struct {
	Stdout, Stderr []byte
	Code           int
	Left           []File
}

// program is a run in progress.
type program struct {
	a      *Agent
	st     *stream
	start  *agentv1.RunStart
	text   []byte
	stdin  bool
	inputs []*agentv1.FileSum // as they came, the program too
	files  []File             // the others; their content where Agent.Interpret is to have it
	leaves []leaving
	left   *agentv1.Left
	sums   [3]hash.Hash
	bytes  [3]int64
	kept   [3]int64
}

// leaving is a file that the program leaves: its content, or so many bytes of anything.
type leaving struct {
	File
	bytes int64
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
	if err := p.leave(); err != nil {
		return err
	}
	return p.st.Send(&agentv1.RunEvent{Event: &agentv1.RunEvent_Record{Record: p.record(ending, exit)}})
}

// upload takes the files.
func (p *program) upload() error {
	sum := sha256.New()
	for {
		m, err := p.st.Receive()
		if err != nil {
			return err
		}
		switch part := m.GetPart().(type) {
		case *agentv1.RunRequest_File:
			p.begin(part.File, sum)
		case *agentv1.RunRequest_Data:
			sum.Write(part.Data)
			p.data(part.Data)
		case *agentv1.RunRequest_Go:
			p.begin(nil, sum)
			p.stdin = part.Go.GetStdin()
			return nil
		}
	}
}

// begin takes the beginning of a file, and the end of the one before.
func (p *program) begin(f *agentv1.RunFile, sum hash.Hash) {
	if n := len(p.inputs); n > 0 && !(n > 1 && p.files[n-2].Folder) {
		p.inputs[n-1].Sha256 = sum.Sum(nil)
	}
	sum.Reset()
	if f == nil {
		return
	}
	p.inputs = append(p.inputs, &agentv1.FileSum{Name: f.GetName(), Bytes: f.GetBytes()})
	if len(p.inputs) > 1 { // the first is the program
		p.files = append(p.files, File{Name: f.GetName(), Folder: f.GetFolder(), Executable: f.GetExecutable()})
	}
}

func (p *program) data(b []byte) {
	switch {
	case len(p.files) == 0:
		p.text = append(p.text, b...)
	case p.a.Interpret != nil:
		f := &p.files[len(p.files)-1]
		f.Content = append(f.Content, b...)
	}
}

// leave sends what the program left, as far as that was asked for.
func (p *program) leave() error {
	slices.SortFunc(p.leaves, func(a, b leaving) int { return strings.Compare(a.Name, b.Name) })
	p.left = &agentv1.Left{Complete: true}
	for _, l := range p.leaves {
		if !p.start.GetCollect() || int64(len(p.left.Files)) == p.start.GetFiles() {
			reason := agentapi.LeftTooMany
			if !p.start.GetCollect() {
				reason = agentapi.LeftNotAsked
			}
			p.left.Others = append(p.left.Others, &agentv1.NotReturned{Name: agentapi.Text(l.Name, agentapi.MaxLeftName), Bytes: l.bytes, Reason: reason})
			continue
		}
		f := &agentv1.LeftFile{Name: l.Name, Bytes: l.bytes, Folder: l.Folder, Executable: l.Executable}
		p.left.Files = append(p.left.Files, f)
		if err := p.st.Send(&agentv1.RunEvent{Event: &agentv1.RunEvent_LeftFile{LeftFile: f}}); err != nil {
			return err
		}
		if err := p.leaveData(l); err != nil {
			return err
		}
	}
	return nil
}

// leaveData sends the bytes of a file.
func (p *program) leaveData(l leaving) error {
	content := l.Content
	for left := l.bytes; left > 0; {
		if len(content) == 0 {
			content = make([]byte, min(left, agentapi.MaxDataPiece))
		}
		piece := content[:min(len(content), agentapi.MaxDataPiece)]
		if err := p.st.Send(&agentv1.RunEvent{Event: &agentv1.RunEvent_LeftData{LeftData: piece}}); err != nil {
			return err
		}
		content = content[len(piece):]
		left -= int64(len(piece))
	}
	return nil
}

// interpret lets Agent.Interpret execute the program.
func (p *program) interpret(ctx context.Context) (int32, error) {
	in, err := p.input()
	if err != nil {
		return 0, err
	}
	done := p.a.Interpret(ctx, Program{
		Name: p.start.GetProgram(), Text: p.text, Stdin: in, Args: p.start.GetArgs(), Env: p.start.GetEnv(), Inputs: p.files,
	})
	for _, f := range done.Left {
		p.leaves = append(p.leaves, leaving{f, int64(len(f.Content))})
	}
	return int32(done.Code), errors.Join(p.print(1, done.Stdout), p.print(2, done.Stderr))
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
		case "files":
			for i, f := range p.files {
				err = errors.Join(err, p.print(1, fmt.Appendf(nil, "%s %d\n", f.Name, p.inputs[i+1].GetBytes())))
			}
		case "leave":
			var l leaving
			if _, err = fmt.Sscanf(rest, "%d %s", &l.bytes, &l.Name); err == nil {
				p.leaves = append(p.leaves, l)
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
	r := &agentv1.RunRecord{
		Id: p.start.GetId(), Ending: e, Exit: x, BoxKind: agentapi.BoxCold, Limits: p.start.GetLimits(), StartedAtNs: goAt,
		Inputs: p.inputs, Left: p.left, Stdout: p.printed(1), Stderr: p.printed(2), Cleanup: &agentv1.Cleanup{Status: agentapi.CleanupRemoved},
	}
	for _, s := range []string{agentapi.GoneTask, agentapi.GoneContainer, agentapi.GoneCgroup, agentapi.GoneProcesses, agentapi.GoneMounts} {
		r.Cleanup.Confirmations = append(r.Cleanup.Confirmations, &agentv1.Confirmation{Source: s, Gone: true})
	}
	return r
}

func (p *program) printed(stream int) *agentv1.Printed {
	return &agentv1.Printed{Bytes: p.bytes[stream], KeptBytes: p.kept[stream], Sha256: p.sums[stream].Sum(nil), Complete: true}
}

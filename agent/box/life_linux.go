package box

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pybox/pybox/agent/admission"
	"github.com/pybox/pybox/agent/api"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/agent/bulk"
	"github.com/pybox/pybox/agent/cgroup"
	"github.com/pybox/pybox/agent/collect"
	"github.com/pybox/pybox/agent/counters"
	"github.com/pybox/pybox/agent/engine"
	"github.com/pybox/pybox/agent/oci"
	"github.com/pybox/pybox/agent/output"
	"github.com/pybox/pybox/agent/runner"
)

// Deadlines of a life. They bound what is not the program's time; under
// emulation everything takes ten times longer than on a user's machine.
const (
	// makeTimeout bounds the engine's part: container, task, start.
	makeTimeout = time.Minute
	// readyTimeout bounds the interpreter's start, importTimeout one with modules
	// that are imported ahead.
	readyTimeout  = 30 * time.Second
	importTimeout = 3 * time.Minute
	// fillTimeout bounds the writing of all files, the client's share included.
	fillTimeout = 10 * time.Minute
	// readTimeout bounds a reading of the settings.
	readTimeout = 10 * time.Second
	// statusTimeout is how long the box's PID 1 may take to report the main
	// process's end once the box was killed, and with it PID 1 itself.
	statusTimeout = time.Second
	// emptyTimeout is how long the processes of a killed box may take to go.
	emptyTimeout = 5 * time.Second
	// drainTimeout is how long output may still come once they are gone.
	drainTimeout = 2 * time.Second
	// flushTimeout is how long the client may take to fetch the output before it
	// is told that the run is over.
	flushTimeout = 10 * time.Minute
	// lookTimeout bounds the look at what the program left, and giveTimeout how
	// long the client may take to fetch the files, the rest of the output before
	// them included. One that takes nothing at all is given up sooner: see
	// api.StallTimeout.
	lookTimeout = 30 * time.Second
	giveTimeout = 10 * time.Minute
	// sampleEvery is the first interval of samples; it grows with their number.
	sampleEvery = 100 * time.Millisecond
	// logTimeout bounds the wait for the kernel's log.
	logTimeout = time.Second
	// boxOOMScore keeps the kernel from taking the box's PID 1, which has to
	// tell how the main process ended, when memory runs out in the box.
	boxOOMScore = -998
)

// plan is what a life is to do.
type plan struct {
	id, image, program string
	args, env          []string
	limits             oci.Limits
	timeout            time.Duration
	stdout, stderr     int64
	queueWait          time.Duration
	exclusive          bool
	input              input
	// ahead is for a box that is made for whatever run comes, with these modules
	// imported; it has no program, and stdout and stderr are what its run may keep.
	ahead   bool
	imports []string
	// known and left are for a run: what was put into its working folder, and what
	// may come back of it.
	known *collect.Known
	left  collect.Bounds
	// bulk is for large files, in and out; nil: they come as all others.
	bulk *bulk.Line
	// archive is for a build, and takes what its program left, once the box is
	// empty and before it goes.
	archive func(ctx context.Context, work string) error
}

// input puts the files of a run into its box, and its standard input.
type input interface {
	// files writes everything and returns what it wrote.
	files(ctx context.Context, c *runner.Conn) ([]*agentv1.FileSum, error)
	// stdin writes standard input to w and closes it. It ends with ctx, and when
	// nobody reads any more.
	stdin(ctx context.Context, w *os.File)
}

// life is one box from the request to its removal. A box that is made ahead has one
// too, up to the run that gets it: see ready_linux.go.
type life struct {
	m *Manager
	p plan
	// cfg.ID is the box's id: that of the run, unless the box was made ahead.
	cfg oci.Config
	dir string
	// device is the image's, "major:minor".
	device string
	log    *slog.Logger
	out    *stream
	rec    *agentv1.RunRecord
	// client ends when the client is gone, ctx when the box is to be killed.
	client context.Context
	ctx    context.Context
	cancel context.CancelFunc
	// giving ends when the client wants no more of the files.
	giving     context.Context
	stopGiving context.CancelCauseFunc
	// counted is closed when no process of the box is left and its counters are
	// read.
	counted chan struct{}

	// admitted is whether it is past waiting for room.
	admitted atomic.Bool
	engine   *engine.Engine
	task     *engine.Task
	// started is whether the task was told to start, deleted whether it is gone,
	// left whether the box is still being removed when its run is over.
	started, deleted, left bool
	conn                   *runner.Conn
	bytecode               runner.Bytecode // what the runner was compiled to, where it was asked
	stdinW                 *os.File
	outR, errR             *os.File // until somebody listens to them
	stdout, stderr         *output.Capture
	streams                [3]string // what the box is to have as descriptors 0 to 2
	counters               *counters.Group
	samples                *counters.Sampler
	status                 runner.Status // once ended is true
	ended                  bool
	armed                  bool
	fired                  time.Duration
	goAt                   time.Duration

	mu       sync.Mutex
	heir     *life // the run that has its box, for a life that ended so
	group    *cgroup.Dir
	over     bool // the end is known: no kill is its cause any more
	cause    cause
	killedAt time.Duration
	detail   string
}

// refusal is why a program was not started.
type refusal struct {
	reason string
	err    error
}

func (r *refusal) Error() string { return r.reason + ": " + r.err.Error() }
func (r *refusal) Unwrap() error { return r.err }

func refuse(reason string, err error) error { return &refusal{reason, err} }

// newLife begins the life of a box, which ends with ctx at the latest.
func (m *Manager) newLife(ctx context.Context, p plan) *life {
	l := &life{
		m: m, p: p, client: ctx, dir: filepath.Join(m.o.Dir, p.id), log: m.o.Log.With("run", p.id),
		counted: make(chan struct{}),
		rec: &agentv1.RunRecord{
			Id: p.id, RequestedAtNs: int64(m.o.Boot()), BoxKind: api.BoxCold, RunnerSha256: runner.SHA256(),
			SeccompSha256: m.seccomp, Limits: p.wire(), TimerNs: int64(p.timeout + api.TimerAfter),
		},
	}
	l.cfg.ID = p.id
	// Before anybody can find the life, and kill it.
	l.ctx, l.cancel = context.WithCancel(ctx)
	l.giving, l.stopGiving = context.WithCancelCause(ctx)
	return l
}

// live leads a box through its life.
func (m *Manager) live(ctx context.Context, p plan, send func(*agentv1.RunEvent) error) error {
	l := m.newLife(ctx, p)
	l.out = newStream()
	defer l.cancel()
	defer l.stopGiving(nil)
	if err := m.add(l); err != nil {
		return err
	}
	defer func() {
		if !l.left {
			m.remove(l)
		}
	}()
	defer m.o.Activity()()
	defer m.ahead.Hold()()
	// The client's end kills the box, whatever the life is at.
	defer context.AfterFunc(ctx, func() { l.kill(causeCancel, "the client is gone") })()

	sent := make(chan error, 1)
	go func() { sent <- l.out.run(ctx, send) }()
	grant, err := l.admit()
	if err == nil {
		err = l.whole(ctx, grant)
	}
	l.out.close()
	err = errors.Join(err, <-sent)
	l.forgetOutput()
	if grant != nil && !l.left {
		grant.Release()
	}
	return err
}

// muchOutput is how much kept output, in bytes, is worth a collection once it is
// of no use any more.
const muchOutput = 4 << 20

// forgetOutput lets go of what was kept of the output. Go itself gives the memory of
// the guest back only over minutes, and other boxes may have been promised it.
func (l *life) forgetOutput() {
	kept := l.rec.GetStdout().GetKeptBytes() + l.rec.GetStderr().GetKeptBytes()
	l.stdout, l.stderr = nil, nil
	if kept >= muchOutput {
		l.m.tidy.Lock()
		defer l.m.tidy.Unlock()
		debug.FreeOSMemory()
	}
}

func (p plan) wire() *agentv1.Limits {
	l := p.limits
	return &agentv1.Limits{
		MemoryBytes: l.MemoryBytes, Pids: l.PIDs, MilliCpu: l.MilliCPU, WorkBytes: l.WorkBytes, WorkFiles: l.WorkFiles,
	}
}

// admit gives the run a box that was made ahead, or waits for the image, for room and
// for the engine.
func (l *life) admit() (*admission.Grant, error) {
	if grant := l.take(l.ctx); grant != nil {
		return grant, nil
	}
	ctx, cancel := context.WithTimeout(l.ctx, l.p.queueWait)
	defer cancel()
	root, device, err := l.m.o.Images.Root(ctx, l.p.image)
	if err != nil {
		return nil, err
	}
	l.device = device
	asked := l.m.o.Boot()
	grant, err := l.acquire(ctx)
	if err != nil {
		if ctx.Err() != nil && l.ctx.Err() == nil {
			err = fmt.Errorf("%w within %v: %w", ErrBusy, l.p.queueWait, err)
		}
		return nil, err
	}
	l.rec.QueuedNs = int64(l.m.o.Boot() - asked)
	if l.engine, err = l.m.ready(ctx); err != nil {
		grant.Release()
		return nil, err
	}
	l.cfg.Slot, l.cfg.ImageRoot = grant.Slot, root
	l.admitted.Store(true)
	l.tellAdmitted()
	l.stage("admitted")
	return grant, nil
}

// tellAdmitted tells the client that it may send the files.
func (l *life) tellAdmitted() { l.out.event(l.admittedEvent()) }

func (l *life) admittedEvent() *agentv1.RunEvent {
	m := &agentv1.Admitted{QueuedNs: l.rec.QueuedNs}
	if l.p.bulk != nil {
		m.BulkToken = l.p.bulk.Token()
	}
	return &agentv1.RunEvent{Event: &agentv1.RunEvent_Admitted{Admitted: m}}
}

// acquire waits for room, for which boxes that were made ahead give way. The client is
// told of a wait that is for more than them.
func (l *life) acquire(ctx context.Context) (*admission.Grant, error) {
	return l.m.o.Room.Acquire(ctx, l.p.need(), func(ahead int, admitted <-chan struct{}) {
		l.m.ahead.MakeRoom(ctx, admitted)
		select {
		case <-admitted:
		default:
			l.queued(ahead)
		}
	})
}

// need is the room that the box takes, and what is kept of its output.
func (p plan) need() admission.Need {
	return admission.Need{
		MemoryBytes: p.limits.MemoryBytes + p.stdout + p.stderr, MilliCPU: p.limits.MilliCPU, Exclusive: p.exclusive,
	}
}

// queued tells the client that it has to wait.
func (l *life) queued(ahead int) {
	l.out.event(&agentv1.RunEvent{Event: &agentv1.RunEvent_Queued{Queued: &agentv1.Queued{Ahead: uint32(ahead)}}})
}

// whole makes the box, runs the program, and removes the box. It ends with a record,
// or with an error for a client that has a part of a file and cannot get the rest.
// The grant is given back when the box is gone, and not before: nobody else may get
// its user ids. What is kept of the output keeps its part of it.
func (l *life) whole(ctx context.Context, grant *admission.Grant) error {
	l.end(l.makeAndRun())
	failed := l.collect(ctx)
	removed := make(chan *agentv1.Cleanup, 1)
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), lateTimeout)
	defer cancel()
	if h := l.m.o.Hooks().Removing; h != nil {
		h(l.cfg.ID)
	}
	go func() {
		c := l.clean(late)
		if c.Status == api.CleanupRemoved {
			// The output stays until the client has it.
			grant.Keep(l.rec.GetStdout().GetKeptBytes() + l.rec.GetStderr().GetKeptBytes())
			l.m.ahead.Retry()
		}
		removed <- c
	}()

	inTime := true
	select {
	case l.rec.Cleanup = <-removed:
		l.stage("removed")
	case <-time.After(removeTimeout):
		inTime = false
		now, cancel := context.WithTimeout(late, time.Second)
		l.rec.Cleanup = l.confirm(now)
		cancel()
		if l.rec.Cleanup.Status == api.CleanupRemoved {
			// It has just gone, and its last step is about to say so.
			<-removed
			inTime = true
			l.stage("removed")
		} else {
			l.unknown("whether the box is gone", fmt.Sprintf("it could not be confirmed within %v; it is still worked at", removeTimeout))
		}
	}
	if failed == nil {
		flush, cancel := context.WithTimeout(ctx, flushTimeout)
		defer cancel()
		l.out.flush(flush)
	}
	if inTime {
		l.m.remove(l) // before the client is told, who may use the id again at once
	}
	if failed == nil {
		l.out.event(&agentv1.RunEvent{Event: &agentv1.RunEvent_Record{Record: l.rec}})
	}
	if !inTime {
		cleanup := <-removed
		if cleanup.Status == api.CleanupRemoved {
			l.m.remove(l)
		}
		if failed == nil { // it completes a record
			l.out.event(&agentv1.RunEvent{Event: &agentv1.RunEvent_Cleanup{Cleanup: cleanup}})
		}
		if cleanup.Status != api.CleanupRemoved {
			l.log.Error("the box could not be removed yet: it keeps its id, its user ids and its room", "left", cleanup.Confirmations)
			l.left = true
			go l.removeLater(grant)
		}
	}
	return failed
}

// makeAndRun returns when the program has ended or must be ended: nil, or why it
// was not started.
func (l *life) makeAndRun() error {
	if l.rec.GetBoxKind() == api.BoxCold {
		if err := l.makeReady(); err != nil {
			return err
		}
	}
	hooks := l.m.o.Hooks()
	if err := l.fill(); err != nil {
		return err
	}
	if hooks.Written != nil {
		hooks.Written(l.cfg.ID, l.task.PID())
	}
	if err := l.check(true); err != nil {
		return err
	}
	if err := l.release(); err != nil {
		return err
	}
	l.wait()
	return nil
}

// makeReady makes the box, with its runner waiting, and reads its settings back.
func (l *life) makeReady() error {
	if err := l.make(); err != nil {
		return err
	}
	if h := l.m.o.Hooks().Made; h != nil {
		h(l.cfg.ID, l.task.PID())
	}
	if err := l.check(false); err != nil {
		return err
	}
	l.m.codes.learn(l.p.image, l.bytecode, l.rec.Checks)
	return nil
}

// make makes the box, with its runner waiting.
func (l *life) make() error {
	ctx, cancel := context.WithTimeout(l.ctx, makeTimeout)
	defer cancel()
	var err error
	l.cfg.Limits = l.p.limits
	l.given()
	l.cfg.Args, l.cfg.Env = l.rec.Args, runner.Env(l.rec.Env)
	if l.cfg.Work, err = makeWork(l.dir, l.cfg); err != nil {
		return refuse(api.ReasonEngine, err)
	}
	code, ask := l.m.codes.give(l.p.image, l.p.env)
	listener, err := runner.Prepare(l.cfg.Work, l.cfg.HostUID(), l.cfg.HostGID(), code)
	if err != nil {
		return refuse(api.ReasonEngine, err)
	}
	defer listener.Close()
	if ask {
		listener.AskBytecode()
	}
	if l.p.ahead {
		listener.Late(l.p.imports)
	}
	spec, err := oci.Spec(l.cfg)
	if err != nil {
		return refuse(api.ReasonEngine, err)
	}
	if h := l.m.o.Hooks().Spec; h != nil {
		h(spec)
	}
	l.stage("prepared")
	if l.task, err = l.engine.Create(ctx, l.cfg.ID, spec, nil); err != nil {
		return refuse(api.ReasonEngine, err)
	}
	l.stage("created")
	group, err := cgroup.Open(l.cgroupDir())
	if err != nil {
		return refuse(api.ReasonEngine, err)
	}
	l.mu.Lock()
	l.group = group
	l.mu.Unlock()
	if l.counters, err = l.m.o.Counters.Group(l.cfg.ID); err != nil {
		return refuse(api.ReasonEngine, err)
	}
	l.started = true
	if err := l.task.Start(ctx); err != nil {
		return refuse(api.ReasonEngine, err)
	}
	l.stage("started")
	if err := l.meet(listener); err != nil {
		l.m.codes.forget(l.p.image, code)
		return err
	}
	return nil
}

// given puts down what the program is given.
func (l *life) given() {
	l.rec.Args = append([]string{"/usr/bin/python3", l.p.program}, l.p.args...)
	l.rec.Env = oci.Env(l.p.limits, l.p.env)
}

// pipes makes the box's streams, and gives its ends of them.
func (l *life) pipes() (in, out, errs *os.File, err error) {
	var all [3]error
	in, l.stdinW, all[0] = os.Pipe()
	l.outR, out, all[1] = os.Pipe()
	l.errR, errs, all[2] = os.Pipe()
	if err := errors.Join(all[:]...); err != nil {
		for _, f := range []*os.File{in, out, errs} {
			if f != nil {
				_ = f.Close()
			}
		}
		return nil, nil, nil, err
	}
	l.streams = [3]string{linkOf(in), linkOf(out), linkOf(errs)}
	return in, out, errs, nil
}

// meet gives the runner its pipes and waits until it is ready.
func (l *life) meet(listener *runner.Listener) error {
	in, out, errs, err := l.pipes()
	if err != nil {
		return refuse(api.ReasonEngine, err)
	}
	if !l.p.ahead { // an interpreter may say why it does not become ready
		if err := l.listen(); err != nil {
			return refuse(api.ReasonEngine, errors.Join(err, in.Close(), out.Close(), errs.Close()))
		}
	}
	ctx, cancel := context.WithTimeout(l.ctx, l.p.readyTimeout())
	defer cancel()
	ctx, gone := context.WithCancelCause(ctx)
	defer gone(nil)
	go func() { // an interpreter that ends says nothing more
		select {
		case <-l.task.Exited():
			gone(runner.ErrGone)
		case <-ctx.Done():
		}
	}()
	if l.conn, err = listener.Accept(ctx, l.task.PID(), in, out, errs); err != nil {
		return refuse(api.ReasonInterpreter, l.whyNoInterpreter(err))
	}
	l.bytecode = listener.Bytecode()
	l.stage("interpreter ready")
	return nil
}

// readyTimeout is how long the interpreter may take until it is ready.
func (p plan) readyTimeout() time.Duration {
	if len(p.imports) > 0 {
		return importTimeout
	}
	return readyTimeout
}

// listen begins to read the output and to send what is kept of it.
func (l *life) listen() error {
	r, e := l.outR, l.errR
	l.outR, l.errR = nil, nil
	var err error
	if l.stdout, err = output.New(r, l.p.stdout); err != nil {
		return errors.Join(err, e.Close())
	}
	l.out.follow(l.client, 1, l.stdout)
	if l.stderr, err = output.New(e, l.p.stderr); err != nil {
		return err
	}
	l.out.follow(l.client, 2, l.stderr)
	return nil
}

// whyNoInterpreter adds what is known when the runner did not speak.
func (l *life) whyNoInterpreter(err error) error {
	code, _, known := l.task.ExitStatus()
	switch {
	case known:
		why := fmt.Sprintf("the image's python3 ended with code %d before it was ready", code)
		if set := pythonVariables(l.p.env); len(set) > 0 {
			why += "; Python reads what the run's environment sets: " + strings.Join(set, ", ")
		}
		return fmt.Errorf("%s: %w", why, err)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("the image's python3 was not ready within %v: %w", l.p.readyTimeout(), err)
	default:
		return fmt.Errorf("the image's python3 did not become ready: %w", err)
	}
}

// pythonVariables gives the names in env that the interpreter itself reads, each of
// which can keep it from starting.
func pythonVariables(env []string) (names []string) {
	for _, e := range env {
		if name, _, _ := strings.Cut(e, "="); strings.HasPrefix(name, "PYTHON") {
			names = append(names, name)
		}
	}
	return names
}

// fill writes the program and its inputs.
func (l *life) fill() error {
	ctx, cancel := context.WithTimeout(l.ctx, fillTimeout)
	defer cancel()
	sums, err := l.p.input.files(ctx, l.conn)
	l.rec.Inputs = sums
	if err != nil {
		return refuse(api.ReasonFiles, err)
	}
	l.stage("files written")
	if l.rec.GetBoxKind() == api.BoxReady {
		if err := l.conn.Name(ctx, l.p.program, l.p.args); err != nil {
			return refuse(api.ReasonInterpreter, err)
		}
	}
	return nil
}

// release starts the clocks and lets the program go.
func (l *life) release() error {
	if err := l.arm(l.counters.Baseline); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(l.ctx, readTimeout)
	defer cancel()
	l.goAt = l.m.o.Boot()
	l.rec.StartedAtNs = int64(l.goAt)
	if err := l.conn.Go(ctx); err != nil {
		// It may have been started all the same: that is no refusal.
		l.kill(causeEngine, "the go could not be given: "+err.Error())
		return err
	}
	l.stage("go")
	l.out.event(&agentv1.RunEvent{Event: &agentv1.RunEvent_Started{Started: &agentv1.Started{AtNs: int64(l.goAt)}}})
	go l.p.input.stdin(l.ctx, l.stdinW)
	go l.protect()
	return nil
}

// maxArming is how much of its time PID 1's timer may have run when the program begins.
const maxArming = api.TimerAfter / 4

// errEarly: what makes a program begin took longer than the program may.
var errEarly = errors.New("the timer went off before the program began")

// arm has PID 1 end the box even if the agent never does. PID 1 sets its timer while
// baseline goes on; where the two took long the timer starts anew, so that it does not go
// off before the program's time is over.
func (l *life) arm(baseline func() error) error {
	began := l.m.o.Boot()
	armed := make(chan error, 1)
	go func() { armed <- l.setTimer() }()
	counted := baseline()
	if err := <-armed; err != nil {
		return refuse(api.ReasonTimer, err)
	}
	l.armed = true
	if counted != nil {
		return refuse(api.ReasonEngine, counted)
	}
	if l.m.o.Boot()-began > maxArming {
		return l.armAnew()
	}
	return nil
}

// armAnew starts the timer of a program that has not begun once more.
func (l *life) armAnew() error {
	if l.disarm(); l.fired != 0 {
		return refuse(api.ReasonTimer, errEarly)
	}
	if err := l.setTimer(); err != nil {
		return refuse(api.ReasonTimer, err)
	}
	l.armed = true
	return nil
}

// setTimer starts PID 1's timer of the run.
func (l *life) setTimer() error {
	return l.m.o.Timers.Arm(l.p.id, l.cfg.ID, l.p.timeout+api.TimerAfter)
}

// protect keeps the box's PID 1, once the program has a process of its own, from
// being the kernel's victim when memory runs out. The program inherits nothing of
// it.
func (l *life) protect() {
	select {
	case _, ok := <-l.conn.Started():
		if !ok {
			return
		}
		score := filepath.Join("/proc", strconv.Itoa(l.task.PID()), "oom_score_adj")
		if err := os.WriteFile(score, []byte(strconv.Itoa(boxOOMScore)), 0); err != nil {
			l.log.Debug("the box's PID 1 is not protected", "error", err)
		}
	case <-l.ctx.Done():
	}
}

// wait returns when the program has ended or its box was killed.
func (l *life) wait() {
	deadline := time.NewTimer(l.p.timeout - (l.m.o.Boot() - l.goAt))
	defer deadline.Stop()
	after := func(d time.Duration) <-chan time.Time { return time.After(d) }
	l.samples = l.counters.StartSampler(l.ctx, sampleEvery, after, l.sampled)
	select {
	case l.status = <-l.conn.Ended():
		l.mu.Lock()
		l.ended, l.over = true, true // a kill from here on is not what ended it
		l.mu.Unlock()
	case <-l.ctx.Done():
	case <-deadline.C:
		l.kill(causeDeadline, "")
	}
}

// sampled sends a reading while the program runs.
func (l *life) sampled(s counters.Sample) {
	l.out.later(&agentv1.RunEvent{Event: &agentv1.RunEvent_Sample{Sample: wireSample(s, l.goAt)}})
}

// kill ends the box at once; the first cause counts.
func (l *life) kill(c cause, detail string) {
	if heir := l.owner(); heir != l {
		heir.kill(c, detail)
		return
	}
	if c == causeCancel {
		l.stopGiving(errors.New(detail))
	}
	l.mu.Lock()
	if l.cause == causeNone && !l.over {
		l.cause, l.detail, l.killedAt = c, detail, l.m.o.Boot()
	}
	group := l.group
	l.mu.Unlock()
	if group != nil {
		if err := group.Kill(); err != nil && !errors.Is(err, cgroup.ErrGone) {
			l.log.Error("could not kill the box", "error", err)
		}
	}
	l.cancel()
}

// owner is the life that has the box now.
func (l *life) owner() *life {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.heir != nil {
		return l.heir
	}
	return l
}

func (l *life) cgroupDir() string { return filepath.Join(l.m.o.CgroupRoot, l.cfg.Cgroup()) }

func (l *life) stage(name string) {
	s := &agentv1.Stage{Name: name, EndedAtNs: int64(l.m.o.Boot())}
	l.rec.Stages = append(l.rec.Stages, s)
	l.out.later(&agentv1.RunEvent{Event: &agentv1.RunEvent_Stage{Stage: s}})
}

func (l *life) unknown(fact, why string) {
	l.rec.Unknown = append(l.rec.Unknown, &agentv1.Unknown{Fact: api.Text(fact, 200), Why: api.Text(why, 300)})
}

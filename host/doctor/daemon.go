package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	agentapi "github.com/pybox/pybox/agent/api"
	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/control"
	"github.com/pybox/pybox/host/home"
	"github.com/pybox/pybox/host/peer"
	"github.com/pybox/pybox/host/units"
)

const (
	// settleWait bounds the wait for a daemon that is just starting or ending, in
	// which its record and its lock disagree.
	settleWait = 500 * time.Millisecond
	settlePoll = 20 * time.Millisecond
	// maxTail bounds the lines of a console that a row carries.
	maxTail = 20
)

// force ends a daemon that cannot be asked.
const force = "'pybox vm stop --force' ends it and the VM"

// owner is who has the state directory.
type owner struct {
	// free: nobody holds the lock.
	free bool
	// record is daemon.json, and fate what became of that process; recordErr is why
	// there is none.
	record    home.Daemon
	recordErr error
	fate      home.Fate
}

// alive tells whether the recorded daemon lives.
func (o owner) alive() bool { return o.recordErr == nil && o.fate == home.FateAlive }

// findOwner looks at the lock and the record until they agree, for a moment.
func findOwner(ctx context.Context, h *home.Home) (owner, error) {
	ctx, cancel := context.WithTimeout(ctx, settleWait)
	defer cancel()
	t := time.NewTicker(settlePoll)
	defer t.Stop()
	for {
		var o owner
		var err error
		if o.free, err = h.Unlocked(); err != nil {
			return o, err
		}
		if o.record, o.recordErr = h.Daemon(); o.recordErr == nil {
			o.fate = o.record.Fate()
		}
		if o.free != o.alive() {
			return o, nil
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return o, nil
		}
	}
}

func (e *exam) daemonOwner(ctx context.Context, r *Row) {
	o, err := e.owner.get(ctx)
	lock := e.home.Path("lock")
	switch {
	case e.closed(r, err, lock):
	case err != nil:
		r.unknown("who holds %s cannot be found out: %v", lock, err)
	case o.alive() && !o.free:
		r.ok("pid %d, PyBox %s, since %s", o.record.PID, o.record.Version, o.record.StartedAt.Local().Format(time.DateTime))
	case o.alive():
		r.fail(force, "the daemon (pid %d) lives and does not hold %s: was that file removed while it ran?", o.record.PID, lock)
	case !o.free:
		r.fail("find it with 'fuser "+quote(lock)+"' and end it", "a process that daemon.json does not name holds %s", lock)
	case errors.Is(o.recordErr, fs.ErrNotExist):
		r.ok("none runs")
	case o.recordErr != nil:
		r.advise("run: rm "+quote(e.home.Path("daemon.json")), "none runs; its record cannot be read: %v", o.recordErr)
	case o.fate == home.FateReused:
		r.ok("none runs; the last one's pid, %d, now belongs to another process, which is left alone", o.record.PID)
	case o.fate == home.FateRebooted:
		r.ok("none runs; the last one was of an earlier boot of this host")
	default:
		r.ok("none runs; the last one (pid %d) has ended", o.record.PID)
	}
}

func (e *exam) daemonSocket(ctx context.Context, r *Row) {
	path := e.home.Socket()
	if err := e.home.CheckSocketDir(); errors.Is(err, fs.ErrNotExist) {
		r.ok("%s, below /tmp since the directory's path is too long for a socket; not there yet", path)
		return
	} else if e.closed(r, err, path) {
		return
	} else if err != nil {
		r.fail("set PYBOX_HOME to a shorter path", "%v", err)
		return
	}
	st, err := os.Lstat(path)
	o, oerr := e.owner.get(ctx)
	switch {
	case errors.Is(err, fs.ErrNotExist) && oerr == nil && !o.free:
		r.fail(force, "a daemon owns the directory, but its socket %s is not there: was it removed?", path)
	case errors.Is(err, fs.ErrNotExist):
		r.ok("none, as no daemon runs (%s)", path)
	case e.closed(r, err, path):
	case err != nil:
		r.unknown("%v", err)
	case st.IsDir():
		r.fail("move it away: "+quote(path), "%s is a folder, and a daemon needs that name for its socket", path)
	case oerr == nil && o.free:
		r.ok("left behind by a daemon that ended at once; the next start replaces it (%s)", path)
	case st.Mode()&fs.ModeSocket == 0:
		r.fail(force, "%s is no socket", path)
	case st.Mode().Perm()&0o077 != 0:
		r.advise("run: chmod 600 "+quote(path), "%s has mode %04o: only the daemon's own check keeps others out", path, st.Mode().Perm())
	default:
		r.ok("%s, mode %04o", path, st.Mode().Perm())
	}
}

// askDaemon asks for the daemon's status, also one that is just starting. It gives up
// a little before the rows do, so that they can say so.
func (e *exam) askDaemon(ctx context.Context) (api.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, e.o.Limit*9/10)
	defer cancel()
	client := api.NewClient(e.home.Socket())
	t := time.NewTicker(settlePoll)
	defer t.Stop()
	var absent error
	for {
		s, err := client.Status(ctx)
		switch {
		case ctx.Err() != nil && absent != nil:
			return s, absent
		case !isAbsent(err):
			return s, err
		}
		absent = err
		if free, lerr := e.home.Unlocked(); free || lerr != nil {
			return s, err
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return s, absent
		}
	}
}

// isAbsent tells whether nobody answered, as opposed to somebody who is silent.
func isAbsent(err error) bool {
	return errors.Is(err, api.ErrNoDaemon) || errors.Is(err, api.ErrHungUp)
}

func (e *exam) vmAnswer(ctx context.Context, r *Row) {
	s, err := e.status.get(ctx)
	o, oerr := e.owner.get(ctx)
	pid := ""
	if oerr == nil && o.alive() {
		pid = fmt.Sprintf(" (pid %d)", o.record.PID)
	}
	switch {
	case isAbsent(err) && oerr == nil && !o.free:
		r.fail(force, "a daemon%s owns the directory, but nobody answers at %s", pid, e.home.Socket())
	case isAbsent(err):
		r.ok("none runs; 'pybox exec' or 'pybox vm start' starts one")
	case isLate(err), errors.Is(err, context.DeadlineExceeded):
		r.fail(force, "its daemon%s does not answer within %v", pid, e.o.Limit)
	case errors.Is(err, peer.ErrStranger):
		r.fail("set PYBOX_HOME to a shorter path", "%v", err)
	case errors.Is(err, fs.ErrPermission):
		r.unknown("this user may not ask: %v", err)
	case e.closed(r, err, e.home.Socket()):
	case err != nil:
		r.fail("'pybox vm restart'; if that fails, "+force, "%v", err)
	default:
		r.ok("%s", describeVM(s, e.o.Now()))
	}
}

func describeVM(s api.Status, now time.Time) string {
	said := fmt.Sprintf("%s for %s", s.State, units.Elapsed(now.Sub(s.Since)))
	if s.VM == nil {
		return said
	}
	return fmt.Sprintf("%s: %s, %s, %d CPUs, %v", said, s.VM.VMM, s.VM.Acceleration, s.VM.CPUs, units.Size(s.VM.MemoryBytes))
}

// guest is what the daemon says of the guest; where it says nothing, r says why.
func (e *exam) guest(ctx context.Context, r *Row) *api.Guest {
	s, err := e.status.get(ctx)
	switch {
	case isAbsent(err):
		r.unknown("no VM runs")
	case e.closed(r, err, e.home.Socket()):
	case err != nil:
		r.unknown("the daemon did not say")
	case s.Guest == nil:
		r.unknown("the VM is %s", s.State)
	}
	return s.Guest
}

func (e *exam) vmGuest(ctx context.Context, r *Row) {
	g := e.guest(ctx, r)
	switch {
	case g == nil:
	case !g.Answering && g.ReadAt.IsZero():
		r.fail("'pybox vm restart' starts afresh; 'pybox vm console' may say why", "NOT ANSWERING: the agent in it has never answered")
	case !g.Answering:
		r.fail("'pybox vm restart' starts afresh; 'pybox vm console' may say why",
			"NOT ANSWERING: the agent in it last did %s ago", units.Elapsed(e.o.Now().Sub(g.ReadAt)))
	case strings.HasPrefix(g.Engine, "failed"):
		r.fail("'pybox vm restart'; 'pybox vm console' shows more", "answers, but what makes boxes has %s", g.Engine)
	default:
		said := fmt.Sprintf("answers; Linux %s, %v of %v of memory in use, %d boxes", g.KernelRelease,
			units.Size(g.MemoryUsedBytes), units.Size(g.MemoryTotalBytes), g.Boxes)
		if g.Engine != "" && g.Engine != "ready" {
			said += "; what makes them is " + g.Engine
		}
		r.ok("%s", said)
	}
}

func (e *exam) vmClock(ctx context.Context, r *Row) {
	g := e.guest(ctx, r)
	if g == nil {
		return
	}
	c := g.Clock
	if c == nil {
		r.unknown("not measured yet")
		return
	}
	age := e.o.Now().Sub(c.MeasuredAt)
	said := fmt.Sprintf("%+.1f ms from this host's, within ±%.1f ms, measured %s ago", c.OffsetMS, c.BoundMS, units.Elapsed(max(0, age)))
	switch {
	case age.Abs() > api.ClockHolds:
		r.unknown("%s: that no longer tells of the present", said)
	case math.Abs(c.OffsetMS)-c.BoundMS > ms(agentapi.StepThreshold):
		r.advise("look again in a minute: it is set when no run is active; if it stays, 'pybox vm restart'", "%s", said)
	default:
		r.ok("%s", said)
	}
}

func (e *exam) versions(ctx context.Context, r *Row) {
	b, berr := e.bundle.get(ctx)
	s, serr := e.status.get(ctx)
	o, oerr := e.owner.get(ctx)
	parts := []string{fmt.Sprintf("pybox %s, protocol %d", e.o.Version, agentapi.ProtocolVersion)}
	var differ []string
	daemon := ""
	switch {
	case serr == nil:
		daemon = s.Version
	case oerr == nil && o.alive():
		daemon = o.record.Version
	}
	if daemon != "" {
		parts = append(parts, "daemon "+daemon)
	}
	if daemon != "" && daemon != e.o.Version {
		differ = append(differ, "the daemon is of another version than this program")
	}
	if serr == nil && s.Guest != nil {
		parts = append(parts, fmt.Sprintf("agent %s, protocol %d", s.Guest.Agent, s.Guest.ProtocolVersion))
	}
	if berr == nil {
		a := b.Manifest.Agent
		parts = append(parts, fmt.Sprintf("installed bundle's agent %s, protocol %d", a.Version, a.ProtocolVersion))
		if err := agentapi.CheckProtocol(a.ProtocolVersion); err != nil {
			r.fail(install, "%s: %v", strings.Join(parts, "; "), err)
			return
		}
		if serr == nil && s.VM != nil && s.VM.Bundle != b.ID() {
			differ = append(differ, "the VM runs another bundle than is installed")
		}
	}
	if len(differ) > 0 {
		r.advise("'pybox vm restart'", "%s: %s", strings.Join(parts, "; "), strings.Join(differ, ", and "))
		return
	}
	r.ok("%s", strings.Join(parts, "; "))
}

// lastEnd is how the last VM ended, or the one before the VM that runs.
func (e *exam) lastEnd(ctx context.Context) (*api.End, error) {
	if s, err := e.status.get(ctx); err == nil {
		return s.LastEnd, nil
	} else if isLate(err) {
		return nil, err
	}
	return control.LastEnd(e.home)
}

func (e *exam) lastVM(ctx context.Context, r *Row) {
	end, err := e.end.get(ctx)
	s, serr := e.status.get(ctx)
	running := serr == nil && s.State == api.StateRunning
	words := e.lastWords(ctx, end)
	switch {
	case words != "" && !isLate(err) && serr != nil:
		r.fail("put right what it names, then 'pybox vm start'; 'pybox vm logs' shows more", "the last daemon could not begin, or crashed: %s", words)
	case isLate(err):
		r.unknown("how the last one ended could not be read in time")
	case e.closed(r, err, "how the last one ended"):
	case err != nil:
		r.advise("run: rm "+quote(e.home.LastEnd()), "%v", err)
	case end == nil:
		r.ok("none has ended yet")
	case end.Problem == nil:
		r.ok("ended %s: %s", when(end), end.Reason)
	case running:
		r.ok("the VM runs; the one before ended %s: %s", when(end), end.Reason)
	case end.Started:
		e.lastProblem(r, end)
		r.advise(r.Next, "ended by itself %s: %s", when(end), r.Observed)
	default:
		e.lastProblem(r, end)
		r.fail(r.Next, "did not start %s: %s", when(end), r.Observed)
	}
}

// lastWords are the first words of a daemon that left no problem in its record, since
// it came to none or crashed. One that found another daemon did no harm.
func (e *exam) lastWords(ctx context.Context, end *api.End) string {
	o, err := e.owner.get(ctx)
	if err != nil || !o.free || end != nil && end.Problem != nil {
		return ""
	}
	said, at := control.LastWords(e.home)
	if end != nil && at.Before(end.At) || strings.Contains(said, home.ErrLocked.Error()) {
		return ""
	}
	const most = 3 // of the stack of a crash, or of an error, the rest says no more
	lines := slices.DeleteFunc(strings.Split(said, "\n"), func(l string) bool { return strings.TrimSpace(l) == "" })
	return strings.Join(lines[:min(len(lines), most)], " · ")
}

// lastProblem fills in what is known of a VM that did not end as wished.
func (e *exam) lastProblem(r *Row, end *api.End) {
	p := end.Problem
	r.Observed = p.Error()
	if p.LikelyCause != "" {
		r.Observed += "; likely cause: " + p.LikelyCause
	}
	r.Next = p.Next
	if r.Next == "" {
		r.Next = "'pybox vm start'; 'pybox vm logs' and 'pybox vm console' show more"
	}
	r.Untrusted = p.ConsoleTail[:min(len(p.ConsoleTail), maxTail)]
}

func when(end *api.End) string { return end.At.Local().Format(time.DateTime) }

package initd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"github.com/pybox/pybox/agent/api/pid1"
	"github.com/pybox/pybox/agent/control"
)

const (
	// recordsLinger is how long the records stay readable after the agent died.
	recordsLinger = 2 * time.Second
	// flushTimeout bounds the wait for the console before the power goes.
	flushTimeout = time.Second
	// refusalTimeout is that wait when the guest cannot start: the line on the
	// console is then all that anybody gets, and nothing is held up.
	refusalTimeout = 5 * time.Second
	// systemTimeout is how long the processes of the agent's cgroup may take to
	// die once they are killed.
	systemTimeout = time.Second
)

// lines is what is used of console.Console.
type lines interface {
	Printf(format string, args ...any)
	Flush(context.Context) error
}

// supervisor is what PID 1 does once the guest is up: it waits for the end of
// the agent or for the request to power off.
type supervisor struct {
	console lines
	timers  *timers
	records *records
	// killBoxes kills every box. killSystem kills the agent and its helpers and
	// returns when they are gone, or with an error.
	killBoxes, killSystem func() error
	// powerOff ends the machine; it does not return, except in tests.
	powerOff func()
	linger   time.Duration

	// off carries the first reason to power off.
	off chan string
}

// handle answers the requests of the agent.
func (s *supervisor) handle(r control.Request) control.Reply {
	switch r.Op {
	case control.OpArm:
		return control.Reply{Status: s.timers.arm(r.ID, r.Path, r.After)}
	case control.OpDisarm:
		status, at := s.timers.disarm(r.ID)
		return control.Reply{Status: status, FiredAt: at}
	case control.OpPowerOff:
		select {
		case s.off <- r.Reason:
		default: // it goes off already
		}
		return control.Reply{Status: control.StatusOK}
	case control.OpCrash:
		return crash()
	}
	return control.Reply{Status: control.StatusUnsupported}
}

// serve answers the agent on conn until it is gone. What follows is decided by
// the end of the agent's process alone.
func (s *supervisor) serve(conn net.Conn) {
	_ = control.Serve(conn, s.handle)
	_ = conn.Close()
	close(s.records.leaving)
}

// run returns after powerOff, which only tests see.
func (s *supervisor) run(agent <-chan syscall.WaitStatus) {
	select {
	case status := <-agent:
		s.agentEnded(status)
	case reason := <-s.off:
		_ = s.killBoxes()
		s.end("powering off: "+reason, flushTimeout)
	}
}

// agentEnded does what must follow the agent's death, the boxes first: nobody
// is left who would watch them. What was just starting a box in the agent's
// cgroup may move it among the boxes after that, so once it is gone they are
// killed again, and only that counts.
func (s *supervisor) agentEnded(status syscall.WaitStatus) {
	at := s.timers.now()
	_ = s.killBoxes()
	systemErr := s.killSystem()
	err := errors.Join(systemErr, s.killBoxes())
	exit := agentExit(status)
	exit.AtNS, exit.KilledNS = int64(at), int64(s.timers.now())
	exit.Detail = detailOf(err)
	s.records.agentEnded(exit)
	outcome := "every box was killed"
	if err != nil {
		outcome = fmt.Sprintf("NOT every box could be killed: %v", err)
	}
	s.console.Printf("pybox: the agent ended (%s); %s; powering off", describe(status), outcome)
	select {
	case <-s.records.read:
	case <-time.After(s.linger):
	}
	s.end("", flushTimeout)
}

// refuse ends a guest that cannot start: better no machine than one that never
// answers.
func refuse(c lines, why error, powerOff func()) {
	(&supervisor{console: c, killSystem: func() error { return nil }, powerOff: powerOff}).
		end(fmt.Sprintf("cannot start: %v; powering off", why), refusalTimeout)
}

// end switches the power off once line, and what came before it, is on the
// console or flush is over.
func (s *supervisor) end(line string, flush time.Duration) {
	if line != "" {
		s.console.Printf("pybox: %s", line)
	}
	_ = s.killSystem()
	ctx, cancel := context.WithTimeout(context.Background(), flush)
	defer cancel()
	_ = s.console.Flush(ctx)
	s.powerOff()
}

// agentExit puts a wait status into a record.
func agentExit(s syscall.WaitStatus) pid1.AgentExit {
	if s.Signaled() {
		return pid1.AgentExit{Code: -1, Signal: int(s.Signal())}
	}
	return pid1.AgentExit{Code: s.ExitStatus()}
}

func describe(s syscall.WaitStatus) string {
	if s.Signaled() {
		return fmt.Sprintf("signal %d, %v", int(s.Signal()), s.Signal())
	}
	return fmt.Sprintf("exit code %d", s.ExitStatus())
}

package initd

import (
	"errors"
	"net"
	"sync"
	"time"

	"github.com/pybox/pybox/agent/api/pid1"
	"github.com/pybox/pybox/agent/boottime"
)

const (
	// maxReaders bounds the connections to the records at a time.
	maxReaders = 4
	// readerTimeout bounds one connection.
	readerTimeout = time.Second
	// exitTimeout is how long a reader waits for the agent's end to be known,
	// once the agent has let go of its control channel.
	exitTimeout = 500 * time.Millisecond
)

// records is what PID 1 tells the host.
type records struct {
	bootID string
	now    boottime.Clock
	timers *timers

	leaving chan struct{} // closed when the agent lets go of its channel
	ended   chan struct{} // closed when its end is in agent

	mu    sync.Mutex
	agent *pid1.AgentExit
	read  chan struct{} // closed when the agent's end has been read
}

func newRecords(bootID string, now boottime.Clock, t *timers) *records {
	return &records{
		bootID: bootID, now: now, timers: t,
		leaving: make(chan struct{}), ended: make(chan struct{}), read: make(chan struct{}),
	}
}

// agentEnded adds the end of the agent, once.
func (r *records) agentEnded(e pid1.AgentExit) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.agent = &e
	close(r.ended)
}

// settle waits while the agent is dying: the host, which has just lost it, comes
// here at once and wants to know how it ended.
func (r *records) settle() {
	select {
	case <-r.leaving:
	default:
		return
	}
	select {
	case <-r.ended:
	case <-time.After(exitTimeout):
	}
}

// snapshot is a copy of all records.
func (r *records) snapshot() *pid1.Records {
	out := &pid1.Records{Schema: pid1.Schema, BootID: r.bootID}
	r.timers.fill(out)
	r.mu.Lock()
	defer r.mu.Unlock()
	out.Agent = r.agent
	out.NowNS = int64(r.now())
	return out
}

// serve answers every connection of l with the records until l is closed. l
// bounds the connections and checks their peers.
func (r *records) serve(l net.Listener) error {
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return err
		}
		if err != nil {
			// The connection failed before it was taken, or descriptors ran
			// out; a pause keeps that from becoming a busy loop.
			time.Sleep(10 * time.Millisecond)
			continue
		}
		go r.answer(conn)
	}
}

func (r *records) answer(conn net.Conn) {
	defer conn.Close()
	r.settle()
	s := r.snapshot()
	if pid1.Send(conn, s, readerTimeout) != nil || s.Agent == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-r.read:
	default:
		close(r.read)
	}
}

package mcp

import (
	"context"
	"fmt"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/engine"
)

// beat is how often a client is told how long something has been going on.
const beat = time.Second

// progress tells a client how far a call has come, from a goroutine of its own: a client
// that does not read delays no run.
type progress struct {
	wake  chan struct{} // has something when message is new
	over  chan struct{}
	ended chan struct{}
	once  sync.Once

	mu      sync.Mutex
	message string
}

// report begins to tell the client of req, if it wants to be told.
func report(ctx context.Context, req *sdk.CallToolRequest) *progress {
	p := &progress{wake: make(chan struct{}, 1), over: make(chan struct{}), ended: make(chan struct{}), message: "preparing"}
	token := req.Params.GetProgressToken()
	if token == nil {
		close(p.ended)
		return p
	}
	go p.run(ctx, time.Now(), func(n sdk.ProgressNotificationParams) error {
		n.ProgressToken = token
		return req.Session.NotifyProgress(ctx, &n)
	})
	return p
}

// run tells until the call is over, or nobody listens. Progress is the time in seconds,
// which grows; what there will be in all is not known.
func (p *progress) run(ctx context.Context, began time.Time, tell func(sdk.ProgressNotificationParams) error) {
	defer close(p.ended)
	t := time.NewTicker(beat)
	defer t.Stop()
	for {
		select {
		case <-p.over:
			return
		case <-ctx.Done():
			return
		case <-p.wake:
		case <-t.C:
		}
		took := time.Since(began).Seconds()
		if tell(sdk.ProgressNotificationParams{Progress: took, Message: fmt.Sprintf("%s, %.1f s", p.latest(), took)}) != nil {
			return
		}
	}
}

func (p *progress) latest() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.message
}

// say replaces the message. It does not block.
func (p *progress) say(message string) {
	p.mu.Lock()
	same := p.message == message
	p.message = message
	p.mu.Unlock()
	if same {
		return
	}
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// stop ends it: nothing is told any more when it returns.
func (p *progress) stop() {
	p.once.Do(func() { close(p.over) })
	<-p.ended
}

// step takes a step of the run. Nothing of a program is in what is told.
func (p *progress) step(s engine.Step) {
	if s.Status != nil {
		p.say("starting the VM")
		return
	}
	switch e := s.Event; e.Event {
	case api.EventAccepted:
		p.say("accepted")
	case api.EventQueued:
		ahead := "waiting for room"
		if e.Ahead != nil {
			ahead = fmt.Sprintf("waiting for room, %d ahead", *e.Ahead)
		}
		p.say(ahead)
	case api.EventAdmitted:
		p.say("making the box")
	case api.EventStarted:
		p.say("running")
	case api.EventExited:
		p.say("ended, removing the box")
	}
}

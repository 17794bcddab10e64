// Package clients bounds how many clients an HTTP server has at a time, so that those
// who hold its connections keep nobody else from being served. Of requests that take
// their time it serves a fixed number, and answers another at once that there is no room;
// a few connections more are for urgent ones, which end soon. A connection on which
// nothing is being served, idle or with a request that comes slowly, makes room for a new
// one. It knows nothing of what is served, and bounds no request by itself.
package clients

import (
	"container/list"
	"context"
	"net"
	"net/http"
	"sync"
	"time"
)

// grace is how long a new connection has for its first request before it makes room: no
// time at all for a client of this machine, which sends it at once, on a busy one.
const grace = time.Second

// Options are the bounds of one server.
type Options struct {
	// Requests is how many that are not urgent are served at a time, at least 1.
	Requests int
	// Reserve is how many connections there may be beside, at least 1.
	Reserve int
	// Urgent tells a request that is served whatever else is; nil: none is. It must end
	// soon by itself.
	Urgent func(*http.Request) bool
	// Busy answers a request that there is no room for. It must not read its body.
	Busy http.HandlerFunc
}

// Bound holds one server to its bounds. It is safe for concurrent use.
type Bound struct {
	o     Options
	grace time.Duration // tests have another
	slots chan struct{}

	mu      sync.Mutex
	changed sync.Cond
	closed  bool
	conns   *list.List // of *conn; those that were used last are at the back
}

// New makes a Bound, for one call of Serve.
func New(o Options) *Bound {
	b := &Bound{o: o, grace: grace, slots: make(chan struct{}, o.Requests), conns: list.New()}
	b.changed.L = &b.mu
	return b
}

// Serve serves the connections of l with srv, whose Handler, ConnContext and ConnState it
// takes over: it must not have the latter two. It returns as srv.Serve does. There are at
// most Requests and Reserve connections together; while something is being served on each
// of them, another waits in the listener's queue.
func (b *Bound) Serve(srv *http.Server, l net.Listener) error {
	srv.Handler = b.handler(srv.Handler)
	srv.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		return context.WithValue(ctx, key{}, c)
	}
	srv.ConnState = func(c net.Conn, s http.ConnState) {
		if s == http.StateIdle { // the answer is on its way as a whole
			b.use(c.(*conn), false)
		}
	}
	return srv.Serve(&listener{Listener: l, b: b})
}

// key is that of the connection in a request's context.
type key struct{}

func (b *Bound) handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := r.Context().Value(key{}).(*conn)
		b.use(c, true)
		if b.o.Urgent != nil && b.o.Urgent(r) {
			next.ServeHTTP(w, r)
			return
		}
		select {
		case b.slots <- struct{}{}:
			defer func() { <-b.slots }()
			next.ServeHTTP(w, r)
		default:
			w.Header().Set("Connection", "close")
			w.Header().Set("Retry-After", "1")
			b.o.Busy(w, r)
			b.use(c, false) // how slowly the rest of it comes is no matter of the others
		}
	})
}

// use notes whether something is served on c.
func (b *Bound) use(c *conn, serving bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c.serving, c.served = serving, true
	if c.at == nil {
		return // it is closed
	}
	b.conns.MoveToBack(c.at)
	b.changed.Signal()
}

// room makes room for one more connection, or waits for it; false: the listener is closed.
func (b *Bound) room() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for !b.closed && b.conns.Len() >= b.o.Requests+b.o.Reserve {
		c, left := b.idlest()
		if c != nil && left <= 0 {
			b.remove(c)
			_ = c.Conn.Close() // the server finds out by itself
			continue
		}
		b.wait(c != nil, left)
	}
	return !b.closed
}

// wait waits for a change, or so long where that is bounded; the lock is held.
func (b *Bound) wait(bounded bool, most time.Duration) {
	if bounded {
		t := time.AfterFunc(most, func() {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.changed.Broadcast()
		})
		defer t.Stop()
	}
	b.changed.Wait()
}

// idlest is the connection that makes room first, and how long it need not yet: of those
// that nothing is served on and that had their time the one that was used before all
// others; nil: there is none. The lock is held.
func (b *Bound) idlest() (first *conn, left time.Duration) {
	for e := b.conns.Front(); e != nil; e = e.Next() {
		c := e.Value.(*conn)
		if c.serving {
			continue
		}
		wait := b.grace - time.Since(c.since)
		if c.served || wait <= 0 {
			return c, 0
		}
		if first == nil || wait < left {
			first, left = c, wait
		}
	}
	return first, left
}

// remove takes c from those that are there; the lock is held.
func (b *Bound) remove(c *conn) {
	if c.at != nil {
		b.conns.Remove(c.at)
		c.at = nil
		b.changed.Signal()
	}
}

// listener accepts as long as there is room.
type listener struct {
	net.Listener
	b *Bound
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	raw, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if !l.b.room() {
		_ = raw.Close()
		return nil, net.ErrClosed
	}
	l.b.mu.Lock()
	defer l.b.mu.Unlock()
	c := &conn{Conn: raw, b: l.b, since: time.Now()}
	c.at = l.b.conns.PushBack(c)
	return c, nil
}

// Close implements net.Listener.
func (l *listener) Close() error {
	l.b.mu.Lock()
	l.b.closed = true
	l.b.changed.Broadcast()
	l.b.mu.Unlock()
	return l.Listener.Close()
}

// conn is a connection that counts until it is closed.
type conn struct {
	net.Conn
	b       *Bound
	at      *list.Element // nil: it counts no more
	since   time.Time
	serving bool
	served  bool // a request came, at least one
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.b.mu.Lock()
	c.b.remove(c)
	c.b.mu.Unlock()
	return c.Conn.Close()
}

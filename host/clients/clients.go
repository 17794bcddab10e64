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
	"errors"
	"net"
	"net/http"
	"sync"
	"time"
)

const (
	// answerWait is how long a client that there is no room for may take to read that.
	answerWait = time.Second
	// takeWait is how long its connection is kept then, if somebody waits for one: a
	// client may still be sending, and look for an answer when it has sent everything.
	takeWait = 50 * time.Millisecond
	// restWait is how long the rest of a body may take that nobody wants, once the
	// request's handler has returned: net/http looks for it.
	restWait = 500 * time.Millisecond
)

// Options are the bounds of one server.
type Options struct {
	// Requests is how many that are not urgent are served at a time, at least 1.
	Requests int
	// Reserve is how many connections there may be beside, at least 3. Most are for
	// urgent requests, of which as many are served beside the others; some of those for
	// such with a body, which may come slowly. One is always there for who is told that
	// there is no room.
	Reserve int
	// Grace is how long a new connection has for its first request before it makes room:
	// a client of this machine sends it at once.
	Grace time.Duration
	// Urgent tells a request that is served beside Requests others; nil: none is. It
	// must end soon by itself.
	Urgent func(*http.Request) bool
	// Busy answers a request that there is no room for. It must not read its body.
	Busy http.HandlerFunc
}

// Bound holds one server to its bounds. It is safe for concurrent use.
type Bound struct {
	o                     Options
	slots, urgent, bodies chan struct{} // as many places as they hold

	mu      sync.Mutex
	changed sync.Cond
	closed  bool
	conns   *list.List // of *conn; those that were used last are at the back
}

// New makes a Bound, for one call of Serve.
func New(o Options) *Bound {
	bodies, spare := max(1, o.Reserve/4), max(1, o.Reserve/8)
	b := &Bound{
		o: o, conns: list.New(), slots: make(chan struct{}, o.Requests),
		urgent: make(chan struct{}, o.Reserve-bodies-spare), bodies: make(chan struct{}, bodies),
	}
	b.changed.L = &b.mu
	return b
}

// Serve serves the connections of l with srv, whose ConnContext and ConnState it takes
// over; what Handler made is to be in its Handler. It returns as srv.Serve does. There are
// at most Requests and Reserve connections together. When l is closed, those end on which
// nothing is being served.
func (b *Bound) Serve(srv *http.Server, l net.Listener) error {
	srv.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		return context.WithValue(ctx, key{}, c)
	}
	srv.ConnState = func(c net.Conn, s http.ConnState) {
		switch s {
		case http.StateIdle: // the answer is on its way as a whole
			b.unused(c.(*conn), 0)
		case http.StateHijacked:
			b.hijacked(c.(*conn))
		}
	}
	return srv.Serve(&listener{Listener: l, b: b})
}

// key is that of the connection in a request's context.
type key struct{}

// Handler serves requests with next, within the bounds. What is before it, such as one that
// refuses strangers, takes no place, and its connections make room as new ones do: it must
// be done with a request at once.
func (b *Bound) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := r.Context().Value(key{}).(*conn)
		b.used(c)
		if r.Method != http.MethodPost && r.Method != http.MethodPut { // nobody reads a body
			b.rest(c, w, r) // net/http looks for it before it sends an answer that is not small
		}
		defer b.rest(c, w, r)
		place := b.place(r)
		if place == nil {
			b.refuse(c, w, r)
			return
		}
		defer func() { <-place }()
		next.ServeHTTP(w, r)
	})
}

// place takes a place for r, out of what it gives; nil: there is none.
func (b *Bound) place(r *http.Request) chan struct{} {
	if b.o.Urgent != nil && b.o.Urgent(r) {
		place := b.urgent
		if r.ContentLength != 0 {
			place = b.bodies
		}
		select {
		case place <- struct{}{}:
			return place
		default:
		}
	}
	select {
	case b.slots <- struct{}{}:
		return b.slots
	default:
		return nil
	}
}

// refuse says that there is no room. How slowly the rest of the request comes is no matter
// of the others then.
func (b *Bound) refuse(c *conn, w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Connection", "close")
	w.Header().Set("Retry-After", "1")
	b.o.Busy(w, r)
	rc := http.NewResponseController(w)
	_ = rc.SetWriteDeadline(time.Now().Add(answerWait)) // one that cannot be told is gone
	_ = rc.Flush()
	b.unused(c, takeWait)
}

// rest bounds what is still to come of a request whose body nobody reads, or any more.
func (b *Bound) rest(c *conn, w http.ResponseWriter, r *http.Request) {
	b.mu.Lock()
	taken := c.taken
	b.mu.Unlock()
	if r.ContentLength != 0 && !taken {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(restWait)) // it may be closed
	}
}

// used notes that something is served on c.
func (b *Bound) used(c *conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c.serving = true
	b.touch(c)
}

// unused notes that nothing is served on c any more, which makes room when that time is over.
func (b *Bound) unused(c *conn, wait time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c.serving, c.free = false, time.Now().Add(wait)
	b.touch(c)
}

// hijacked notes that c is not the server's any more: it counts until it is closed.
func (b *Bound) hijacked(c *conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c.taken = true
}

// touch makes c the one that was used last; the lock is held.
func (b *Bound) touch(c *conn) {
	if c.at == nil {
		return // it is closed
	}
	b.conns.MoveToBack(c.at)
	b.changed.Signal()
}

// add makes room for a new connection, or waits for it; nil: the listener is closed.
func (b *Bound) add(raw net.Conn) *conn {
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
	if b.closed {
		return nil
	}
	c := &conn{Conn: raw, b: b, free: time.Now().Add(b.o.Grace)}
	c.at = b.conns.PushBack(c)
	return c
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
// that nothing is served on and whose time is over the one that was used before all
// others; nil: there is none. The lock is held.
func (b *Bound) idlest() (first *conn, left time.Duration) {
	for e := b.conns.Front(); e != nil; e = e.Next() {
		c := e.Value.(*conn)
		if c.serving {
			continue
		}
		wait := time.Until(c.free)
		if wait <= 0 {
			return c, 0
		}
		if first == nil || wait < left {
			first, left = c, wait
		}
	}
	return first, left
}

// idle are the connections that nothing is served on; the lock is held.
func (b *Bound) idle() (all []*conn) {
	for e := b.conns.Front(); e != nil; e = e.Next() {
		if c := e.Value.(*conn); !c.serving {
			all = append(all, c)
		}
	}
	return all
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
	c := l.b.add(raw)
	if c == nil {
		_ = raw.Close()
		return nil, net.ErrClosed
	}
	return c, nil
}

// Close implements net.Listener.
func (l *listener) Close() error {
	l.b.mu.Lock()
	l.b.closed = true
	l.b.changed.Broadcast()
	idle := l.b.idle()
	l.b.mu.Unlock()
	for _, c := range idle { // net/http would wait for some of them
		_ = c.Conn.Close()
	}
	return l.Listener.Close()
}

// conn is a connection that counts until it is closed.
type conn struct {
	net.Conn
	b       *Bound
	at      *list.Element // nil: it counts no more
	free    time.Time     // when it makes room at the earliest, if nothing is served on it
	serving bool
	taken   bool // it is not net/http's any more
}

// CloseWrite is what net/http looks for where an answer is the last and its client may
// still be sending: all of it is on its way.
func (c *conn) CloseWrite() error {
	c.b.unused(c, takeWait)
	if w, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return errors.ErrUnsupported
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.b.mu.Lock()
	c.b.remove(c)
	c.b.mu.Unlock()
	return c.Conn.Close()
}

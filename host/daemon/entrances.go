package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/pybox/pybox/docs"
	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/clients"
	"github.com/pybox/pybox/host/gate"
	"github.com/pybox/pybox/host/peer"
	"github.com/pybox/pybox/host/reply"
)

const (
	maxRequestHeader = 16 << 10
	// headerWait is how long the header of a request may take, and idleWait how long a
	// connection is kept for another one.
	headerWait = 5 * time.Second
	idleWait   = time.Minute
	// readWait bounds a request until its handler says how long its body may take.
	readWait = 10 * time.Second
)

// bounds are how many requests are served at a time on an entrance, how many connections
// there are beside, and how long one that is silent is kept while others wait.
type bounds struct {
	requests, reserve int
	grace             time.Duration
}

// Anybody on this machine can connect to the TCP port.
var (
	socketBounds = bounds{240, 16, time.Second}
	tcpBounds    = bounds{56, 8, 50 * time.Millisecond}
)

// entrance is a way in to the API.
type entrance struct {
	l     net.Listener
	srv   *http.Server
	bound *clients.Bound
}

// entrances are the ways in.
type entrances struct {
	d      *Daemon
	all    []entrance
	served sync.WaitGroup
}

// open listens wherever the API is to be served, and records this process as the daemon.
// We hold the lock.
func (d *Daemon) open() (_ *entrances, err error) {
	o := &entrances{d: d}
	defer func() {
		if err != nil {
			for _, e := range o.all {
				_ = e.l.Close()
			}
		}
	}()
	mux := d.mux()
	if addr := d.o.Config.API.Listen; addr != "" {
		if err := o.openTCP(addr, mux); err != nil {
			return nil, err
		}
	}
	l, err := d.listen()
	if err != nil {
		return nil, err
	}
	everybody := func(h http.Handler) (http.Handler, error) { return h, nil } // the listener has looked who it is
	if err := o.add(l, mux, socketBounds, everybody); err != nil {
		_ = l.Close()
		return nil, err
	}
	if err := d.o.Home.SetDaemon(d.o.Version, d.born, d.tcp); err != nil {
		return nil, err
	}
	return o, nil
}

// listen binds the socket. We hold the lock, so a socket that is there is stale.
func (d *Daemon) listen() (net.Listener, error) {
	h := d.o.Home
	if err := h.PrepareSocket(); err != nil {
		return nil, err
	}
	if err := os.Remove(h.Socket()); err != nil && !os.IsNotExist(err) {
		return nil, fmt.Errorf("removing a stale socket: %w", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: h.Socket()})
	if err != nil {
		return nil, fmt.Errorf("listening for clients: %w", err)
	}
	// The folder is private, so nobody got in between.
	if err := os.Chmod(h.Socket(), 0o600); err != nil {
		l.Close()
		return nil, err
	}
	return peer.Listener(l, d.log), nil
}

// openTCP listens on a TCP port too, for those who have the token.
func (o *entrances) openTCP(addr string, api http.Handler) error {
	d := o.d
	token, err := gate.Token(d.o.Home.APIToken())
	if err != nil {
		return fmt.Errorf("the API on %s: %w", addr, err)
	}
	l, err := gate.Listen(addr)
	if err != nil {
		return fmt.Errorf("the API: %w ([api] listen in %s, or --listen)", err, d.o.Home.Config())
	}
	guard := func(h http.Handler) (http.Handler, error) {
		return gate.New(h, gate.Options{Addr: l.Addr(), Token: token, Refuse: d.refuse})
	}
	if err := o.add(l, noShell(api), tcpBounds, guard); err != nil {
		_ = l.Close()
		return fmt.Errorf("the API on %s: %w", addr, err)
	}
	d.tcp = l.Addr().String()
	d.log.Info("the API is served on TCP too", "address", d.tcp)
	return nil
}

// add has h served on l, within its bounds, to those whom guard lets in: others take no
// place there.
func (o *entrances) add(l net.Listener, h http.Handler, n bounds, guard func(http.Handler) (http.Handler, error)) error {
	bound := clients.New(clients.Options{
		Requests: n.requests, Reserve: n.reserve, Grace: n.grace, Urgent: urgent,
		Busy: func(w http.ResponseWriter, _ *http.Request) {
			reply.Problem(w, &api.Problem{Type: api.ProblemBusy, Title: "too many requests", Status: http.StatusServiceUnavailable,
				Detail: fmt.Sprintf("%d requests are being served already, the most at a time", n.requests), Next: "try again when others have ended"})
		},
	})
	h, err := guard(bound.Handler(h))
	if err != nil {
		return err
	}
	if o.d.o.watch != nil {
		h = o.d.o.watch(h)
	}
	o.all = append(o.all, entrance{l, o.d.server(h), bound})
	return nil
}

// serve answers, until shut is called.
func (o *entrances) serve() {
	for _, e := range o.all {
		o.served.Go(func() {
			if err := e.bound.Serve(e.srv, e.l); !errors.Is(err, http.ErrServerClosed) {
				o.d.log.Warn("the API ended early", "error", err)
			}
		})
	}
}

// shut takes no more requests and waits for the answers to those that are there, until ctx
// ends. It removes the socket.
func (o *entrances) shut(ctx context.Context) {
	var closing sync.WaitGroup
	for _, e := range o.all {
		closing.Go(func() {
			if err := e.srv.Shutdown(ctx); err != nil {
				_ = e.srv.Close()
			}
		})
	}
	closing.Wait()
	o.served.Wait()
}

// routes are the handlers of the whole API by their patterns.
func (d *Daemon) routes() map[string]http.HandlerFunc {
	all := d.runs.Routes()
	all["GET "+api.PathOpenAPI] = serveDescription
	all["GET "+api.PathStatus] = d.serveStatus
	all["POST "+api.PathVMStart] = d.serveStart
	all["POST "+api.PathVMStop] = d.serveStop
	all["POST "+api.PathVMShell] = d.serveShell
	all["GET "+api.PathVMShell] = d.serveShellConn
	return all
}

// mux has the whole API.
func (d *Daemon) mux() http.Handler {
	mux := http.NewServeMux()
	for pattern, handle := range d.routes() {
		mux.HandleFunc(pattern, handle)
	}
	return problems(mux)
}

// serveDescription gives the OpenAPI description of this API.
func serveDescription(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = reply.NewWriter(w).Write(docs.OpenAPI) // a client that is gone is no fault of ours
}

// server is the HTTP side. Slow clients are cut off by its timeouts, which the
// handlers move on where a body or an answer is long; an answer that waits for the VM
// is bounded by the start's and the stop's own deadlines.
func (d *Daemon) server(h http.Handler) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: headerWait,
		ReadTimeout:       readWait,
		IdleTimeout:       idleWait,
		MaxHeaderBytes:    maxRequestHeader,
		ErrorLog:          slog.NewLogLogger(d.log.Handler(), slog.LevelDebug),
		// Else net/http answers "OPTIONS *" by itself, before the gate.
		DisableGeneralOptionsHandler: true,
	}
}

// urgent tells a request that is served beside as many others as may be: it looks, or ends
// something. One that has a body where none belongs is not: that may come slowly.
func urgent(r *http.Request) bool {
	switch {
	case r.Method == http.MethodPost:
		return r.URL.Path == api.PathVMStop
	case r.ContentLength != 0:
		return false
	case r.Method == http.MethodGet, r.Method == http.MethodHead:
		return r.URL.Path == api.PathStatus || r.URL.Path == api.PathRuns
	}
	return r.Method == http.MethodDelete
}

// noShell keeps the guest's shell to the socket, where the kernel says who is at the other
// end: what a token opens is the running of programs.
func noShell(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, api.PathVMShell) {
			reply.Problem(w, &api.Problem{Type: api.ProblemShell, Title: "no shell over TCP", Status: http.StatusForbidden,
				Detail: "a shell in the guest is opened through the daemon's socket alone", Next: "run 'pybox vm shell'"})
			return
		}
		next.ServeHTTP(w, r)
	})
}

// refuse answers a request on the TCP port that is not let in.
func (d *Daemon) refuse(w http.ResponseWriter, r *http.Request, no gate.Refusal) {
	p := &api.Problem{Type: api.ProblemNotAllowed, Title: http.StatusText(no.Status), Status: no.Status, Detail: no.Detail}
	if no.Status == http.StatusUnauthorized {
		p.Next = "the token is in the file api-token of PyBox's folder"
	}
	d.log.Debug("a request was not let in", "status", no.Status, "from", r.RemoteAddr)
	reply.Problem(w, p)
}

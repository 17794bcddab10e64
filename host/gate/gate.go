// Package gate keeps an HTTP server on a TCP port of this machine private. Anybody on
// the machine can connect to such a port, and any web page that a person looks at can
// have their browser do so: the gate answers who has the token alone, under a name of
// this machine alone. (A server that is to keep to that has DisableGeneralOptionsHandler
// set; what is no HTTP net/http refuses by itself.) It listens on the loopback interface and
// nowhere else. It knows nothing of what is behind it, and gives nobody a permission of CORS.
package gate

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ErrAddress: the gate does not listen there.
var ErrAddress = errors.New("not an address of this machine alone")

// ErrOrigin: an origin that cannot be allowed.
var ErrOrigin = errors.New("not an origin of this machine")

// restWait is how long who is not let in may take for the answer, and for the rest of what
// it sends: most clients look for an answer when they have sent everything.
const restWait = 500 * time.Millisecond

// localhost is the one name that every system takes for its own (RFC 6761, section 6.3): a
// request may name the server so.
const localhost = "localhost"

// ParseAddress reads an address to listen on: "127.0.0.1:PORT", any other of 127.0.0.0/8, or
// "[::1]:PORT". "localhost" is none: it can be two, and whoever has the other one gets what
// clients send there, the token too. PORT is a number up to 65535; 0 is one that the system
// chooses. The error matches ErrAddress.
func ParseAddress(addr string) (netip.AddrPort, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("%.80q: %w: want 127.0.0.1:PORT", addr, ErrAddress)
	}
	ip, err := netip.ParseAddr(host)
	if err != nil || !ip.IsLoopback() || ip.Zone() != "" || ip.Is4In6() {
		return netip.AddrPort{}, fmt.Errorf("%.80q: %w: want 127.0.0.1:PORT or [::1]:PORT", addr, ErrAddress)
	}
	n, err := parsePort(port)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("%.80q: %w: the port is no number between 0 and 65535", addr, ErrAddress)
	}
	return netip.AddrPortFrom(ip, n), nil
}

// parsePort reads a port as plain digits.
func parsePort(s string) (uint16, error) {
	if len(s) > 5 || strings.ContainsFunc(s, func(r rune) bool { return r < '0' || r > '9' }) {
		return 0, strconv.ErrSyntax
	}
	n, err := strconv.ParseUint(s, 10, 16)
	return uint16(n), err
}

// Listen listens on an address as ParseAddress takes it. The error matches ErrAddress, or
// is the system's.
func Listen(addr string) (net.Listener, error) {
	at, err := ParseAddress(addr)
	if err != nil {
		return nil, err
	}
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(at))
	if err != nil {
		return nil, fmt.Errorf("listening on %s: %w", at, err)
	}
	return l, nil
}

// Refusal is why a request is not let in.
type Refusal struct {
	// Status is 401 where the token is missing or wrong, 403 for everything else.
	Status int
	// Detail is one sentence for the client. It says nothing of the token.
	Detail string
}

// Options are what a gate is made of.
type Options struct {
	// Addr is the listener's, whose port and IP address the gate answers to.
	Addr net.Addr
	// Token is what Token gave; it must not be empty.
	Token string
	// Origins are the origins of web pages on this machine, such as
	// "http://localhost:6274", that requests may come from beside the server's own.
	Origins []string
	// Refuse writes the answer to a request that is not let in. The header
	// WWW-Authenticate is set already, where it belongs. nil answers plain text.
	Refuse func(http.ResponseWriter, *http.Request, Refusal)
}

// Gate is a handler before another. It is safe for concurrent use.
type Gate struct {
	next    http.Handler
	hosts   []string // as a request may name the server
	token   [sha256.Size]byte
	origins []string
	refuse  func(http.ResponseWriter, *http.Request, Refusal)
}

// New puts a gate before next. The error matches ErrAddress or ErrOrigin, or says that
// there is no token.
func New(next http.Handler, o Options) (*Gate, error) {
	tcp, ok := o.Addr.(*net.TCPAddr)
	if !ok || !tcp.IP.IsLoopback() || tcp.Zone != "" {
		return nil, fmt.Errorf("%v: %w", o.Addr, ErrAddress)
	}
	if o.Token == "" {
		return nil, errors.New("a gate without a token")
	}
	g := &Gate{next: next, token: sha256.Sum256([]byte(o.Token)), refuse: o.Refuse}
	if g.refuse == nil {
		g.refuse = func(w http.ResponseWriter, _ *http.Request, r Refusal) { http.Error(w, r.Detail, r.Status) }
	}
	g.hosts = hostsOf(tcp.AddrPort())
	for _, s := range o.Origins {
		u, err := url.Parse(s)
		if err != nil || !isOrigin(u) || !isLocal(u.Hostname()) {
			return nil, fmt.Errorf("%.80q: %w: want http://localhost:PORT or the like", s, ErrOrigin)
		}
		g.origins = append(g.origins, strings.ToLower(s))
	}
	return g, nil
}

// hostsOf are the values of the header Host that name a server at that address.
func hostsOf(at netip.AddrPort) []string {
	at = netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
	hosts := []string{at.String(), net.JoinHostPort(localhost, strconv.Itoa(int(at.Port())))}
	if at.Port() == 80 { // http has it by default
		hosts = append(hosts, strings.TrimSuffix(at.String(), ":80"), localhost)
	}
	return hosts
}

// isOrigin tells whether u is a scheme, a host and perhaps a port, and no more (RFC 6454,
// section 6.2).
func isOrigin(u *url.URL) bool {
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return false
	}
	return *u == url.URL{Scheme: u.Scheme, Host: u.Host}
}

func isLocal(host string) bool {
	ip, err := netip.ParseAddr(host)
	return strings.EqualFold(host, localhost) || err == nil && ip.IsLoopback()
}

// ServeHTTP implements http.Handler.
func (g *Gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	no := g.check(r)
	if no == nil {
		g.next.ServeHTTP(w, r)
		return
	}
	// A stranger sends no body, and no second request.
	w.Header().Set("Connection", "close")
	if no.Status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Bearer realm="pybox"`)
	}
	g.refuse(w, r, *no)
	// Nor is it waited for: net/http looks for the rest of a body before it closes.
	rc := http.NewResponseController(w)
	until := time.Now().Add(restWait)
	_ = rc.SetWriteDeadline(until) // the server's bounds hold where there is no such thing
	_ = rc.Flush()
	_ = rc.SetReadDeadline(until)
}

// check says why a request is not let in; nil: it is.
func (g *Gate) check(r *http.Request) *Refusal {
	switch {
	case !g.ours(r.Host):
		// A page whose name was made to lead here names itself (DNS rebinding).
		return &Refusal{http.StatusForbidden, "the header Host does not name this server: want " + g.hosts[0]}
	case !g.allowed(r):
		return &Refusal{http.StatusForbidden, "the header Origin names a web page that may not use this server"}
	case !g.knows(r.Header.Values("Authorization")):
		return &Refusal{http.StatusUnauthorized, "the header Authorization does not have this server's token: want \"Bearer TOKEN\""}
	}
	return nil
}

func (g *Gate) ours(host string) bool {
	return slices.Contains(g.hosts, strings.ToLower(host)) // which makes no other letter one of ours
}

// allowed tells whether the page that sends a request, if a browser names one, may do so.
func (g *Gate) allowed(r *http.Request) bool {
	given := r.Header.Values("Origin")
	switch len(given) {
	case 0:
		return true
	case 1:
	default:
		return false
	}
	origin := strings.ToLower(given[0])
	return origin == "http://"+strings.ToLower(r.Host) || slices.Contains(g.origins, origin)
}

// knows tells whether the values of Authorization are the token (RFC 6750, section 2.1).
// How long that takes does not depend on it.
func (g *Gate) knows(values []string) bool {
	if len(values) != 1 {
		return false
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return false
	}
	sum := sha256.Sum256([]byte(strings.Trim(token, " ")))
	return subtle.ConstantTimeCompare(sum[:], g.token[:]) == 1
}

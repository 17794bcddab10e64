package pyindex

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/pybox/pybox/guest/fetch"
)

const (
	maxRedirects = 5
	maxFolders   = 32
	userAgent    = "pybox"
)

// Options of a Client.
type Options struct {
	// IndexURL is the index that the person named, "" for the lock's or else the
	// public one. It may be http, and may have a name and password in it.
	IndexURL string
	// FindLinks are folders with wheels, which go before an index.
	FindLinks []string
	// Offline keeps from every network request: there are the folders and what is
	// in the cache already.
	Offline bool
	// Cache is the folder of downloads, as from fetch.CacheDir.
	Cache string
	// HTTP makes the requests; nil: fetch.NewClient's. Its redirect policy is
	// replaced.
	HTTP *http.Client
	// Log gets what is worth knowing; nil discards it.
	Log *slog.Logger

	// tries, backoff and timeout of requests; tests shorten them.
	tries            int
	backoff, timeout time.Duration
	// free is how many bytes a folder's disk has; tests say how many.
	free func(dir string) (uint64, error)
}

// Client finds and fetches wheels. Its methods are safe for concurrent use.
type Client struct {
	o       Options
	http    *http.Client
	index   *place // of Options.IndexURL; nil where none was named
	folders []string
}

// place is an index: its address without credentials, and those.
type place struct {
	base *url.URL // its path ends in '/'
	user *url.Userinfo
}

// String is the address for people.
func (p place) String() string { return p.base.String() }

// New returns a client, or says which option is wrong.
func New(o Options) (*Client, error) {
	if o.Cache == "" {
		return nil, errors.New("no folder for downloads is given")
	}
	c := &Client{o: o}
	if o.IndexURL != "" {
		p, err := parsePlace(o.IndexURL)
		if err != nil {
			return nil, fmt.Errorf("--index-url: %w", err)
		}
		c.index = p
	}
	if len(o.FindLinks) > maxFolders {
		return nil, fmt.Errorf("--find-links: more than %d folders", maxFolders)
	}
	for _, dir := range o.FindLinks {
		abs, err := checkFolder(dir)
		if err != nil {
			return nil, fmt.Errorf("--find-links: %w", err)
		}
		c.folders = append(c.folders, abs)
	}
	base := o.HTTP
	if base == nil {
		base = fetch.NewClient()
		// Pages shrink well. Wheels are asked for as they are.
		if t, ok := base.Transport.(*http.Transport); ok {
			t.DisableCompression = false
		}
	}
	own := *base
	own.CheckRedirect = checkRedirect
	c.http = &own
	return c, nil
}

func checkFolder(dir string) (string, error) {
	if strings.Contains(dir, "://") {
		return "", errors.New("want a folder of this machine, not an address; an index is given with --index-url")
	}
	st, err := os.Stat(dir)
	if err != nil {
		return "", err
	}
	if !st.IsDir() {
		return "", fmt.Errorf("%s is no folder", dir)
	}
	return filepath.Abs(dir)
}

// parsePlace reads an index's address.
func parsePlace(address string) (*place, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || len(address) > maxAddressBytes {
		return nil, errors.New("want an https address such as " + DefaultIndex)
	}
	p := &place{base: u, user: u.User}
	u.User = nil
	// As it was written: "a%2Fb" is one part of a path.
	raw := strings.TrimRight(u.EscapedPath(), "/") + "/"
	if u.Path, err = url.PathUnescape(raw); err != nil {
		return nil, errors.New("want an https address such as " + DefaultIndex)
	}
	u.RawPath = raw
	return p, nil
}

// project is the address of a project's page.
func (p place) project(name string) string { return p.base.JoinPath(name).String() + "/" }

// sendsTo tells whether an address is on the index's own host, which may see its
// credentials.
func (p place) sendsTo(u *url.URL) bool { return origin(u) == origin(p.base) }

// origin is what has to be the same for two addresses to be of one server.
func origin(u *url.URL) string {
	port := u.Port()
	switch {
	case port != "":
	case u.Scheme == "https":
		port = "443"
	case u.Scheme == "http":
		port = "80"
	}
	return u.Scheme + "://" + net.JoinHostPort(strings.ToLower(u.Hostname()), port)
}

// checkRedirect lets a server send us on, but not from https to http, nor from http
// to another host by http.
func checkRedirect(req *http.Request, via []*http.Request) error {
	last := via[len(via)-1].URL
	switch {
	case len(via) > maxRedirects:
		return fmt.Errorf("%w more than %d times", fetch.ErrRedirect, maxRedirects)
	case len(req.URL.String()) > maxAddressBytes:
		return fmt.Errorf("%w to an address of more than %d bytes", fetch.ErrRedirect, maxAddressBytes)
	case !mayLink(last, req.URL):
		return fmt.Errorf("%w from %s://%s to %.200s://%.200s", fetch.ErrRedirect, last.Scheme, last.Host, req.URL.Scheme, req.URL.Host)
	}
	req.URL.User = nil // the client would send it
	// It has the address before, and with that its query.
	req.Header.Del("Referer")
	return nil
}

// mayLink tells whether a page at from may name to: https, or what is on its own
// host by the same means. Only a page of this machine may name what is on it.
func mayLink(from, to *url.URL) bool {
	switch {
	case to.Host == "", isHere(to) && !isHere(from):
		return false
	case to.Scheme == "https":
		return true
	}
	same := strings.EqualFold(to.Hostname(), from.Hostname()) || isHere(to)
	return to.Scheme == "http" && from.Scheme == "http" && same
}

// onlyNamed says what a lock may name.
const onlyNamed = "https is wanted in a lock file, and no address of this machine, unless --index-url names the same host"

// mayLock tells whether a lock file may name an address: https that is not on this
// machine, or else what is on the host of the index that the person named, by http only
// if that was.
func (c *Client) mayLock(u *url.URL) bool {
	named := c.index != nil && strings.EqualFold(c.index.base.Hostname(), u.Hostname())
	switch {
	case u.Host == "", isHere(u) && !named:
		return false
	case u.Scheme == "https":
		return true
	}
	return u.Scheme == "http" && named && c.index.base.Scheme == "http"
}

// isHere tells whether an address says of itself that it is this machine. A number
// that is not written as an address counts as such: it may stand for one.
func isHere(u *url.URL) bool {
	host := strings.TrimSuffix(strings.ToLower(u.Hostname()), ".")
	name, _, _ := strings.Cut(host, "%") // the zone of an address
	if ip := net.ParseIP(name); ip != nil {
		return ip.IsLoopback() || ip.IsUnspecified()
	}
	last := host[strings.LastIndexByte(host, '.')+1:]
	return host == "" || last == "localhost" || strings.Trim(last[:1], "0123456789") == ""
}

func (c *Client) log() *slog.Logger {
	if c.o.Log != nil {
		return c.o.Log
	}
	return slog.New(slog.DiscardHandler)
}

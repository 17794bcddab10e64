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
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return nil, errors.New("want an https address such as " + DefaultIndex)
	}
	p := &place{base: u, user: u.User}
	u.User = nil
	u.Path = strings.TrimRight(u.Path, "/") + "/"
	u.RawPath = ""
	return p, nil
}

// project is the address of a project's page.
func (p place) project(name string) string { return p.base.JoinPath(name).String() + "/" }

// sendsTo tells whether an address is on the index's own host, which may see its
// credentials.
func (p place) sendsTo(u *url.URL) bool {
	return u.Scheme == p.base.Scheme && u.Host == p.base.Host
}

// checkRedirect lets a server send us on, but not from https to http, nor from http
// to another host by http.
func checkRedirect(req *http.Request, via []*http.Request) error {
	last := via[len(via)-1].URL
	switch {
	case len(via) > maxRedirects:
		return fmt.Errorf("%w more than %d times", fetch.ErrRedirect, maxRedirects)
	case !mayLink(last, req.URL):
		return fmt.Errorf("%w from %s://%s to %.200s://%.200s", fetch.ErrRedirect, last.Scheme, last.Host, req.URL.Scheme, req.URL.Host)
	}
	req.URL.User = nil // the client would send it
	return nil
}

// mayLink tells whether a page at from may name to: https, or what is on its own
// host by the same means. A page of this machine may name all of it.
func mayLink(from, to *url.URL) bool {
	switch {
	case to.Host == "":
		return false
	case to.Scheme == "https":
		return true
	}
	same := strings.EqualFold(to.Hostname(), from.Hostname()) || isLoopback(to) && isLoopback(from)
	return to.Scheme == "http" && from.Scheme == "http" && same
}

// mayLock tells whether a lock file may name an address: https, or http on this
// machine or on the host of the index that the person named.
func (c *Client) mayLock(u *url.URL) bool {
	named := c.index != nil && c.index.base.Scheme == "http" && strings.EqualFold(c.index.base.Hostname(), u.Hostname())
	return u.Host != "" && (u.Scheme == "https" || u.Scheme == "http" && (isLoopback(u) || named))
}

func isLoopback(u *url.URL) bool {
	ip := net.ParseIP(u.Hostname())
	return u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
}

func (c *Client) log() *slog.Logger {
	if c.o.Log != nil {
		return c.o.Log
	}
	return slog.New(slog.DiscardHandler)
}

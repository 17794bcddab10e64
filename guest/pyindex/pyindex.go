// Package pyindex finds the wheels of a lock file and brings them here: on a package
// index (the Simple repository API: JSON of PEP 691, HTML of PEP 503) or in folders of
// this machine. What is fetched was pinned by hash in the lock; no index is trusted.
package pyindex

import (
	"context"
	"errors"
	"log/slog"
	"net/http"

	"github.com/pybox/pybox/guest/fetch"
	"github.com/pybox/pybox/guest/pylock"
	"github.com/pybox/pybox/guest/pytag"
)

// ErrChoice is matched by errors about packages for which no wheel can be had.
var ErrChoice = errors.New("no usable wheel")

// Options of a Client.
type Options struct {
	// IndexURL is the index that the person named, "" for the lock's or else the
	// public one. It may be http, and may have a name and password in it.
	IndexURL string
	// FindLinks are folders with wheels; they are looked at first.
	FindLinks []string
	// Offline keeps from every network request.
	Offline bool
	// Cache is the folder of downloads, as from fetch.CacheDir.
	Cache string
	// HTTP makes the requests; nil: a client of this package's own.
	HTTP *http.Client
	// Log gets what is worth knowing; nil discards it.
	Log *slog.Logger
}

// Client finds and fetches wheels. Its methods are safe for concurrent use.
type Client struct{ o Options }

// New returns a client, or says which option is wrong.
func New(o Options) (*Client, error) { return &Client{o}, nil }

// Chosen is a wheel that is going to be used.
type Chosen struct {
	Project string   // normalised
	Version string   // of the wheel, normalised
	Extras  []string // as locked
	File    string   // the wheel's name
	URL     string   // where from, without credentials and query; file:// for a local one
	SHA256  string   // lower-case hex, from the lock
	Bytes   int64
	Yanked  string // why the index withdrew it; "" where it did not
}

// Choose finds for each package of the lock the wheel that pip would take on the
// target. Everything that is wrong is in the one error.
func (c *Client) Choose(ctx context.Context, l *pylock.Lock, t pytag.Target) ([]Chosen, error) {
	return nil, ErrChoice
}

// Fetch brings the wheels into the cache and returns their paths there, in the same
// order. Every byte is verified before a path is returned. progress may be nil; it is
// called from several goroutines.
func (c *Client) Fetch(ctx context.Context, list []Chosen, progress func(fetch.Progress)) ([]string, error) {
	return nil, ErrChoice
}

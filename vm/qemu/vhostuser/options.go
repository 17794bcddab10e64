//go:build linux

package vhostuser

import (
	"fmt"
	"log/slog"
	"time"
)

const (
	defaultMaxConns      = 1024
	defaultReceiveBuffer = 256 << 10
	defaultReceiveMemory = 64 << 20
	defaultLinger        = 2 * time.Second

	// leastWindow is what every connection gets however many there are: four
	// of Linux's receive buffers, and room for the first frames of HTTP/2.
	leastWindow = 16 << 10
)

// Option changes how New makes a device.
type Option func(*config)

type config struct {
	log                     *slog.Logger
	maxConns                int
	receiveBuffer           int
	receiveMemory           int
	linger                  time.Duration
	leastWindow, extraBytes int // derived
}

// WithLogger sends what is worth knowing to l: the guest's first offence of each
// kind, and what the front end asked in vain. The default discards it.
func WithLogger(l *slog.Logger) Option { return func(c *config) { c.log = l } }

// WithMaxConns bounds the connections that exist at a time, from 1 to 65536;
// 1024 unless set. A connection counts from Dial until it is closed here and
// over for the guest too.
func WithMaxConns(n int) Option { return func(c *config) { c.maxConns = n } }

// WithReceiveBuffer sets the largest receive window of one connection in bytes,
// from 4096 to 16 MiB; 256 KiB unless set.
func WithReceiveBuffer(bytes int) Option { return func(c *config) { c.receiveBuffer = bytes } }

// WithReceiveMemory bounds the receive windows of all connections together, in
// bytes; 64 MiB unless set. It must hold the maximum of connections at 16 KiB
// each (or at the receive buffer, if that is smaller). A new connection gets its
// full receive buffer as long as that share of all others stays free, and less,
// down to the share, when it does not.
func WithReceiveMemory(bytes int) Option { return func(c *config) { c.receiveMemory = bytes } }

// WithLinger sets how long a closed connection waits for the guest's RST before
// it sends one itself, above 0 up to a minute; 2 seconds unless set.
func WithLinger(d time.Duration) Option { return func(c *config) { c.linger = d } }

func newConfig(opts []Option) (config, error) {
	c := config{
		log:           slog.New(slog.DiscardHandler),
		maxConns:      defaultMaxConns,
		receiveBuffer: defaultReceiveBuffer,
		receiveMemory: defaultReceiveMemory,
		linger:        defaultLinger,
	}
	for _, o := range opts {
		o(&c)
	}
	c.leastWindow = min(leastWindow, c.receiveBuffer)
	c.extraBytes = c.receiveMemory - c.maxConns*c.leastWindow
	switch {
	case c.log == nil:
		return c, fmt.Errorf("vhost-user vsock: no logger")
	case c.maxConns < 1 || c.maxConns > 1<<16:
		return c, fmt.Errorf("vhost-user vsock: %d connections: want 1 to %d", c.maxConns, 1<<16)
	case c.receiveBuffer < minBuffer || c.receiveBuffer > 16<<20:
		return c, fmt.Errorf("vhost-user vsock: receive buffer of %d bytes: want %d to %d", c.receiveBuffer, minBuffer, 16<<20)
	case c.extraBytes < 0:
		return c, fmt.Errorf("vhost-user vsock: receive memory of %d bytes: want at least %d for %d connections",
			c.receiveMemory, c.maxConns*c.leastWindow, c.maxConns)
	case c.linger <= 0 || c.linger > time.Minute:
		return c, fmt.Errorf("vhost-user vsock: linger time %v: want above 0 to a minute", c.linger)
	}
	return c, nil
}

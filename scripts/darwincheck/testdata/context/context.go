//go:build darwin && cgo

// Package context takes Connect for a function that can be bounded.
package context

import (
	"context"
	"net"

	"github.com/Code-Hex/vz/v3"
)

type dialer interface {
	Connect(ctx context.Context, port uint32) (net.Conn, error)
}

var _ dialer = (*vz.VirtioSocketDevice)(nil)

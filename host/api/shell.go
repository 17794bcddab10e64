package api

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"
)

const (
	// PathVMShell lets the caller into the guest. POST opens the shell there, which
	// stays open until the VM ends, and answers Shell. GET with "Connection: Upgrade"
	// and "Upgrade: ssh" (RFC 9110, section 7.8) becomes a connection to the guest's
	// SSH server.
	PathVMShell = "/v1/vm/shell"
	// ShellUpgrade is the protocol of that upgrade: SSH, RFC 4253.
	ShellUpgrade = "ssh"
	// MaxShells bounds the connections to the guest's SSH server at a time.
	MaxShells = 4
	// ProblemShell: the owner of this PyBox does not allow a shell, or there is none.
	ProblemShell = "urn:pybox:no-shell"
)

// Shell is what opens an SSH connection to the guest: it holds for this VM alone.
type Shell struct {
	// Opened tells that this is the first answer that the shell of this VM is open.
	Opened bool `json:"opened"`
	// ClientKey is the private key that is let in, in OpenSSH's format.
	ClientKey string `json:"client_key"`
	// HostKey is the guest's public key, as a line of authorized_keys: a client must
	// accept no other.
	HostKey string `json:"host_key"`
}

// upgradeWait bounds the way to the guest's SSH server.
const upgradeWait = 10 * time.Second

// OpenShell opens a shell in the guest, which must be running, until the VM ends.
// From then on every receipt says so, also where there is an error after which it is
// not known whether it was opened. It may be called again.
func (c *Client) OpenShell(ctx context.Context) (Shell, error) {
	var s Shell
	err := c.call(ctx, http.MethodPost, PathVMShell, struct{}{}, &s)
	return s, err
}

// DialShell connects to the guest's SSH server. ctx bounds the call alone.
func (c *Client) DialShell(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, upgradeWait)
	defer cancel()
	conn, err := dial(ctx, c.socket)
	if err != nil {
		return nil, explain(err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	r, err := upgrade(conn)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = conn.Close()
		if ctx.Err() != nil {
			err = fmt.Errorf("the daemon gave no connection to the guest: %w", ctx.Err())
		}
		return nil, err
	}
	return &upgraded{conn, r}, nil
}

// upgrade asks for the upgrade and gives what is read from.
func upgrade(conn net.Conn) (*bufio.Reader, error) {
	request, err := http.NewRequest(http.MethodGet, "http://pybox"+PathVMShell, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Connection", "Upgrade")
	request.Header.Set("Upgrade", ShellUpgrade)
	if err := request.Write(conn); err != nil {
		return nil, explain(err)
	}
	r := bufio.NewReader(conn)
	resp, err := http.ReadResponse(r, request)
	if err != nil {
		return nil, explain(err)
	}
	if resp.StatusCode == http.StatusSwitchingProtocols {
		return r, nil // the rest of the connection is the guest's
	}
	defer resp.Body.Close()
	data, err := readAnswer(resp)
	if err != nil {
		return nil, err
	}
	var p Problem
	if err := json.Unmarshal(data, &p); err != nil || p.Type == "" {
		return nil, errors.New("the daemon answered " + fmt.Sprintf("%.100q", resp.Status))
	}
	return nil, &p
}

// upgraded is a connection of which a part may have been read ahead.
type upgraded struct {
	net.Conn
	r *bufio.Reader
}

// Read implements net.Conn.
func (u *upgraded) Read(b []byte) (int, error) { return u.r.Read(b) }

//go:build linux && pyboxtest

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"
)

// mcpCalls is how many calls of the MCP server are measured.
const mcpCalls = 50

// benchMCP measures what a call of the MCP server's tool costs in CPU time of the
// server's process, which is all that it adds to a run that 'pybox exec' asks for; and
// what the process of 'pybox exec' costs.
func benchMCP(ctx context.Context, p person, r *report) error {
	idle, err := p.mcp(ctx, 0)
	if err != nil {
		return err
	}
	busy, err := p.mcp(ctx, mcpCalls)
	if err != nil {
		return err
	}
	program, err := p.write("mcp.py", "print('x' * 100)\n")
	if err != nil {
		return err
	}
	var alone []float64
	for range coldRuns {
		took, err := p.cpu(ctx, "", "exec", "--quiet", program)
		if err != nil {
			return err
		}
		alone = append(alone, ms(took.cpu))
	}
	r.add(
		row{Name: "pybox mcp: CPU time of the server a call", Value: ms(busy-idle) / mcpCalls, Unit: "ms", Limit: 5, Note: fmt.Sprintf("%d calls", mcpCalls)},
		row{Name: "  beside it: CPU time of a pybox exec", Value: median(alone), Unit: "ms"},
	)
	return nil
}

// mcp is the CPU time of a server that answers n calls.
func (p person) mcp(ctx context.Context, n int) (time.Duration, error) {
	var in strings.Builder
	fmt.Fprintln(&in, `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}}`)
	fmt.Fprintln(&in, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	for i := range n {
		fmt.Fprintf(&in, `{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"run_python","arguments":{"code":"print('x' * 100)","timeout":20}}}`+"\n", i+1)
	}
	took, err := p.cpu(ctx, in.String(), "mcp")
	if err != nil {
		return 0, err
	}
	if ok := bytes.Count(took.out, []byte(`"ok":true`)); ok != n {
		return 0, fmt.Errorf("%d of %d calls ended well", ok, n)
	}
	return took.cpu, nil
}

// spent is what a command printed and took.
type spent struct {
	out []byte
	cpu time.Duration
}

// cpu runs the command with a standard input.
func (p person) cpu(ctx context.Context, stdin string, args ...string) (spent, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, p.exe, args...)
	cmd.Env = append(os.Environ(), "PYBOX_HOME="+p.home)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	if err := cmd.Run(); err != nil {
		return spent{}, fmt.Errorf("pybox %v: %w\n%s", args, err, errs.Bytes())
	}
	return spent{out.Bytes(), cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()}, nil
}

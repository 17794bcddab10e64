//go:build linux && pyboxtest

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/pybox/pybox/host/bench/report"
	"github.com/pybox/pybox/host/receipt"
)

// mcpCalls is how many calls are measured of what one costs the server.
const mcpCalls = 20

// mcpServer is 'pybox mcp' with a client on its pipes.
type mcpServer struct {
	s       *service
	cmd     *exec.Cmd
	session *mcp.ClientSession
}

func (s *service) startMCP(ctx context.Context) (*mcpServer, error) {
	cmd := s.command(context.WithoutCancel(ctx), "mcp")
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	client := mcp.NewClient(&mcp.Implementation{Name: "bench", Version: "1"}, nil)
	session, err := client.Connect(ctx, &mcp.CommandTransport{Command: cmd}, nil)
	if err != nil {
		return nil, fmt.Errorf("the MCP server: %w", err)
	}
	return &mcpServer{s, cmd, session}, nil
}

// call runs a program, and reads its receipt.
func (m *mcpServer) call(ctx context.Context, image, source string) (time.Duration, *receipt.Receipt, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	began := time.Now()
	answer, err := m.session.CallTool(ctx, &mcp.CallToolParams{
		Name: "run_python", Arguments: map[string]any{"code": source, "image": image, "timeout": 30},
	})
	took := time.Since(began)
	if err != nil {
		return 0, nil, err
	}
	b, err := json.Marshal(answer.StructuredContent)
	if err != nil {
		return 0, nil, err
	}
	var said struct {
		Receipt struct {
			ID string `json:"id"`
		} `json:"receipt"`
	}
	if err := json.Unmarshal(b, &said); err != nil || said.Receipt.ID == "" {
		return 0, nil, fmt.Errorf("an answer without a receipt: %.300s", b)
	}
	rec, err := m.s.client.Receipt(ctx, said.Receipt.ID)
	return took, rec, err
}

// end has the server end, by the end of its input.
func (m *mcpServer) end() { _ = m.session.Close() }

// benchMCP measures what a call costs the server's process in CPU time, which is all
// that it adds to a run that 'pybox exec' asks for; and what the process of 'pybox exec'
// costs.
func (s *service) benchMCP(ctx context.Context, o *options, r *report.Report) error {
	calls := o.times(mcpCalls)
	idle, err := s.mcpCPU(ctx, 0)
	if err != nil {
		return err
	}
	busy, err := s.mcpCPU(ctx, calls)
	if err != nil {
		return err
	}
	program, err := s.write("mcp.py", "print('x' * 100)\n")
	if err != nil {
		return err
	}
	var alone []float64
	for range o.times(10) {
		took, err := s.spend(ctx, "", "exec", "--quiet", program)
		if err != nil {
			return err
		}
		alone = append(alone, ms(took.cpu))
	}
	f := func(id, name, note string) report.Figure {
		return report.Figure{ID: id, Group: groupClients, Name: name, Unit: "ms", Note: note}
	}
	r.Add(
		f("mcp.cpu", "CPU time of the MCP server a call", fmt.Sprintf("of %d calls", calls)).Once(max(ms(busy-idle)/float64(calls), 0.001)).AtMost(5),
		f("cli.cpu", "CPU time of a `pybox exec`", "the client's process alone").Of(alone),
	)
	return nil
}

// mcpCPU is the CPU time of a server that answers so many calls.
func (s *service) mcpCPU(ctx context.Context, calls int) (time.Duration, error) {
	m, err := s.startMCP(ctx)
	if err != nil {
		return 0, err
	}
	for range calls {
		if _, rec, err := m.call(ctx, "stdlib", "print('x' * 100)\n"); err != nil || rec.ExitCode() != 0 {
			m.end()
			return 0, fmt.Errorf("a call did not end as it should: %w", err)
		}
	}
	m.end()
	if m.cmd.ProcessState == nil {
		return 0, fmt.Errorf("the MCP server has not ended")
	}
	return m.cmd.ProcessState.UserTime() + m.cmd.ProcessState.SystemTime(), nil
}

//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pybox/pybox/host/mcp"
	"github.com/pybox/pybox/host/receipt"
)

// mcpClients is the folder of the MCP clients that are not ours, and node the Node there.
func mcpClients(t *testing.T) (dir, node string) {
	t.Helper()
	if dir = os.Getenv("PYBOX_TEST_MCP_CLIENTS"); dir == "" {
		t.Fatal("PYBOX_E2E=1 needs PYBOX_TEST_MCP_CLIENTS, the folder that scripts/mcp-clients names")
	}
	arch := runtime.GOARCH
	if arch == "amd64" {
		arch = "x64"
	}
	return dir, filepath.Join(dir, "node_modules", "node-linux-"+arch, "bin", "node")
}

// slowConfig gives calls the time that an emulated machine needs that others use too.
const slowConfig = "[ceilings]\ntimeout = \"2m\"\n[vm]\nidle_stop = \"5m\"\nqueue_wait = \"5m\"\n"

func TestE2EMCP(t *testing.T) {
	p := newPerson(t, "")
	p.config(slowConfig)
	t.Run("SDK on pipes", func(t *testing.T) { testMCPClient(t, p.in(t), "stdio", p.exe, "mcp", "--max-timeout", "60") })
	t.Run("SDK on HTTP", func(t *testing.T) { testMCPOverHTTP(t, p.in(t)) })
	t.Run("inspector", func(t *testing.T) { testMCPInspector(t, p.in(t)) })
	t.Run("end of input", func(t *testing.T) { testMCPEndOfInput(t, p.in(t)) })
	t.Run("killed", func(t *testing.T) { testMCPKilled(t, p.in(t)) })
	t.Run("client killed", func(t *testing.T) { testMCPClientKilled(t, p.in(t)) })
	t.Run("not set up", func(t *testing.T) { testMCPNotSetUp(t, p.in(t)) })
	t.Run("what it costs", func(t *testing.T) { testMCPCost(t, p.in(t)) })
}

// said is a line of client.mjs.
type said struct {
	What  string
	Value json.RawMessage
}

// mcpResult is a result as client.mjs has it.
type mcpResult struct {
	IsError bool
	Content []struct {
		Type, Text, MIMEType string
		Data                 []byte
		Resource             struct{ URI, Text string }
	}
	StructuredContent mcp.Output
}

// testMCPClient has the SDK's client do what an AI client does.
func testMCPClient(t *testing.T, p *person, args ...string) {
	dir, node := mcpClients(t)
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, node, append([]string{"../../host/mcp/testclients/client.mjs", dir}, args...)...)
	cmd.Env = p.command().Env
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	all := map[string]json.RawMessage{}
	before := ""
	sc := bufio.NewScanner(stdout)
	sc.Buffer(nil, 16<<20)
	for sc.Scan() {
		var s said
		if err := json.Unmarshal(sc.Bytes(), &s); err != nil {
			t.Fatalf("%q: %v", sc.Text(), err)
		}
		if s.What == "running" && all["running"] == nil {
			if before = p.theRun("running"); p.status().Guest.Boxes < 1 {
				t.Error("the run that is to be cancelled has no box")
			}
			fmt.Fprintln(stdin, "go on")
		}
		all[s.What] = s.Value
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v, after %v:\n%s", err, slices.Collect(keysOf(all)), stderr.String())
	}
	get := func(what string, to any) {
		t.Helper()
		if err := json.Unmarshal(all[what], to); err != nil {
			t.Fatalf("%s: %v in %.500s", what, err, all[what])
		}
	}

	var first mcpResult
	get("first", &first)
	text := first.Content[0].Text
	if first.IsError || !strings.Contains(text, "args ['a', 'b c'] stdin standard \\x1b[31m\n") || !strings.Contains(text, `{"jsonrpc":"2.0","id":1,"result":{}}`) {
		t.Errorf("error %t: %s", first.IsError, text)
	}
	if len(first.Content) != 3 || first.Content[1].Resource.Text != "A,B\n" || first.Content[2].MIMEType != "image/png" || !bytes.HasPrefix(first.Content[2].Data, []byte("\x89PNG")) ||
		!strings.Contains(text, "made smaller: 1568 x 6, was 2000 x 8") {
		t.Errorf("%d contents: %s", len(first.Content), text)
	}
	if o := first.StructuredContent; !o.OK || *o.ExitCode != 0 || o.Receipt.Cleanup != receipt.CleanupRemoved || !o.Receipt.Settings {
		t.Errorf("%+v", o)
	}
	p.kept(first.StructuredContent.Receipt.ID)
	var progress []struct {
		Progress float64
		Message  string
	}
	get("progress", &progress)
	if !slices.ContainsFunc(progress, func(n struct {
		Progress float64
		Message  string
	}) bool {
		return strings.HasPrefix(n.Message, "running")
	}) {
		t.Errorf("progress: %+v", progress)
	}
	var failing, refused, after mcpResult
	get("failing", &failing)
	if !failing.IsError || *failing.StructuredContent.ExitCode != 1 || !strings.Contains(failing.Content[0].Text, "ZeroDivisionError") {
		t.Errorf("%+v", failing)
	}
	get("refused", &refused)
	if !refused.IsError || !strings.Contains(refused.Content[0].Text, "timeout: want at most ") {
		t.Errorf("%+v", refused)
	}
	var many []string
	get("many", &many)
	for n := range 20 {
		if len(many) != 20 || many[n] != fmt.Sprintf("%d\n", n*n) {
			t.Fatalf("20 calls at a time: %q", many)
		}
	}
	if before == "" {
		t.Fatal("the call to be cancelled was not seen to run")
	}
	get("cancelled", new(string))
	p.expectIdle()
	if r := p.kept(before); r.Ending.How != receipt.HowCancelled || r.Ending.By != receipt.ByClient || r.Cleanup.Status != receipt.CleanupRemoved {
		t.Errorf("the cancelled run: %+v, %+v", r.Ending, r.Cleanup)
	}
	var listed float64
	if get("listed", &listed); listed > 10_000 { // a second, ten times wider
		t.Errorf("tools/list during a run took %v ms", listed)
	}
	if get("after", &after); after.IsError || after.StructuredContent.Stdout.Text != "still here\n" {
		t.Errorf("%+v", after)
	}
}

func keysOf(m map[string]json.RawMessage) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// testMCPOverHTTP serves on a port, and has the same client use it.
func testMCPOverHTTP(t *testing.T, p *person) {
	server := p.command("mcp", "--http", "127.0.0.1:0")
	stderr, err := server.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	defer server.Process.Kill()
	line, err := bufio.NewReader(stderr).ReadString('\n')
	address := regexp.MustCompile(`http://127\.0\.0\.1:[1-9]\d*/mcp`).FindString(line)
	if err != nil || address == "" {
		t.Fatalf("%q, %v", line, err)
	}
	file := filepath.Join(p.home, mcpToken)
	if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o600 || strings.Contains(line, strings.TrimSpace(string(mustRead(t, file)))) {
		t.Errorf("the token's file: %v, %v; said: %q", st, err, line)
	}
	testMCPClient(t, p, "http", address, strings.TrimSpace(string(mustRead(t, file))))
	server.Process.Signal(syscall.SIGTERM)
	if err := server.Wait(); err != nil {
		t.Errorf("it did not stop well: %v", err)
	}
}

// testMCPInspector asks by the inspector's command.
func testMCPInspector(t *testing.T, p *person) {
	dir, node := mcpClients(t)
	inspect := func(args ...string) string {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		build := filepath.Join(dir, "node_modules/@modelcontextprotocol/inspector-cli/build")
		cmd := exec.CommandContext(ctx, node, append([]string{"cli.js", "--cli", "-e", "PYBOX_HOME=" + p.home, p.exe, "mcp"}, args...)...)
		cmd.Env, cmd.Dir = p.command().Env, build // it looks for its own files from where it is started
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	if out := inspect("--method", "tools/list"); !strings.Contains(out, `"run_python"`) {
		t.Errorf("tools/list: %s", out)
	}
	if out := inspect("--method", "tools/call", "--tool-name", "run_python", "--tool-arg", "code=print(6*7)"); !strings.Contains(out, `"text": "42\n"`) {
		t.Errorf("tools/call: %s", out)
	}
}

// mcpLines are a session that says hello and then these lines.
func mcpLines(calls ...string) string {
	lines := append([]string{
		`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"lines","version":"1"}}}`,
		`{"jsonrpc":"2.0","method":"notifications/initialized"}`,
	}, calls...)
	return strings.Join(lines, "\n") + "\n"
}

func mcpCall(id int, code string, seconds int) string {
	b, err := json.Marshal(map[string]any{
		"jsonrpc": "2.0", "id": id, "method": "tools/call",
		"params": map[string]any{"name": "run_python", "arguments": map[string]any{"code": code, "timeout": seconds}},
	})
	if err != nil {
		panic(err) // none of these values
	}
	return string(b)
}

// testMCPEndOfInput: a client that closes its end after three requests, one of which
// never ends by itself, and that never cancels, gets all answers.
func testMCPEndOfInput(t *testing.T, p *person) {
	var out, errs bytes.Buffer
	cmd := p.command("mcp")
	cmd.Stdin = strings.NewReader(mcpLines(mcpCall(1, "while True: pass", 2), mcpCall(2, "print('two')", 20), "no JSON", mcpCall(3, "print('three')", 20)))
	cmd.Stdout, cmd.Stderr = &out, &errs
	timer := time.AfterFunc(3*time.Minute, func() { cmd.Process.Kill() })
	defer timer.Stop()
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %s", err, errs.String())
	}
	answers := map[string]string{}
	for line := range strings.Lines(out.String()) {
		var m struct {
			JSONRPC string
			ID      any
		}
		if err := json.Unmarshal([]byte(line), &m); err != nil || m.JSONRPC != "2.0" {
			t.Errorf("%q is not the protocol: %v", line, err)
		}
		answers[fmt.Sprint(m.ID)] += line
	}
	for id, want := range map[string]string{"0": "serverInfo", "1": `"how":"deadline"`, "2": `"text":"two\n"`, "3": `"text":"three\n"`, "<nil>": "-32700"} {
		if !strings.Contains(answers[id], want) {
			t.Errorf("the answer %s is %s, want %s in it", id, answers[id], want)
		}
	}
	p.expectIdle()
}

// testMCPKilled: a server that is killed takes its runs with it.
func testMCPKilled(t *testing.T, p *person) {
	cmd := p.command("mcp")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	io.WriteString(stdin, mcpLines(mcpCall(1, "import time; time.sleep(50)", 60)))
	id := p.theRun("running")
	cmd.Process.Kill()
	cmd.Wait()
	p.expectIdle()
	if r := p.kept(id); r.Ending.How != receipt.HowCancelled {
		t.Errorf("%+v", r.Ending)
	}
}

// testMCPClientKilled: a client that is gone, and cancelled nothing, leaves no run and no
// server behind.
func testMCPClientKilled(t *testing.T, p *person) {
	in, stdin, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := p.command("mcp")
	cmd.Stdin, cmd.Stdout = in, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	in.Close()
	out.Close()
	io.WriteString(stdin, mcpLines(mcpCall(1, "import time; time.sleep(100)", 110)))
	id := p.theRun("running")
	began := time.Now()
	stdin.Close()
	stdout.Close()
	timer := time.AfterFunc(time.Minute, func() { cmd.Process.Kill() })
	defer timer.Stop()
	if err := cmd.Wait(); err != nil {
		t.Errorf("the server: %v", err)
	}
	p.expectIdle()
	if r := p.kept(id); r.Ending.How != receipt.HowCancelled || time.Since(began) > 50*time.Second {
		t.Errorf("%+v after %v", r.Ending, time.Since(began))
	}
}

// testMCPNotSetUp: without a guest bundle the tool says what to run.
func testMCPNotSetUp(t *testing.T, p *person) {
	q := *p
	q.home = t.TempDir()
	if err := os.Chmod(q.home, 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := q.command("mcp")
	cmd.Stdin = strings.NewReader(mcpLines(mcpCall(1, "print(1)", 2)))
	out, err := cmd.Output()
	if err != nil || !strings.Contains(string(out), "'pybox setup --yes' makes and installs one") || !strings.Contains(string(out), "serverInfo") {
		t.Errorf("%v: %s", err, out)
	}
}

// testMCPCost measures what a call costs the server's process in CPU time.
func testMCPCost(t *testing.T, p *person) {
	const calls = 20
	cpu := func(n int) time.Duration {
		var lines []string
		for i := range n {
			lines = append(lines, mcpCall(i+1, "print('x' * 100)", 20))
		}
		cmd := p.command("mcp")
		cmd.Stdin = strings.NewReader(mcpLines(lines...))
		out, err := cmd.Output()
		if err != nil || strings.Count(string(out), `"ok":true`) != n {
			t.Fatalf("%d of %d calls ended well: %v", strings.Count(string(out), `"ok":true`), n, err)
		}
		return cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	}
	idle, busy := cpu(0), cpu(calls)
	each := (busy - idle) / calls
	t.Logf("a call costs %v of CPU in the server's process (%v for %d calls, %v for none)", each, busy, calls, idle)
	if each > 50*time.Millisecond { // 5 ms, ten times wider
		t.Errorf("a call costs %v of CPU", each)
	}
}

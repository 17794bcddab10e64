package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// mcpSession runs 'pybox mcp' with a standard input of its own.
func mcpSession(t *testing.T, input string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	root := rootCommand()
	root.SetArgs(append([]string{"mcp"}, args...))
	root.SetIn(strings.NewReader(input))
	root.SetOut(&out)
	root.SetErr(&errs)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	code = exitCode(root.ExecuteContext(ctx), &errs)
	return out.String(), errs.String(), code
}

const mcpHello = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"lines","version":"1"}}}
{"jsonrpc":"2.0","method":"notifications/initialized"}
{"jsonrpc":"2.0","id":1,"method":"tools/list"}
{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"run_python","arguments":{"code":"print(1)"}}}
`

func privateHome(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PYBOX_HOME", dir)
	return dir
}

// TestMCPFlags: what a person has mistyped, or may not have, is told at the start.
func TestMCPFlags(t *testing.T) {
	privateHome(t)
	for args, say := range map[string]string{
		"--max-timeout 1h": "--max-timeout of 1h0m0s: not possible: the ceiling is 30s", "--max-memory 2GiB": "--max-memory of 2 GiB",
		"--max-output 17MiB": "--max-output of 17 MiB", "--max-timeout soon": "--max-timeout: ", "--max-timeout 0": "no time",
		"--max-memory much": "--max-memory: ", "--max-output 0": "more than nothing", "--images A/B": "--images: ", "more": "not a command",
		"--http 0.0.0.0:80": "--http: ", "--http example.com:80": "--http: ",
	} {
		out, errs, code := mcpSession(t, mcpHello, strings.Fields(args)...)
		if code != exitUsage || out != "" || !strings.Contains(errs, say) {
			t.Errorf("%s: exit %d, stdout %q, stderr %q; want %q", args, code, out, errs, say)
		}
	}
}

// TestMCPWithoutSetUp: whatever is wrong with this machine's PyBox, the protocol works,
// nothing else is on standard output, and the tool's answer says what to do.
func TestMCPWithoutSetUp(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(home string) error
		say     string
	}{
		"a config that is none": {func(home string) error {
			return os.WriteFile(filepath.Join(home, "config.toml"), []byte("[vm]\nmemroy = 1\n"), 0o600)
		}, "vm.memroy"},
		"a folder for all": {func(home string) error { return os.Chmod(home, 0o777) }, "pybox setup --yes"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := c.prepare(privateHome(t)); err != nil {
				t.Fatal(err)
			}
			out, errs, code := mcpSession(t, mcpHello)
			if code != 0 {
				t.Errorf("exit %d: %s", code, errs)
			}
			answers := map[string]string{}
			for line := range strings.Lines(out) {
				var m struct {
					JSONRPC string
					ID      json.RawMessage
				}
				if err := json.Unmarshal([]byte(line), &m); err != nil || m.JSONRPC != "2.0" {
					t.Errorf("%q is not the protocol: %v", line, err)
				}
				answers[string(m.ID)] = line
			}
			for id, say := range map[string]string{"0": "serverInfo", "1": "run_python", "2": c.say} {
				if !strings.Contains(answers[id], say) {
					t.Errorf("the answer %s is %q, want %q in it", id, answers[id], say)
				}
			}
			if !strings.Contains(answers["2"], `"isError":true`) {
				t.Errorf("no error: %s", answers["2"])
			}
		})
	}
}

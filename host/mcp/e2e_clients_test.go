package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/engine/enginetest"
)

// clientsFolder is where scripts/mcp-clients has installed clients that are not
// ours.
func clientsFolder(t *testing.T) string {
	t.Helper()
	if os.Getenv("PYBOX_E2E") == "" {
		t.Skip("PYBOX_E2E is not set: 'make e2e' runs this")
	}
	dir := os.Getenv("PYBOX_TEST_MCP_CLIENTS")
	if dir == "" {
		t.Fatal("PYBOX_E2E=1 needs PYBOX_TEST_MCP_CLIENTS, the folder that scripts/mcp-clients names")
	}
	return dir
}

// node runs a program of Node 22, which is one of the clients.
func node(t *testing.T, dir string, args ...string) (string, error) {
	t.Helper()
	arch := map[string]string{"amd64": "x64"}[runtime.GOARCH]
	if arch == "" {
		arch = runtime.GOARCH
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(dir, "node_modules", "node-linux-"+arch, "bin", "node"), args...)
	cmd.Dir = t.TempDir() // where some of them write
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), err
}

// proxy is a port without a token before a server with one: the suite cannot send any.
// What names the proxy names the server there; every other Host and Origin goes
// through as it is. version, where it is set, is put in the place of the version of the
// protocol that requests name.
func proxy(t *testing.T, w *web, version string) string {
	t.Helper()
	to, err := url.Parse(w.url)
	if err != nil {
		t.Fatal(err)
	}
	var own string
	p := httptest.NewUnstartedServer(&httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) {
		r.Out.URL.Scheme, r.Out.URL.Host = to.Scheme, to.Host
		if r.Out.Host = r.In.Host; r.In.Host == own {
			r.Out.Host = to.Host
		}
		if r.In.Header.Get("Origin") == "http://"+own {
			r.Out.Header.Set("Origin", "http://"+to.Host)
		}
		r.Out.Header.Set("Authorization", "Bearer "+token)
		if version != "" && r.In.Header.Get("Mcp-Protocol-Version") != "" {
			r.Out.Header.Set("Mcp-Protocol-Version", version)
		}
	}})
	t.Cleanup(p.Close)
	own = p.Listener.Addr().String()
	p.Start()
	return p.URL + to.Path
}

// aliases are the tools that scenarios of the suite call by names of their own: each is
// run_python with these arguments. What it gives is what run_python gives.
var aliases = map[string]string{
	"test_simple_text":            `{"code":"text"}`,
	"test_image_content":          `{"code":"files","return_files":["*.png"]}`,
	"test_embedded_resource":      `{"code":"files","return_files":["*.csv"]}`,
	"test_multiple_content_types": `{"code":"files","return_files":["*"]}`,
	"test_error_handling":         `{"code":"fail"}`,
	"test_tool_with_progress":     `{"code":"slow"}`,
}

// suiteProgram is what runs do there.
func suiteProgram(t *testing.T) func(context.Context, *enginetest.Run) error {
	picture := pngOf(t, 10, 10)
	return func(ctx context.Context, r *enginetest.Run) error {
		switch *r.Request.Program.Text {
		case "files":
			r.Leave("a.png", picture)
			r.Leave("b.csv", []byte("a,b\n"))
		case "fail":
			r.Exit(1)
		case "slow":
			for _, e := range []string{api.EventQueued, api.EventAdmitted, api.EventStarted, api.EventExited} {
				if err := r.Event(api.Event{Event: e}); err != nil {
					return err
				}
				select { // each is to be seen by itself
				case <-ctx.Done():
				case <-time.After(50 * time.Millisecond):
				}
			}
		}
		return r.Print("stdout", "This is a text\n")
	}
}

// serveSuite is serve with the tools of the suite too.
func serveSuite(t *testing.T) *web {
	t.Helper()
	s := newServer(t, &enginetest.Host{Program: suiteProgram(t)}, Options{})
	return serveServer(t, s, func(server *sdk.Server) {
		for name, args := range aliases {
			tool := *s.tool
			tool.Name = name
			tool.InputSchema = object{"type": "object"}
			server.AddTool(&tool, func(ctx context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
				req.Params.Arguments = json.RawMessage(args)
				return s.call(ctx, req)
			})
		}
		server.AddTool(&sdk.Tool{Name: "test_reconnection", InputSchema: object{"type": "object"}}, reconnect)
		server.AddTool(&sdk.Tool{Name: "json_schema_2020_12_tool", InputSchema: object{
			"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object", "additionalProperties": false,
			"$defs":      object{"address": object{"type": "object", "properties": object{"street": object{"type": "string"}, "city": object{"type": "string"}}}},
			"properties": object{"name": object{"type": "string"}, "address": object{"$ref": "#/$defs/address"}},
		}}, reconnect)
	})
}

// reconnect ends the stream of a call and gives its result to a client that comes back.
func reconnect(ctx context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
	if end := req.Extra.CloseSSEStream; end != nil {
		end(sdk.CloseSSEStreamArgs{RetryAfter: 100 * time.Millisecond})
	}
	select {
	case <-ctx.Done():
	case <-time.After(200 * time.Millisecond): // the client's way back
	}
	return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: "back"}}}, nil
}

// How a scenario of the suite applies: suite's values.
const (
	asItIs  = "as it is"
	byAlias = "with a tool of the suite's name"
)

// suite is every scenario for servers, and how it applies, or why it does not.
// docs/mcp.md has the same as a table.
var suite = map[string]string{
	"server-initialize": asItIs, "ping": asItIs, "tools-list": asItIs, "dns-rebinding-protection": asItIs, "server-sse-multiple-streams": asItIs,
	"tools-call-simple-text": byAlias, "tools-call-image": byAlias, "tools-call-embedded-resource": byAlias, "tools-call-mixed-content": byAlias,
	"tools-call-error": byAlias, "tools-call-with-progress": byAlias, "server-sse-polling": byAlias, "json-schema-2020-12": byAlias,
	"tools-call-audio": "no tool gives sound", "logging-set-level": "no logging", "tools-call-with-logging": "no logging",
	"completion-complete": "no completion", "tools-call-sampling": "nothing is asked of the client", "tools-call-elicitation": "nothing is asked of the client",
	"elicitation-sep1034-defaults": "nothing is asked of the client", "elicitation-sep1330-enums": "nothing is asked of the client",
	"resources-list": "no resources", "resources-read-text": "no resources", "resources-read-binary": "no resources",
	"resources-templates-read": "no resources", "resources-subscribe": "no resources", "resources-unsubscribe": "no resources",
	"prompts-list": "no prompts", "prompts-get-simple": "no prompts", "prompts-get-with-args": "no prompts",
	"prompts-get-embedded-resource": "no prompts", "prompts-get-with-image": "no prompts",
}

// TestConformanceTable: the page tells of each scenario what the tests do with it.
func TestConformanceTable(t *testing.T) {
	page, err := os.ReadFile("../../docs/mcp.md")
	if err != nil {
		t.Fatal(err)
	}
	words := map[string]string{asItIs: "passed |", byAlias: "passed, by name"}
	for name, how := range suite {
		want := words[how]
		if want == "" {
			want = "not apply: " + how
		}
		row := regexp.MustCompile("(?m)^\\|.*`" + name + "`.*$").Find(page)
		if !strings.Contains(string(row), want) {
			t.Errorf("docs/mcp.md says %q of %s, want %q", row, name, want)
		}
	}
}

// TestE2EConformance runs every scenario of the protocol's own suite that applies.
func TestE2EConformance(t *testing.T) {
	dir := clientsFolder(t)
	program := filepath.Join(dir, "node_modules", "@modelcontextprotocol", "conformance", "dist", "index.js")
	out, err := node(t, dir, program, "list")
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	servers, _, _ := strings.Cut(out, "Client scenarios")
	var names []string
	for _, m := range regexp.MustCompile(`(?m)^  - (\S+) `).FindAllStringSubmatch(servers, -1) {
		if names = append(names, m[1]); suite[m[1]] == "" {
			t.Errorf("nobody knows whether the scenario %s applies", m[1])
		}
	}
	// The scenario of polling names 2025-03-26 in its requests and wants what came with
	// 2025-11-25, which is what its session has.
	plain, more := proxy(t, serveServer(t, newServer(t, &enginetest.Host{}, Options{}), nil), ""), proxy(t, serveSuite(t), "2025-11-25")
	for name, how := range suite {
		at := map[string]string{asItIs: plain, byAlias: more}[how]
		if !slices.Contains(names, name) {
			t.Errorf("the suite has no scenario %s", name)
		}
		if at == "" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			out, err := node(t, dir, program, "server", "--url", at, "--scenario", name)
			if err != nil || !regexp.MustCompile(`Passed: (\d+)/(\d+), 0 failed, 0 warnings`).MatchString(out) || strings.Contains(out, "Passed: 0/") {
				t.Errorf("%v:\n%s", err, out)
			}
		})
	}
}

// TestE2EConformanceCanFail: the suite tells of a server that does not speak the protocol,
// so that its silence is worth something. It tells nothing of the gate, since the SDK
// looks at names by itself; that is TestHTTPRefuses.
func TestE2EConformanceCanFail(t *testing.T) {
	dir := clientsFolder(t)
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "{}") }))
	defer h.Close()
	out, err := node(t, dir, filepath.Join(dir, "node_modules", "@modelcontextprotocol", "conformance", "dist", "index.js"), "server", "--url", h.URL, "--scenario", "ping")
	if m := regexp.MustCompile(`Passed: \d+/\d+, (\d+) failed`).FindStringSubmatch(out); err == nil || m == nil || m[1] == "0" {
		t.Errorf("%v:\n%s", err, out)
	}
}

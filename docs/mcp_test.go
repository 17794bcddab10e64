package docs

import (
	"encoding/json"
	"os"
	"regexp"
	"testing"

	"github.com/pelletier/go-toml/v2"
)

// TestMCPConfigurations: what is there to be pasted is read by who it is for.
func TestMCPConfigurations(t *testing.T) {
	page, err := os.ReadFile("mcp.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?ms)^```(json|toml)\n(.*?)^```$").FindAllSubmatch(page, -1)
	if len(blocks) != 5 {
		t.Fatalf("%d configurations, want 5", len(blocks))
	}
	type server struct {
		Type, Command string
		Args          []string
		Startup       int `toml:"startup_timeout_sec" json:"-"`
		Tool          int `toml:"tool_timeout_sec" json:"-"`
	}
	for _, b := range blocks {
		var c struct {
			McpServers map[string]server `json:"mcpServers"`
			Servers    map[string]server `json:"servers"`
			Codex      map[string]server `json:"-" toml:"mcp_servers"`
		}
		if string(b[1]) == "json" {
			err = json.Unmarshal(b[2], &c)
		} else {
			err = toml.Unmarshal(b[2], &c)
		}
		found := 0
		for _, all := range []map[string]server{c.McpServers, c.Servers, c.Codex} {
			if s, ok := all["pybox"]; ok && len(all) == 1 && s.Command != "" && len(s.Args) == 1 && s.Args[0] == "mcp" {
				found++
			}
		}
		if err != nil || found != 1 {
			t.Errorf("%v, %d servers in:\n%s", err, found, b[2])
		}
	}
}

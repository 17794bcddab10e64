package initd

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// PID 1 starts before everything and lives with everything: it carries no protocol but
// its own.
func TestCarriesNoProtocolOfTheAgent(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "./cmd/pybox-init")
	cmd.Dir = "../.."
	cmd.Env = append(cmd.Environ(), "GOOS=linux", "CGO_ENABLED=0")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v", cmd, err)
	}
	deps := strings.Fields(string(out))
	if !slices.Contains(deps, "github.com/pybox/pybox/agent/initd") {
		t.Fatalf("not its packages: %d of them", len(deps))
	}
	for _, d := range deps {
		if d == "net/http" || strings.HasPrefix(d, "google.golang.org/") || strings.HasPrefix(d, "connectrpc.com/") || d == "crypto/tls" {
			t.Errorf("PID 1 carries %s", d)
		}
	}
}

package engine

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/runc"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// TestShortenBundle: what the shim asks a bundle for when a process ends is the same after
// it was shortened.
func TestShortenBundle(t *testing.T) {
	for name, c := range map[string]struct {
		namespaces []specs.LinuxNamespace
		killAll    bool
	}{
		"own pid namespace":    {[]specs.LinuxNamespace{{Type: specs.MountNamespace}, {Type: specs.PIDNamespace}}, false},
		"shared pid namespace": {[]specs.LinuxNamespace{{Type: specs.PIDNamespace, Path: "/proc/1/ns/pid"}}, true},
		"none":                 {nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "bundle")
			spec := &specs.Spec{Version: "1.3.0", Hostname: "box", Linux: &specs.Linux{Namespaces: c.namespaces}}
			whole, err := json.Marshal(spec)
			if err != nil {
				t.Fatal(err)
			}
			if err := writeBundle(dir, whole); err != nil {
				t.Fatal(err)
			}
			if got := runc.ShouldKillAllOnExit(t.Context(), dir); got != c.killAll {
				t.Fatalf("before: %t", got)
			}
			if err := shortenBundle(dir, spec); err != nil {
				t.Fatal(err)
			}
			if got := runc.ShouldKillAllOnExit(t.Context(), dir); got != c.killAll {
				t.Errorf("after: %t", got)
			}
			left, err := os.ReadFile(filepath.Join(dir, "config.json"))
			entries, _ := os.ReadDir(dir)
			if err != nil || len(left) >= len(whole) || len(entries) != 1 {
				t.Errorf("%v, %q of %q, %v", err, left, whole, entries)
			}
		})
	}
}

package initd

import (
	"slices"
	"testing"
	"time"
)

// TestEarlierStages: the init of the root tells what was before it, whether it came
// from an initial RAM file system or from the kernel itself.
func TestEarlierStages(t *testing.T) {
	t.Setenv(StagesEnv, "")
	if got := earlierStages(7); !slices.Equal(got, []stage{{"kernel", 7}}) {
		t.Errorf("without an initial RAM file system: %v", got)
	}
	t.Setenv(StagesEnv, formatStages([]stage{{"kernel", 3}, {"modules", 5 * time.Second}}))
	if got := earlierStages(6 * time.Second); !slices.Equal(got, []stage{{"kernel", 3}, {"modules", 5 * time.Second}, {"root", 6 * time.Second}}) {
		t.Errorf("behind one: %v", got)
	}
}

package guest

import (
	"testing"

	"github.com/pybox/pybox/guest/debian"
)

// TestLock: what is in the program is whole and has every set there is a recipe for.
func TestLock(t *testing.T) {
	l, err := Lock()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range debian.Recipes() {
		for _, arch := range []string{"amd64", "arm64"} {
			if _, err := l.Set(r.Set, arch); err != nil {
				t.Error(err)
			}
		}
	}
}

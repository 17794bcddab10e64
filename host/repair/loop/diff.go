package loop

import "github.com/aymanbagabas/go-udiff"

// diffOf is what changed, as a unified diff; empty when nothing did.
func diffOf(name, before, after string) string {
	return udiff.Unified("a/"+name, "b/"+name, before, after)
}

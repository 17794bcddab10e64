package loop

import (
	"github.com/aymanbagabas/go-udiff"
	"github.com/pybox/pybox/host/repair/answer"
)

// diffOf is what changed but for the kind of line ends, as a unified diff; empty when
// nothing did.
func diffOf(name, before, after string) string {
	return udiff.Unified("a/"+name, "b/"+name, answer.Unix(before), answer.Unix(after))
}

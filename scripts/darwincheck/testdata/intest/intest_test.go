//go:build darwin && cgo

package intest

import "testing"

func TestState(t *testing.T) {
	if state("running") != 0 {
		t.Error("not stopped")
	}
}

package userimage

import (
	"context"
	"errors"
	"testing"

	"github.com/pybox/pybox/guest/pep508"
	"github.com/pybox/pybox/guest/wheel"
)

// TestCompleteHearsTheContext: also where there is a lot to look at.
func TestCompleteHearsTheContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	b := &base{Base: Base{Name: "stdlib"}, python: "3.13.5", env: pep508.Guest("3.13.5", "x86_64")}
	d := dist{Metadata: wheel.Metadata{Name: "a", Version: "1", RequiresDist: []string{"a"}}, wheel: "a-1-py3-none-any.whl"}
	if _, err := checkComplete(ctx, b, []dist{d}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if notes, err := checkComplete(t.Context(), b, []dist{d}); err != nil || len(notes) != 0 {
		t.Errorf("%q, %v", notes, err)
	}
}

//go:build linux && !pyboxtest

package main

import (
	"context"
	"errors"
)

// benchRuns needs what only test builds of the guest answer.
func benchRuns(context.Context, options, *report) error {
	return errors.New("build this command with the tag pyboxtest")
}

// benchReady needs the same.
func benchReady(ctx context.Context, o options, r *report) error { return benchRuns(ctx, o, r) }

// benchData needs the same.
func benchData(ctx context.Context, o options, r *report) error { return benchRuns(ctx, o, r) }

package vmtest

import (
	"log/slog"
	"os"
	"testing"

	"github.com/pybox/pybox/guest/bundle"
)

// Bundle is the guest bundle that end-to-end tests boot. Those tests run where
// PYBOX_E2E=1; PYBOX_TEST_BUNDLE then names the bundle's folder ('make test' sets
// both).
func Bundle(t testing.TB) *bundle.Bundle {
	t.Helper()
	if os.Getenv("PYBOX_E2E") != "1" {
		t.Skip("end-to-end: set PYBOX_E2E=1")
	}
	dir := os.Getenv("PYBOX_TEST_BUNDLE")
	if dir == "" {
		t.Fatal("PYBOX_E2E=1 needs PYBOX_TEST_BUNDLE, the folder of a guest bundle ('make bundle' makes one)")
	}
	b, err := bundle.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Logger writes to the test's log.
func Logger(t testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
}

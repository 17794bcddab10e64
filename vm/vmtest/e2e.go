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
	return open(t, "PYBOX_TEST_BUNDLE", "testbundle")
}

// DataBundle is a guest bundle with the image "data" beside those of Bundle; it is for
// the same tests.
func DataBundle(t testing.TB) *bundle.Bundle {
	t.Helper()
	if os.Getenv("PYBOX_E2E") != "1" {
		t.Skip("end-to-end: set PYBOX_E2E=1")
	}
	return open(t, "PYBOX_TEST_DATA_BUNDLE", "databundle")
}

// open opens the bundle in a folder that a variable names and a target makes.
func open(t testing.TB, variable, target string) *bundle.Bundle {
	t.Helper()
	dir := os.Getenv(variable)
	if dir == "" {
		t.Fatalf("PYBOX_E2E=1 needs %s, the folder of a guest bundle ('make %s' makes one)", variable, target)
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

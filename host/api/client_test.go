package api

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestSocketBelowFile: what is wrong is told in terms of the socket, and not of the
// address that a request over it has.
func TestSocketBelowFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(file, "s")
	_, err := NewClient(socket).Status(t.Context())
	if !errors.Is(err, syscall.ENOTDIR) || !strings.Contains(err.Error(), socket) || strings.Contains(err.Error(), "http") {
		t.Errorf("got %v", err)
	}
}

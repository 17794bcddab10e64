//go:build unix

package pyindex

import (
	"errors"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A pipe with a wheel's name would hold whoever opens it.
func TestPipesAreNotOpened(t *testing.T) {
	f := wheel("a-1.0-py3-none-any.whl")
	dir := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, f.name), 0o644); err != nil {
		t.Fatal(err)
	}
	c := client(t, Options{Offline: true, FindLinks: []string{dir}})
	_, err := c.Choose(bounded(t), lockOf(t, pin("a==1.0", f)), guest)
	if !errors.Is(err, ErrChoice) || !strings.Contains(err.Error(), "is no regular file") {
		t.Error(err)
	}
	if _, err := c.Fetch(bounded(t), []Chosen{{File: f.name, SHA256: f.digest(), Bytes: 5, path: filepath.Join(dir, f.name)}}, nil); err == nil {
		t.Error("it was fetched")
	}
}

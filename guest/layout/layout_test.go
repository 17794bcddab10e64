package layout

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func onDisk(dir string) func(string) (fs.FileMode, error) {
	return func(p string) (fs.FileMode, error) {
		st, err := os.Lstat(filepath.Join(dir, p))
		if err != nil {
			return 0, err
		}
		return st.Mode(), nil
	}
}

func TestCheck(t *testing.T) {
	whole := func(t *testing.T) string {
		dir := t.TempDir()
		for _, d := range Dirs() {
			if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}
	if err := Check(onDisk(whole(t))); err != nil {
		t.Fatal(err)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range Dirs() {
		dir := whole(t)
		p := filepath.Join(dir, d)
		for _, c := range []struct {
			make func()
			says string
		}{
			{func() {}, "/" + d + " is missing"},
			{func() { must(os.WriteFile(p, nil, 0o644)) }, "/" + d + " is no folder (----------)"},
			{func() { must(os.Symlink(t.TempDir(), p)) }, "/" + d + " is no folder (L---------)"},
		} {
			must(os.Remove(p))
			c.make()
			if err := Check(onDisk(dir)); !errors.Is(err, Err) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want %q", err, c.says)
			}
			must(os.WriteFile(p+".next", nil, 0o600))
			if _, err := os.Lstat(p); err != nil {
				must(os.Rename(p+".next", p))
			}
		}
	}
	if err := Check(func(string) (fs.FileMode, error) { return 0, fs.ErrPermission }); !errors.Is(err, Err) || !errors.Is(err, fs.ErrPermission) {
		t.Errorf("got %v", err)
	}
}

// TestDirsIsACopy: no caller can take a folder off the list.
func TestDirsIsACopy(t *testing.T) {
	Dirs()[0] = "nothing"
	if Dirs()[0] != "box" {
		t.Error("the list was changed")
	}
}

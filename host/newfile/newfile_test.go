package newfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// TestWrite: both ways make a file with the mode that the umask leaves, replace nothing,
// and leave nothing else behind.
func TestWrite(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o027))
	for name, write := range map[string]func(string, []byte, fs.FileMode) error{"link": Write, "no links": inPlace} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "r.json")
			if err := write(path, []byte("one"), 0o644); err != nil {
				t.Fatal(err)
			}
			if err := write(path, []byte("two"), 0o644); !errors.Is(err, fs.ErrExist) {
				t.Errorf("over a file: %v", err)
			}
			if b, err := os.ReadFile(path); err != nil || string(b) != "one" {
				t.Errorf("%q, %v", b, err)
			}
			if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o640 {
				t.Errorf("%v, %v", st.Mode(), err)
			}
			link := filepath.Join(dir, "link")
			if err := os.Symlink("nowhere", link); err != nil {
				t.Fatal(err)
			}
			if err := write(link, []byte("x"), 0o600); !errors.Is(err, fs.ErrExist) {
				t.Errorf("over a link that leads nowhere: %v", err)
			}
			if err := write(filepath.Join(dir, "no", "r"), nil, 0o600); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("in a folder that is not there: %v", err)
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) != 2 {
				t.Errorf("left: %v, %v", left, err)
			}
		})
	}
}

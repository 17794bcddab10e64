package pyindex

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"github.com/pybox/pybox/guest/pytag"
)

// maxFolderEntries bounds what is looked at in one folder.
const maxFolderEntries = 100_000

// local is a wheel in a folder of this machine.
type local struct {
	wheel pytag.Wheel
	path  string
}

// readFolders lists the wheels of all folders by project. What has no wheel's name
// is passed over.
func readFolders(dirs []string) (map[string][]local, error) {
	found := map[string][]local{}
	for _, dir := range dirs {
		d, err := os.Open(dir)
		if err != nil {
			return nil, fmt.Errorf("--find-links: %w", err)
		}
		names, err := d.Readdirnames(maxFolderEntries + 1)
		_ = d.Close()
		if err != nil && err != io.EOF {
			return nil, fmt.Errorf("--find-links: %w", err)
		}
		if len(names) > maxFolderEntries {
			return nil, fmt.Errorf("--find-links: %s has more than %d entries", dir, maxFolderEntries)
		}
		for _, name := range names {
			if w, err := pytag.Parse(name); err == nil {
				found[w.Name] = append(found[w.Name], local{w, filepath.Join(dir, name)})
			}
		}
	}
	return found, nil
}

// digest reads a wheel and gives its SHA-256 and size.
func (l local) digest(ctx context.Context) (string, int64, error) {
	f, size, err := openRegular(l.path)
	if err != nil {
		return "", 0, err
	}
	defer f.Close()
	if size <= 0 || size > MaxWheelBytes {
		return "", 0, fmt.Errorf("%s has %d bytes; a wheel has 1 to %d", l.path, size, MaxWheelBytes)
	}
	h := sha256.New()
	n, err := io.Copy(h, io.LimitReader(reader{ctx, f}, MaxWheelBytes))
	return hex.EncodeToString(h.Sum(nil)), n, err
}

// openRegular opens a file and gives its size. It does not wait, as opening a pipe
// would, and what was opened is what is looked at.
func openRegular(name string) (*os.File, int64, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, 0, err
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = fmt.Errorf("%s is no regular file", name)
	}
	if err != nil {
		_ = f.Close()
		return nil, 0, err
	}
	return f, st.Size(), nil
}

// reader ends with its context.
type reader struct {
	ctx context.Context
	r   io.Reader
}

func (r reader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}

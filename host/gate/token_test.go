package gate

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func TestToken(t *testing.T) {
	old := syscall.Umask(0)
	defer syscall.Umask(old)
	path := filepath.Join(t.TempDir(), "api-token")
	first, err := Token(path)
	if err != nil || len(first) != 2*tokenBytes {
		t.Fatalf("%q, %v", first, err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode() != 0o600 {
		t.Errorf("its mode is %v, %v", st.Mode(), err)
	}
	if again, err := Token(path); again != first || err != nil {
		t.Errorf("%q and then %q, %v", first, again, err)
	}
	if other, err := Token(filepath.Join(t.TempDir(), "api-token")); other == first || err != nil {
		t.Errorf("two homes have one token: %q, %v", other, err)
	}
	if left, err := os.ReadDir(filepath.Dir(path)); len(left) != 1 {
		t.Errorf("beside it lie %v, %v", left, err)
	}
}

func TestTokenForAllTheSame(t *testing.T) {
	path := filepath.Join(t.TempDir(), "api-token")
	var all sync.Map
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			token, err := Token(path)
			if err != nil {
				t.Error(err)
			}
			all.Store(token, nil)
		})
	}
	wg.Wait()
	n := 0
	all.Range(func(any, any) bool { n++; return true })
	if n != 1 {
		t.Errorf("%d tokens", n)
	}
}

func TestTokenRefuses(t *testing.T) {
	good := strings.Repeat("a", 64)
	for name, make := range map[string]func(path string) error{
		"others read":  func(p string) error { return errors.Join(os.WriteFile(p, []byte(good), 0o600), os.Chmod(p, 0o640)) },
		"others write": func(p string) error { return errors.Join(os.WriteFile(p, []byte(good), 0o600), os.Chmod(p, 0o602)) },
		"empty":        func(p string) error { return os.WriteFile(p, nil, 0o600) },
		"short":        func(p string) error { return os.WriteFile(p, []byte(good[:31]), 0o600) },
		"long":         func(p string) error { return os.WriteFile(p, []byte(strings.Repeat(good, 3)), 0o600) },
		"huge":         func(p string) error { return os.WriteFile(p, []byte(strings.Repeat(good, 3000)), 0o600) },
		"two lines":    func(p string) error { return os.WriteFile(p, []byte(good+"\n"+good+"\n"), 0o600) },
		"control":      func(p string) error { return os.WriteFile(p, []byte(good+"\r\n"), 0o600) },
		"folder":       func(p string) error { return os.Mkdir(p, 0o700) },
		"fifo":         func(p string) error { return syscall.Mkfifo(p, 0o600) },
		"link": func(p string) error {
			return errors.Join(os.WriteFile(p+".x", []byte(good), 0o600), os.Symlink(p+".x", p))
		},
		"link to nothing": func(p string) error { return os.Symlink(p+".x", p) },
	} {
		path := filepath.Join(t.TempDir(), "api-token")
		if err := make(path); err != nil {
			t.Fatal(name, err)
		}
		if token, err := Token(path); !errors.Is(err, ErrToken) || token != "" {
			t.Errorf("%s: %q, %v", name, token, err)
		}
	}
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: a file of somebody else's needs root")
	}
	path := filepath.Join(t.TempDir(), "api-token")
	if err := errors.Join(os.WriteFile(path, []byte(good), 0o600), os.Chown(path, 12345, -1)); err != nil {
		t.Fatal(err)
	}
	if _, err := Token(path); !errors.Is(err, ErrToken) {
		t.Errorf("somebody else's: %v", err)
	}
}

// TestTokenSweeps: what was left by a process that was killed while it made a token goes, and
// what another one makes now stays.
func TestTokenSweeps(t *testing.T) {
	dir := t.TempDir()
	old, fresh, other := filepath.Join(dir, tokenPrefix+"1"), filepath.Join(dir, tokenPrefix+"2"), filepath.Join(dir, "other")
	long := time.Now().Add(-2 * oldToken)
	for _, name := range []string{old, fresh, other} {
		if err := os.WriteFile(name, []byte("secret"), 0o600); err != nil {
			t.Fatal(err)
		}
		if name == fresh {
			continue
		}
		if err := os.Chtimes(name, long, long); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Token(filepath.Join(dir, "token")); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{old: false, fresh: true, other: true} {
		if _, err := os.Stat(name); (err == nil) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

package gate

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// ErrToken: the file of a token cannot be used.
var ErrToken = errors.New("the token's file cannot be used")

// tokenBytes is the length of a token that is made, in bytes of two digits each;
// maxToken bounds the file of one.
const (
	tokenBytes = 32
	maxToken   = 256
)

// tokenForm is what a token looks like: long enough that nobody guesses it, and of what
// needs no quoting anywhere.
var tokenForm = regexp.MustCompile(`^[A-Za-z0-9_-]{32,128}$`)

// Token reads the token in the file at path, or makes one there, of 32 random bytes as
// hexadecimal digits, for its owner's eyes alone. Any number of processes may do so at
// the same time: all get the same. The folder must be one that nobody else can write to.
// The error matches ErrToken where the file is not a regular one of the user's own that
// others can neither read nor write, or has no token in it.
func Token(path string) (string, error) {
	sweep(filepath.Dir(path))
	token, err := readToken(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return token, err
	}
	if err := makeToken(path); err != nil {
		return "", fmt.Errorf("making a token: %w", err)
	}
	return readToken(path)
}

// CheckToken tells what is wrong with the token in the file at path, as Token would, and
// makes none: the error is nil where there is no file.
func CheckToken(path string) error {
	_, err := readToken(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func readToken(path string) (string, error) {
	// O_NONBLOCK: a FIFO would wait for a writer.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, syscall.ELOOP):
		return "", fmt.Errorf("%w: %s is a link: remove it", ErrToken, path)
	case err != nil:
		return "", err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return "", err
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	switch {
	case !st.Mode().IsRegular():
		return "", fmt.Errorf("%w: %s is no regular file: remove it", ErrToken, path)
	case !ok || int(sys.Uid) != os.Geteuid():
		return "", fmt.Errorf("%w: %s belongs to somebody else: remove it", ErrToken, path)
	case st.Mode().Perm()&0o077 != 0:
		return "", fmt.Errorf("%w: others can read %s (%v), so it is no secret: remove it, and a new one is made", ErrToken, path, st.Mode())
	}
	b, err := io.ReadAll(io.LimitReader(f, maxToken))
	if err != nil {
		return "", err
	}
	token := strings.TrimSuffix(string(b), "\n")
	if !tokenForm.MatchString(token) {
		return "", fmt.Errorf("%w: %s has no token in it: remove it, and a new one is made", ErrToken, path)
	}
	return token, nil
}

// tokenPrefix begins the names of files that are to become a token's, and oldToken is how old
// one is that nobody makes any more.
const (
	tokenPrefix = ".token-"
	oldToken    = time.Hour
)

// sweep removes what a process left in dir that ended while it made a token.
func sweep(dir string) {
	entries, _ := os.ReadDir(dir) // whoever needs it will find that it is not there
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), tokenPrefix) || !e.Type().IsRegular() {
			continue
		}
		if st, err := e.Info(); err == nil && time.Since(st.ModTime()) > oldToken {
			_ = os.Remove(filepath.Join(dir, e.Name())) // the next one tries again
		}
	}
}

// makeToken makes the file whole or not at all. One that somebody else made meanwhile
// stays.
func makeToken(path string) error {
	f, err := os.CreateTemp(filepath.Dir(path), tokenPrefix) // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	secret := make([]byte, tokenBytes)
	rand.Read(secret) // never fails
	_, err = f.WriteString(hex.EncodeToString(secret) + "\n")
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Link(f.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

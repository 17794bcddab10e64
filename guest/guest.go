// Package guest holds what a guest is made of: the lock file of its Debian
// packages, as it was when this program was built. Making a bundle of it is for
// package build.
package guest

import (
	_ "embed"
	"fmt"

	"github.com/pybox/pybox/guest/debian"
)

//go:embed debian.lock.json
var lock []byte

// Lock parses the embedded lock file. The result is the caller's.
func Lock() (*debian.Lock, error) {
	l, err := debian.ParseLock(lock)
	if err != nil {
		return nil, fmt.Errorf("the lock file in this program: %w", err)
	}
	return l, nil
}

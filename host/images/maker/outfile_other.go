//go:build !linux

package maker

import (
	"errors"
	"os"
)

// nameless makes none: no other system names such a file later.
func nameless(string) *os.File { return nil }

func linkNameless(*os.File, string) error { return errors.ErrUnsupported }

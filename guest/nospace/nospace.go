// Package nospace says in one way, wherever PyBox writes much, that a disk is
// full: what was being written and where, how much room it needs, and what to do.
package nospace

import (
	"errors"
	"fmt"
	"syscall"
)

// Err is matched by every error that Explain made of a full disk.
var Err = errors.New("no room on the disk")

// Is tells whether err comes from a full disk or a used-up quota.
func Is(err error) bool {
	return errors.Is(err, Err) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// Explain returns an error that matches Err and err when err comes from a full
// disk, and err itself otherwise, also when it was explained already. what was
// being written below dir; need is its size in bytes, 0 where unknown; advice
// is what helps beside making room in dir, and may be empty.
func Explain(err error, what, dir string, need int64, advice string) error {
	if err == nil || errors.Is(err, Err) || !Is(err) {
		return err
	}
	size := ""
	if need > 0 {
		size = fmt.Sprintf(" needs %s and", mebibytes(need))
	}
	if advice != "" {
		advice = ", or " + advice
	}
	return fmt.Errorf("%w: %s%s does not fit into %s; free some space there%s: %w", Err, what, size, dir, advice, err)
}

// mebibytes rounds up: what is asked for must be enough.
func mebibytes(n int64) string { return fmt.Sprintf("%d MiB", (n+1<<20-1)>>20) }

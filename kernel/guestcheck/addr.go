//go:build linux

package main

import "unsafe"

// addressOf is where a mapping begins, for files such as /proc/self/mem that are
// addressed by it.
func addressOf(page []byte) int64 {
	return int64(uintptr(unsafe.Pointer(unsafe.SliceData(page))))
}

//go:build linux

package main

import "unsafe"

// addr is where p points, for a system call.
func addr[T any](p *T) uintptr { return uintptr(unsafe.Pointer(p)) }

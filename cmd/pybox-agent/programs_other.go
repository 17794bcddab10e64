//go:build !linux

package main

// programs is empty: the guest is Linux.
func programs() map[string]func() int { return nil }

//go:build !linux

package main

// runInit does nothing: the guest is Linux.
func runInit() {}

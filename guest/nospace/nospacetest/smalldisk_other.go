//go:build !linux

// Package nospacetest gives tests disks that are full soon.
package nospacetest

import "testing"

// OwnMounts skips the calling test: small disks are made of Linux namespaces.
func OwnMounts(t *testing.T) bool {
	t.Skip("needs Linux")
	return false
}

// Disk is not reached.
func Disk(t *testing.T, _ int) string {
	t.Fatal("needs Linux")
	return ""
}

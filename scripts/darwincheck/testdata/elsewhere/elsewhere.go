//go:build linux

// Package elsewhere is for another system.
package elsewhere

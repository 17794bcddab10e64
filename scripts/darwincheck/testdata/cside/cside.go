//go:build darwin && cgo

// Package cside has a type of the C side in its own interface.
package cside

// typedef int number;
import "C"

// Number cannot be known without a C compiler.
func Number() C.number { return 0 }

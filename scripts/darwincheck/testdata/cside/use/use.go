//go:build darwin && cgo

// Package use takes a number for a function, which go/types cannot tell.
package use

import "github.com/pybox/pybox/scripts/darwincheck/testdata/cside"

func number() string { return cside.Number().String() }
